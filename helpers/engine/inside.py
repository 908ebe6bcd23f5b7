"""vLLM's private parts: the one module that touches them, and what happens when one is gone.

Seen in vLLM 0.26 to 0.32. Whoever asks for a part that this version does not have gets `Gone`, or what the function
says it returns instead.
"""

import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from helpers.problems import Problem

if TYPE_CHECKING:
    from vllm import LLM
    from vllm.v1.engine.llm_engine import LLMEngine

# The methods of vLLM's worker that its executor calls, in this order, while an engine is constructed.
CONSTRUCTION = (
    "init_device",
    "load_model",
    "determine_available_memory",
    "initialize_from_config",
    "compile_or_warm_up_model",
)


class Gone(Problem):
    """This version of vLLM has no such part."""

    def __init__(self, what: str):
        import vllm

        super().__init__(f"vLLM {vllm.__version__} has no {what}, where this workbook looks into it (0.26 to 0.32 do).")


def scheduler(llm: "LLM") -> Any | None:
    """The engine's scheduler; None where the engine runs in a child process. Raises `Gone`."""
    client = llm.llm_engine.engine_core
    if hasattr(client, "resources"):  # of a client of child processes
        return None
    found = getattr(getattr(client, "engine_core", None), "scheduler", None)
    if found is None:
        raise Gone("engine_core.engine_core.scheduler")
    return found


@dataclass(frozen=True)
class Decision:
    """What the scheduler decided in one iteration."""

    scheduled: dict[str, int]  # tokens by request
    admitted: dict[str, int]  # prompt tokens to compute, by request that runs for the first time
    preempted: frozenset[str]  # requests that wait because their KV blocks were taken
    waiting: int
    kv_usage: float  # share of the KV cache's blocks in use, 0 to 1; NaN where it is not told


@contextmanager
def decisions(scheduler: Any, seen: Callable[[Decision], None]) -> Iterator[None]:
    """Calls `seen` with each decision while the block runs; one without tokens is no iteration, and not told."""
    schedule = scheduler.schedule

    def recorded(*args, **kwargs):
        output = schedule(*args, **kwargs)
        if output.num_scheduled_tokens:
            new = {r.req_id: len(r.prompt_token_ids) - r.num_computed_tokens for r in output.scheduled_new_reqs}
            usage = getattr(getattr(scheduler, "kv_cache_manager", None), "usage", float("nan"))
            lost = frozenset(_preempted(scheduler))
            seen(Decision(output.num_scheduled_tokens, new, lost, len(scheduler.waiting), usage))
        return output

    scheduler.schedule = recorded
    try:
        yield
    finally:
        scheduler.schedule = schedule


def _preempted(scheduler: Any) -> set[str]:
    """The scheduler puts these in front of its queue."""
    found = set()
    for request in scheduler.waiting:
        if request.status.name != "PREEMPTED":
            break
        found.add(request.request_id)
    return found


def model_runner(llm: "LLM") -> Any | None:
    """What holds the model and its KV cache; None where it is in a child process, or elsewhere in this version."""
    with suppress(AttributeError):
        return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    return None


def memory_of(llm: "LLM") -> list[weakref.ref]:
    """Weak references to the model and the tensors of the KV cache; none where they are not in this process."""
    runner = model_runner(llm)
    parts = (getattr(runner, "model", None), *getattr(runner, "kv_caches", ()))
    return [weakref.ref(part) for part in parts if part is not None]


def shut_down(llm: "LLM") -> None:
    """Ends the engine and its child processes."""
    llm.llm_engine.engine_core.shutdown()


def alive(engine: "LLMEngine") -> bool:
    """Whether the engine still runs; False only for one in a child process that is known to have died."""
    return not getattr(getattr(engine.engine_core, "resources", None), "engine_dead", False)


def pending(engine: "LLMEngine") -> set[str]:
    """Inner ids of the requests that are in the engine. Raises `Gone`."""
    states = getattr(engine.output_processor, "request_states", None)
    if states is None:
        raise Gone("output_processor.request_states")
    return set(states)


def by_kind(engine: "LLMEngine", ids: Iterable[str]) -> tuple[list[str], list[str]]:
    """Of these ids those of outputs, and those that `enqueue` returned; what is in neither is not in the engine."""
    processor = engine.output_processor
    outer, inner = getattr(processor, "external_req_ids", {}), pending(engine)
    parents = getattr(processor, "parent_requests", {})
    ids = list(ids)
    return [name for name in ids if name in outer], [name for name in ids if name in inner or name in parents]


def outer_id(inner: str) -> str:
    """A request's id as `RequestOutput.request_id` has it; inside, vLLM appends random letters."""
    return inner.rsplit("-", 1)[0]


def construction_steps(on: str) -> list[tuple[type, str]]:
    """The classes and method names of `CONSTRUCTION` on "cpu" or "cuda"; steps that are gone are left out."""
    workers = []
    with suppress(ImportError):
        from vllm.v1.worker.gpu_worker import Worker

        workers.append(Worker)
    if on == "cpu":
        with suppress(ImportError):
            from vllm.v1.worker.cpu_worker import CPUWorker

            workers.insert(0, CPUWorker)
    owners = ((next((worker for worker in workers if step in vars(worker)), None), step) for step in CONSTRUCTION)
    return [(owner, step) for owner, step in owners if owner]


def forget_tokenizers() -> None:
    """Empties vLLM's caches that are keyed by tokenizers: each would keep 40 MiB a released engine (vLLM 0.32)."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("vllm.renderers", "vllm.tokenizers", "vllm.transformers_utils", "vllm.utils.func_utils")):
            for value in list(vars(module).values()):
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
