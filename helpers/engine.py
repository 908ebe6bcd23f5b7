"""The shared engine: one real `vllm.LLM` a process."""

import ctypes
import difflib
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers import devices, models
from helpers.guard import Guard
from helpers.phases import Phases, memory_used, watch_construction
from helpers.quiet import generators_kept, quiet

if TYPE_CHECKING:
    from vllm import LLM


class EngineConflict(RuntimeError):
    """This process has an engine already, and it differs from the one that was asked for."""


class EngineReleased(RuntimeError):
    """The `LLM` was released and cannot be used any more."""


@dataclass
class _Engine:
    llm: "LLM"
    asked: dict[str, Any]  # the model, and what the caller passed
    fitted: dict[str, Any]  # what devices.engine_args added
    phases: Phases
    guard: Guard


_NONE = "There is no engine in this process: call get_llm() first."
_engine: _Engine | None = None
_lock = threading.RLock()


def get_llm(model: str | None = None, **engine_args: Any) -> "LLM":
    """The one `vllm.LLM` of this process, constructed on the first call.

    `model` is a hub id or a folder, by default `models.model()`. `engine_args` are arguments of `vllm.LLM`; what is
    left out is chosen for this machine by `devices.engine_args`. Asked again with equal arguments, it returns the
    same object at once.

    Raises `EngineConflict` when the live engine differs from what is asked for, `TypeError` for an argument that vLLM
    does not know, `models.ModelProblem` and `devices.DeviceProblem` with the reason and the way out.
    """
    global _engine
    with _lock:
        name = model or models.model()
        asked = {"model": name} | engine_args
        if _engine:
            if different := _differences(_engine, asked):
                raise EngineConflict(
                    f"This process already has an engine, and it differs in {', '.join(different)}. "
                    "Use it with its own arguments, or end it with release_llm() first."
                )
            return _engine.llm
        phases = Phases()
        on = devices.device()
        if "vllm" not in sys.modules:
            with phases.measure("import vLLM", "cpu"), quiet():
                import vllm  # noqa: F401
        _check_names(engine_args)
        settings = models.config(name)
        fitted = devices.engine_args(devices.machine(), models.weight_bytes(name), models.context_length(settings))
        llm = _construct(fitted | asked, phases, on)
        _engine = _Engine(llm, asked, fitted, phases, Guard(llm))
        _watch_cells()
        print(_started(_engine, on))
        return _engine.llm


@contextmanager
def my_turn(timeout: float | None = None) -> Iterator[None]:
    """Waits until no other thread uses the engine, at most `timeout` seconds, and holds it for the block.

    Raises `guard.EngineBusy` when the time is over.
    """
    if not _engine:
        raise RuntimeError(_NONE)
    with _engine.guard.turn(timeout):
        yield


def construction() -> Phases:
    """Seconds and bytes by phase of this process's engine. Raises `RuntimeError` when there is none."""
    if not _engine:
        raise RuntimeError(_NONE)
    return _engine.phases


def release_llm() -> None:
    """Ends this process's engine and gives its memory back; safe to call twice, or with nothing to release.

    Prints the memory before and after. The `LLM` object is unusable from then on and says so.
    """
    global _engine
    with _lock:
        if not _engine:
            print("No engine to release in this process.")
            return
        on = devices.device()
        before = memory_used(on)
        llm, _engine = _engine.llm, None
        with quiet():
            llm.llm_engine.engine_core.shutdown()
        # The caller's variable keeps the object alive, so what it holds is dropped instead.
        vars(llm).clear()
        llm.__class__ = _Released
        _give_memory_back()
        place = "on the card" if on == "cuda" else "in this process"
        print(f"Engine released: {before / 2**20:,.0f} -> {memory_used(on) / 2**20:,.0f} MiB {place}.")


class _Released:
    """What a released `LLM` turns into."""

    def __getattribute__(self, name: str):
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise EngineReleased("This LLM was released by release_llm(): call get_llm() for a new one.")


@cache
def _watch_cells() -> None:
    """In IPython: after each cell, requests that it left in the engine are aborted, in one line."""
    with suppress(NameError):
        get_ipython().events.register("post_run_cell", _after_cell)  # noqa: F821


def _after_cell(_result=None) -> None:
    if _engine and (left := _engine.guard.pending()):
        _engine.guard.abort(left)
        print(f"This cell left {len(left)} unfinished request{'s' * (len(left) > 1)} in the engine: aborted.")


def _give_memory_back() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    with suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _construct(args: dict[str, Any], phases: Phases, on: str) -> "LLM":
    from vllm import LLM

    with generators_kept(), quiet(), watch_construction(phases, on):
        return LLM(**args)


def _started(engine: _Engine, on: str) -> str:
    """One line: what was started, on what, in how many seconds."""
    import vllm

    config = engine.llm.llm_engine.vllm_config
    here = devices.machine()
    place = here.gpus[0].name if on == "cuda" else f"CPU, {here.cores} cores"
    dtype = str(config.model_config.dtype).removeprefix("torch.")
    seconds = ", ".join(f"{phase} {s:.1f} s" for phase, s in engine.phases.seconds.items() if s >= 0.05)
    model = Path(engine.asked["model"]).name if Path(engine.asked["model"]).is_dir() else engine.asked["model"]
    return f"{model} on {place}, {dtype}, vLLM {vllm.__version__}: {seconds}."


def _differences(engine: _Engine, asked: dict[str, Any]) -> list[str]:
    """What the live engine and the one asked for differ in, each as one phrase."""
    from vllm.engine.arg_utils import EngineArgs

    _check_names({name: value for name, value in asked.items() if name != "model"})
    have, want = engine.fitted | engine.asked, engine.fitted | asked
    phrases = []
    for name in sorted(have.keys() | want.keys()):
        default = getattr(EngineArgs, name, None)
        there, here = have.get(name, default), want.get(name, default)
        if there != here:
            phrases.append(f"{name} (it has {_shown(there)}, asked for is {_shown(here)})")
    return phrases


def _shown(value: Any) -> str:
    return "vLLM's default" if value is None else repr(value)


def _check_names(engine_args: dict[str, Any]) -> None:
    """Raises `TypeError` for a name that is no argument of `vllm.LLM`, with the nearest that is."""
    import inspect

    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    known = EngineArgs.__dataclass_fields__.keys() | inspect.signature(LLM.__init__).parameters.keys()
    for name in engine_args:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else " See the arguments of vllm.LLM."
            raise TypeError(f"vllm.LLM has no argument {name!r}.{hint}")
