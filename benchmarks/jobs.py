"""The batch job against one raw `chat()`, a chunked loop and vLLM's `run-batch`, on the same rows in one run.

Lengths have a long tail, as real data has. Every way runs the same engine settings; the job and the raw call alternate,
and medians are printed. At the end this job and vLLM's `run-batch` as commands that a user types: with their starts,
and the time that each says it worked. Run it alone; VLLM_ENABLE_V1_MULTIPROCESSING=1 has every engine in a child.
"""

import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from helpers import get_llm, release_llm, workload
from helpers.jobs import run_job

ROUNDS = 5


def main() -> None:
    size = workload()
    slots = size.prompts // 2
    rows = 6 * slots
    lengths = long_tailed(rows, median=max(16, size.tokens // 4))
    tokens = sum(lengths)
    with tempfile.TemporaryDirectory() as folder:
        source = write(Path(folder, "in.jsonl"), lengths)
        llm = get_llm(max_num_seqs=slots)
        from vllm import SamplingParams

        chats = [[{"role": "user", "content": content(number)}] for number in range(rows)]
        params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in lengths]

        def raw() -> None:
            llm.chat(chats, params)

        def job(fsync: str = "seconds") -> None:
            sink = Path(tempfile.mkdtemp(dir=folder), "out.jsonl")
            report = run_job(llm, source, sink, allow=("length",), fsync=fsync, progress=False)
            assert report.passed and report.tokens == tokens, report

        def chunks(of: int) -> None:
            for start in range(0, rows, of):
                llm.chat(chats[start : start + of], params[start : start + of])

        ways = {"raw chat()": raw, "this job": job, "this job, fsync=row": lambda: job("row")}
        ways |= {f"chunks of {of}": lambda of=of: chunks(of) for of in (slots, 2 * slots, 4 * slots)}
        raw()  # the first batch of a shape pays for preparations
        seconds = {name: [] for name in ways}
        for turn in range(ROUNDS):
            for name, way in ways.items():
                if turn == 0 or name in ("raw chat()", "this job"):
                    seconds[name].append(timed(way))
                    print(f"  {name}: {seconds[name][-1]:.2f} s", flush=True)
        release_llm()
        commands = {"vllm run-batch": run_batch(source, rows, slots), "the job's command": job_command(source, slots)}
    base = statistics.median(seconds["raw chat()"])
    seconds |= {name: [working] for name, (_, working) in commands.items()}
    print(f"{rows} rows, {tokens:,} tokens, lengths {min(lengths)} to {max(lengths)}, {slots} slots")
    for name, times in seconds.items():
        middle = statistics.median(times)
        print(f"  {name:22} {tokens / middle:9,.0f} tokens/s   {base / middle:5.2f} of raw   ({spread(times)} s)")
    for name, (whole, _) in commands.items():
        print(f"  {name} with its start: {whole:.1f} s")


def long_tailed(rows: int, median: int) -> list[int]:
    """Lengths around `median` of which a few are many times longer."""
    chance = random.Random(0)
    return [max(2, min(8 * median, round(median * chance.lognormvariate(0, 0.8)))) for _ in range(rows)]


def content(number: int) -> str:
    """A user's message."""
    return f"Write about the number {number}."


def write(path: Path, lengths: list[int]) -> Path:
    """The rows in OpenAI's batch format."""
    with path.open("w") as file:
        for number, length in enumerate(lengths):
            body = {"model": "workbook", "messages": [{"role": "user", "content": content(number)}], "temperature": 0}
            body |= {"max_tokens": length, "ignore_eos": True}
            row = {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(row) + "\n")
    return path


def run_batch(source: Path, rows: int, slots: int) -> tuple[float, float]:
    """Seconds of vLLM's own command, with the settings of this process's engine, and those that its bar shows."""
    from helpers import models
    from helpers.engine import settings
    from helpers.serving import server

    checkpoint = models.checkpoint()
    args = settings.fit(checkpoint, {})
    flags = ["--model", checkpoint.given, "--served-model-name", "workbook", "--max-num-seqs", str(slots)]
    flags += server.flags(args)
    out = source.with_name("batch.jsonl")
    whole, said = run_quietly("vllm.entrypoints.openai.run_batch", "-i", source, "-o", out, *flags)
    failed = [line for line in out.read_text().splitlines() if json.loads(line)["error"]]
    assert not failed, failed[0]
    [rate, unit] = re.findall(rf"{rows}/{rows} \[.*, *([0-9.]+)(req/s|s/req)\]", said)[-1]
    return whole, rows / float(rate) if unit == "req/s" else rows * float(rate)


def job_command(source: Path, slots: int) -> tuple[float, float]:
    """Seconds of this job's command, and those without the engine's start."""
    out = source.with_name("job.jsonl")
    whole, _ = run_quietly("helpers.jobs", "run", source, out, "--allow", "length", "--engine", f"max_num_seqs={slots}")
    report = json.loads(Path(f"{out}.report.json").read_text())
    return whole, report["seconds"] - report["load_seconds"]


def run_quietly(module: str, *arguments: object) -> tuple[float, str]:
    """Seconds of a module run as a command, and what it wrote; that is shown when it fails."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", module, *map(str, arguments)], capture_output=True, text=True)
    assert not done.returncode, done.stderr[-3000:]
    return time.perf_counter() - start, done.stderr


def spread(times: list[float]) -> str:
    """The fastest and the slowest."""
    return f"{min(times):.1f} to {max(times):.1f}" if len(times) > 1 else f"{times[0]:.1f}"


def timed(work) -> float:
    """Seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
