"""Keeps start-up noise out of cells while warnings that matter stay visible."""

import logging
import os
import random
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# What the engine says about settings that this workbook chose, or that a notebook cannot change.
NOISE = re.compile(
    "|".join(
        [
            "random state of the Python process",  # undone: see generators_kept
            "Enforce eager set",
            "Inductor compilation was disabled",
            "Triton is not installed",
            "Triton not available",
            "requires Triton",
            "not found in LD_PRELOAD",
            "OMP_NUM_THREADS=",
            "torch.set_num_threads",
            "NUMA binding",
            "hostname of the client socket",
            "generation flags are not valid",
            "is already registered",
            "VLLM_DIST_IDENT",
            "Process manager: force killing",  # how an engine in a child process is ended
        ]
    )
)


class Noise(logging.Filter):
    """Lets a record through unless its message is in `NOISE`; named in logging.json, which vLLM reads."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not NOISE.search(record.getMessage())


_noise = Noise()


@contextmanager
def quiet() -> Iterator[list[str]]:
    """Drops `NOISE` from the libraries' loggers and from file descriptor 2: native code and children write there.

    The list that it yields holds, afterwards, the lines of that descriptor which are not noise. They are shown too,
    unless the block ends by an exception: then they are for whoever explains it.
    """
    for name in ("transformers", "torch"):
        for handler in logging.getLogger(name).handlers:
            handler.addFilter(_noise)  # once: a second call with the same filter does nothing
    said: list[str] = []
    with warnings.catch_warnings(), _filenos(), _native_stderr(said):
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield said
    for line in said:
        print(line, file=sys.stderr)


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
    """Collects in `said` the lines that are written to file descriptor 2 and are not noise."""
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
                said += [line for line in lines if line.strip() and not NOISE.search(line)]
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
