"""Starting an engine: the arguments that fit, the construction itself, and what is said about both."""

import difflib
import inspect
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from helpers import devices, failures, memory, models, registry
from helpers.phases import Phases, watch_construction
from helpers.quiet import STARTER, generators_kept, quiet, spoken_of

if TYPE_CHECKING:
    from vllm import LLM


def check_main() -> None:
    """Raises `EngineStartFailed` in a child that multiprocessing spawns while it imports the parent's script.

    That script starts an engine outside of a main guard: each child would start one again, for ever.
    """
    if not getattr(multiprocessing.current_process(), "_inheriting", False):  # what multiprocessing itself asks
        return
    script = getattr(sys.modules.get("__mp_main__", sys.modules["__main__"]), "__file__", None) or sys.argv[0]
    raise failures.EngineStartFailed(failures.no_main_guard(script))


def import_vllm(phases: Phases) -> None:
    """Imports vLLM, measured as a phase of its own unless somebody did it before."""
    if "vllm" not in sys.modules:
        with phases.measure("import vLLM", "cpu"), quiet():
            import vllm  # noqa: F401


def check_names(engine_args: dict[str, Any]) -> None:
    """Raises `TypeError` for a name that is no argument of `vllm.LLM`, with the nearest that is."""
    if not engine_args:
        return  # without an import that takes seconds
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    known = EngineArgs.__dataclass_fields__.keys() | inspect.signature(LLM.__init__).parameters.keys()
    for name in engine_args:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else " See the arguments of vllm.LLM."
            raise TypeError(f"vllm.LLM has no argument {name!r}.{hint}")


def fit(name: str, settings: dict, asked: dict[str, Any]) -> dict[str, Any]:
    """Arguments for the machine as it is now; raises `EngineStartFailed` for weights that cannot fit."""
    here = devices.machine()
    weights = models.weight_bytes(name)
    fitted = devices.engine_args(here, weights, models.context_length(settings))
    stored = str(settings.get("dtype") or settings.get("torch_dtype"))
    doubled = stored in ("bfloat16", "float16") and (fitted | asked).get("dtype") == "float32"
    if said := failures.too_big(here, devices.device(), weights, 2 if doubled else 1):
        raise failures.EngineStartFailed(f"{said} {registry.others()}".strip())
    return fitted


def listen_for(asked: dict[str, Any]) -> None:
    """Lets start-up messages be seen that speak of what was asked for, by arguments or by `WORKBOOK_DTYPE`."""
    spoken_of([*asked, *(["dtype"] if devices.wanted_dtype() else [])], asked["model"])


def construct(args: dict[str, Any], phases: Phases, on: str) -> "LLM":
    from vllm import LLM

    _warn_of_cuda()
    said: list[str] = []
    try:
        with generators_kept(), _children_undisturbed(), quiet() as said, watch_construction(phases, on):
            return LLM(**args)
    except BaseException as error:
        _clean_up()
        if not isinstance(error, Exception):
            raise  # an interrupt
        if said:
            error.add_note("vLLM wrote meanwhile:\n" + "\n".join(said[-40:]))
        raise failures.EngineStartFailed(failures.explain(error, "\n".join(said), args)) from error


def _clean_up() -> None:
    """Undoes half a construction, so that the next one starts from nothing."""
    from vllm.distributed import cleanup_dist_env_and_memory

    with quiet(), suppress(Exception):
        cleanup_dist_env_and_memory()
    memory.give_back()


def _in_child() -> bool:
    """Whether vLLM runs the engine in a child process."""
    return os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING", "1") != "0"


@contextmanager
def _children_undisturbed() -> Iterator[None]:
    """Children that start in this block never see SIGINT, which a terminal and Jupyter send to the whole group.

    The engine's processes would end by it. An interrupt of this process waits until the block is over. The children
    are as quiet about their libraries' coming changes as this process is.
    """
    if not _in_child():
        yield
        return
    resource_tracker.ensure_running()  # now: where it starts later, it lets SIGINT through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        quieter = {"PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", "ignore::FutureWarning")}
        with patch.dict(os.environ, quieter | {STARTER: str(os.getpid())}):
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def lower_memory(asked: dict[str, Any], on: str) -> dict[str, float]:
    """The share of the card that is free, in place of a larger one that was asked for; says so. Else empty."""
    share = asked.get("gpu_memory_utilization")
    if on != "cuda" or share is None:
        return {}
    card = devices.machine().gpus[0]
    chosen = min(share, devices.fraction_free(card))
    if chosen == share:
        return {}
    print(failures.lowered(share, chosen, card), registry.others())
    return {"gpu_memory_utilization": chosen}


@cache  # once: the second engine of a process finds CUDA used by the first
def _warn_of_cuda() -> None:
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized():
        held = torch.cuda.memory_reserved() / 2**20
        print(
            f"CUDA was used in this process before the engine: torch holds {held:,.0f} MiB on the card, which count as "
            f"taken{', and the engine must be spawned instead of forked' if _in_child() else ''}. "
            "Call get_llm() in the first cell to avoid it.",
            file=sys.stderr,
        )


def summary(llm: "LLM", name: str, phases: Phases, on: str) -> str:
    """One line: what was started, on what, in how many seconds."""
    import vllm

    config = llm.llm_engine.vllm_config
    here = devices.machine()
    place = f"CPU, {here.cores} cores"
    if on == "cuda":
        card, share = here.gpus[0], config.cache_config.gpu_memory_utilization
        place = f"{card.name} ({share} of its {card.total / devices.GIB:.0f} GiB)"
    dtype = str(config.model_config.dtype).removeprefix("torch.")
    seconds = ", ".join(f"{phase} {s:.1f} s" for phase, s in phases.seconds.items() if s >= 0.05)
    return f"{short(name)} on {place}, {dtype}, vLLM {vllm.__version__}: {seconds}."


def short(name: str) -> str:
    """A folder's own name, or the hub id as it is."""
    return Path(name).name if Path(name).is_dir() else name
