"""Which rows of an input are missing from a journal, and whether what is there was done as it is asked for now."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from helpers.jobs import journal as journals
from helpers.jobs import keys
from helpers.jobs.journal import Entries
from helpers.jobs.keys import Changed, Index
from helpers.jobs.rows import BadRow, Source, SourceProblem, parse
from helpers.jobs.settings import decisive


@dataclass(frozen=True)
class Plan:
    """What is to be done: positions in the input."""

    ours: np.ndarray  # bool: rows of this shard
    todo: np.ndarray  # bool
    stale: np.ndarray  # bool: what the journal has of them is for another input


def plan(source, found: Index, ours, known: Entries, job: dict, path: Path, retry, redo: bool) -> Plan:
    """Which rows are missing. Raises `Changed` for rows that were done otherwise than they are asked for now.

    A rejected row that was changed is missing: it has no answer that could be lost.
    """
    if known.job not in (None, job):
        if not redo and len(known.keys):
            raise Changed(_job_difference(known.job, job))
        return Plan(ours, ours, ours)
    entry = known.find(found.ids)
    there = ours & (entry >= 0)
    suspects = there.copy()
    suspects[there] = known.keys[entry[there], 1] != found.raws[there]
    changed = np.zeros_like(ours)
    if suspects.any():
        changed = _changed(source, suspects, known, entry)
        answered = changed.copy()
        answered[changed] = known.status[entry[changed]] != journals.STATUSES.index("rejected")
        if answered.any() and not redo:
            raise Changed(_row_difference(source, answered, known, entry, path))
    again = np.zeros_like(ours)
    for status in retry:
        again[there] |= known.status[entry[there]] == journals.STATUSES.index(status)
    return Plan(ours, ours & (~there | changed | again), changed)


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
    now = decisive(row.settings)
    differences = [f"{name} {before.get(name)!r} -> {now.get(name)!r}" for name in _different(before, now)]
    return f"{row.id!r} in row {number} ({', '.join(differences) or 'its prompt'})"


def _different(old: dict, new: dict) -> list[str]:
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))


_WAYS_OUT = "Name another output, go back to the earlier input, or pass redo (--redo) to do these rows again."


def rows(source: Source, found: Index, todo: np.ndarray) -> Iterator[tuple[int, int, bytes | dict]]:
    """(place, number, piece) of the rows to do. Raises when the input was changed since it was looked at."""
    place = -1
    for place, (number, piece) in enumerate(keys.pieces(source)):
        if place >= len(found):
            break
        if todo[place]:
            if keys.look(piece, number)[0] != found.digest(place):
                raise SourceProblem(f"Row {number} of {source.name} changed while the job ran: {_AGAIN}")
            yield place, number, piece
    if place + 1 < len(found):
        raise SourceProblem(f"{source.name} had {len(found):,} rows and now has {place + 1:,}: {_AGAIN}")


_AGAIN = "what is finished is in the journal; run the same command again."
