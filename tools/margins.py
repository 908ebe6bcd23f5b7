"""How near a greedy answer comes to another one: margins.py [--raw] [--tokens N] PROMPT ...

Prints, for each prompt, its greedy answer and where along it the two best tokens are nearest, in nats. Below
`outputs.NEAR_TIE` another data type, device or batch may answer otherwise. Prompts are chat messages, or raw text.
"""

import argparse

from helpers import get_llm, outputs, release_llm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", nargs="+", metavar="PROMPT")
    parser.add_argument("--raw", action="store_true", help="for generate(), without the chat template")
    parser.add_argument("--tokens", type=int, default=40, help="max_tokens")
    given = parser.parse_args()
    llm = get_llm()
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=given.tokens, logprobs=2)
    if given.raw:
        answers = llm.generate(given.prompts, params)
    else:
        answers = llm.chat([[{"role": "user", "content": prompt}] for prompt in given.prompts], params)
    for prompt, answer in zip(given.prompts, answers, strict=True):
        nearest = outputs.tokens([answer]).sort_values("margin").iloc[0]
        (best, _), (second, _) = nearest.alternatives[:2]
        verdict = "a near-tie" if nearest.margin < outputs.NEAR_TIE else "clear"
        print(f"{prompt!r} -> {answer.outputs[0].text!r}")
        print(
            f"    smallest margin {nearest.margin:.2f} nats ({verdict}), token {nearest.position}: {best!r}, {second!r}"
        )
    release_llm()


if __name__ == "__main__":
    main()
