"""vLLM's OpenAI-compatible server beside a notebook: on loopback, with a key, and gone when the notebook is."""

import contextlib
import json
import os
import secrets
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from helpers import machine, models
from helpers.engine import failures, registry, settings, shared, start
from helpers.engine.start_lock import start_lock
from helpers.problems import Problem, did_you_mean

if TYPE_CHECKING:
    import pandas as pd

MODULE = "vllm.entrypoints.openai.api_server"  # the console script of the CPU build does not start
NAME = "workbook"  # the model's name in requests
GRACE = 15.0  # seconds that a server has to end by itself


_latest: "Server | None" = None  # of this process


class ServerStartFailed(Problem):
    """The server did not get ready; the message says why and where its log is."""


@dataclass
class Server:
    """A running server. `url` is the API's base, as OpenAI's clients want it."""

    url: str
    key: str = field(repr=False)
    log: Path
    start_seconds: float
    process: subprocess.Popen = field(repr=False)
    command: list[str] = field(repr=False)  # without the key, which it has in its environment

    @property
    def model(self) -> str:
        """The name that requests give."""
        return NAME

    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def metrics(self) -> "pd.DataFrame":
        """What the server's /metrics says now: one row a sample, with its labels. Raises when it has ended."""
        import pandas as pd
        from prometheus_client.parser import text_string_to_metric_families

        if not self.alive():
            raise Problem(f"The server has ended; its log: {self.log}")
        text = get(self.url.removesuffix("/v1") + "/metrics", self.key)
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return pd.DataFrame([{"name": s.name, "labels": s.labels, "value": s.value} for s in samples])

    def metric(self, name: str) -> float:
        """The sum of a metric's samples. Raises `ValueError` for a name that the server does not have."""
        frame = self.metrics()
        if not (found := frame.name == name).any():
            raise ValueError(
                f"The server has no metric {name!r}; metrics() lists them.{did_you_mean(name, frame.name)}"
            )
        return float(frame.value[found].sum())

    def processor_seconds(self) -> float:
        """What this process and the server's first one, which speaks HTTP, have used of a processor so far."""
        first = psutil.Process(self.process.pid).children()[0]  # under the watcher
        times = [process.cpu_times() for process in (psutil.Process(), first)]
        return sum(spent.user + spent.system for spent in times)

    def stop(self) -> None:
        """Ends the server and every process of its group; safe to call twice."""
        if self.process.stdin:
            with contextlib.suppress(OSError):
                self.process.stdin.close()  # what the watcher waits for
        self.process.terminate()  # a fork of this process may hold the other end of it
        self.process.wait(timeout=2 * GRACE)
        registry.unregister(self.process.pid)


@contextmanager
def serve(model: str | None = None, **engine_args: Any) -> Iterator[Server]:
    """`with serve() as server:` runs vLLM's server for the block; see `start_server`."""
    server = start_server(model, **engine_args)
    try:
        yield server
    finally:
        server.stop()


def start_server(model: str | None = None, *, timeout: float = 600, **engine_args: Any) -> Server:
    """Starts the server with the settings that `get_llm` would pass, and waits until it has answered a request.

    Where neither says anything, vLLM's own defaults count, and the server's are others than the class's
    (`max_num_seqs`, `max_num_batched_tokens`). It listens on loopback only, on a free port, with a random key that
    every request needs; its output goes to a log file. It is a process group of its own that ends when this process
    does, however that happens. This process's offline engine or earlier server is ended first: two engines on one
    device contend. Raises `ServerStartFailed` with the reason, or `EngineStartFailed`.
    """
    global _latest
    if _latest and _latest.alive():
        print(f"The server at {_latest.url} is stopped first: on one device two engines would contend.")
        _latest.stop()
    if shared.running():
        print("The offline engine is released first: on one device two engines would contend for memory and cores.")
        shared.release_llm()
    checkpoint = models.checkpoint(model)
    start.check_names(engine_args)
    began, key = time.perf_counter(), secrets.token_urlsafe(24)
    log = Path(tempfile.mkdtemp(prefix="vllm-server-")) / "server.log"
    with start_lock():
        args = (
            settings.fit(checkpoint, engine_args) | engine_args | settings.lowered_memory(engine_args, machine.device())
        )
        port = free_port()
        command = ["--model", checkpoint.given, *flags(args), "--host", "127.0.0.1", "--port", str(port)]
        command = [sys.executable, "-m", MODULE, "--served-model-name", NAME, *command]
        server = Server(f"http://127.0.0.1:{port}/v1", key, log, 0.0, _spawn(command, key, log), command)
        try:
            _wait(server, {"model": checkpoint.given} | args, time.monotonic() + timeout)
        except BaseException:
            server.stop()
            raise
        registry.register(checkpoint.name, machine.device(), server.process.pid)
    server.start_seconds = time.perf_counter() - began
    print(f"python {shlex.join(command[1:])}".replace(f"{Path.home()}/", "~/"))
    print(f"{checkpoint.name} is served at {server.url} after {server.start_seconds:.0f} s; its log: {log}")
    _latest = server
    return server


def flags(args: dict[str, Any]) -> list[str]:
    """Arguments of `vllm.LLM` as the server's command line has them.

    It has none for the bar of the weights, and for the statistics only the one that switches them off.
    """
    found = []
    for name, value in args.items():
        if name == "use_tqdm_on_load" or value is None or (name == "disable_log_stats" and not value):
            continue
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            found.append(flag if value else f"--no-{name.replace('_', '-')}")
        elif isinstance(value, list | tuple):
            found += [flag, *map(str, value)]
        else:
            found += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return found


def free_port() -> int:
    """A port of the loopback on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(url: str, key: str, body: dict | None = None, timeout: float = 60) -> str:
    """One request with the standard library alone: what the server answers. Raises `OSError`."""
    data = json.dumps(body).encode() if body is not None else None
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy has no business with the key
    with direct.open(urllib.request.Request(url, data, headers), timeout=timeout) as answer:
        return answer.read().decode()


def _spawn(command: list[str], key: str, log: Path) -> subprocess.Popen:
    """The watcher with the server under it; the key is in the environment, where `ps` does not show it."""
    environment = os.environ | {"VLLM_API_KEY": key, "VLLM_LOGGING_LEVEL": "INFO"}
    environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)  # the server needs its engine in a child
    environment.pop("VLLM_LOGGING_CONFIG_PATH", None)
    guard = str(Path(__file__).with_name("middleware"))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [guard, environment.get("PYTHONPATH")]))
    command = [*command, "--middleware", "key_guard.KeyGuard"]
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("watch.py")), str(GRACE), *command],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # an interrupt in the notebook is not the server's
        )


def _wait(server: Server, args: dict[str, Any], until: float) -> None:
    """Until the server has answered one real request."""
    request = {"model": NAME, "prompt": "Hello", "max_tokens": 1}
    while time.monotonic() < until:
        if not server.alive():
            said = server.log.read_text(errors="replace")
            raise ServerStartFailed(f"{_reason(said, args).rstrip('.')}. The whole log: {server.log}")
        try:
            get(f"{server.url}/completions", server.key, request)
            return
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise ServerStartFailed(
                    f"The server refuses a first request ({error}). Its log: {server.log}"
                ) from error
        except OSError:
            pass  # not there yet
        time.sleep(0.2)
    raise ServerStartFailed(f"The server did not get ready in time; see what it does in {server.log}")


def _reason(said: str, args: dict[str, Any]) -> str:
    """One sentence out of the log."""
    errors = [line for line in said.splitlines() if "Error" in line or ": error: " in line]  # argparse's has the second
    return failures.explain(RuntimeError(errors[-1] if errors else "it ended without a word"), said, args).replace(
        "The engine did not start", "The server did not start"
    )
