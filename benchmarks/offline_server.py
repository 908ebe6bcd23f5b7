"""Embedded against served on the same rows in one run: tokens a second by requests in flight, and tiny requests.

Prints ratios served/embedded. One `chat()` is what a user would write; the client is OpenAI's, with a pool that fits.
"""

import asyncio
import statistics

from helpers import construction, get_llm, release_llm, workload
from helpers.serving import compare
from helpers.serving.server import serve
from helpers.teaching.cells import stopwatch

ROUNDS = 3
IN_FLIGHT = (1, 4, 16, 64, 256, 1024)


def main() -> None:
    size = workload()
    rows = 2 * size.prompts
    llm = get_llm()
    from vllm import SamplingParams

    chats = [[{"role": "user", "content": f"Say something about the number {number}."}] for number in range(rows)]
    params = [SamplingParams(temperature=0, max_tokens=size.tokens, ignore_eos=True)] * rows
    tiny = [SamplingParams(temperature=0, max_tokens=1)] * rows
    llm.chat(chats, params)  # the first batch of a shape pays for preparations
    load = sum(construction().seconds.values())
    limits = llm.llm_engine.vllm_config.scheduler_config  # vLLM's defaults for the server are others
    same = {"max_num_seqs": limits.max_num_seqs, "max_num_batched_tokens": limits.max_num_batched_tokens}
    embedded, small = (middle([run(llm, chats, settings, load) for _ in range(ROUNDS)]) for settings in (params, tiny))
    release_llm()
    print(f"{rows} rows of {size.tokens} tokens; embedded {embedded.rate:,.0f} tokens/s, start {load:.1f} s")
    with serve(**same) as server:
        asyncio.run(served(server, chats, params, tiny, embedded, small))


async def served(server, chats, params, tiny, embedded, small) -> None:
    """Everything with the server."""
    rows = len(chats)
    await compare.served(server, chats, params, rows)  # warm, as above
    print(f"server start {server.start_seconds:.1f} s")
    best = None
    for flight in [*(n for n in IN_FLIGHT if n < rows), rows]:
        some = min(rows, 4 * flight)
        rounds = ROUNDS if some == rows else 1  # the full ones decide
        runs = [await compare.served(server, chats[:some], params[:some], flight) for _ in range(rounds)]
        run = middle(runs)
        best = run if not best or run.rate > best.rate else best
        shown = f"{flight:5} in flight {run.rate:9,.0f} tokens/s, {run.rate / embedded.rate:5.2f} of embedded"
        streamed = await compare.served(server, chats[:some], params[:some], flight, stream=True)
        first = statistics.median(streamed.first_token)
        print(f"  {shown}; streamed {streamed.rate / embedded.rate:5.2f}, first token {first:.3f} s", flush=True)
    few = 16
    pool = await compare.served(server, chats[:few], params[:few], few, connections=2)
    print(
        f"  {few:5} in flight over 2 connections {pool.rate:,.0f} tokens/s, {pool.rate / embedded.rate:.2f} of embedded"
    )
    requests = middle([await compare.served(server, chats, tiny, rows) for _ in range(ROUNDS)])
    print(
        f"  requests of one token: {1000 * small.seconds / rows:.2f} ms each embedded, "
        f"{1000 * requests.seconds / rows:.2f} ms served"
    )
    whole, added = embedded.seconds, requests.seconds - small.seconds
    print(
        f"  without overlap {whole / (whole + added):.2f} can be expected, {best.rate / embedded.rate:.2f} were reached"
    )
    apart = compare.different(embedded, await compare.served(server, chats, params, rows))
    print(f"  other prompts: {len(apart['prompts'])}; other greedy tokens: {len(apart['tokens'])} of {rows}")
    print(f"  {compare.break_even(embedded, best)}")


def run(llm, chats, settings, load) -> compare.Run:
    """One `chat()` with all rows."""
    with stopwatch() as watch:
        found = llm.chat(chats, settings)
    return compare.Run.of("embedded, one chat()", found, watch.seconds, load)


def middle(runs: list[compare.Run]) -> compare.Run:
    """The run with the median time."""
    return sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]


if __name__ == "__main__":
    main()
