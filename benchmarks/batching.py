"""One list against a loop of single calls, and the cost of recording the scheduler; one engine, one run.

Prints tokens per second and ratios. Recording is measured in pairs, in turn, and the median of the pairs is printed.
"""

import statistics
import time

from helpers import get_llm, workload
from helpers.timeline import record

PAIRS = 7


def main() -> None:
    llm = get_llm()
    from vllm import SamplingParams

    size = workload()
    prompts = [f"Fact number {number}: the" for number in range(size.prompts)]
    params = SamplingParams(temperature=0, max_tokens=size.tokens, ignore_eos=True)

    def seconds(call) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    def plain():
        llm.generate(prompts, params)

    def recorded():
        with record(llm):
            llm.generate(prompts, params)

    plain()
    batch = size.prompts * size.tokens / seconds(plain)
    few = prompts[:8]
    loop = len(few) * size.tokens / seconds(lambda: [llm.generate(prompt, params) for prompt in few])
    print(
        f"one list {batch:,.0f} tokens/s, a loop {loop:,.0f}: the list is {batch / loop:.1f} times faster", flush=True
    )
    ratios = [seconds(recorded) / seconds(plain) for _ in range(PAIRS)]
    print(f"recording: {statistics.median(ratios):.3f} of the time without ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
