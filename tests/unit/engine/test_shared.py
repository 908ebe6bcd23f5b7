"""The singleton's rules, with a fake vLLM."""

import contextlib
import types
from pathlib import Path

import fakes
import pytest

from helpers import machine, models
from helpers.engine import failures, registry, settings, start
from helpers.engine import shared as engine


@pytest.fixture(autouse=True)
def fake(monkeypatch, tmp_path):
    fakes.install(monkeypatch)
    fakes.LLM.made = 0
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setenv("WORKBOOK_MODEL", str(tmp_path))
    monkeypatch.setattr(machine, "device", lambda: "cpu")
    monkeypatch.setattr(start, "watch_construction", lambda phases, on: contextlib.nullcontext())
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / "cache"))
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


def test_release_twice_and_with_nothing_to_release(capsys):
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


def test_a_live_engine_stands_in_the_registry_until_it_is_released():
    engine.get_llm()
    assert registry.engines()["state"].to_list() == ["this process"]
    engine.release_llm()
    assert len(registry.engines()) == 0


def test_a_dead_engine_is_replaced_and_said(capsys):
    first = engine.get_llm()
    first.llm_engine.engine_core.resources = types.SimpleNamespace(engine_dead=True)
    engine._after_cell()
    second = engine.get_llm()
    said = capsys.readouterr().out
    assert "the next get_llm() starts a new one" in said and "its requests are lost" in said
    assert second is not first and engine.get_llm() is second


def test_a_failure_is_one_sentence_with_vllms_error_behind_it(monkeypatch):
    def refuse(self, **args):
        raise ValueError("User-specified max_model_len (9999) is greater than the derived max_model_len (x=512)")

    monkeypatch.setattr(fakes.LLM, "__init__", refuse)
    with pytest.raises(failures.EngineStartFailed, match="pass at most 512") as failed:
        engine.get_llm(max_model_len=9999)
    assert isinstance(failed.value.__cause__, ValueError) and engine._engine is None


def test_weights_that_cannot_fit_are_refused_with_the_numbers(monkeypatch):
    monkeypatch.setattr(models.Checkpoint, "weight_bytes", 2**50)
    with pytest.raises(
        failures.EngineStartFailed, match=r"its weights take 1048576.0 GiB, and .* are free on this machine"
    ):
        engine.get_llm()


def test_a_larger_share_than_is_free_is_lowered_with_the_arithmetic(monkeypatch, capsys):
    card = machine.Gpu(0, "Test GPU", 100 * machine.GIB, 41 * machine.GIB)
    monkeypatch.setattr(machine, "here", lambda: machine.Machine((card,), 2, 1, 1, frozenset()))
    assert settings.lowered_memory({"gpu_memory_utilization": 0.9}, "cuda") == {"gpu_memory_utilization": 0.4}
    assert "would take 90.0 of 100.0 GiB, and 41.0 are free: 0.4 is used instead" in capsys.readouterr().out
    assert settings.lowered_memory({"gpu_memory_utilization": 0.3}, "cuda") == {}
    assert settings.lowered_memory({}, "cuda") == {} == settings.lowered_memory({"gpu_memory_utilization": 0.9}, "cpu")


def test_cuda_used_before_the_engine_is_said_with_the_order_that_avoids_it(monkeypatch, capsys):
    import torch

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 3 * 2**20)
    start._warn_of_cuda.cache_clear()
    start._warn_of_cuda()
    start._warn_of_cuda()
    said = capsys.readouterr().err
    assert said.count("torch holds 3 MiB") == 1 and "Call get_llm() in the first cell" in said
