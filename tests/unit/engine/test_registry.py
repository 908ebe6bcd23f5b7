"""The registry of engines: it survives crashes, heals itself, tells of orphans and ends nothing."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest

from helpers.engine import registry


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path))
    return tmp_path / "engines"


@pytest.fixture
def process():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield psutil.Process(child.pid)
    child.kill()
    child.wait()


def write(pid, started, workers=()):
    entry = registry.Entry(pid, started, "job.ipynb", "model", "cpu", time.time(), dict(workers))
    (registry.folder() / f"{pid}.json").write_text(json.dumps(registry.asdict(entry)))


def test_this_process_comes_and_goes():
    registry.register("model", "cpu")
    row = registry.engines().loc[os.getpid()]
    assert row["state"] == "this process" and row["MiB"] > 10 and row["model"] == "model"
    registry.unregister()
    registry.unregister()
    assert len(registry.engines()) == 0


def test_another_process_is_running(process):
    write(process.pid, process.create_time())
    assert registry.engines().loc[process.pid, "state"] == "running"
    assert f"job.ipynb (pid {process.pid}, model, " in registry.others()


def test_an_owner_that_was_killed_leaves_no_trace(cache):
    write(2**22 - 1, 0.0)
    assert len(registry.engines()) == 0 and list(cache.glob("*.json")) == []
    assert registry.others() == ""


def test_another_process_with_the_same_number_is_not_the_owner(process, cache):
    write(process.pid, process.create_time() - 100)
    assert len(registry.engines()) == 0


def test_an_orphan_is_told_of_with_the_way_to_end_it_and_lives_on(process):
    write(2**22 - 1, 0.0, {process.pid: process.create_time()})
    [state] = registry.engines()["state"]
    assert state == f"orphan: its owner {2**22 - 1} is gone; `kill {process.pid}` ends it"
    assert f"`kill {process.pid}` ends it" in registry.others() and process.is_running()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"pid": 1, "workers": []}', "\x00"])
def test_a_torn_entry_is_removed(text, cache):
    registry.folder()
    (cache / "1.json").write_text(text)
    assert len(registry.engines()) == 0 and not (cache / "1.json").exists()


HOLD = "import time\nfrom helpers.engine import registry\nwith registry.start_lock():\n print('in', flush=True)\n "
INSIDE = """
import subprocess, sys
from helpers.engine import registry
with registry.start_lock():
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
        with registry.start_lock():
            assert 0.3 < time.monotonic() - start < 10
    assert f"python (pid {other.pid}) is starting on this machine: waiting for it." in capsys.readouterr().out


def test_a_lock_dies_with_its_process():
    with held(HOLD + "time.sleep(60)") as other:
        other.kill()
        other.wait()
        start = time.monotonic()
        with registry.start_lock():
            assert time.monotonic() - start < 5


def test_a_child_does_not_wait_for_the_parent_that_waits_for_it():
    program = [sys.executable, "-c", INSIDE, "from helpers.engine import registry\nwith registry.start_lock(): pass"]
    said = subprocess.run(program, capture_output=True, text=True, timeout=60).stdout
    assert "cannot start one too: each would wait for the other" in said


def test_a_lock_whose_starter_is_gone_is_said_and_not_waited_for(cache):
    with held(LEFT_BEHIND) as other:
        (cache / "start.holder").write_text(f"{2**22 - 1} 0.0 a notebook")
        with pytest.raises(registry.StartBlocked, match=r"a notebook .* is gone, but .*lock is still held"):
            registry.start_lock().__enter__()
        other.kill()
