"""Which rows of an input are missing from a journal, and whether what is there was done as it is asked for now."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from helpers.jobs import hashes
from helpers.jobs import journal as journals
from helpers.jobs.fields import decisive
from helpers.jobs.hashes import Changed, Piece
from helpers.jobs.journal import Entries
from helpers.jobs.rows import BadRow, Source, SourceProblem, parse

if TYPE_CHECKING:
    from helpers.jobs.job import Job


@dataclass(frozen=True, repr=False)
class Plan:
    """What is to be done: positions in the input."""

    ours: np.ndarray  # bool: rows of this shard
    todo: np.ndarray  # bool
    stale: np.ndarray  # bool: what the journal has of them is for another input

    def __repr__(self) -> str:
        return f"{int(self.todo.sum()):,} of {int(self.ours.sum()):,} rows are to be done."


def make(job: "Job", known: Entries, identity: dict[str, Any]) -> Plan:
    """Which rows are missing. Raises `Changed` for rows that were done otherwise than they are asked for now.

    A rejected row that was changed is missing: it has no answer that could be lost.
    """
    ours, redo = job.ours, job.settings.redo
    if known.job not in (None, identity):
        if not redo and len(known.keys):
            raise Changed(_job_difference(known.job, identity))
        return Plan(ours, ours, ours)
    entry = known.find(job.index.ids)
    there = ours & (entry >= 0)
    suspects = there.copy()
    suspects[there] = known.keys[entry[there], 1] != job.index.raws[there]
    changed = np.zeros_like(ours)
    if suspects.any():
        changed = _changed(job.source, suspects, known, entry)
        answered = changed.copy()
        answered[changed] = known.status[entry[changed]] != journals.STATUSES.index("rejected")
        if answered.any() and not redo:
            raise Changed(_row_difference(job, answered, known, entry))
    again = np.zeros_like(ours)
    for status in job.settings.retry:
        again[there] |= known.status[entry[there]] == journals.STATUSES.index(status)
    return Plan(ours, ours & (~there | changed | again), changed)


def _changed(source: Source, suspects: np.ndarray, known: Entries, entry: np.ndarray) -> np.ndarray:
    """Of the rows that are written otherwise than before, those that also say something else."""
    changed = np.zeros_like(suspects)
    for piece in hashes.pieces(source):
        if suspects[piece.place]:
            changed[piece.place] = known.keys[entry[piece.place], 2] != hashes.content(piece.data)
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


def _row_difference(job: "Job", changed: np.ndarray, known: Entries, entry: np.ndarray) -> str:
    parts = []
    for piece in hashes.pieces(job.source):
        if changed[piece.place] and len(parts) < 3:
            before = journals.settings_at(job.journal, int(known.offsets[entry[piece.place]]))
            parts.append(_what_changed(piece, before))
    count = int(changed.sum())
    more = f", and {count - len(parts)} more" if count > len(parts) else ""
    return f"{count} row{'s' * (count > 1)} changed since they were done: {'; '.join(parts)}{more}. {_WAYS_OUT}"


def _what_changed(piece: Piece, before: dict) -> str:
    try:
        row = parse(piece.data, piece.number)
    except BadRow as error:
        return f"row {piece.number} ({error})"
    now = decisive(row.settings)
    differences = [f"{name} {before.get(name)!r} -> {now.get(name)!r}" for name in _different(before, now)]
    return f"{row.id!r} in row {piece.number} ({', '.join(differences) or 'its prompt'})"


def _different(old: dict, new: dict) -> list[str]:
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))


_WAYS_OUT = "Name another output, go back to the earlier input, or pass redo (--redo) to do these rows again."


def missing(job: "Job", plan: Plan) -> Iterator[Piece]:
    """The rows to do. Raises `SourceProblem` when the input was changed since it was looked at."""
    name, count, last = job.source.name, len(job.index), -1
    for piece in hashes.pieces(job.source):
        last = piece.place
        if last >= count:
            break
        if plan.todo[last]:
            if hashes.look(piece)[0] != job.index.digest(last):
                raise SourceProblem(f"Row {piece.number} of {name} changed while the job ran: {_AGAIN}")
            yield piece
    if last + 1 < count:
        raise SourceProblem(f"{name} had {count:,} rows and now has {last + 1:,}: {_AGAIN}")


_AGAIN = "what is finished is in the journal; run the same command again."
