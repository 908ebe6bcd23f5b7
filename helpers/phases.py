"""What constructing an `LLM` does, phase by phase: seconds, and bytes of memory taken."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from helpers.memory import memory_used

# The methods of vLLM's worker that its executor calls, in this order, while an engine is constructed.
STEPS = {
    "init_device": "prepare the device",
    "load_model": "load the weights",
    "determine_available_memory": "profile a forward pass",
    "initialize_from_config": "allocate the KV cache",
    "compile_or_warm_up_model": "warm up",
}
REST = "configuration, tokenizer, scheduler"
UNSEEN = "construct in a child process"


@dataclass
class Phases:
    """Seconds and bytes by phase, in the order in which the phases ended."""

    seconds: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)

    def frame(self):
        """A pandas frame: one row a phase, columns `seconds` and `MiB` (growth of this process, or of the card)."""
        import pandas as pd

        mib = {phase: size / 2**20 for phase, size in self.bytes.items()}
        return pd.DataFrame({"seconds": self.seconds, "MiB": mib}).round(2).rename_axis("phase").loc[list(self.seconds)]

    @contextmanager
    def measure(self, phase: str, on: str) -> Iterator[None]:
        """Adds one phase; `on` is "cpu" or "cuda", whose memory is read before and after."""
        seconds, used = time.perf_counter(), memory_used(on)
        try:
            yield
        finally:
            self.seconds[phase] = time.perf_counter() - seconds
            self.bytes[phase] = memory_used(on) - used


@contextmanager
def watch_construction(phases: Phases, on: str) -> Iterator[None]:
    """Measures an engine's construction into `phases`; of an engine in a child process only the total is visible."""
    from vllm.v1.worker.gpu_worker import Worker

    workers = [Worker]
    if on == "cpu":
        from vllm.v1.worker.cpu_worker import CPUWorker

        workers.insert(0, CPUWorker)

    def measured(step: str, function):
        def run(*args, **kwargs):
            with phases.measure(STEPS[step], on):
                return function(*args, **kwargs)

        return run

    with ExitStack() as stack:
        for step in STEPS:
            owner = next(worker for worker in workers if step in vars(worker))
            stack.enter_context(patch.object(owner, step, measured(step, vars(owner)[step])))
        start, used = time.perf_counter(), memory_used(on)
        before = set(phases.seconds)
        yield
        inside = [phase for phase in phases.seconds if phase not in before]
        rest = REST if inside else UNSEEN
        phases.seconds[rest] = time.perf_counter() - start - sum(phases.seconds[p] for p in inside)
        phases.bytes[rest] = memory_used(on) - used - sum(phases.bytes[p] for p in inside)
