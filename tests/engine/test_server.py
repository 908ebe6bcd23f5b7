"""The real server: who may ask, where it listens, and that it answers as the embedded engine does."""

import asyncio
import json
import os
import socket
import urllib.error
from pathlib import Path

import psutil
import pytest

from helpers import outputs, sampling
from helpers.serving import compare, server
from helpers.serving.client import ask, client

CHATS = [[{"role": "user", "content": f"Name a thing that is {word}."}] for word in ("red", "cold", "round", "loud")]


def params(**settings):
    from vllm import SamplingParams

    return [SamplingParams(**({"temperature": 0, "max_tokens": 16} | settings)) for _ in CHATS]


def embedded_run(llm, settings):
    return compare.Run.of("embedded", llm.chat(CHATS, settings), 1.0, 1.0)


@pytest.fixture(scope="module")
def embedded():
    """What the embedded engine gives: with every field said, and with the temperature left to each side."""
    from vllm import SamplingParams

    from helpers import get_llm

    llm = get_llm(max_model_len=512)
    left_out = {"seed": 5, "max_tokens": 24}
    return {
        "greedy": embedded_run(llm, params()),
        "margins": outputs.margins(llm.chat(CHATS, params(logprobs=2))),
        "raw": embedded_run(llm, [SamplingParams(**left_out)] * 4),
        "merged": embedded_run(llm, [sampling.merged(llm, **left_out)] * 4),
        "generate": llm.generate([chat[0]["content"] for chat in CHATS], params()),
    }


def shared_memory(pids):
    """The files of /dev/shm that these processes map; those of other tests beside them are not theirs."""
    maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in pids)
    return {line.split()[-1] for line in maps.splitlines() if "/dev/shm/" in line and not line.endswith("(deleted)")}


@pytest.fixture(scope="module")
def running(embedded, request):
    """A server, started while the embedded engine is there; afterwards nothing of it may be left."""
    found = server.start_server(max_model_len=512)
    yield found
    family = [found.process.pid, *(p.pid for p in psutil.Process(found.process.pid).children(recursive=True))]
    port = int(found.url.split(":")[2].split("/")[0])
    memory = shared_memory(family)
    found.stop()
    assert not [pid for pid in family if psutil.pid_exists(pid)]
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    assert not [name for name in memory if os.path.exists(name)]


def test_the_offline_engine_was_released_first(running):
    from helpers.engine import shared as engine

    assert not engine.running() and running.alive() and running.start_seconds > 1


PROMPT = {"model": server.NAME, "prompt": "a", "max_tokens": 1}


@pytest.mark.parametrize("path, body", [("/v1/models", None), ("/metrics", None), ("/invocations", PROMPT)])
def test_without_the_key_it_refuses_on_every_path(running, path, body):
    url = running.url.removesuffix("/v1") + path
    for key in ("", "wrong"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            server.get(url, key, body)
    assert server.get(url, running.key, body)
    assert json.loads(server.get(f"{running.url}/models", running.key))["data"][0]["id"] == running.model


def test_the_key_is_in_no_command_line_and_in_no_log(running):
    family = [psutil.Process(running.process.pid), *psutil.Process(running.process.pid).children(recursive=True)]
    assert not any(running.key in " ".join(process.cmdline()) for process in family)
    assert running.key not in Path(running.log).read_text() and running.key not in repr(running)


def test_the_api_listens_on_loopback_only(running):
    family = [psutil.Process(running.process.pid), *psutil.Process(running.process.pid).children(recursive=True)]
    sockets = [c for p in family for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    port = int(running.url.split(":")[2].split("/")[0])
    assert {c.laddr.ip for c in sockets if c.laddr.port == port} == {"127.0.0.1"}


def test_equal_requests_give_equal_tokens(running, embedded):
    for stream in (False, True):
        served = asyncio.run(compare.served(running, CHATS, params(), concurrency=4, stream=stream))
        parted = compare.different(embedded["greedy"], served, embedded["margins"])
        assert parted["prompts"] == parted["tokens"] == [] and len(parted["near_ties"]) < len(CHATS)
        assert served.rate > 0 and len(served.first_token) == 4 * stream


def test_a_field_that_is_left_out_makes_them_differ(running, embedded):
    async def without_temperature():
        async with client(running, 4) as api:
            return [await ask(api, chat, seed=5, max_tokens=24) for chat in CHATS]

    tokens = [answer.token_ids for answer in asyncio.run(without_temperature())]
    like = {
        name: sum(mine == other for mine, other in zip(tokens, embedded[name].tokens, strict=True))
        for name in ("merged", "raw")
    }
    assert like["merged"] > len(CHATS) // 2 and like["raw"] == 0, like  # another batch may round one row otherwise


def test_the_same_text_through_generate_has_other_prompt_tokens(running, embedded):
    served = asyncio.run(compare.served(running, CHATS, params(), concurrency=2))
    generated = compare.Run(
        "g", 1.0, 0.0, tuple(tuple(o.prompt_token_ids) for o in embedded["generate"]), served.tokens
    )
    assert compare.different(generated, served)["prompts"] == [0, 1, 2, 3]


def test_an_answer_streams_and_a_cancelled_one_leaves_the_engine(running):
    async def session():
        async with client(running, 2) as api:
            answer = await ask(api, CHATS[0], temperature=0, max_tokens=128, ignore_eos=True)
            task = asyncio.create_task(ask(api, CHATS[0], temperature=0, max_tokens=400, ignore_eos=True))
            while running.metric("vllm:num_requests_running") < 1:
                await asyncio.sleep(0.05)
            task.cancel()
            for _ in range(200):
                if running.metric("vllm:num_requests_running") == 0:
                    return answer
                await asyncio.sleep(0.05)
            pytest.fail("it went on after its client had gone")

    answer = asyncio.run(session())
    assert answer.first_token < answer.seconds / 2 and len(answer.token_ids) == 128 and answer.finish_reason == "length"


def test_metrics_are_a_frame_and_an_unknown_one_is_no_zero(running):
    frame = running.metrics()
    assert {"vllm:num_requests_waiting", "vllm:generation_tokens_total"} <= set(frame.name)
    assert running.metric("vllm:generation_tokens_total") > 0
    near = {"vllm:generation_tokens": " Did you mean vllm:generation_tokens_total", "no:such_metric": ""}
    for name, found in near.items():
        with pytest.raises(ValueError, match=f"no metric '{name}'; metrics\\(\\) lists them.{found}"):
            running.metric(name)
