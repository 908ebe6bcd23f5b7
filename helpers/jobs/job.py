"""A job: which rows, where their results go, and how they are done. Looking at it starts nothing."""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from helpers.jobs import hashes, plan, results
from helpers.jobs import journal as journals
from helpers.jobs.fields import checked
from helpers.jobs.hashes import Index
from helpers.jobs.journal import Policy
from helpers.jobs.paths import checked_sink, journal_path, shards_of_another_number
from helpers.jobs.plan import Plan
from helpers.jobs.report import LIMITS, checked_limits
from helpers.jobs.rows import Source, SourceProblem
from helpers.problems import Refused


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """How a job is done.

    A row's settings are the checkpoint's recommendations, then `defaults`, then its own, then `override`, which may
    differ from run to run. `seed` gives rows that sample a seed of their own, from it and the id; None leaves them
    random. A row is done when it ends for a reason in `allow`, judged by the run that finishes it. `limits` are the
    gate's: the largest share of the rows by status or reason. `retry` names statuses ("failed", "rejected") to run
    again; a rejected row that was changed is run without. `redo` also does rows again whose prompt, settings or model
    changed. `shard=(i, n)` takes the i-th of n parts by the id's hash and marks the sink's name. `window` is how many
    requests are in the engine at once (default: twice max_num_seqs). `fsync` is the journal's policy. `model` names the
    model where the engine is a function that constructs it.
    """

    model: str | None = None
    defaults: dict[str, Any] = field(default_factory=dict)
    override: dict[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    seed: int | None = 0
    allow: Collection[str] = ("stop",)
    limits: dict[str, float] = field(default_factory=lambda: LIMITS)
    retry: Collection[str] = ()
    redo: bool = False
    shard: tuple[int, int] = (1, 1)
    window: int | None = None
    fsync: Policy = "seconds"

    def __post_init__(self) -> None:
        """Raises `Refused` for a setting that cannot be."""
        for name, known in (("allow", results.REASONS), ("retry", journals.STATUSES[1:])):
            object.__setattr__(self, name, _names(name, getattr(self, name), known))
        checked_limits(self.limits)
        checked(self.defaults | self.override)
        if self.window is not None and self.window < 1:
            raise Refused(f"A window of {self.window} requests runs none: give 1 or more, or leave it out.")

    def identity(self, model: dict[str, str | None]) -> dict[str, Any]:
        """What decides all results: rows that were done under another identity are not this job's."""
        common = {"defaults": self.defaults, "seed": self.seed}
        return msgspec.json.decode(msgspec.json.encode(common)) | {"model": model}  # tuples are lists in a journal


@dataclass(frozen=True)
class Job:
    """Rows of `source`, a row of results for each in `sink`, and the settings.

    `source` is a path (.jsonl, also .gz and .zst, or .parquet), a DataFrame, or any iterable of dicts; its rows are in
    OpenAI's batch format or plain (`id`, `prompt` or `messages`, sampling fields). Raises `SourceProblem` for a source
    that is not there and for a sink that would hurt what is.
    """

    source: Source
    sink: Path
    settings: JobSettings

    @classmethod
    def of(cls, source: Any, sink: str | Path, **settings: Any) -> "Job":
        """The job with its source opened and its sink checked; `settings` are fields of `JobSettings`."""
        how = JobSettings(**settings)
        path = checked_sink(Path(sink), source, how.shard)
        if other := shards_of_another_number(Path(sink), how.shard[1]):
            raise SourceProblem(f"{other} is of another number of shards: run that number, or remove these journals.")
        return cls(Source(source), path, how)

    @property
    def journal(self) -> Path:
        """Where results are while the job runs, and stay."""
        return journal_path(self.sink)

    @cached_property
    def index(self) -> Index:
        """Reads the whole input, once. Raises `DuplicateIds`."""
        return hashes.index(self.source)

    @cached_property
    def ours(self) -> np.ndarray:
        """Which rows are of this shard."""
        number, count = self.settings.shard
        return self.index.ids % np.uint64(count) == np.uint64(number - 1)

    def plan(self, model: str) -> Plan:
        """What a run with this model would do, without an engine. Raises as `plan.make` does."""
        known = journals.read(self.journal)
        named = hashes.assumed(hashes.fingerprint(model, self.settings.chat_template), known.job)
        return plan.make(self, known, self.settings.identity(named))


def _names(argument: str, given: Collection[str], known: Collection[str]) -> tuple[str, ...]:
    """The names given for an argument, one or more. Raises `Refused` for one that is none of those known."""
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if name not in known:
            raise Refused(f"{argument} knows {', '.join(known)}, and not {name!r}.")
    return names
