"""What the machine has, and the variables that are set for vLLM."""

import sys
import types

import pytest

from helpers import machine
from helpers.machine import GIB, Gpu, Machine

CPU = Machine((), 2, 24 * GIB, 20 * GIB, frozenset({"avx2"}))
CARD = Gpu(0, "Test GPU", total=100 * GIB, free=100 * GIB)


@pytest.fixture
def build(monkeypatch):
    def choose(*packages):
        monkeypatch.setattr(machine, "_installed", lambda name: name in packages)

    return choose


def test_a_container_limit_counts_as_the_machine(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text(f"{2 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB}\n")
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    here = machine.here()
    assert (here.cores, here.ram_total) == (1, 2 * GIB) and here.ram_free <= GIB


@pytest.mark.parametrize("text", ["max 100000\n", "nonsense", ""])
def test_no_quota_leaves_the_cores(text, tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text(text)
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert machine.here().cores == len(machine.os.sched_getaffinity(0))


@pytest.mark.parametrize(("flag", "has"), [("avx512_bf16", True), ("amx_bf16", True), ("bf16", True), ("avx2", False)])
def test_bf16_units_are_read_off_the_flags(flag, has):
    assert Machine((), 1, 1, 1, frozenset({flag})).bf16 is has


def test_no_vllm_and_no_gpu_have_a_sentence_each(build, monkeypatch):
    build()
    with pytest.raises(machine.DeviceProblem, match="vLLM is not installed"):
        machine.device()
    build("vllm")
    monkeypatch.setattr(machine, "_gpus", lambda: ())
    with pytest.raises(machine.DeviceProblem, match="no NVIDIA GPU is visible here"):
        machine.device()
    monkeypatch.setattr(machine, "_gpus", lambda: (CARD,))
    assert machine.device() == "cuda"


def test_what_the_user_set_wins(monkeypatch):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    machine.set_environment()
    assert machine.os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"


def test_vllm_imported_first_gets_one_sentence(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    monkeypatch.delenv("VLLM_NO_USAGE_STATS", raising=False)
    machine.set_environment()
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "VLLM_NO_USAGE_STATS" in said and "import helpers first" in said
    machine.set_environment()
    assert capsys.readouterr().err == ""


def test_the_hub_is_off_only_for_the_default_model(monkeypatch):
    monkeypatch.delenv("WORKBOOK_MODEL", raising=False)
    assert machine.environment()["HF_HUB_OFFLINE"] == "1"
    monkeypatch.setenv("WORKBOOK_MODEL", "org/name")
    assert "HF_HUB_OFFLINE" not in machine.environment()


def test_the_users_log_level_replaces_the_filter(monkeypatch):
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    assert "VLLM_LOGGING_CONFIG_PATH" not in machine.environment()


def test_about_is_one_line():
    assert "\n" not in repr(machine.about()) and "cores" in repr(machine.about())
