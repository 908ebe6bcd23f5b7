"""Sampling settings: the checkpoint's merged with yours, and what replaced the names of older tutorials."""

from typing import TYPE_CHECKING, Any

from helpers.problems import did_you_mean

if TYPE_CHECKING:
    from vllm import LLM, SamplingParams

REPLACED = {
    "best_of": "n, and a choice among the completions by cumulative_logprob",
    "use_beam_search": "LLM.beam_search()",
    "guided_decoding": "structured_outputs=StructuredOutputsParams(...)",
    "GuidedDecodingParams": "StructuredOutputsParams",
    "guided_json": "structured_outputs=StructuredOutputsParams(json=...)",
    "guided_regex": "structured_outputs=StructuredOutputsParams(regex=...)",
    "guided_choice": "structured_outputs=StructuredOutputsParams(choice=...)",
    "guided_grammar": "structured_outputs=StructuredOutputsParams(grammar=...)",
    "truncate_prompt_tokens": 'generate(..., tokenization_kwargs={"truncate_prompt_tokens": N})',
    "prompt_token_ids": 'generate({"prompt_token_ids": ids})',
    "logits_processors": "LLM(logits_processors=[...])",
    "max_new_tokens": "max_tokens",
    "do_sample": "temperature (0 is greedy)",
    "num_return_sequences": "n",
}


def merged(llm: "LLM", **mine: Any) -> "SamplingParams":
    """The checkpoint's recommended settings with `mine` on top, as the server does it.

    Raises `TypeError` for a name that `SamplingParams` does not have, with what replaced it where that is known.
    """
    from vllm import SamplingParams

    check_names(mine)
    return SamplingParams(**(llm.llm_engine.model_config.get_diff_sampling_param() | mine))


def check_names(settings: dict[str, Any]) -> None:
    """Raises `TypeError` for the first name that `SamplingParams` does not take, with the way out."""
    import inspect

    from vllm import SamplingParams

    known = [name for name in inspect.signature(SamplingParams).parameters if not name.startswith("_")]
    for name in settings:
        if name in known:
            continue
        if name in REPLACED:
            raise TypeError(f"SamplingParams has no {name} any more: use {REPLACED[name]}.")
        raise TypeError(f"SamplingParams has no {name}.{did_you_mean(name, known)}")
