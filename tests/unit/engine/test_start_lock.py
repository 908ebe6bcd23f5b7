"""The start lock: one engine at a time, and no wait without an end."""

import subprocess
import sys
import time

import pytest

from helpers.engine.start_lock import StartBlocked, start_lock


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path))
    return tmp_path / "engines"


HOLD = "import time\nfrom helpers.engine.start_lock import start_lock\nwith start_lock():\n print('in', flush=True)\n "
INSIDE = """
import subprocess, sys
from helpers.engine.start_lock import start_lock
with start_lock():
    done = subprocess.run([sys.executable, "-c", sys.argv[1]], capture_output=True, text=True, timeout=60)
print(done.stderr.splitlines()[-1])
"""
LEFT_BEHIND = """
import fcntl, time
from helpers.engine import registry
fcntl.flock(lock := open(registry.folder() / "start.lock", "w"), fcntl.LOCK_EX)
print("in", flush=True)
time.sleep(60)
"""


def held(program):
    other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "in\n"
    return other


def test_one_engine_starts_at_a_time_and_the_other_is_told_for_whom_it_waits(capsys):
    with held(HOLD + "time.sleep(1)") as other:
        start = time.monotonic()
        with start_lock():
            assert 0.3 < time.monotonic() - start < 10
    assert f"python (pid {other.pid}) is starting on this machine: waiting for it." in capsys.readouterr().out


def test_a_lock_dies_with_its_process():
    with held(HOLD + "time.sleep(60)") as other:
        other.kill()
        other.wait()
        start = time.monotonic()
        with start_lock():
            assert time.monotonic() - start < 5


def test_a_child_does_not_wait_for_the_parent_that_waits_for_it():
    program = [
        sys.executable,
        "-c",
        INSIDE,
        "from helpers.engine.start_lock import start_lock\nwith start_lock(): pass",
    ]
    said = subprocess.run(program, capture_output=True, text=True, timeout=60).stdout
    assert "cannot start one too: each would wait for the other" in said


def test_a_lock_whose_starter_is_gone_is_said_and_not_waited_for(cache):
    with held(LEFT_BEHIND) as other:
        (cache / "start.holder").write_text(f"{2**22 - 1} 0.0 a notebook")
        with pytest.raises(StartBlocked, match=r"a notebook .* is gone, but .*lock is still held"):
            start_lock().__enter__()
        other.kill()
