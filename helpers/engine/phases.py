"""What constructing an `LLM` does, phase by phase: seconds, and bytes of memory taken."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from helpers.engine import inside
from helpers.memory import memory_used

NAMES = dict(
    zip(
        inside.CONSTRUCTION,
        ("prepare the device", "load the weights", "profile a forward pass", "allocate the KV cache", "warm up"),
        strict=True,
    )
)
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

    def measured(step: str, function):
        def run(*args, **kwargs):
            with phases.measure(NAMES[step], on):
                return function(*args, **kwargs)

        return run

    with ExitStack() as stack:
        for owner, step in inside.construction_steps(on):
            usual = vars(owner)[step]
            stack.callback(setattr, owner, step, usual)
            setattr(owner, step, measured(step, usual))
        start, used = time.perf_counter(), memory_used(on)
        before = set(phases.seconds)
        yield
        seen = [phase for phase in phases.seconds if phase not in before]
        rest = REST if seen else UNSEEN
        phases.seconds[rest] = time.perf_counter() - start - sum(phases.seconds[p] for p in seen)
        phases.bytes[rest] = memory_used(on) - used - sum(phases.bytes[p] for p in seen)
