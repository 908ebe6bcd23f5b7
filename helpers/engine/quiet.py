"""Keeps start-up messages out of cells, but for those that speak of what the reader set; a log has the others."""

import logging
import os
import random
import re
import sys
import tempfile
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from helpers import machine

# What of the reader's own a start-up message can speak of, beside the names that `spoken_of` was given.
MODEL = r"\b(?:the|this|your) model\b|generation.config|config\.json|chat.template|tokenizer"
STARTER = "WORKBOOK_STARTER"  # the process that starts an engine; its children find it in their environment
OWN = (STARTER, "VLLM_DIST_IDENT")  # the second is vLLM's, in a process with an engine, and its children inherit it
PREFIXES = ("VLLM_", "HF_", "CUDA_", "OMP_", "TORCH_", "PYTORCH_", "NCCL_", "WORKBOOK_")


class Rule(logging.Filter):
    """Which of vLLM's warnings a reader sees; named in logging.json, which vLLM reads.

    What is said about a call of theirs is shown. Of a start, and of what comes before one, only errors are, and what
    speaks of something that they set: an argument, a variable of the environment, the model. The rest is in
    `startup_log`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if os.environ.get(STARTER, _me()) != _me():  # in an engine's child: who reads its start judges the lines
            return record.levelno >= logging.WARNING
        warned, message = record.levelno >= logging.WARNING, record.getMessage()
        if record.levelno >= logging.ERROR or (warned and (_calls or shown(message))):
            return True
        _kept.append(f"{record.levelname}: {message}")
        return False


@dataclass(frozen=True)
class Log:
    """Start-up messages that were not shown, in the order in which they came."""

    lines: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join(self.lines) or "No start-up message was held back."


def startup_log() -> Log:
    """What this process's engines said while they started and a cell did not show: the last 500 lines."""
    return Log(tuple(_kept))


def spoken_of(arguments: Iterable[str], model: str) -> None:
    """Makes messages visible that speak of these arguments of `vllm.LLM`, or of this model."""
    global _spoken_of
    names = [re.escape(name).replace("_", "[ _-]") for name in arguments if name != "model"]
    _spoken_of = "|".join([*(rf"\b{name}\b" for name in names), re.escape(Path(model).name)])


def shown(message: str) -> bool:
    """Whether a start-up message speaks of something that the reader set."""
    words = [MODEL, _spoken_of, *(rf"\b{name}\b" for name in _set_by_reader())]
    return bool(re.search("|".join(filter(None, words)), message, re.IGNORECASE))


@contextmanager
def calling() -> Iterator[None]:
    """Around a reader's own call of the engine: what is said meanwhile is about it, and is shown."""
    global _calls
    _calls += 1
    try:
        yield
    finally:
        _calls -= 1


@contextmanager
def quiet() -> Iterator[list[str]]:
    """Holds back what says nothing about the reader's settings, from the libraries' loggers and from file descriptor
    2: native code and children write there.

    The list that it yields holds, afterwards, the lines of that descriptor. Those that speak of the reader's settings
    are shown, unless the block ends by an exception: then all are for whoever explains it.
    """
    for name in ("transformers", "torch"):
        for handler in logging.getLogger(name).handlers:
            handler.addFilter(_rule)  # once: a second call with the same filter does nothing
    said: list[str] = []
    with warnings.catch_warnings(), _filenos(), _native_stderr(said):
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield said
    for line in said:
        if shown(line) or re.search(r"\b(ERROR|CRITICAL)\b", line):
            print(line, file=sys.stderr)
        else:
            _kept.append(line)


def _me() -> str:
    return str(os.getpid())


def _set_by_reader() -> list[str]:
    """The variables of the environment that are not as this package sets them."""
    ours = machine.environment()
    return [n for n, value in os.environ.items() if n.startswith(PREFIXES) and n not in OWN and value != ours.get(n)]


_rule = Rule()
_kept: deque[str] = deque(maxlen=500)
_spoken_of = ""
_calls = 0


@contextmanager
def _filenos() -> Iterator[None]:
    """Gives the standard streams a descriptor where a notebook's front end replaced them by ones without: vLLM asks."""
    given = []
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            stream.fileno()
        except (OSError, AttributeError):
            stream.fileno = lambda number=number: number
            given.append(stream)
    try:
        yield
    finally:
        for stream in given:
            del stream.fileno


@contextmanager
def _native_stderr(said: list[str]) -> Iterator[None]:
    """Collects in `said` the lines that are written to file descriptor 2."""
    kept = os.dup(2)
    try:
        with tempfile.TemporaryFile() as held:
            os.dup2(held.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(kept, 2)
                held.seek(0)
                lines = held.read().decode(errors="replace").splitlines()
                said += [line for line in lines if line.strip()]
    finally:
        os.close(kept)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Leaves the random generators of Python, numpy and torch as they were; an engine seeds all three."""
    import numpy
    import torch

    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        numpy.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
