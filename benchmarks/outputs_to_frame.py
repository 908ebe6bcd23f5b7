"""RequestOutputs to a frame: `outputs.completions` against a bare comprehension and `pd.json_normalize` over dicts.

Prints seconds (the best of five) and ratios at 1,000, 10,000 and 100,000 outputs of 32 tokens.
"""

import time
from collections.abc import Callable

import pandas as pd

from helpers import outputs


def make(count: int) -> list:
    """Outputs as vLLM makes them, without running a model."""
    from vllm.outputs import CompletionOutput, RequestOutput

    completion = {"text": "a text", "token_ids": list(range(32)), "cumulative_logprob": None, "logprobs": None}
    return [
        RequestOutput(
            request_id=str(number),
            prompt="a prompt",
            prompt_token_ids=list(range(16)),
            prompt_logprobs=None,
            outputs=[CompletionOutput(index=0, finish_reason="stop", **completion)],
            finished=True,
        )
        for number in range(count)
    ]


def bare(outs: list) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "request_id": o.request_id,
                "index": c.index,
                "text": c.text,
                "tokens": len(c.token_ids),
                "finish_reason": c.finish_reason,
                "stop_reason": c.stop_reason,
                "truncated": c.finish_reason == "length",
                "cumulative_logprob": c.cumulative_logprob,
            }
            for o in outs
            for c in o.outputs
        ]
    )


def normalized(outs: list) -> pd.DataFrame:
    return pd.json_normalize([{"request_id": o.request_id, **vars(c)} for o in outs for c in o.outputs])


def best(function: Callable[[list], pd.DataFrame], outs: list) -> float:
    def once() -> float:
        start = time.perf_counter()
        function(outs)
        return time.perf_counter() - start

    return min(once() for _ in range(5))


def main() -> None:
    for count in (1_000, 10_000, 100_000):
        outs = make(count)
        ours, plain, json = (best(function, outs) for function in (outputs.completions, bare, normalized))
        print(
            f"{count:7,} outputs: completions {ours:.4f} s, bare comprehension {plain:.4f} s ({ours / plain:.2f}), "
            f"json_normalize {json:.4f} s ({ours / json:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
