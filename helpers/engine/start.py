"""Starting an engine: the import, the construction itself, and the line that is said about it."""

import inspect
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from helpers import machine, memory
from helpers.engine import failures, settings
from helpers.engine.phases import Phases, watch_construction
from helpers.engine.quiet import STARTER, generators_kept, quiet, spoken_of
from helpers.problems import did_you_mean

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
            hint = did_you_mean(name, known) or " See the arguments of vllm.LLM."
            raise TypeError(f"vllm.LLM has no argument {name!r}.{hint}")


def listen_for(asked: dict[str, Any]) -> None:
    """Lets start-up messages be seen that speak of what was asked for, by arguments or by `WORKBOOK_DTYPE`."""
    spoken_of([*asked, *(["dtype"] if settings.wanted_dtype() else [])], asked["model"])


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
        usual = os.environ.copy()
        os.environ[STARTER] = str(os.getpid())
        os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")
        try:
            yield
        finally:
            for name in (STARTER, "PYTHONWARNINGS"):
                os.environ.pop(name)
            os.environ.update(usual)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
    here = machine.here()
    place = f"CPU, {here.cores} cores"
    if on == "cuda":
        card, share = here.gpus[0], config.cache_config.gpu_memory_utilization
        place = f"{card.name} ({share} of its {card.total / machine.GIB:.0f} GiB)"
    dtype = str(config.model_config.dtype).removeprefix("torch.")
    seconds = ", ".join(f"{phase} {s:.1f} s" for phase, s in phases.seconds.items() if s >= 0.05)
    return f"{name} on {place}, {dtype}, vLLM {vllm.__version__}: {seconds}."
