"""The watcher ends the group of what it started, however its own parent dies; with stand-ins for the server."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

WATCH = str(Path(__file__).parents[3] / "helpers/serving/watch.py")
# A server with a child of its own, as vLLM's has; both say their pids.
SERVER = """
import os, signal, subprocess, sys, time
if "stubborn" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), child.pid, flush=True)
if "ends" in sys.argv: sys.exit(7)
time.sleep(600)
"""


def start(*how: str) -> tuple[subprocess.Popen, list[int]]:
    command = [sys.executable, WATCH, "1", sys.executable, "-c", SERVER, *how]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, [int(word) for word in process.stdout.readline().split()]


def lives(pid: int) -> bool:
    """Whether it runs; what only waits to be collected by init does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pids: list[int], seconds: float = 10) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(map(lives, pids)):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("how", [(), ("stubborn",)], ids=["polite", "stubborn"])
def test_closing_its_input_ends_the_whole_group(how):
    process, pids = start(*how)
    assert all(map(psutil.pid_exists, pids))
    process.stdin.close()
    process.wait(timeout=10)
    assert gone(pids)


def test_a_signal_to_the_watcher_ends_the_group():
    process, pids = start()
    process.terminate()
    assert process.wait(timeout=10) == 0 and gone(pids)


def test_closing_its_input_and_a_signal_at_once_end_the_group():
    for _ in range(10):  # as `Server.stop` does; the second comes while it works on the first
        process, pids = start()
        process.stdin.close()
        process.terminate()
        assert process.wait(timeout=10) == 0 and gone(pids)


def test_a_server_that_ends_takes_its_children_with_it_and_its_status_is_kept():
    process, pids = start("ends")
    assert process.wait(timeout=10) == 7 and gone(pids)


def test_kill_9_of_the_owner_ends_the_group():
    command = [sys.executable, WATCH, "1", sys.executable, "-c", SERVER]
    program = f"import subprocess as s, time; process = s.Popen({command!r}, stdin=s.PIPE, stdout=s.PIPE, text=True)\n"
    program += "print(process.stdout.readline().strip(), process.pid, flush=True); time.sleep(600)"
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    pids = [int(word) for word in owner.stdout.readline().split()]
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    assert gone(pids)


def test_kill_9_of_the_watcher_ends_the_server():
    process, pids = start()
    process.kill()
    process.wait()
    assert gone(pids[:1])
    for pid in pids:  # what the server itself would have ended
        if lives(pid):
            os.kill(pid, signal.SIGKILL)
