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
