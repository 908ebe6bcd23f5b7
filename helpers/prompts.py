"""What can be wrong with a prompt before the engine sees it."""

from collections.abc import Sequence
from typing import Any

from helpers.problems import Refused


def problem(ids: Sequence[int], limit: int) -> str | None:
    """Why vLLM would refuse these prompt tokens, and with them the whole call; None when it would not.

    `limit` is the engine's max_model_len, in tokens: at least one must remain for the completion.
    """
    if not ids:
        return "the prompt is empty"
    if len(ids) >= limit:
        return f"the prompt is too long: {len(ids):,} tokens, and max_model_len={limit:,} allows {limit - 1:,}"
    return None


def doubled_bos(ids: Sequence[int], bos: int | None) -> bool:
    """Whether the beginning-of-text token stands twice: once from a template, once from the tokenizer."""
    return bos is not None and list(ids[:2]) == [bos, bos]


def without_system(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same conversation for a template that refuses the system role: its text opens the first user message.

    Raises `Refused` when there is no user message to take it.
    """
    system = [_text(message) for message in messages if message["role"] == "system"]
    rest = [dict(message) for message in messages if message["role"] != "system"]
    if not system:
        return rest
    first = next((message for message in rest if message["role"] == "user"), None)
    if first is None:
        raise Refused("There is no user message that the system text could open: add one.")
    first["content"] = "\n\n".join([*system, _text(first)])
    return rest


def _text(message: dict[str, Any]) -> str:
    """A message's text, also where it comes in parts."""
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
