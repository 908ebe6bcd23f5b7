"""A million rows with nine tenths done: how long until the first missing row reaches the engine, and the peak memory.

No engine is needed for that: a stand-in notes when it is called and ends the job.
"""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from helpers.jobs import JobStopped, hashes, journal, results, run_job
from helpers.jobs.rows import parse

ROWS, DONE = 1_000_000, 900_000


class FirstCall(Exception):
    """The first row reached the engine."""


def main(rows: int = ROWS, done: int = DONE) -> dict[str, float]:
    """Prints and returns seconds and MiB."""
    with tempfile.TemporaryDirectory() as folder:
        source, sink = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
        prepare(source, Path(folder, "out.jsonl.journal"), rows, done)
        before, start = peak(), time.perf_counter()
        found = {}

        def engine():
            found["seconds"] = time.perf_counter() - start
            raise FirstCall

        try:
            run_job(engine, source, sink, model="none", progress=False)
        except (FirstCall, JobStopped):
            found["MiB"] = peak()
        sizes = [path.stat().st_size / 2**20 for path in (source, Path(folder, "out.jsonl.journal"))]
    print(
        f"{rows:,} rows ({sizes[0]:,.0f} MiB), {done:,} done (journal {sizes[1]:,.0f} MiB): "
        f"{found['seconds']:.1f} s to resume, peak {found['MiB']:.0f} MiB (before: {before:.0f} MiB)"
    )
    return found


def prepare(source: Path, path: Path, rows: int, done: int) -> None:
    """The input, and a journal as a job leaves it."""
    with source.open("wb") as file, path.open("wb") as written:
        job = {"model": hashes.fingerprint("none", None), "defaults": {}, "seed": 0}
        written.write(journal.job_line(job) + b"\n")
        for number in range(rows):
            message = {"role": "user", "content": f"Explain the number {number} to a child, in a few sentences."}
            body = {"model": "m", "messages": [message], "max_tokens": 64, "temperature": 0}
            line = {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            piece = json.dumps(line).encode()
            file.write(piece + b"\n")
            if number < done:
                row = results.rejected(parse(piece, number).id, number, "an answer of about this length " * 8, True)
                key = hashes.id_hash(f"row-{number}"), hashes.hash64(piece), hashes.content(piece)
                written.write(journal.line(key, "done", "stop", 64, row) + b"\n")


def peak() -> float:
    """MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
