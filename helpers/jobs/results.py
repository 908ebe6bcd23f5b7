"""A finished request as a row of the output, in OpenAI's batch format or the plain one."""

import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from helpers.jobs.rows import Row

if TYPE_CHECKING:
    from vllm import RequestOutput


# How vLLM 0.26 to 0.32 says that a completion ended (`vllm.v1.engine.FINISH_REASON_STRINGS`), and where it does not.
REASONS = ("stop", "length", "abort", "error", "repetition", "none")


def judged(output: "RequestOutput", allowed: Collection[str]) -> tuple[str, str]:
    """(status, reason): "done" when every completion ended for an allowed reason, else "failed" with the first other.

    A reason that is missing or unknown is never success.
    """
    reasons = [completion.finish_reason or "none" for completion in output.outputs]
    wrong = [reason for reason in reasons if reason not in allowed]
    return ("failed", wrong[0]) if wrong or not reasons else ("done", reasons[0])


def finished(row: Row, output: "RequestOutput", status: str, reason: str, model: str) -> dict[str, Any]:
    """The output row of a request that the engine finished; a failed one keeps what was generated."""
    error = None if status == "done" else f"finish reason {reason} is not allowed"
    if not row.batch:
        return {
            "id": row.name,
            "status": status,
            "error": error,
            "text": output.outputs[0].text,
            "finish_reason": output.outputs[0].finish_reason,
            "completions": [
                {
                    "text": c.text,
                    "finish_reason": c.finish_reason,
                    "tokens": len(c.token_ids),
                    "logprobs": _text_choice(c)["logprobs"],
                }
                for c in output.outputs
            ],
            "prompt_tokens": len(output.prompt_token_ids or ()),
        }
    choice = _chat_choice if row.chat else _text_choice
    prompt, completion = len(output.prompt_token_ids or ()), sum(len(c.token_ids) for c in output.outputs)
    body = {
        "id": f"{'chatcmpl' if row.chat else 'cmpl'}-{row.id}",
        "object": "chat.completion" if row.chat else "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice(c) for c in output.outputs],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
    }
    return {
        "id": f"batch_req_{row.id}",
        "custom_id": row.id,
        "response": {"status_code": 200, "request_id": row.id, "body": body},
        "error": error and {"code": "finish_reason", "message": error},
    }


def rejected(name: str | int | None, number: int, reason: str, batch: bool) -> dict[str, Any]:
    """The output row of an input row that the engine did not see, with all fields of one that it did."""
    if not batch:
        answer = {"text": None, "finish_reason": None, "completions": [], "prompt_tokens": None}
        return {"id": name, "status": "rejected", "error": reason, "line": number} | answer
    error = {"code": "rejected", "message": reason, "line": number}
    return {
        "id": f"batch_req_line_{number}",
        "custom_id": None if name is None else str(name),
        "response": None,
        "error": error,
    }


def _chat_choice(completion) -> dict[str, Any]:
    return {
        "index": completion.index,
        "message": {"role": "assistant", "content": completion.text, "refusal": None},
        "logprobs": completion.logprobs
        and {"content": [_token(*pair) for pair in _pairs(completion)], "refusal": None},
        "finish_reason": completion.finish_reason,
    }


def _text_choice(completion) -> dict[str, Any]:
    logprobs = None
    if completion.logprobs:
        chosen = [step[token] for token, step in _pairs(completion)]
        logprobs = {
            "tokens": [entry.decoded_token or "" for entry in chosen],
            "token_logprobs": [_finite(entry.logprob) for entry in chosen],
            "top_logprobs": [
                {entry.decoded_token or "": _finite(entry.logprob) for entry in step.values()}
                for step in completion.logprobs
            ],
            "text_offset": None,
        }
    return {
        "index": completion.index,
        "text": completion.text,
        "logprobs": logprobs,
        "finish_reason": completion.finish_reason,
    }


def _pairs(completion):
    return zip(completion.token_ids, completion.logprobs, strict=False)


def _token(chosen: int, step: dict) -> dict[str, Any]:
    def entry(one) -> dict[str, Any]:
        text = one.decoded_token or ""
        return {"token": text, "logprob": _finite(one.logprob), "bytes": list(text.encode("utf-8", "replace"))}

    ranked = sorted((one for one in step.values()), key=lambda one: -one.logprob)
    return entry(step[chosen]) | {"top_logprobs": [entry(one) for one in ranked]}


def _finite(value: float) -> float:
    """OpenAI writes an impossible token's log probability as -9999: JSON has no infinity."""
    return max(value, -9999.0)
