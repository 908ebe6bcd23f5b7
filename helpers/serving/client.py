"""A client of the server that keeps many requests in flight: OpenAI's, with its connection limits set on purpose."""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import openai

from helpers.problems import Problem, one_line
from helpers.serving.server import NAME, Server

RETRIES, TIMEOUT = 4, 600.0  # openai's client waits longer from one retry to the next


class RequestFailed(Problem):
    """The server refused or did not answer a request; the message has its position among those sent."""


@dataclass(frozen=True)
class Answer:
    """What one request gave; times in seconds from when it was sent."""

    text: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish_reason: str | None
    first_token: float
    seconds: float


def client(server: Server, connections: int) -> openai.AsyncOpenAI:
    """OpenAI's client with a pool of `connections`: fewer than there are requests in flight, and they wait for one.

    The library's own pool has 1,000, of which it keeps 100 open.
    """
    http = openai.DefaultAsyncHttpxClient(limits=_limits(connections), trust_env=False)  # no proxy gets the key
    return openai.AsyncOpenAI(
        base_url=server.url, api_key=server.key, http_client=http, max_retries=RETRIES, timeout=TIMEOUT
    )


async def ask(api: openai.AsyncOpenAI, messages: list[dict], *, stream: bool = True, **settings: Any) -> Answer:
    """One chat request for one completion. Fields that OpenAI's client does not know go along as they are.

    Streamed, each token is an event that the server writes and the client parses, and `first_token` is measured.
    Without, it is NaN. Raises `ValueError` for n above 1, and what OpenAI's client raises.
    """
    if settings.get("n", 1) != 1:
        raise ValueError(f"n={settings['n']}: this client asks for one completion a request; send {settings['n']}.")
    more = {name: settings.pop(name) for name in list(settings) if name not in _OPENAI} | {"return_token_ids": True}
    given = {"model": NAME, "messages": messages, "extra_body": more, **settings}
    start = time.perf_counter()
    if not stream:
        whole = await api.chat.completions.create(**given)
        [choice] = whole.choices
        took, text = time.perf_counter() - start, choice.message.content or ""
        prompt, tokens = tuple(whole.prompt_token_ids), tuple(choice.token_ids)
        return Answer(text, prompt, tokens, choice.finish_reason, math.nan, took)
    first, pieces, prompt, tokens, reason = math.nan, [], (), [], None
    async for chunk in await api.chat.completions.create(stream=True, **given):
        prompt = prompt or tuple(getattr(chunk, "prompt_token_ids", None) or ())
        for choice in chunk.choices:
            new = getattr(choice, "token_ids", None) or ()
            if new and not tokens:
                first = time.perf_counter() - start
            tokens += new
            pieces.append(choice.delta.content or "")
            reason = choice.finish_reason or reason
    return Answer("".join(pieces), prompt, tuple(tokens), reason, first, time.perf_counter() - start)


async def closed_loop(
    server: Server,
    conversations: Sequence[list[dict]],
    settings: Sequence[dict[str, Any]],
    concurrency: int,
    connections: int | None = None,
    stream: bool = False,
) -> list[Answer]:
    """All conversations with at most `concurrency` in flight, in input order: a new one starts as one ends.

    `connections` is the client's pool, by default one for each request in flight. The first failure ends the others:
    raises `RequestFailed` with its position.
    """
    connections = concurrency if connections is None else connections
    if concurrency < 1 or connections < 1:
        raise ValueError(f"{concurrency} in flight over {connections} connections never end: give 1 or more of both.")
    gate = asyncio.Semaphore(concurrency)
    async with client(server, connections) as api:

        async def one(row: int, messages: list[dict], fields: dict[str, Any]) -> Answer:
            async with gate:
                try:
                    return await ask(api, messages, stream=stream, **fields)
                except Exception as error:
                    raise RequestFailed(f"Request {row} failed: {one_line(error)}") from error

        try:
            async with asyncio.TaskGroup() as group:
                pairs = enumerate(zip(conversations, settings, strict=True))
                tasks = [group.create_task(one(row, *pair)) for row, pair in pairs]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed.exceptions[0].__cause__
        return [task.result() for task in tasks]


_OPENAI = (
    "temperature",
    "top_p",
    "max_tokens",
    "n",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "logprobs",
)


def _limits(connections: int):
    """The limits of the HTTP library that OpenAI's client is built on: httpx, or httpx2 since version 3."""
    try:
        from httpx2 import Limits
    except ModuleNotFoundError:
        from httpx import Limits
    return Limits(max_connections=connections, max_keepalive_connections=connections)
