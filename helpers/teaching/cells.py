"""What a cell needs around a reader's own call: its error as a sentence, its seconds, a crash on purpose."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helpers.problems import Problem, one_line

if TYPE_CHECKING:
    from vllm import LLM, RequestOutput


@dataclass
class Refusal:
    """The error of a call, if it had one."""

    error: Exception | None = None

    @property
    def kind(self) -> str:
        """The name of the error's class; empty where nothing was refused."""
        return type(self.error).__name__ if self.error else ""

    def __repr__(self) -> str:
        return f"{self.kind}: {one_line(self.error)}" if self.error else "It was not refused."


@contextmanager
def refusal() -> Iterator[Refusal]:
    """`with refusal() as refused: llm.generate(...)` keeps the error that the call raises."""
    refused = Refusal()
    try:
        yield refused
    except Exception as error:
        refused.error = error


@dataclass
class Stopwatch:
    """Seconds of a block, there when it has ended."""

    seconds: float = float("nan")


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """`with stopwatch() as watch: llm.generate(...)` measures the call into `watch.seconds`."""
    watch, start = Stopwatch(), time.perf_counter()
    try:
        yield watch
    finally:
        watch.seconds = time.perf_counter() - start


class Crash(Problem):
    """The crash that was asked for."""


@contextmanager
def crash_after(llm: "LLM", finished: int) -> Iterator[list["RequestOutput"]]:
    """Lets the engine fail in the block once so many requests have finished; yields these, as no caller would see them.

    The block ends without the error, so that a cell can look at what is left.
    """
    step: Callable = llm.llm_engine.step
    came: list[RequestOutput] = []

    def stepped() -> list["RequestOutput"]:
        outputs = step()
        came.extend(output for output in outputs if output.finished)
        if len(came) >= finished:
            raise Crash(f"Crashed on purpose, after {len(came)} finished requests.")
        return outputs

    llm.llm_engine.step = stepped
    try:
        yield came
    except Crash as crash:
        print(crash)
    finally:
        llm.llm_engine.step = step


def wait_until(true: Callable[[], bool], program: subprocess.Popen) -> float:
    """Seconds until a condition holds while another program runs. Raises `Problem` when that ends first."""
    start = time.perf_counter()
    while not true():
        if program.poll() is not None:
            raise Problem(f"The program ended by itself, with status {program.returncode}, before that.")
        time.sleep(0.02)
    return time.perf_counter() - start
