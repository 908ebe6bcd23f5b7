"""Runs a job: a sliding window of requests in the real engine, each result in the journal the moment it exists."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.engine.inside import alive, outer_id
from helpers.engine.start import check_main
from helpers.jobs import hashes, plan, results
from helpers.jobs import journal as journals
from helpers.jobs.fields import decisive, sampling_params
from helpers.jobs.hashes import Piece
from helpers.jobs.job import Job
from helpers.jobs.journal import Journal
from helpers.jobs.paths import withdraw, write_sink
from helpers.jobs.plan import Plan
from helpers.jobs.progress import Progress
from helpers.jobs.report import Report
from helpers.jobs.rows import BadRow, Row, SourceProblem, decoded, given_id, identity, parse
from helpers.jobs.stops import noted
from helpers.problems import Problem, Refused, one_line

if TYPE_CHECKING:
    from vllm import LLM

REFILLS = 8  # of a window: rows prepared one after another cost less than one after each step


class JobStopped(Problem):
    """The engine failed; every row that was finished is in the journal."""


def run_job(
    llm: "LLM | Callable[[], LLM]", source: Any, sink: str | Path, *, progress: bool = True, **settings: Any
) -> Report:
    """Runs every row of `source` through `llm` and writes one row for each to `sink`, in the input's order.

    `source` is a path, a DataFrame or any iterable of dicts, as `Job` says; `settings` are the fields of `JobSettings`.
    `llm` may be a function that constructs the engine, with `model` as its name: it is called only when rows are
    missing. Results are appended to `sink`.journal as they come, and `sink` itself is written in one piece when none is
    missing. Run again after any end, it does only what is missing.

    Ctrl-C and SIGTERM stop it in order; the report says so. Raises `Refused` in its kinds (`SourceProblem`,
    `DuplicateIds`, `Changed`) before the engine starts (`Changed` after it for a model that only the engine knows),
    `JournalProblem` when the disk is full, and `JobStopped` when the engine fails.
    """
    check_main()  # a spawned child must not wait for its parent's journal
    return run(Job.of(source, sink, **settings), llm, progress)


def run(job: Job, llm: "LLM | Callable[[], LLM]", progress: bool = True) -> Report:
    """Does what is missing of a job; see `run_job`."""
    began, how = time.perf_counter(), job.settings
    lazy = not hasattr(llm, "llm_engine")
    if lazy and not how.model:
        raise Refused("A function that constructs the engine does not tell the model's name: pass model= too.")
    name = how.model or llm.llm_engine.model_config.model
    job.index  # noqa: B018  # the input is refused before its journal is touched
    with Journal(job.journal, how.fsync) as journal:
        known = journals.read(journal.path)
        if job.sink.exists() and known.job is None:
            raise SourceProblem(f"{job.sink} is there, and no journal has its rows: move it or name another output.")
        done_as = how.identity(hashes.assumed(hashes.fingerprint(name, how.chat_template), known.job))
        todo = plan.make(job, known, done_as)
        work = _Run(job, journal, done_as)
        if todo.todo.any():
            starts = time.perf_counter()
            engine = llm() if lazy else llm
            work.load_seconds = time.perf_counter() - starts if lazy else 0.0
            done_as["model"] = hashes.fingerprint(name, how.chat_template, engine.llm_engine.model_config)
            todo = plan.make(job, known, done_as)  # it may be another model
            work.first = None if known.job == done_as else journals.job_line(done_as)
            withdraw(job.sink)
            count, ended = int(todo.ours.sum()), int((todo.ours & ~todo.todo).sum())
            with noted() as stop, Progress(count, ended, progress) as bar:
                work.through(engine, plan.missing(job, todo), how.window or _window(engine), stop, bar)
        elif known.job != done_as:
            journal.append(journals.job_line(done_as))
        journal.sync()
        return _finish(work, todo, time.perf_counter() - began)


class _Run:
    """One run over the missing rows."""

    def __init__(self, job: Job, journal: Journal, done_as: dict[str, Any]):
        self.job, self.journal, self.done_as = job, journal, done_as
        self.stopped: str | None = None
        self.load_seconds = 0.0
        self.ran = self.tokens = 0
        self.rates = [(0.0, 0)]  # seconds since the start, tokens so far; one a second
        self._settings: dict | None = None
        self.first: bytes | None = None  # the job's line, which makes earlier rows of another job void

    def through(self, llm: "LLM", rows: Iterator[Piece], window: int, stop, bar: Progress) -> None:
        """Keeps `window` requests in the engine until the rows are used up or a stop is asked for."""
        engine, running, start = llm.llm_engine, {}, time.perf_counter()
        common = llm.llm_engine.model_config.get_diff_sampling_param() | self.done_as["defaults"]
        low = window - max(1, window // REFILLS)
        try:
            while not stop:
                if len(running) <= low:
                    while not stop and len(running) < window and (piece := next(rows, None)) is not None:
                        self._start(llm, piece, common, running, bar)
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

    def _start(self, llm: "LLM", piece: Piece, common: dict, running: dict, bar: Progress) -> None:
        """Gives one row to the engine, or rejects it: alone, so that it cannot hurt the others."""
        row, how = None, self.job.settings
        try:
            row = parse(piece.data, piece.number)
            params = sampling_params(row, common, how.override, self.done_as["seed"])
            if row.chat:
                [request] = llm.enqueue_chat([row.prompt], params, use_tqdm=False, chat_template=how.chat_template)
            else:
                prompt = row.prompt if isinstance(row.prompt, str) else {"prompt_token_ids": row.prompt}
                [request] = llm.enqueue([prompt], params, use_tqdm=False)
        except Exception as error:
            if _fatal(error):
                where = f"row {piece.number}{f', {row.id!r}' if row else ''}"
                again = "take this row out if it fails here again"
                raise JobStopped(
                    f"The engine failed at {where} ({one_line(error)}). {self._go_on()}; {again}."
                ) from error
            name = row.name if row else _name(piece.data)
            batch = row.batch if row else self.job.index.batch
            rejected = results.rejected(name, piece.number, one_line(error), batch)
            self._append(piece, None, "rejected", "rejected", 0, rejected)
            bar.count("rejected", 0)
        else:
            running[outer_id(request)] = piece, row

    def _write(self, piece: Piece, row: Row, output, bar: Progress) -> None:
        status, reason = results.judged(output, self.job.settings.allow)
        tokens = sum(len(completion.token_ids) for completion in output.outputs)
        self.tokens += tokens
        written = results.finished(row, output, status, reason, self.done_as["model"]["name"])
        self._append(piece, decisive(row.settings), status, reason, tokens, written)
        bar.count(reason, tokens)

    def _append(self, piece: Piece, settings: dict | None, status: str, reason: str, tokens: int, row: dict) -> None:
        if self.first:
            self.journal.append(self.first)
            self.first = None
        if settings is not None and settings != self._settings:
            self.journal.append(journals.settings_line(settings))
            self._settings = settings
        self.ran += 1
        index = self.job.index
        key = int(index.ids[piece.place]), int(index.raws[piece.place]), hashes.content(piece.data)
        self.journal.append(journals.line(key, status, reason, tokens, row))


def _finish(run: _Run, plan: Plan, seconds: float) -> Report:
    """Reads the journal back, writes the sink when nothing is missing, and the report."""
    job, known = run.job, journals.read(run.journal.path)
    ours, entry = plan.ours, known.find(job.index.ids)
    answered = ours & (entry >= 0) & (known.job == run.done_as)
    answered[answered] &= ~plan.stale[answered] | (known.keys[entry[answered], 1] == job.index.raws[answered])
    there = entry[answered]
    if complete := len(there) == int(ours.sum()):
        write_sink(job.sink, journals.rows(run.journal.path, known.offsets[there]))
    report = Report(
        sink=str(job.sink),
        model=run.done_as["model"]["name"],
        rows=int(ours.sum()),
        ended=dict(sorted(known.counts(there).items())),
        complete=complete,
        stopped=run.stopped,
        mended=run.journal.mended,
        ran=run.ran,
        tokens=run.tokens,
        seconds=seconds,
        load_seconds=run.load_seconds,
        limits=job.settings.limits,
        lengths=known.tokens[there],
        rates=run.rates,
    )
    report.write(job.sink)
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


def _fatal(error: Exception) -> bool:
    """Whether an error on giving a row to the engine is the engine's or the machine's, not the row's."""
    if isinstance(error, Refused | RecursionError | NotImplementedError):  # of a schema without end, of a feature
        return False
    return isinstance(error, MemoryError | OSError | RuntimeError) or "EngineDead" in type(error).__name__
