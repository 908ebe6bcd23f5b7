"""A batch job on every GPU of this machine, one process each: `python examples/batch_job.py IN.jsonl OUT.jsonl`.

A template: copy it and change what `shard` does. Run it again after any end, on as many GPUs; it does what is missing.
"""

import multiprocessing
import os
import signal
import sys

from helpers import get_llm, machine, models, release_llm
from helpers.jobs import merge, run_job


def shard(number: int, count: int, source: str, sink: str) -> None:
    """One process: its part of the rows, on its own GPU. Exits with 3 when the gate fails."""
    if count > 1:  # before anything touches CUDA
        given = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = given.split(",")[number - 1] if given else str(number - 1)
    try:
        report = run_job(get_llm, source, sink, model=models.model(), shard=(number, count), allow=("stop", "length"))
        if report.load_seconds:
            release_llm()
    except (ValueError, RuntimeError) as problem:  # one sentence says what is wrong, and what to do
        sys.exit(str(problem))
    except KeyboardInterrupt:  # while the engine starts; later a job stops in order
        sys.exit(130)
    print(report)
    sys.exit(report.exit_code())


def main(source: str, sink: str) -> None:
    """Starts the shards, waits for all, and joins their outputs."""
    count = max(1, len(machine.here().gpus))
    context = multiprocessing.get_context("spawn")  # a forked process cannot use a GPU that its parent has used
    workers = [context.Process(target=shard, args=(n, count, source, sink)) for n in range(1, count + 1)]
    for worker in workers:
        worker.start()
    signal.signal(signal.SIGTERM, lambda *_: [worker.terminate() for worker in workers if worker.is_alive()])
    signal.signal(signal.SIGINT, lambda *_: None)  # a terminal sends it to the workers too
    for worker in workers:
        worker.join()
    codes = [128 - worker.exitcode if worker.exitcode < 0 else worker.exitcode for worker in workers]
    broken = [code for code in codes if code not in (0, 3)]  # 3: its gate failed; the one over all rows counts
    if broken or count == 1:
        sys.exit(max(broken or codes))
    try:
        report = merge(source, sink, count)
    except (ValueError, RuntimeError) as problem:
        sys.exit(str(problem))
    print(report)
    sys.exit(report.exit_code())


if __name__ == "__main__":  # spawned processes import this file again, and must not start the job there
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
