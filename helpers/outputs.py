"""`RequestOutput`s as tidy pandas frames, whose columns and types do not depend on the data."""

import math
import warnings
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from vllm import RequestOutput

NO_TIMINGS = "These outputs carry no timings: build the engine with get_llm(disable_log_stats=False) to have them."
# Nats between the two best tokens below which rounding may decide. bfloat16 keeps 8 significant bits: logits between 16
# and 32 are 0.125 apart, and each of the two can be rounded to a neighbour.
NEAR_TIE = 0.3
NO_LOGPROBS = "These outputs carry no log probabilities: ask for them with SamplingParams(logprobs=N)."


def requests(outputs: "Iterable[RequestOutput]") -> pd.DataFrame:
    """One row a request, in the order given.

    `queued`, `prefill` and `decode` are seconds between the engine's own monotonic timestamps, and `first_token` is
    the time to first token as the engine measured it. All are NaN, with a warning, where the engine kept no statistics.
    """
    outputs = list(outputs)
    stats = [output.metrics for output in outputs]
    if outputs and not any(stats):
        warnings.warn(NO_TIMINGS, stacklevel=2)
    return pd.DataFrame(
        {
            "request_id": pd.array([output.request_id for output in outputs], dtype="str"),
            "prompt": pd.array([output.prompt for output in outputs], dtype="str"),
            "prompt_tokens": pd.array([len(output.prompt_token_ids or ()) for output in outputs], dtype="int64"),
            "cached_tokens": pd.array([output.num_cached_tokens for output in outputs], dtype="Int64"),
            "completions": pd.array([len(output.outputs) for output in outputs], dtype="int64"),
            "completion_tokens": pd.array(
                [sum(len(completion.token_ids) for completion in output.outputs) for output in outputs], dtype="int64"
            ),
            "finished": pd.array([output.finished for output in outputs], dtype="bool"),
            "queued": _spans(stats, "queued_ts", "scheduled_ts"),
            "prefill": _spans(stats, "scheduled_ts", "first_token_ts"),
            "decode": _spans(stats, "first_token_ts", "last_token_ts"),
            "first_token": pd.array([s.first_token_latency if s else math.nan for s in stats], dtype="float64"),
            "preemptions": pd.array([getattr(s, "num_preemptions", None) for s in stats], dtype="Int64"),
        }
    )


def completions(outputs: "Iterable[RequestOutput]") -> pd.DataFrame:
    """One row a completion: text, tokens, why it ended, and `truncated` where `max_tokens` or the context cut it.

    `cumulative_logprob` is NaN where no log probabilities were asked for.
    """
    rows = [(output, completion) for output in outputs for completion in output.outputs]
    reasons = [completion.finish_reason for _, completion in rows]
    return pd.DataFrame(
        {
            "request_id": pd.array([output.request_id for output, _ in rows], dtype="str"),
            "index": pd.array([completion.index for _, completion in rows], dtype="int64"),
            "text": pd.array([completion.text for _, completion in rows], dtype="str"),
            "tokens": pd.array([len(completion.token_ids) for _, completion in rows], dtype="int64"),
            "finish_reason": pd.array(reasons, dtype="str"),
            "stop_reason": pd.array([_text(completion.stop_reason) for _, completion in rows], dtype="str"),
            "truncated": pd.array([reason == "length" for reason in reasons], dtype="bool"),
            "cumulative_logprob": pd.array([_number(c.cumulative_logprob) for _, c in rows], dtype="float64"),
        }
    )


def tokens(outputs: "Iterable[RequestOutput]") -> pd.DataFrame:
    """One row a completion token: its text, log probability, probability, rank, `margin`, and the `alternatives`.

    `margin` is the distance in nats between the two most probable tokens there, NaN with logprobs below 2.
    `alternatives` lists (token, probability), the most probable first. Probabilities are the model's own, before
    temperature and the filters. Without log probabilities all of these are empty or NaN, with a warning.
    """
    rows, told = [], False
    for output in outputs:
        for completion in output.outputs:
            told = told or bool(completion.logprobs)
            steps = completion.logprobs or [{}] * len(completion.token_ids)
            for position, (token_id, step) in enumerate(zip(completion.token_ids, steps, strict=False)):
                chosen = step.get(token_id)
                ranked = sorted(step.values(), key=lambda entry: -entry.logprob)
                rows.append(
                    (
                        output.request_id,
                        completion.index,
                        position,
                        token_id,
                        chosen.decoded_token if chosen else None,
                        chosen.logprob if chosen else math.nan,
                        math.exp(chosen.logprob) if chosen else math.nan,
                        chosen.rank if chosen else None,
                        ranked[0].logprob - ranked[1].logprob if len(ranked) > 1 else math.nan,
                        [(entry.decoded_token, math.exp(entry.logprob)) for entry in ranked],
                    )
                )
    if rows and not told:
        warnings.warn(NO_LOGPROBS, stacklevel=2)
    return pd.DataFrame(rows, columns=list(_TOKEN_TYPES)).astype(_TOKEN_TYPES)


_TOKEN_TYPES = {
    "request_id": "str",
    "index": "int64",
    "position": "int64",
    "token_id": "int64",
    "token": "str",
    "logprob": "float64",
    "probability": "float64",
    "rank": "Int64",
    "margin": "float64",
    "alternatives": "object",
}


def finish_reasons(outputs: "Iterable[RequestOutput]") -> pd.DataFrame:
    """How many completions ended for which reason, as `count` and `share`; a reason vLLM did not give is "none"."""
    reasons = completions(outputs).finish_reason.fillna("none")
    counts = reasons.value_counts().rename_axis("finish_reason")
    return pd.DataFrame({"count": counts.astype("int64"), "share": (counts / max(1, counts.sum())).astype("float64")})


def margins(outputs: "Iterable[RequestOutput]") -> list[list[float]]:
    """For the first completion of each output, the `margin` of `tokens` at every position; needs logprobs=2 or more."""
    return [tokens([output]).query("index == 0").margin.to_list() for output in outputs]


def first_difference(left: "RequestOutput", right: "RequestOutput") -> dict[str, Any] | None:
    """Where the first completions of two outputs part: `position`, the two token ids, and `margin`.

    `margin` is how far apart the two most probable tokens were there, in nats, to the left model: below `NEAR_TIE`,
    rounding decides which one wins. NaN without log probabilities. None when the completions are equal.
    """
    mine, other = left.outputs[0].token_ids, right.outputs[0].token_ids
    position = parted(mine, other)
    if position is None:
        return None
    known = margins([left])[0] if left.outputs[0].logprobs else []
    pair = (ids[position] if position < len(ids) else None for ids in (mine, other))
    margin = known[position] if position < len(known) else math.nan
    return dict(zip(("position", "left", "right"), (position, *pair), strict=True)) | {"margin": margin}


def parted(left: Sequence[int], right: Sequence[int]) -> int | None:
    """The first position at which two sequences of token ids differ; None when they are equal."""
    pairs = zip_longest(left, right)
    return next((position for position, (mine, other) in enumerate(pairs) if mine != other), None)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as dicts that are valid JSON: NaN, infinities and missing values become None."""
    return [{name: _plain(value) for name, value in row.items()} for row in frame.to_dict("records")]


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value


def _spans(stats: list, start: str, end: str) -> Any:
    """Seconds from one timestamp to another; NaN where one of them was never set (vLLM leaves 0)."""
    pairs = [(getattr(s, start, 0), getattr(s, end, 0)) for s in stats]
    return pd.array([b - a if a and b else math.nan for a, b in pairs], dtype="float64")


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
