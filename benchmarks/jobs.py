"""The batch job against one raw `chat()`, a chunked loop and vLLM's `run-batch`, on the same rows in one run.

Lengths have a long tail, as real data has. Every way runs the same engine settings; the job and the raw call alternate,
and medians are printed. `run-batch` runs in processes of its own: its start, measured with one row, is taken off.
At the end, both as the commands that a user types, with their starts.
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from helpers import get_llm, release_llm, workload
from helpers.jobs import run_job

ROUNDS = 3


def main() -> None:
    size = workload()
    rows, slots = 6 * size.prompts, size.prompts // 2
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
        batch = run_batch_command(slots)
        commands = {
            "vllm run-batch": timed(lambda: batch(source)),
            "this job": timed(lambda: job_command(source, slots)),
        }
        one = Path(folder, "one.jsonl")
        one.write_text(source.read_text().splitlines()[0] + "\n")
        seconds["vllm run-batch"] = [commands["vllm run-batch"] - timed(lambda: batch(one))]
    base = statistics.median(seconds["raw chat()"])
    print(f"{rows} rows, {tokens:,} tokens, lengths {min(lengths)} to {max(lengths)}, {slots} slots")
    for name, times in seconds.items():
        middle = statistics.median(times)
        print(f"  {name:22} {tokens / middle:9,.0f} tokens/s   {base / middle:5.2f} of raw")
    for name, whole in commands.items():
        print(f"  the command of {name}, with its start: {whole:.1f} s")


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


def run_batch_command(slots: int):
    """vLLM's own command for a file of rows, with the settings of this process's engine."""
    from helpers import devices, models, server

    name = models.model()
    settings = models.config(name)
    args = devices.engine_args(devices.machine(), models.weight_bytes(name), models.context_length(settings))
    args.pop("use_tqdm_on_load")
    flags = ["--model", name, "--served-model-name", "workbook", "--max-num-seqs", str(slots), *server.flags(args)]

    def run(source: Path) -> None:
        out = source.with_name(f"batch-{source.name}")
        run_quietly("vllm.entrypoints.openai.run_batch", "-i", source, "-o", out, *flags)
        failed = [line for line in out.read_text().splitlines() if json.loads(line)["error"]]
        assert not failed, failed[0]

    return run


def job_command(source: Path, slots: int) -> None:
    """This job's command for a file of rows."""
    out = source.with_name("job.jsonl")
    run_quietly("helpers.jobs", "run", source, out, "--allow", "length", "--engine", f"max_num_seqs={slots}")


def run_quietly(module: str, *arguments: object) -> None:
    """A module as a command; its output is shown when it fails."""
    done = subprocess.run([sys.executable, "-m", module, *map(str, arguments)], capture_output=True, text=True)
    assert not done.returncode, done.stderr[-3000:]


def timed(work) -> float:
    """Seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
