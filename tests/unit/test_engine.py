"""The singleton's rules, with a fake vLLM."""

import contextlib
from pathlib import Path

import fakes
import pytest

from helpers import devices, engine, models


@pytest.fixture(autouse=True)
def fake(monkeypatch, tmp_path):
    fakes.install(monkeypatch)
    fakes.LLM.made = 0
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setenv("WORKBOOK_MODEL", str(tmp_path))
    monkeypatch.setattr(devices, "device", lambda: "cpu")
    monkeypatch.setattr(engine, "watch_construction", lambda phases, on: contextlib.nullcontext())
    yield
    engine._engine = None


def test_equal_arguments_give_the_same_object():
    llm = engine.get_llm(max_num_seqs=8)
    assert engine.get_llm(max_num_seqs=8) is llm
    assert fakes.LLM.made == 1


def test_an_argument_that_equals_the_fitted_one_is_no_difference():
    assert engine.get_llm() is engine.get_llm(max_model_len=2048)


def test_a_conflict_names_each_difference_and_the_way_out():
    engine.get_llm(max_num_seqs=8)
    with pytest.raises(engine.EngineConflict) as conflict:
        engine.get_llm(max_model_len=64, seed=1)
    said = str(conflict.value)
    assert "max_num_seqs (it has 8, asked for is vLLM's default)" in said
    assert "max_model_len (it has 2048, asked for is 64)" in said and "seed (it has 0, asked for is 1)" in said
    assert "release_llm()" in said and fakes.LLM.made == 1


def test_an_unknown_argument_gets_the_nearest_one():
    with pytest.raises(TypeError, match=r"no argument 'max_num_seq'. Did you mean max_num_seqs\?"):
        engine.get_llm(max_num_seq=8)
    with pytest.raises(TypeError, match=r"See the arguments of vllm.LLM"):
        engine.get_llm(zzz=1)
    assert fakes.LLM.made == 0


def test_what_the_caller_passes_comes_before_what_was_fitted(monkeypatch):
    seen = {}
    monkeypatch.setattr(
        fakes.LLM, "__init__", lambda self, **args: seen.update(args) or setattr(self, "llm_engine", fakes.Engine())
    )
    engine.get_llm(max_model_len=64)
    assert seen["max_model_len"] == 64 and seen["enforce_eager"] is True


def test_the_line_says_what_started(capsys):
    engine.get_llm()
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and Path(models.model()).name in said and "float32" in said


def test_a4_release_twice_and_with_nothing_to_release(capsys):
    engine.release_llm()
    engine.get_llm()
    engine.release_llm()
    engine.release_llm()
    said = capsys.readouterr().out.splitlines()
    assert said[0] == said[3] == "No engine to release in this process." and "MiB" in said[2]


def test_a_released_llm_says_so():
    llm = engine.get_llm()
    engine.release_llm()
    with pytest.raises(engine.EngineReleased, match="call get_llm"):
        llm.generate(["a"])
    assert engine.get_llm(max_num_seqs=2) is not llm


def test_without_an_engine_there_are_no_phases_and_no_turns():
    with pytest.raises(RuntimeError, match="call get_llm"):
        engine.construction()
    with pytest.raises(RuntimeError, match="call get_llm"), engine.my_turn():
        pass


def test_requests_left_by_a_cell_are_aborted_in_one_line(capsys):
    llm = engine.get_llm()
    llm.enqueue(["a", "b"])
    capsys.readouterr()
    engine._after_cell()
    assert capsys.readouterr().out == "This cell left 2 unfinished requests in the engine: aborted.\n"
    engine._after_cell()
    assert capsys.readouterr().out == "" and not llm.llm_engine.has_unfinished_requests()
