"""The files of a job: results, journal and reports beside each other."""

import os
import re
from collections.abc import Iterable
from glob import escape
from pathlib import Path
from typing import Any

from helpers.jobs.journal import JournalProblem
from helpers.jobs.rows import SourceProblem
from helpers.problems import Refused


def shard_path(sink: Path, shard: tuple[int, int]) -> Path:
    """`sink` itself for one shard, else with its place in the name: out-2-of-8.jsonl."""
    number, count = shard
    if not 1 <= number <= count:
        raise Refused(f"Shard {number} of {count} does not exist: the first of 8 is 1/8, the last 8/8.")
    return sink if count == 1 else sink.with_name(f"{sink.stem}-{number}-of-{count}{sink.suffix}")


def journal_path(sink: Path) -> Path:
    """Where the results are while the job runs, and stay."""
    return sink.with_name(sink.name + ".journal")


def checked_sink(sink: Path, source: Any, shard: tuple[int, int] = (1, 1)) -> Path:
    """The path for the results of a shard. Raises `SourceProblem` for one that would hurt what is there."""
    if sink.is_dir():
        raise SourceProblem(f"{sink} is a folder: name a .jsonl file in it for the results.")
    if sink.suffix in (".gz", ".zst", ".parquet"):
        raise SourceProblem(f"Results are JSON lines, and {sink.name} is not: name a .jsonl file.")
    path = shard_path(sink, shard)
    for written in (path, sink):  # merge writes the second
        if isinstance(source, str | Path) and Path(source).resolve() == written.resolve():
            raise SourceProblem(f"{written} is the input: name another file for the results.")
    return path


def shards_of_another_number(sink: Path, count: int) -> Path | None:
    """A journal of this job in another number of shards, if there is one."""
    if count > 1 and journal_path(sink).exists():
        return journal_path(sink)
    for path in sorted(sink.parent.glob(f"{escape(sink.stem)}-*-of-*{escape(sink.suffix)}.journal")):
        place = re.fullmatch(r"-\d+-of-(\d+)", path.name[len(sink.stem) : -len(sink.suffix + ".journal")])
        if place and int(place[1]) != count:
            return path
    return None


def withdraw(sink: Path) -> None:
    """Takes away the output and report of an earlier run of this job, which this one makes untrue."""
    for ending in ("", ".report.json", ".report.html"):
        sink.with_name(sink.name + ending).unlink(missing_ok=True)


def write_sink(sink: Path, parts: Iterable[bytes]) -> None:
    """The final file, in one piece or not at all."""
    part = sink.with_name(sink.name + ".part")
    try:
        with part.open("wb", buffering=2**20) as file:
            file.writelines(piece + b"\n" for piece in parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, sink)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise JournalProblem(
            f"{sink} cannot be written ({error.strerror}); its journal has every row: make room and run again."
        ) from error
