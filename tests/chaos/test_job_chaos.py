"""What kills, torn files and full disks do to a job. CHAOS=1 (`make chaos`) makes the two random ones long."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace as Fake

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from job_fakes import LLM, plain, read, write

from helpers.jobs import JournalProblem, Report, run_job
from helpers.jobs import journal as journals

LONG = bool(os.environ.get("CHAOS"))
NONE = {"lost": 0, "doubled": 0, "torn": 0, "different": 0, "failed": 0}


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr(Report, "draw", lambda self: Fake(_repr_png_=bytes))


def run(source, sink, **more):
    return run_job(LLM(), source, sink, progress=False, **more)


def kills(*arguments: str) -> dict:
    program = str(Path(__file__).with_name("job_kills.py"))
    done = subprocess.run([sys.executable, program, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    print(done.stdout)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.apart
def test_kill_9_at_random_moments_of_the_writing():
    found = kills(str(2000 if LONG else 60))
    assert found | NONE == found and found["rounds"] > 1, found


@pytest.mark.apart
def test_kill_9_at_random_moments_on_the_real_engine():
    found = kills(str(100 if LONG else 2), "--engine")
    assert found | NONE == found and found["rounds"] >= 1, found


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished job: its folder, with the journal's lines."""
    folder = tmp_path_factory.mktemp("finished")
    run(
        write(folder / "in.jsonl", [plain(number, prompt=f"é{number} 字") for number in range(6)]), folder / "out.jsonl"
    )
    return folder


def test_a_journal_cut_at_any_byte_recovers(finished, tmp_path):
    whole = (finished / "out.jsonl.journal").read_bytes()
    expected, sink = read(finished / "out.jsonl"), tmp_path / "out.jsonl"
    for size in range(len(whole) + 1):
        journal = tmp_path / "out.jsonl.journal"
        journal.write_bytes(whole[:size])
        sink.unlink(missing_ok=True)
        report = run(finished / "in.jsonl", sink)
        assert read(sink) == expected, size
        kept = journal.read_bytes()
        assert kept.startswith(whole[: whole[:size].rfind(b"\n") + 1]), f"a good row was lost at {size}"
        if size and whole[size - 1 : size] != b"\n":
            assert "mended" in report.mended or "torn" in report.mended, size


def test_a_whole_row_without_its_newline_is_kept(finished, tmp_path):
    whole = (finished / "out.jsonl.journal").read_bytes()
    (tmp_path / "out.jsonl.journal").write_bytes(whole[:-1])
    report = run(finished / "in.jsonl", tmp_path / "out.jsonl")
    assert report.tokens == 0 and "lacked its newline" in repr(report)


@given(st.lists(st.tuples(st.integers(0, 10**4), st.binary(max_size=12)), max_size=4))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_journal_with_garbage_in_it_still_gives_one_row_an_id(finished, tmp_path, garbage):
    data = (finished / "out.jsonl.journal").read_bytes()
    for place, piece in garbage:
        data = data[: place % (len(data) + 1)] + piece + data[place % (len(data) + 1) :]
    (tmp_path / "out.jsonl.journal").write_bytes(data)
    (tmp_path / "out.jsonl").unlink(missing_ok=True)
    try:
        run(finished / "in.jsonl", tmp_path / "out.jsonl", redo=True)  # garbage may have hit the job line
    finally:
        (tmp_path / "out.jsonl.journal").unlink()
    assert [json.loads(line)["id"] for line in (tmp_path / "out.jsonl").read_bytes().splitlines()] == [
        f"row-{number}" for number in range(6)
    ]


def test_a_full_disk_stops_with_everything_intact(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting needs more rights than this test has")
    try:
        source = write(tmp_path / "in.jsonl", [plain(number) for number in range(600)])
        with pytest.raises(JournalProblem, match=r"The disk is full: .* keeps every row that was finished"):
            run(source, disk / "out.jsonl")
        journal = disk / "out.jsonl.journal"
        data = journal.read_bytes()
        assert data.endswith(b"\n") and len(journals.read(journal).keys) > 50
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        assert run(source, disk / "out.jsonl").complete and journal.read_bytes().startswith(data)
        assert len(read(disk / "out.jsonl")) == 600
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_disk_that_is_full_for_the_final_file_keeps_the_journal(tmp_path, monkeypatch):
    source = write(tmp_path / "in.jsonl", [plain(0)])
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(JournalProblem, match="its journal has every row"):
        run(source, tmp_path / "out.jsonl")
    monkeypatch.undo()
    assert not (tmp_path / "out.jsonl.part").exists() and run(source, tmp_path / "out.jsonl").complete


@pytest.mark.parametrize("policy, least, most", [("row", 41, 60), ("seconds", 1, 3), ("off", 0, 0)])
def test_fsync_by_policy(policy, least, most, tmp_path, monkeypatch):
    calls, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (calls.append(file), real(file)))
    run([plain(number) for number in range(40)], tmp_path / "out.jsonl", fsync=policy)
    final = 1  # the sink itself, before it takes its name
    assert least <= len(calls) - final <= most


def test_at_most_a_second_is_not_on_the_disk(tmp_path):
    with journals.Journal(tmp_path / "j", "seconds", interval=0.05) as journal:
        journal.append(b"{}")
        assert journal._dirty
        time.sleep(0.06)
        journal.tick()
        assert not journal._dirty


@pytest.mark.apart
def test_sigterm_from_outside_ends_the_command_in_order(tmp_path):
    source = write(tmp_path / "in.jsonl", [plain(number, max_tokens=40, ignore_eos=True) for number in range(64)])
    command = [sys.executable, "-m", "helpers.jobs", "run", str(source), str(tmp_path / "out.jsonl")]
    command += ["--allow", "stop,length", "--engine", "max_num_seqs=4", "--engine", "max_model_len=256"]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "out.jsonl.journal"
    until = time.monotonic() + 90
    while not (journal.exists() and b'"row":' in journal.read_bytes()):
        assert job.poll() is None and time.monotonic() < until, job.communicate()
        time.sleep(0.1)
    job.send_signal(signal.SIGTERM)
    said, noise = job.communicate(timeout=60)
    assert job.returncode == 143 and "Stopped by SIGTERM: run the same command again" in said, noise
    assert "Traceback" not in noise and journal.read_bytes().endswith(b"\n")
    report = json.loads((tmp_path / "out.jsonl.report.json").read_bytes())
    assert report["stopped"] == "SIGTERM" and 0 < sum(report["ended"].values()) < 64
    shutil.rmtree(tmp_path)
