"""Starting an engine and decoding one batch: `get_llm()` against plain `LLM(model)` with vLLM's defaults.

vLLM's defaults take nine tenths of a machine's RAM on the CPU build: run this with nothing else running.
Each way runs in processes of its own, in turn, on a disk that a first, uncounted round has warmed.
Prints seconds, tokens per second and their ratios (the median of the rounds).
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys

ROUNDS = 2
PROMPTS, TOKENS = 32, 48

SET_BY_HELPERS = (
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_CPU_OMP_THREADS_BIND",
    "OMP_NUM_THREADS",
    "VLLM_LOGGING_CONFIG_PATH",
    "PYTHONDONTWRITEBYTECODE",  # some machines set it; it makes every import compile anew
)

PLAIN = """
import json, os, sys, time
start = time.perf_counter()
from vllm import LLM, SamplingParams
def main():
    llm = LLM(sys.argv[1])
    report(llm)
"""
OURS = """
import json, os, sys, time
start = time.perf_counter()
from helpers import get_llm
def main():
    llm = get_llm(sys.argv[1])
    report(llm)
"""
REPORT = f"""
def report(llm):
    ready = time.perf_counter() - start
    from vllm import SamplingParams
    prompts = [f"Fact number {{i}}: the" for i in range({PROMPTS})]
    params = SamplingParams(max_tokens={TOKENS}, ignore_eos=True, temperature=0)
    llm.generate(prompts, params, use_tqdm=False)
    begin = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - begin
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    print(json.dumps({{"ready": ready, "rate": tokens / seconds}}), flush=True)
    time.sleep(60)  # ended from outside
if __name__ == "__main__":
    main()
"""


def measure(program: str) -> dict[str, float]:
    """Runs one way in a process of its own; seconds until the engine is ready, and tokens per second."""
    from helpers.models import model

    quiet = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    for name in SET_BY_HELPERS:
        quiet.pop(name, None)  # importing helpers above has set them here; each way shall choose for itself
    command = [sys.executable, "-c", program + REPORT, model()]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=quiet, start_new_session=True, **pipes) as run:
        lines = []
        for line in run.stdout:
            lines.append(line)
            if line.startswith('{"ready"'):
                break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)  # with vLLM's defaults the engine's children live on
    if not lines or not lines[-1].startswith('{"ready"'):
        sys.exit("".join(lines))
    return json.loads(lines[-1])


def main() -> None:
    ways = {"LLM(model), vLLM's defaults": PLAIN, "get_llm()": OURS}
    results = {name: [] for name in ways}
    for round_ in range(ROUNDS + 1):
        for name, program in ways.items():
            result = measure(program)
            if round_:
                results[name].append(result)
                print(f"{name:30} ready in {result['ready']:5.1f} s, {result['rate']:6.1f} tokens/s", flush=True)
    plain, ours = results.values()
    start = statistics.median(a["ready"] / b["ready"] for a, b in zip(plain, ours, strict=True))
    rate = statistics.median(b["rate"] / a["rate"] for a, b in zip(plain, ours, strict=True))
    print(f"get_llm() is ready {start:.1f} times sooner and makes {rate:.1f} times the tokens per second.")


if __name__ == "__main__":
    main()
