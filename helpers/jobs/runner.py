"""The job itself: a sliding window of requests in the real engine, each result in the journal the moment it exists."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from helpers.jobs import journal as journals
from helpers.jobs import keys, results
from helpers.jobs.journal import Entries, Journal, Policy
from helpers.jobs.keys import Changed, Index
from helpers.jobs.progress import Progress
from helpers.jobs.report import LIMITS, Report
from helpers.jobs.rows import BadRow, Row, Source, decoded, identity, parse
from helpers.jobs.settings import checked, one_line, sampling_params
from helpers.jobs.stops import noted

if TYPE_CHECKING:
    from vllm import LLM


class JobStopped(RuntimeError):
    """The engine failed; every row that was finished is in the journal."""


@dataclass(frozen=True)
class Plan:
    """What is to be done: positions in the input."""

    ours: np.ndarray  # bool: rows of this shard
    todo: np.ndarray  # bool


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
    random. Rows are done when they end for a reason in `allow`. `retry` names statuses ("failed", "rejected") to run
    again. `shard=(i, n)` takes the i-th of n parts by the id's hash and marks the sink's name. `window` is how many
    requests are in the engine at once (default: twice max_num_seqs). `fsync` is the journal's policy.

    Ctrl-C and SIGTERM stop it in order; the report says so. Raises `SourceProblem`, `DuplicateIds` and `Changed` before
    the engine starts, `JournalProblem` when the disk is full, and `JobStopped` when the engine fails.
    """
    began = time.perf_counter()
    source, sink = Source(source), shard_path(Path(sink), shard)
    checked((defaults or {}) | (override or {}))
    found = keys.index(source)
    ours = found.ids % np.uint64(shard[1]) == np.uint64(shard[0] - 1)
    lazy = not hasattr(llm, "llm_engine")
    if lazy and not model:
        raise ValueError("A function that constructs the engine does not tell the model's name: pass model= too.")
    name = model or llm.llm_engine.model_config.model
    job = {"model": keys.fingerprint(name, chat_template), "defaults": defaults or {}, "seed": seed}
    with Journal(journal_path(sink), fsync) as journal:
        known = journals.read(journal.path)
        plan = _plan(source, found, ours, known, job, journal.path, retry, redo)
        if known.job != job:
            journal.append(journals.job_line(job))
        run = _Run(journal, job, override or {}, chat_template, allow, found)
        bar = Progress(int(ours.sum()), int((ours & ~plan.todo).sum()), progress, journal.mended)
        if plan.todo.any():
            engine = llm() if lazy else llm
            run.load_seconds = time.perf_counter() - began if lazy else 0.0
            with noted() as stop, bar:
                run.through(engine, _rows(source, found, plan.todo), window or _window(engine), stop, bar)
        journal.sync()
        return _finish(run, found, ours, sink, limits, time.perf_counter() - began)


class _Run:
    """One run over the missing rows."""

    def __init__(self, journal: Journal, job: dict, override: dict, template: str | None, allow, index: Index):
        self.journal, self.job, self.override, self.template = journal, job, override, template
        self.allow, self.index = allow, index
        self.stopped: str | None = None
        self.load_seconds = 0.0
        self.tokens = 0
        self.rates: list[tuple[float, int]] = []  # seconds since the start, tokens so far; one a second
        self._settings: dict | None = None

    def through(self, llm: "LLM", rows: Iterator, window: int, stop, bar: Progress) -> None:
        """Keeps `window` requests in the engine until the rows are used up or a stop is asked for."""
        engine, running, start = llm.llm_engine, {}, time.perf_counter()
        common = llm.llm_engine.model_config.get_diff_sampling_param() | self.job["defaults"]
        try:
            while not stop:
                while len(running) < window and (item := next(rows, None)) is not None:
                    self._start(llm, item, common, running, bar)
                if not running:
                    break
                for output in engine.step():
                    if output.finished:
                        self._write(*running.pop(output.request_id), output, bar)
                self.journal.tick()
                now = time.perf_counter() - start
                if not self.rates or now - self.rates[-1][0] >= 1:
                    self.rates.append((now, self.tokens))
        except Exception as error:
            if isinstance(error, journals.JournalProblem):
                raise
            raise JobStopped(
                f"The engine failed ({one_line(error)}). Every row that was finished is in {self.journal.path}: "
                "run the same command again to go on."
            ) from error
        finally:
            if running and not _dead(engine):
                engine.abort_request(list(running), internal=False)
        if stop:
            self.stopped = stop.by.name

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
                raise
            name = row.id if row else _name(piece)
            batch = row.batch if row else self.index.batch
            rejected = results.rejected(name, number, one_line(error), batch)
            self._append(place, piece, None, "rejected", "rejected", 0, rejected)
            bar.count("rejected", 0)
        else:
            running[request] = place, piece, row

    def _write(self, place: int, piece: bytes | dict, row: Row, output, bar: Progress) -> None:
        status, reason = results.judged(output, self.allow)
        tokens = sum(len(completion.token_ids) for completion in output.outputs)
        self.tokens += tokens
        written = results.finished(row, output, status, reason, self.job["model"]["name"])
        self._append(place, piece, row.settings, status, reason, tokens, written)
        bar.count(reason, tokens)

    def _append(self, place: int, piece, settings: dict | None, status: str, reason: str, tokens: int, row) -> None:
        if settings is not None and settings != self._settings:
            self.journal.append(journals.settings_line(settings))
            self._settings = settings
        key = int(self.index.ids[place]), int(self.index.raws[place]), keys.content(piece)
        self.journal.append(journals.line(key, status, reason, tokens, row))


def shard_path(sink: Path, shard: tuple[int, int]) -> Path:
    """`sink` itself for one shard, else with its place in the name: out-2-of-8.jsonl."""
    number, count = shard
    if not 1 <= number <= count:
        raise ValueError(f"Shard {number} of {count} does not exist: the first of 8 is 1/8, the last 8/8.")
    return sink if count == 1 else sink.with_name(f"{sink.stem}-{number}-of-{count}{sink.suffix}")


def journal_path(sink: Path) -> Path:
    """Where the results are while the job runs, and stay."""
    return sink.with_name(sink.name + ".journal")


def write_sink(sink: Path, parts: Iterable[bytes]) -> None:
    """The final file, in one piece or not at all."""
    import os

    part = sink.with_name(sink.name + ".part")
    try:
        with part.open("wb", buffering=2**20) as file:
            file.writelines(piece + b"\n" for piece in parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, sink)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise journals.JournalProblem(
            f"{sink} cannot be written ({error.strerror}); its journal has every row: make room and run again."
        ) from error


def _plan(source, found: Index, ours, known: Entries, job: dict, path: Path, retry, redo: bool) -> Plan:
    """Which rows are missing. Raises `Changed` for rows that were done otherwise than they are asked for now."""
    if known.job not in (None, job):
        if not redo and len(known.keys):
            raise Changed(_job_difference(known.job, job))
        return Plan(ours, ours)
    entry = known.find(found.ids)
    there = ours & (entry >= 0)
    suspects = there.copy()
    suspects[there] = known.keys[entry[there], 1] != found.raws[there]
    changed = np.zeros_like(ours)
    if suspects.any():
        changed = _changed(source, suspects, known, entry)
        if changed.any() and not redo:
            raise Changed(_row_difference(source, changed, known, entry, path))
    again = np.zeros_like(ours)
    for status in retry:
        again[there] |= known.status[entry[there]] == journals.STATUSES.index(status)
    return Plan(ours, ours & (~there | changed | again))


def _changed(source: Source, suspects: np.ndarray, known: Entries, entry: np.ndarray) -> np.ndarray:
    """Of the rows that are written otherwise than before, those that also say something else."""
    changed = np.zeros_like(suspects)
    for place, (_, piece) in enumerate(keys.pieces(source)):
        if suspects[place]:
            changed[place] = known.keys[entry[place], 2] != keys.content(piece)
    return changed


def _job_difference(before: dict, now: dict) -> str:
    parts = []
    for name in before.keys() | now.keys():
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            parts += [f"{name} {part}: {old.get(part)!r} -> {new.get(part)!r}" for part in _different(old, new)]
        else:
            parts.append(f"{name}: {old!r} -> {new!r}")
    return f"Rows were done with other settings ({'; '.join(sorted(parts))}). {_WAYS_OUT}"


def _row_difference(source, changed: np.ndarray, known: Entries, entry: np.ndarray, path: Path) -> str:
    parts = []
    for place, (number, piece) in enumerate(keys.pieces(source)):
        if changed[place] and len(parts) < 3:
            parts.append(_what_changed(piece, number, journals.settings_at(path, int(known.offsets[entry[place]]))))
    count = int(changed.sum())
    more = f", and {count - len(parts)} more" if count > len(parts) else ""
    return f"{count} row{'s' * (count > 1)} changed since they were done: {'; '.join(parts)}{more}. {_WAYS_OUT}"


def _what_changed(piece: bytes | dict, number: int, before: dict) -> str:
    try:
        row = parse(piece, number)
    except BadRow as error:
        return f"row {number} ({error})"
    differences = [
        f"{name} {before.get(name)!r} -> {row.settings.get(name)!r}" for name in _different(before, row.settings)
    ]
    return f"{row.id!r} in row {number} ({', '.join(differences) or 'its prompt'})"


def _different(old: dict, new: dict) -> list[str]:
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))


_WAYS_OUT = "Name another output, go back to the earlier input, or pass redo (--redo) to do these rows again."


def _rows(source: Source, found: Index, todo: np.ndarray) -> Iterator[tuple[int, int, bytes | dict]]:
    """(place, number, piece) of the rows to do. Raises when the input was changed since it was looked at."""
    place = -1
    for place, (number, piece) in enumerate(keys.pieces(source)):
        if place >= len(found):
            break
        if todo[place]:
            yield place, number, piece


def _finish(run: _Run, found: Index, ours: np.ndarray, sink: Path, limits: dict, seconds: float) -> Report:
    """Reads the journal back, writes the sink when nothing is missing, and the report."""
    known = journals.read(run.journal.path)
    entry = known.find(found.ids[ours])
    there = entry[entry >= 0]
    if complete := len(there) == int(ours.sum()):
        write_sink(sink, journals.rows(run.journal.path, known.offsets[there]))
    report = Report(
        sink=str(sink),
        model=run.job["model"]["name"],
        rows=int(ours.sum()),
        ended={f"{status}: {reason}": n for (status, reason), n in sorted(known.counts(there).items())},
        complete=complete,
        stopped=run.stopped,
        mended=run.journal.mended,
        tokens=run.tokens,
        seconds=seconds,
        load_seconds=run.load_seconds,
        limits=dict(limits),
        lengths=known.tokens[there],
        rates=run.rates,
    )
    report.write(sink)
    return report


def _window(llm: "LLM") -> int:
    """Twice what the scheduler can run at once, so that one always waits."""
    return 2 * llm.llm_engine.vllm_config.scheduler_config.max_num_seqs


def _name(piece: bytes | dict) -> str | None:
    try:
        return identity(decoded(piece))
    except BadRow:
        return None


def _dead(engine) -> bool:
    return bool(getattr(getattr(engine.engine_core, "resources", None), "engine_dead", False))


def _fatal(error: Exception) -> bool:
    """Whether an error on giving a row to the engine is the engine's or the machine's, not the row's."""
    return isinstance(error, MemoryError | OSError | RuntimeError) or "EngineDead" in type(error).__name__
