"""What can be seen of an engine in another process: when each request was given to it and when it came back."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from helpers.picture import Picture

if TYPE_CHECKING:
    import pandas as pd
    from vllm.v1.engine.llm_engine import LLMEngine

HIDDEN = (
    "The engine runs in another process: iterations, admission, preemption and KV cache use are not visible, only when "
    "each request was given and came back. To see them, set VLLM_ENABLE_V1_MULTIPROCESSING=0 before importing helpers."
)


@dataclass
class Spans:
    """Seconds since the recording began at which each request was given to the engine and came back finished."""

    given: dict[str, float] = field(default_factory=dict)
    finished: dict[str, float] = field(default_factory=dict)

    def requests(self) -> list[str]:
        """Request ids, in the order in which they were given."""
        return list(self.given)

    def frame(self) -> "pd.DataFrame":
        """One row a request: `request`, `given` and `finished` in seconds, NaN where it did not come back."""
        import pandas as pd

        rows = [(request, at, self.finished.get(request, float("nan"))) for request, at in self.given.items()]
        return pd.DataFrame(rows, columns=["request", "given", "finished"])

    def transcript(self) -> str:
        """A line a request, in the order of finishing, and what is not visible."""
        lines = [HIDDEN]
        for row in self.frame().sort_values("finished").itertuples():
            back = f"back at {row.finished:.2f} s" if row.finished == row.finished else "did not come back"
            lines.append(f"request {row.request}: given at {row.given:.2f} s, {back}")
        return "\n".join(lines)

    def draw(self) -> Picture:
        """A bar a request, from given to back."""
        from matplotlib.figure import Figure

        frame = self.frame()
        figure = Figure(figsize=(10, 0.9 + 0.26 * len(frame)), layout="constrained", facecolor="white")
        axes = figure.add_subplot()
        axes.barh(range(len(frame)), frame.finished - frame.given, left=frame.given, height=0.72, color="#4477aa")
        axes.set(xlabel="seconds (the scheduler is in another process)", ylabel="request")
        axes.set_yticks(range(len(frame)), frame.request)
        axes.invert_yaxis()
        return Picture(figure, self.transcript())

    def __repr__(self) -> str:
        return f"{len(self.given)} requests, {len(self.finished)} came back; steps are not visible"


@contextmanager
def record_spans(engine: "LLMEngine") -> Iterator[Spans]:
    """Records from this side of the process border while the block runs."""
    spans, start = Spans(), time.perf_counter()
    add, step = engine.add_request, engine.step

    def added(request_id, *args, **kwargs):
        spans.given[request_id] = time.perf_counter() - start
        return add(request_id, *args, **kwargs)

    def stepped():
        outputs = step()
        for output in outputs:
            if output.finished:
                spans.finished[output.request_id] = time.perf_counter() - start
        return outputs

    engine.add_request, engine.step = added, stepped
    try:
        yield spans
    finally:
        engine.add_request, engine.step = add, step
