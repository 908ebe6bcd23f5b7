"""The arguments of `vllm.LLM` that fit this machine and this checkpoint."""

import os
from typing import Any

from helpers import machine
from helpers.engine import failures, registry
from helpers.machine import GIB, Gpu, Machine
from helpers.models import Checkpoint

DTYPES = ("float32", "bfloat16", "float16")


def fit(checkpoint: Checkpoint, asked: dict[str, Any]) -> dict[str, Any]:
    """Arguments for the machine as it is now, where `asked` does not say.

    Raises `failures.EngineStartFailed` for weights that cannot fit.
    """
    here, on = machine.here(), machine.device()
    fitted = fitting(here, checkpoint)
    doubled = checkpoint.dtype in ("bfloat16", "float16") and (fitted | asked).get("dtype") == "float32"
    if said := failures.too_big(here, on, checkpoint.weight_bytes, 2 if doubled else 1):
        raise failures.EngineStartFailed(f"{said} {registry.others()}".strip())
    return fitted


def lowered_memory(asked: dict[str, Any], on: str) -> dict[str, float]:
    """The share of the card that is free, in place of a larger one that was asked for; says so. Else empty."""
    share = asked.get("gpu_memory_utilization")
    if on != "cuda" or share is None:
        return {}
    card = machine.here().gpus[0]
    chosen = min(share, fraction_free(card))
    if chosen == share:
        return {}
    print(failures.lowered(share, chosen, card), registry.others())
    return {"gpu_memory_utilization": chosen}


def fitting(here: Machine, checkpoint: Checkpoint) -> dict[str, Any]:
    """Arguments of `vllm.LLM` that fit the machine `here`; what the caller of `get_llm` passes takes precedence.

    `WORKBOOK_DTYPE` decides the data type where it is set. Raises `DeviceProblem` where it names none.
    """
    asked = wanted_dtype()
    args = {"enforce_eager": True, "max_model_len": min(2048, checkpoint.context or 2048), "use_tqdm_on_load": False}
    if machine.device() == "cpu":
        # A few sequences of the model's full length fit; the default, a share of all RAM, is refused on a busy machine.
        args["kv_cache_memory_bytes"] = min(GIB // 2, here.ram_free // 4)
        if not here.bf16:
            args["dtype"] = "float32"  # without bf16 units oneDNN falls back to a path several times slower
    else:
        args["gpu_memory_utilization"] = memory_fraction(here.gpus[0], checkpoint.weight_bytes)
    if asked:
        args["dtype"] = asked
    return args


def wanted_dtype() -> str | None:
    """The data type that `WORKBOOK_DTYPE` asks for, None where it is unset. Raises `DeviceProblem` for another word."""
    asked = os.environ.get("WORKBOOK_DTYPE") or None
    if asked and asked not in DTYPES:
        raise machine.DeviceProblem(
            f"WORKBOOK_DTYPE={asked} is no data type: use {', '.join(DTYPES)}, or leave it unset."
        )
    return asked


def memory_fraction(gpu: Gpu, model_bytes: int | None, kv_bytes: int = 8 * GIB) -> float:
    """The share of the card's total memory to ask for: weights, KV cache and 3 GiB of workspace, or what is free."""
    wanted = gpu.total if model_bytes is None else model_bytes + kv_bytes + 3 * GIB
    return min(int(1000 * wanted / gpu.total) / 1000, fraction_free(gpu))


def fraction_free(gpu: Gpu) -> float:
    """The largest share that vLLM will accept now: its fraction is of the total, and must be free but for 1 GiB."""
    return max(0.0, int(1000 * (gpu.free - GIB) / gpu.total) / 1000)
