"""The shared engine: one real `vllm.LLM` a process."""

import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from helpers import machine, memory, models
from helpers.engine import inside, registry, settings, start
from helpers.engine.guard import Guard
from helpers.engine.phases import Phases
from helpers.engine.quiet import quiet
from helpers.engine.start_lock import start_lock
from helpers.problems import Problem

if TYPE_CHECKING:
    from vllm import LLM


class EngineConflict(Problem):
    """This process has an engine already, and it differs from the one that was asked for."""


class EngineReleased(Problem):
    """The `LLM` was released and cannot be used any more."""


@dataclass
class _Engine:
    llm: "LLM"
    asked: dict[str, Any]  # the model, and what the caller passed
    fitted: dict[str, Any]  # what settings.fit added
    on: str  # "cpu" or "cuda"
    phases: Phases
    guard: Guard


_NONE = "There is no engine in this process: call get_llm() first."
_engine: _Engine | None = None
_lock = threading.RLock()


def get_llm(model: str | None = None, **engine_args: Any) -> "LLM":
    """The one `vllm.LLM` of this process, constructed on the first call.

    `model` is a hub id or a folder, by default `models.model()`. `engine_args` are arguments of `vllm.LLM`; what is
    left out is chosen for this machine by `settings.fit`. Asked again with equal arguments, it returns the
    same object at once; an engine that has died is replaced. Engines of one user start one after the other.

    Raises `EngineConflict` when the live engine differs from what is asked for, `TypeError` for an argument that vLLM
    does not know, and `models.ModelProblem`, `machine.DeviceProblem` or `failures.EngineStartFailed` with the reason
    and the way out.
    """
    global _engine
    start.check_main()
    with _lock:
        checkpoint = models.checkpoint(model)
        asked = {"model": checkpoint.given} | engine_args
        if _engine and not _engine.guard.alive():
            print("The engine of this process has died; its requests are lost, and a new one is started.")
            _end()
        if _engine:
            if different := _differences(_engine, asked):
                raise EngineConflict(
                    f"This process already has an engine, and it differs in {', '.join(different)}. "
                    "Use it with its own arguments, or end it with release_llm() first."
                )
            return _engine.llm
        phases, on = Phases(), machine.device()
        start.import_vllm(phases)
        start.check_names(engine_args)
        with start_lock():
            fitted = settings.fit(checkpoint, asked)
            start.listen_for(asked)
            llm = start.construct(fitted | asked | settings.lowered_memory(asked, on), phases, on)
            _engine = _Engine(llm, asked, fitted, on, phases, Guard(llm))
            registry.register(checkpoint.name, on)
        _watch_cells()
        print(start.summary(llm, checkpoint.name, phases, on))
        return llm


@contextmanager
def my_turn(timeout: float | None = None) -> Iterator[None]:
    """Waits until no other thread uses the engine, at most `timeout` seconds, and holds it for the block.

    Raises `guard.EngineBusy` when the time is over.
    """
    if not _engine:
        raise Problem(_NONE)
    with _engine.guard.turn(timeout):
        yield


def running() -> bool:
    """Whether this process has an engine."""
    return _engine is not None


def construction() -> Phases:
    """Seconds and bytes by phase of this process's engine. Raises `Problem` when there is none."""
    if not _engine:
        raise Problem(_NONE)
    return _engine.phases


def release_llm() -> None:
    """Ends this process's engine and gives its memory back; safe to call twice, or with nothing to release.

    Prints the memory before and after, and the variables that keep some of it. The `LLM` object says from then on
    that it was released.
    """
    with _lock:
        if not _engine:
            print("No engine to release in this process.")
            return
        on, before = _engine.on, memory.memory_used(_engine.on)
        taken = sum(_engine.phases.bytes.values())
        kept = _end()
        place = "on the card" if on == "cuda" else "in this process"
        after = memory.memory_used(on)
        print(f"Engine released: {before / 2**20:,.0f} -> {after / 2**20:,.0f} MiB {place}.")
        if names := memory.holders(kept, vars(sys.modules["__main__"])):
            print(f"Some of it is kept alive by: {', '.join(names)}. `del {', '.join(names)}` frees it.")
        elif on == "cuda" and before - after < taken // 2:
            print("Most of it did not come back, as with CUDA graphs in this process: restart the kernel to free it.")


def _end() -> list[weakref.ref]:
    """Shuts the engine down and drops it; weak references to what took the memory."""
    global _engine
    llm, _engine = _engine.llm, None
    kept = inside.memory_of(llm)
    with quiet():
        inside.shut_down(llm)
    # The caller's variable keeps the object alive, so what it holds is dropped instead.
    vars(llm).clear()
    llm.__class__ = _Released
    registry.unregister()
    inside.forget_tokenizers()
    memory.give_back()
    return kept


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
    if _engine and not _engine.guard.alive():
        print("The engine of this process has died; the next get_llm() starts a new one.")
    elif _engine and (left := _engine.guard.pending()):
        _engine.guard.abort(left)
        print(f"This cell left {len(left)} unfinished request{'s' * (len(left) > 1)} in the engine: aborted.")


def _differences(engine: _Engine, asked: dict[str, Any]) -> list[str]:
    """What the live engine and the one asked for differ in, each as one phrase."""
    from vllm.engine.arg_utils import EngineArgs

    start.check_names({name: value for name, value in asked.items() if name != "model"})
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
