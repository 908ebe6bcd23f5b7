"""Kills -9 of a job at random moments, over many rounds: job_kills.py KILLS [SEED] [--engine].

Each round runs one job again and again, killing it at a random moment, until it gets through; then its output must
equal that of an undisturbed run. Without --engine a stand-in answers at once: the kills hit the job's own writing.
Prints one JSON line: kills, rounds, and what was lost, doubled, torn or different, which must all be 0. A row that a
resume computed in another batch may part from the undisturbed one at a near-tie: these are counted as `ties`.
"""

import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
import job_fakes
from tqdm.auto import tqdm

import helpers
from helpers.jobs import run_job
from helpers.outputs import NEAR_TIE, parted

ENGINE = {"rows": 24, "slots": 8}
STAND_IN = {"rows": 120, "slots": 8}


def rows(count: int) -> list[dict]:
    """Greedy rows of different length, with the two best tokens at each position."""
    told = {"logprobs": True, "top_logprobs": 2}
    return [job_fakes.batch(number, max_tokens=4 + 7 * (number % 5), **told) for number in range(count)]


def attempt(source: Path, sink: Path, engine: bool) -> None:
    """One run of the job, in the forked child."""
    if engine:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        llm = helpers.get_llm(max_num_seqs=ENGINE["slots"], max_model_len=256)
    else:
        llm = job_fakes.LLM(slots=STAND_IN["slots"])
        llm.llm_engine.before_step = lambda: time.sleep(0.0005)
    run_job(llm, source, sink, allow=("stop", "length"), progress=False)


def forked(source: Path, sink: Path, engine: bool) -> int:
    """The pid of a child that runs the job and ends with 0."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        attempt(source, sink, engine)
        code = 0
    finally:
        os._exit(code)


def waited(pid: int, seconds: float) -> int:
    """The status with which a child ended by itself, or by the kill -9 that it gets after this time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if (ended := os.waitpid(pid, os.WNOHANG))[0]:
            return ended[1]
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def answers(sink: Path) -> dict[str, dict]:
    """The choice of each row, by id."""
    return {row["custom_id"]: row["response"]["body"]["choices"][0] for row in job_fakes.read(sink)}


def differs(calm: dict, got: dict | None) -> str | None:
    """How a row's answer differs from the undisturbed one: "ties", "different", or None where they are equal."""
    if got and calm["message"] == got["message"] and calm["finish_reason"] == got["finish_reason"]:
        return None
    if not got or not calm["logprobs"]:
        return "different"
    steps = [[step["token"] for step in choice["logprobs"]["content"]] for choice in (calm, got)]
    first, second = calm["logprobs"]["content"][parted(*steps)]["top_logprobs"][:2]
    return "ties" if first["logprob"] - second["logprob"] < NEAR_TIE else "different"


def whole_lines(journal: Path) -> tuple[Counter, int]:
    """How often each id is in a journal as a kill left it, and how many lines inside it are torn."""
    ids, torn = Counter(), 0
    *lines, _ = journal.read_bytes().split(b"\n") if journal.exists() else [b""]
    for line in lines:
        try:
            raw = json.loads(line)
        except ValueError:
            torn += 1
            continue
        if "row" in raw:
            ids[raw["row"]["custom_id"]] += 1
    return ids, torn


def main(kills: int, seed: int, engine: bool) -> dict[str, int]:
    tqdm.set_lock(threading.RLock())  # its own is shared by all forks, and one killed while holding it stops the others
    chance, found = (
        random.Random(seed),
        Counter(kills=0, rounds=0, lost=0, doubled=0, torn=0, different=0, ties=0, failed=0),
    )
    with tempfile.TemporaryDirectory() as folder:
        # What a job imports is imported here, once: each attempt is a fork, and its time is the job's own.
        run_job(job_fakes.LLM(), rows(2), Path(folder, "first.jsonl"), progress=False)
        if engine:
            from vllm import LLM  # noqa: F401
        source = job_fakes.write(Path(folder, "in.jsonl"), rows((ENGINE if engine else STAND_IN)["rows"]))
        start = time.perf_counter()
        found["failed"] += os.waitpid(forked(source, Path(folder, "calm.jsonl"), engine), 0)[1] != 0
        takes = time.perf_counter() - start
        expected = answers(Path(folder, "calm.jsonl"))
        while found["kills"] < kills:
            sink = Path(folder, f"{found['rounds']}.jsonl")
            journal = sink.with_name(sink.name + ".journal")
            while not sink.exists():
                before = whole_lines(journal)[0]
                pid = forked(source, sink, engine)
                # When all kills are done, a child has all the time it needs; a fork may still inherit a lock and hang.
                ended = waited(pid, chance.uniform(0, takes) if found["kills"] < kills else 20 * takes)
                found["kills"] += ended == signal.SIGKILL
                found["failed"] += ended not in (0, signal.SIGKILL)
                ids, torn = whole_lines(journal)
                found["lost"] += len(before.keys() - ids.keys())
                found["doubled"] += sum(count > 1 for count in ids.values())
                found["torn"] += torn
            got = answers(sink)
            found["lost"] += len(expected.keys() - got.keys())
            found["doubled"] += len(job_fakes.read(sink)) - len(got)
            found.update(filter(None, (differs(choice, got.get(name)) for name, choice in expected.items())))
            found["rounds"] += 1
            print(f"round {found['rounds']}: {dict(found)}", file=sys.stderr, flush=True)
    return dict(found)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    seed = numbers[1] if len(numbers) > 1 else random.randrange(10**6)
    print(json.dumps({"seed": seed, "engine": "--engine" in sys.argv} | main(numbers[0], seed, "--engine" in sys.argv)))
