"""What a job did, and whether its results may be used."""

import base64
import html
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from helpers.jobs.journal import STATUSES, JournalProblem
from helpers.jobs.results import REASONS
from helpers.picture import Picture
from helpers.problems import Refused

LIMITS = {"rejected": 0.01, "failed": 0.01}
_WAYS_OUT = (
    "Correct rejected rows and run again; run failed ones again with --retry failed and more room "
    "(--override max_tokens=N) or another reason allowed (--allow stop,length); or accept them (--limit failed=0.5)."
)


def checked_limits(limits: dict[str, float]) -> dict[str, float]:
    """Shares by status or reason. Raises `Refused` for a name that no row can end with, or no share."""
    for name, share in limits.items():
        if name not in (*STATUSES, *REASONS) or not 0 <= share <= 1:
            known = ", ".join((*STATUSES, *REASONS))
            raise Refused(f"The limit {name}={share} is none: it is a share (0 to 1) of rows that end as {known}.")
    return dict(limits)


@dataclass(repr=False)
class Report:
    """Counts over all rows of the sink; `ran`, `tokens`, `seconds` and `rates` of this run alone."""

    sink: str
    model: str
    rows: int
    ended: dict[str, int]  # rows by "status: reason"
    seconds: float
    limits: dict[str, float]  # by status or reason: the largest share of the rows that passes
    complete: bool = True
    stopped: str | None = None  # the signal
    mended: str = ""
    ran: int = 0  # rows that ended in this run
    tokens: int = 0
    load_seconds: float = 0.0
    lengths: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint32))  # completion tokens a row
    rates: list[tuple[float, int]] = field(default_factory=list)

    def share(self, name: str) -> float:
        """The share of the rows that ended with this status or for this reason."""
        return sum(n for key, n in self.ended.items() if name in key.split(": ")) / max(1, self.rows)

    def exceeded(self) -> dict[str, float]:
        """The limits that are not kept, with the share found."""
        return {name: share for name, limit in self.limits.items() if (share := self.share(name)) > limit}

    @property
    def passed(self) -> bool:
        """Whether every row has ended and all limits are kept."""
        return self.complete and not self.exceeded()

    def exit_code(self) -> int:
        """0, 3 when the gate fails, or 128 and the signal's number as shells have it."""
        if self.stopped:
            return 128 + signal.Signals[self.stopped].value
        return 0 if self.passed else 3

    def sentences(self) -> list[str]:
        """What there is to say, a sentence each."""
        ended = ", ".join(f"{n:,} {key}" for key, n in self.ended.items())
        said = [f"{sum(self.ended.values()):,} of {self.rows:,} rows have ended ({ended or 'none'})."]
        if self.tokens:
            working = self.seconds - self.load_seconds
            said.append(f"This run: {self.tokens:,} tokens in {working:,.1f} s, {self.tokens / working:,.0f} a second.")
            if self.load_seconds > working and self.ran == self.rows:
                said.append(
                    f"Starting the engine took {self.load_seconds:.0f} s, longer than the work: for jobs of this size "
                    "a server that stays warm is the better place."
                )
        said += [self.mended] if self.mended else []
        if self.stopped:
            said.append(f"Stopped by {self.stopped}: run the same command again to go on.")
        elif not self.complete:
            missing = self.rows - sum(self.ended.values())
            said.append(f"The engine gave no answer to {missing:,} rows: run the same command again.")
        for name, share in self.exceeded().items():
            said.append(f"The gate fails: {name} is {share:.1%} of the rows, and {self.limits[name]:.1%} are allowed.")
        if self.exceeded():
            said.append(_WAYS_OUT)
        said.append(f"Results: {self.sink}" if self.complete else f"Results so far: {self.sink}.journal")
        return said

    def json(self) -> bytes:
        """For machines: the fields, without arrays, and the gate's result."""
        fields = {name: value for name, value in vars(self).items() if name not in ("lengths", "rates")}
        quantiles = np.quantile(self.lengths, [0.5, 0.9, 0.99]).tolist() if len(self.lengths) else [0, 0, 0]
        more: dict[str, Any] = {"passed": self.passed, "exceeded": self.exceeded()}
        more["completion_tokens"] = dict(zip(("median", "p90", "p99"), quantiles, strict=True))
        return msgspec.json.format(msgspec.json.encode(fields | more))

    def draw(self) -> Picture:
        """How rows ended, how long they are, and the rate over time."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 2.8), facecolor="white")
        figure.subplots_adjust(left=0.16, right=0.98, bottom=0.2, wspace=0.3)  # twice as fast as a layout engine
        reasons, lengths, rates = figure.subplots(1, 3)
        reasons.barh(list(self.ended), list(self.ended.values()), color="#4477aa")
        reasons.set(title="rows", ylim=(-0.7, max(2, len(self.ended)) - 0.3))  # one bar is no wall
        lengths.stairs(*np.histogram(self.lengths, bins=30), fill=True, color="#4477aa")  # faster than hist()
        lengths.set_title("completion tokens")
        if len(self.rates) > 1:
            times, tokens = np.array(self.rates).T
            rates.stairs(np.diff(tokens) / np.diff(times), times, color="#4477aa")
        rates.set(title="tokens/s", xlabel="seconds")
        return Picture(figure, "\n".join(self.sentences()))

    def write(self, sink: Path) -> None:
        """`sink`.report.json and `sink`.report.html beside the results. Raises `JournalProblem` when it cannot."""
        page = f'<!doctype html><meta charset="utf-8">{self._repr_html_()}'
        try:
            sink.with_name(sink.name + ".report.json").write_bytes(self.json())
            sink.with_name(sink.name + ".report.html").write_text(page, "utf-8")
        except OSError as error:
            lost = "no result is lost: make room and run again"
            raise JournalProblem(f"The report of {sink} cannot be written ({error.strerror}); {lost}.") from error

    def _repr_html_(self) -> str:
        picture = base64.b64encode(self.draw()._repr_png_()).decode()
        lines = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in self.sentences())
        alt = html.escape("Three plots: rows by how they ended, completion tokens a row, tokens a second", quote=True)
        image = f'<img alt="{alt}" src="data:image/png;base64,{picture}">'
        return f"<h3>{html.escape(Path(self.sink).name)}</h3>{lines}{image}"

    def __repr__(self) -> str:
        return "\n".join(self.sentences())
