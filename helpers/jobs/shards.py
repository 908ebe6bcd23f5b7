"""The shards of a job put together again."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from helpers.jobs import hashes
from helpers.jobs import journal as journals
from helpers.jobs.hashes import Changed
from helpers.jobs.paths import checked_sink, journal_path, shard_path, write_sink
from helpers.jobs.report import LIMITS, Report, checked_limits
from helpers.jobs.rows import Source
from helpers.problems import Refused


class Incomplete(Refused):
    """Shards are missing or not finished; the message names them."""


def merge(source: Any, sink: str | Path, shards: int, *, limits: dict[str, float] = LIMITS) -> Report:
    """Writes `sink` from the journals of its `shards`, in the input's order, and a report with the gate over all rows.

    Raises `Incomplete` with how many rows each shard lacks, and `Changed` when the input is another one than theirs;
    nothing is written then.
    """
    if shards < 1:
        raise Refused(f"{shards} shards are none: give the number that the job was run with.")
    began, limits = time.perf_counter(), checked_limits(limits)
    sink, source = checked_sink(Path(sink), source), Source(source)
    found = hashes.index(source)
    place = (found.ids % np.uint64(shards)).astype(np.int64)
    offsets, lacking, paths, jobs = np.full(len(found), -1), [], [], []
    contents = np.zeros(len(found), np.uint64)
    rewritten, lengths, ended = np.zeros(len(found), bool), np.zeros(len(found), np.uint32), Counter()
    for number in range(shards):
        path = journal_path(shard_path(sink, (number + 1, shards)))
        known, mine = journals.read(path), place == number
        entry = known.find(found.ids[mine])
        if missing := int((entry < 0).sum()):
            lacking.append(f"{path.name} lacks {missing:,} of {int(mine.sum()):,} rows")
        else:
            offsets[mine], contents[mine] = known.offsets[entry], known.keys[entry, 2]
            rewritten[mine] = known.keys[entry, 1] != found.raws[mine]
            lengths[mine] = known.tokens[entry]
            ended += known.counts(entry)
        paths.append(path)
        if mine.any():  # a shard without rows started no engine, which alone knows all of a job
            jobs.append(known.job)
    if lacking:
        raise Incomplete(f"Not all shards are finished: {'; '.join(lacking)}. Run these shards again.")
    for piece in hashes.pieces(source):
        if rewritten[piece.place] and contents[piece.place] != hashes.content(piece.data):
            raise Changed(
                f"Row {piece.number} is another one than the shards were run with: run them again with this input."
            )
    if any(job != jobs[0] for job in jobs):
        raise Incomplete(
            "The shards were run with different models or settings: their journals' first lines say which."
        )
    write_sink(sink, _rows(paths, place, offsets))
    report = Report(
        sink=str(sink),
        model=jobs[0]["model"]["name"] if jobs else "",
        rows=len(found),
        ended=dict(sorted(ended.items())),
        seconds=time.perf_counter() - began,
        limits=limits,
        lengths=lengths,
    )
    report.write(sink)
    return report


def _rows(paths: list[Path], place: np.ndarray, offsets: np.ndarray):
    """The rows in the input's order, each from its shard's journal."""
    readers = [iter(journals.rows(path, offsets[place == number])) for number, path in enumerate(paths)]
    for number in place.tolist():
        yield next(readers[number])
