"""The job itself: a sliding window of requests in the real engine, each result in the journal the moment it exists."""

import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from helpers.failures import one_line
from helpers.guard import alive
from helpers.jobs import journal as journals
from helpers.jobs import keys, results
from helpers.jobs.journal import Journal, Policy
from helpers.jobs.keys import Index
from helpers.jobs.plan import Plan, rows
from helpers.jobs.plan import plan as plan_rows
from helpers.jobs.progress import Progress
from helpers.jobs.report import LIMITS, Report, checked_limits
from helpers.jobs.rows import BadRow, Row, Source, SourceProblem, decoded, given_id, identity, parse
from helpers.jobs.settings import checked, decisive, sampling_params
from helpers.jobs.sinks import checked_sink, journal_path, shards_of_another_number, withdraw, write_sink
from helpers.jobs.stops import noted
from helpers.start import check_main
from helpers.timeline import short

if TYPE_CHECKING:
    from vllm import LLM

REFILLS = 8  # of a window: rows prepared one after another cost less than one after each step


class JobStopped(RuntimeError):
    """The engine failed; every row that was finished is in the journal."""


def run_job(
    llm: "LLM | Callable[[], LLM]",
    source: Any,
    sink: str | Path,
    *,
    model: str | None = None,
    defaults: dict[str, Any] | None = None,
    override: dict[str, Any] | None = None,
    chat_template: str | None = None,
    seed: int | None = 0,
    allow: Collection[str] = ("stop",),
    limits: dict[str, float] = LIMITS,
    retry: Collection[str] = (),
    redo: bool = False,
    shard: tuple[int, int] = (1, 1),
    window: int | None = None,
    fsync: Policy = "seconds",
    progress: bool = True,
) -> Report:
    """Runs every row of `source` through `llm` and writes one row for each to `sink`, in the input's order.

    `source` is a path (.jsonl, also .gz and .zst, or .parquet), a DataFrame, or any iterable of dicts; its rows are in
    OpenAI's batch format or plain (`id`, `prompt` or `messages`, sampling fields). `llm` may be a function that
    constructs the engine, with `model` as its name: it is called only when rows are missing. Results are appended to
    `sink`.journal as they come, and `sink` itself is written in one piece when none is missing. Run again after any
    end, it does only what is missing.

    A row's settings are the checkpoint's recommendations, then `defaults`, then its own, then `override`, which may
    differ from run to run. `seed` gives rows that sample a seed of their own, from it and the id; None leaves them
    random. A row is done when it ends for a reason in `allow`, judged by the run that finishes it. `retry` names
    statuses ("failed", "rejected") to run again; a rejected row that was changed is run without. `redo` also does rows
    again whose prompt, settings or model changed. `shard=(i, n)` takes the i-th of n parts by the id's hash and marks
    the sink's name. `window` is how many requests are in the engine at once (default: twice max_num_seqs). `fsync` is
    the journal's policy.

    Ctrl-C and SIGTERM stop it in order; the report says so. Raises `ValueError`, `SourceProblem`, `DuplicateIds` and
    `Changed` before the engine starts (`Changed` after it for a model that only the engine knows), `JournalProblem`
    when the disk is full, and `JobStopped` when the engine fails.
    """
    began = time.perf_counter()
    check_main()  # a spawned child must not wait for its parent's journal
    allow, retry = _names("allow", allow, results.REASONS), _names("retry", retry, journals.STATUSES[1:])
    limits = checked_limits(limits)
    if window is not None and window < 1:
        raise ValueError(f"A window of {window} requests runs none: give 1 or more, or leave it out.")
    checked((defaults or {}) | (override or {}))
    whole, sink, source = Path(sink), checked_sink(Path(sink), source, shard), Source(source)
    found = keys.index(source)
    ours = found.ids % np.uint64(shard[1]) == np.uint64(shard[0] - 1)
    lazy = not hasattr(llm, "llm_engine")
    if lazy and not model:
        raise ValueError("A function that constructs the engine does not tell the model's name: pass model= too.")
    name = model or llm.llm_engine.model_config.model
    common = {"defaults": defaults or {}, "seed": seed}
    common = msgspec.json.decode(msgspec.json.encode(common))  # as the journal gives it back: tuples are lists there
    if other := shards_of_another_number(whole, shard[1]):
        raise SourceProblem(f"{other} is of another number of shards: run that number, or remove these journals.")
    with Journal(journal_path(sink), fsync) as journal:
        known = journals.read(journal.path)
        if sink.exists() and known.job is None:
            raise SourceProblem(f"{sink} is there, and no journal has its rows: move it away or name another output.")
        job = common | {"model": keys.assumed(keys.fingerprint(name, chat_template), known.job)}
        plan = plan_rows(source, found, ours, known, job, journal.path, retry, redo)
        run = _Run(journal, job, override or {}, chat_template, allow, found)
        if plan.todo.any():
            starts = time.perf_counter()
            engine = llm() if lazy else llm
            run.load_seconds = time.perf_counter() - starts if lazy else 0.0
            job["model"] = keys.fingerprint(name, chat_template, engine.llm_engine.model_config)
            plan = plan_rows(source, found, ours, known, job, journal.path, retry, redo)  # it may be another model
            run.first = None if known.job == job else journals.job_line(job)
            withdraw(sink)
            with noted() as stop, Progress(int(ours.sum()), int((ours & ~plan.todo).sum()), progress) as bar:
                run.through(engine, rows(source, found, plan.todo), window or _window(engine), stop, bar)
        elif known.job != job:
            journal.append(journals.job_line(job))
        journal.sync()
        return _finish(run, found, plan, sink, limits, time.perf_counter() - began)


class _Run:
    """One run over the missing rows."""

    def __init__(self, journal: Journal, job: dict, override: dict, template: str | None, allow, index: Index):
        self.journal, self.job, self.override, self.template = journal, job, override, template
        self.allow, self.index = allow, index
        self.stopped: str | None = None
        self.load_seconds = 0.0
        self.ran = self.tokens = 0
        self.rates = [(0.0, 0)]  # seconds since the start, tokens so far; one a second
        self._settings: dict | None = None
        self.first: bytes | None = None  # the job's line, which makes earlier rows of another job void

    def through(self, llm: "LLM", rows: Iterator, window: int, stop, bar: Progress) -> None:
        """Keeps `window` requests in the engine until the rows are used up or a stop is asked for."""
        engine, running, start = llm.llm_engine, {}, time.perf_counter()
        common = llm.llm_engine.model_config.get_diff_sampling_param() | self.job["defaults"]
        low = window - max(1, window // REFILLS)
        try:
            while not stop:
                if len(running) <= low:
                    while not stop and len(running) < window and (item := next(rows, None)) is not None:
                        self._start(llm, item, common, running, bar)
                if not running:
                    break
                for output in engine.step():
                    entry = running.pop(output.request_id, None) if output.finished else None
                    # An engine that is shut down aborts what it has: no answer, and the next run does these rows.
                    if entry and not any(c.finish_reason == "abort" for c in output.outputs):
                        self._write(*entry, output, bar)
                self.journal.tick()
                now = time.perf_counter() - start
                if now - self.rates[-1][0] >= 1:
                    self.rates.append((now, self.tokens))
            self.rates[max(1, len(self.rates) - 1) :] = [(time.perf_counter() - start, self.tokens)]
        except Exception as error:
            if isinstance(error, journals.JournalProblem | SourceProblem | JobStopped):
                raise
            raise JobStopped(f"The engine failed ({one_line(error)}). {self._go_on()}.") from error
        finally:
            if running and alive(engine):
                engine.abort_request(list(running))
        if stop:
            self.stopped = stop.by.name

    def _go_on(self) -> str:
        return f"Every row that was finished is in {self.journal.path}: run the same command again to go on"

    def _start(self, llm: "LLM", item: tuple, common: dict, running: dict, bar: Progress) -> None:
        """Gives one row to the engine, or rejects it: alone, so that it cannot hurt the others."""
        place, number, piece = item
        row = None
        try:
            row = parse(piece, number)
            params = sampling_params(row, common, self.override, self.job["seed"])
            if row.chat:
                [request] = llm.enqueue_chat([row.prompt], params, use_tqdm=False, chat_template=self.template)
            else:
                prompt = row.prompt if isinstance(row.prompt, str) else {"prompt_token_ids": row.prompt}
                [request] = llm.enqueue([prompt], params, use_tqdm=False)
        except Exception as error:
            if _fatal(error):
                where = f"row {number}{f', {row.id!r}' if row else ''}"
                again = "take this row out if it fails here again"
                raise JobStopped(
                    f"The engine failed at {where} ({one_line(error)}). {self._go_on()}; {again}."
                ) from error
            name = row.name if row else _name(piece)
            batch = row.batch if row else self.index.batch
            rejected = results.rejected(name, number, one_line(error), batch)
            self._append(place, piece, None, "rejected", "rejected", 0, rejected)
            bar.count("rejected", 0)
        else:
            running[short(request)] = place, piece, row

    def _write(self, place: int, piece: bytes | dict, row: Row, output, bar: Progress) -> None:
        status, reason = results.judged(output, self.allow)
        tokens = sum(len(completion.token_ids) for completion in output.outputs)
        self.tokens += tokens
        written = results.finished(row, output, status, reason, self.job["model"]["name"])
        self._append(place, piece, decisive(row.settings), status, reason, tokens, written)
        bar.count(reason, tokens)

    def _append(self, place: int, piece, settings: dict | None, status: str, reason: str, tokens: int, row) -> None:
        if self.first:
            self.journal.append(self.first)
            self.first = None
        if settings is not None and settings != self._settings:
            self.journal.append(journals.settings_line(settings))
            self._settings = settings
        self.ran += 1
        key = int(self.index.ids[place]), int(self.index.raws[place]), keys.content(piece)
        self.journal.append(journals.line(key, status, reason, tokens, row))


def _finish(run: _Run, found: Index, plan: Plan, sink: Path, limits: dict, seconds: float) -> Report:
    """Reads the journal back, writes the sink when nothing is missing, and the report."""
    known = journals.read(run.journal.path)
    ours, entry = plan.ours, known.find(found.ids)
    answered = ours & (entry >= 0) & (known.job == run.job)
    answered[answered] &= ~plan.stale[answered] | (known.keys[entry[answered], 1] == found.raws[answered])
    there = entry[answered]
    if complete := len(there) == int(ours.sum()):
        write_sink(sink, journals.rows(run.journal.path, known.offsets[there]))
    report = Report(
        sink=str(sink),
        model=run.job["model"]["name"],
        rows=int(ours.sum()),
        ended=dict(sorted(known.counts(there).items())),
        complete=complete,
        stopped=run.stopped,
        mended=run.journal.mended,
        ran=run.ran,
        tokens=run.tokens,
        seconds=seconds,
        load_seconds=run.load_seconds,
        limits=limits,
        lengths=known.tokens[there],
        rates=run.rates,
    )
    report.write(sink)
    return report


def _window(llm: "LLM") -> int:
    """Twice what the scheduler can run at once, so that one always waits."""
    return 2 * llm.llm_engine.vllm_config.scheduler_config.max_num_seqs


def _name(piece: bytes | dict) -> str | int | None:
    """The id of a row that cannot be read further, as it was given."""
    try:
        raw = decoded(piece)
        identity(raw)
        return given_id(raw)
    except BadRow:
        return None


def _names(argument: str, given: Collection[str], known: Collection[str]) -> tuple[str, ...]:
    """The names given for an argument, one or more. Raises `ValueError` for one that is none of those known."""
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if name not in known:
            raise ValueError(f"{argument} knows {', '.join(known)}, and not {name!r}.")
    return names


def _fatal(error: Exception) -> bool:
    """Whether an error on giving a row to the engine is the engine's or the machine's, not the row's."""
    if isinstance(error, RecursionError | NotImplementedError):  # of a schema without end, of a feature
        return False
    return isinstance(error, MemoryError | OSError | RuntimeError) or "EngineDead" in type(error).__name__
