"""examples/batch_job.py: a process for each card, one output, and ends that say what happened."""

import importlib.util
import multiprocessing
import signal
from pathlib import Path
from types import SimpleNamespace as Fake

import pytest
from job_fakes import LLM, plain, read, write

from helpers.jobs import Report


@pytest.fixture
def example(monkeypatch):
    """The script, whose processes find an engine that answers at once."""
    spec = importlib.util.spec_from_file_location("batch_job", Path(__file__).parents[3] / "examples/batch_job.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    importlib.import_module("vllm.sampling_params")  # once, and not in each process
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(module.multiprocessing, "get_context", lambda kind: fork)
    monkeypatch.setattr(module, "get_llm", LLM)
    monkeypatch.setattr(module.models, "model", lambda: "/models/fake")
    monkeypatch.setattr(module.machine, "here", lambda: Fake(gpus=[1, 2]))
    monkeypatch.setattr(module, "release_llm", lambda: None)
    monkeypatch.setattr(Report, "draw", lambda self: Fake(_repr_png_=bytes))
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield module
    for number, handler in usual.items():
        signal.signal(number, handler)


def end(example, source, sink) -> int:
    with pytest.raises(SystemExit) as ended:
        example.main(str(source), str(sink))
    return ended.value.code


def test_two_cards_make_one_output_and_a_second_run_starts_no_engine(example, tmp_path, monkeypatch):
    source, sink = write(tmp_path / "in.jsonl", map(plain, range(30))), tmp_path / "out.jsonl"
    assert end(example, source, sink) == 0
    assert [row["id"] for row in read(sink)] == [f"row-{number}" for number in range(30)]
    assert sorted(path.name for path in tmp_path.glob("*.journal")) == [
        "out-1-of-2.jsonl.journal",
        "out-2-of-2.jsonl.journal",
    ]
    monkeypatch.setattr(example, "get_llm", lambda: 1 / 0)
    assert end(example, source, sink) == 0


def test_another_number_of_cards_is_refused_in_a_sentence(example, tmp_path, monkeypatch, capfd):
    source, sink = write(tmp_path / "in.jsonl", map(plain, range(9))), tmp_path / "out.jsonl"
    end(example, source, sink)
    monkeypatch.setattr(example.machine, "here", lambda: Fake(gpus=[]))
    assert end(example, source, sink) == 1
    said = capfd.readouterr().err
    assert "is of another number of shards" in said and "Traceback" not in said


def test_a_card_whose_rows_fail_does_not_keep_the_others_from_the_output(example, tmp_path):
    source, sink = write(tmp_path / "in.jsonl", [*map(plain, range(9)), plain(9, prompt="")]), tmp_path / "out.jsonl"
    assert end(example, source, sink) == 3 and len(read(sink)) == 10
