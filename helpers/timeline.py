"""Records what vLLM's scheduler decides, iteration by iteration, and shows it as a frame, as text and as a picture."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from helpers.engine import inside
from helpers.engine.inside import outer_id
from helpers.picture import Picture

if TYPE_CHECKING:
    import pandas as pd
    from vllm import LLM

PREFILL, DECODE = "prefill", "decode"
HIDDEN = (
    "The engine runs in another process: iterations, admission, preemption and KV cache use are not visible, only when "
    "each request was given and came back. To see them, set VLLM_ENABLE_V1_MULTIPROCESSING=0 before importing helpers."
)
COLUMNS = ["seconds", "running", "waiting", "prefill", "decode", "kv_usage", "admitted", "preempted", "finished"]


@dataclass(frozen=True)
class Step:
    """One iteration of the engine, as the scheduler decided it."""

    seconds: float  # since the recording began
    scheduled: dict[str, int]  # tokens by request
    admitted: tuple[str, ...]  # requests that run for the first time
    preempted: tuple[str, ...]  # requests that lost their KV blocks and wait again
    waiting: int
    kv_usage: float  # share of the KV cache's blocks in use, 0 to 1


@dataclass
class Timeline:
    """The iterations of one recording, and when each request was given and came back.

    Of an engine in another process there are no iterations: `hidden` says so, and their frames are empty.
    """

    steps: list[Step] = field(default_factory=list)
    prefill_left: dict[str, int] = field(default_factory=dict)  # prompt tokens to compute at admission, by request
    given: dict[str, float] = field(default_factory=dict)  # seconds since the recording began, by request
    returned: dict[str, float] = field(default_factory=dict)
    hidden: str = ""

    def requests(self) -> list[str]:
        """Request ids, in the order of admission; where that is hidden, in the order in which they were given."""
        return list(self.given if self.hidden else self.prefill_left)

    def spans(self) -> "pd.DataFrame":
        """One row a request: `request`, `given` and `returned` in seconds, NaN where it did not come back."""
        import pandas as pd

        rows = [(request, at, self.returned.get(request, float("nan"))) for request, at in self.given.items()]
        return pd.DataFrame(rows, columns=["request", "given", "returned"])

    def frame(self) -> "pd.DataFrame":
        """One row for each request of each iteration: `iteration`, `request`, `phase`, `tokens`."""
        import pandas as pd

        left, rows = dict(self.prefill_left), []
        for number, step in enumerate(self.steps, 1):
            for request, tokens in step.scheduled.items():
                # More than one token after the prompt: a preempted request computes its lost KV blocks again.
                prefill = left[request] > 0 or tokens > 1
                left[request] -= tokens
                rows.append((number, outer_id(request), PREFILL if prefill else DECODE, tokens))
        return pd.DataFrame(rows, columns=["iteration", "request", "phase", "tokens"])

    def iterations(self) -> "pd.DataFrame":
        """One row an iteration: `seconds`, `running`, `waiting`, `prefill` and `decode` tokens, `kv_usage`, and the
        ids `admitted`, `preempted` and `finished` (those whose last iteration it was)."""
        import pandas as pd

        frame = self.frame()
        tokens = frame.pivot_table("tokens", "iteration", "phase", "sum", fill_value=0)
        tokens = tokens.reindex(columns=[PREFILL, DECODE], index=range(1, len(self.steps) + 1), fill_value=0).astype(
            int
        )
        last = {request: number for number, step in enumerate(self.steps, 1) for request in step.scheduled}
        rows = [
            {
                "seconds": step.seconds,
                "running": len(step.scheduled),
                "waiting": step.waiting,
                "prefill": tokens.loc[number, PREFILL],
                "decode": tokens.loc[number, DECODE],
                "kv_usage": step.kv_usage,
                "admitted": [outer_id(request) for request in step.admitted],
                "preempted": [outer_id(request) for request in step.preempted],
                "finished": [outer_id(request) for request in step.scheduled if last[request] == number],
            }
            for number, step in enumerate(self.steps, 1)
        ]
        return pd.DataFrame(rows, columns=COLUMNS, index=pd.RangeIndex(1, len(rows) + 1, name="iteration"))

    def transcript(self) -> str:
        """The same in words: a line wherever something changes, and one for each stretch in which nothing does."""
        if self.hidden:
            return "\n".join([self.hidden, *map(_span, self.spans().sort_values("returned").itertuples())])
        lines, stretch = [], []
        for number, row in self.iterations().iterrows():
            events = [f"{name} {', '.join(row[name])}" for name in ("admitted", "preempted", "finished") if row[name]]
            if not events:
                stretch.append(number)
                continue
            lines += _stretch(stretch)
            stretch = []
            state = f"{row.running} running, {row.waiting} waiting, KV {row.kv_usage:.0%}"
            lines.append(f"iteration {number}: {state}; {'; '.join(events)}")
        return "\n".join(lines + _stretch(stretch))

    def draw(self) -> "Picture":
        """Requests as rows, iterations as columns: prefill hatched, decode plain, admissions and preemptions marked.

        Where pictures are not shown, the transcript stands in its place; where iterations are hidden, a bar a request.
        """
        from matplotlib.figure import Figure

        if self.hidden:
            return self._draw_spans()
        order = {outer_id(request): row for row, request in enumerate(self.requests())}
        figure = Figure(figsize=(10, 0.9 + 0.26 * len(order)), layout="constrained", facecolor="white")
        axes = figure.add_subplot()
        frame = self.frame()
        for phase, style in _STYLES.items():
            part = frame[frame.phase == phase]
            if len(self.steps) > 100:
                style = style | {"linewidth": 0}  # edges would be all that is seen
            axes.barh(part.request.map(order), 1, left=part.iteration - 0.5, height=0.72, label=phase, **style)
        for number, step in enumerate(self.steps, 1):
            for requests, mark, label in ((step.admitted, "$▸$", "admitted"), (step.preempted, "X", "preempted")):
                rows = [order[outer_id(request)] for request in requests]
                axes.scatter([number - 0.5] * len(rows), rows, marker=mark, color="black", s=36, zorder=3, label=label)
        axes.set(xlabel="iteration of the engine", ylabel="request, by admission", ylim=(len(order) - 0.4, -0.6))
        axes.set_yticks(range(len(order)), order)
        axes.set_xlim(0.5, max(len(self.steps), 1) + 0.5)
        seen = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        axes.legend(seen.values(), seen.keys(), ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)
        return Picture(figure, self.transcript())

    def _draw_spans(self) -> "Picture":
        from matplotlib.figure import Figure

        spans = self.spans()
        figure = Figure(figsize=(10, 0.9 + 0.26 * len(spans)), layout="constrained", facecolor="white")
        axes = figure.add_subplot()
        axes.barh(range(len(spans)), spans.returned - spans.given, left=spans.given, height=0.72, color="#4477aa")
        axes.set(xlabel="seconds (the scheduler is in another process)", ylabel="request")
        axes.set_yticks(range(len(spans)), spans.request)
        axes.invert_yaxis()
        return Picture(figure, self.transcript())

    def __repr__(self) -> str:
        if self.hidden:
            return f"{len(self.given)} requests, {len(self.returned)} came back; iterations are not visible"
        preemptions = sum(len(step.preempted) for step in self.steps)
        peak = max((len(step.scheduled) for step in self.steps), default=0)
        requests = f"{len(self.prefill_left)} requests, at most {peak} at once"
        return f"{len(self.steps)} iterations, {requests}, {preemptions} preemptions"


_STYLES = {
    PREFILL: {"color": "#c9c9c9", "edgecolor": "black", "hatch": "////", "linewidth": 0.4},
    DECODE: {"color": "#4477aa", "edgecolor": "white", "linewidth": 0.4},
}


def _stretch(numbers: list[int]) -> list[str]:
    if not numbers:
        return []
    span = f"iteration {numbers[0]}" if len(numbers) == 1 else f"iterations {numbers[0]} to {numbers[-1]}"
    return [f"{span}: the same requests go on"]


def _span(row: Any) -> str:
    back = f"back at {row.returned:.2f} s" if row.returned == row.returned else "did not come back"
    return f"request {row.request}: given at {row.given:.2f} s, {back}"


@contextmanager
def record(llm: "LLM") -> Iterator[Timeline]:
    """Records the scheduler while the block runs: `with record(llm) as timeline: llm.generate(...)`.

    What runs is not changed; a step costs some microseconds more.
    """
    scheduler = inside.scheduler(llm)
    timeline, start = Timeline(hidden="" if scheduler else HIDDEN), time.perf_counter()
    with _requests(llm.llm_engine, timeline, start), _iterations(scheduler, timeline, start):
        yield timeline


@contextmanager
def _requests(engine: Any, timeline: Timeline, start: float) -> Iterator[None]:
    """From outside the engine: when each request is given to it, and when it comes back finished."""
    add, step = engine.add_request, engine.step

    def added(request_id, *args, **kwargs):
        timeline.given[request_id] = time.perf_counter() - start
        return add(request_id, *args, **kwargs)

    def stepped():
        outputs = step()
        for output in outputs:
            if output.finished:
                timeline.returned[output.request_id] = time.perf_counter() - start
        return outputs

    engine.add_request, engine.step = added, stepped
    try:
        yield
    finally:
        engine.add_request, engine.step = add, step


@contextmanager
def _iterations(scheduler: Any | None, timeline: Timeline, start: float) -> Iterator[None]:
    """What the scheduler decides, where there is one to be seen."""
    if scheduler is None:
        yield
        return
    before: frozenset[str] = frozenset()

    def seen(decision: inside.Decision) -> None:
        nonlocal before
        timeline.prefill_left |= decision.admitted
        timeline.steps.append(
            Step(
                time.perf_counter() - start,
                decision.scheduled,
                tuple(decision.admitted),
                tuple(sorted(decision.preempted - before)),
                decision.waiting,
                decision.kv_usage,
            )
        )
        before = decision.preempted

    with inside.decisions(scheduler, seen):
        yield
