"""Of a start a cell shows what speaks of the reader's settings; a log has the rest."""

import io
import json
import logging
import os
import random
import sys
import warnings
from pathlib import Path

import numpy
import pytest
import torch

from helpers import machine
from helpers.engine import quiet
from helpers.engine.quiet import Rule, calling, generators_kept, spoken_of, startup_log

STARTS = sorted(Path(__file__).with_name("startups").glob("*.log"))  # as recorded, without INFO lines
GENERATION = (
    "overridden by the model's `generation_config.json`"  # what a checkpoint recommends, which a reader must know
)


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    """A reader who passed no argument and set no variable."""
    for name in [name for name in os.environ if name.startswith(quiet.PREFIXES)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(quiet, "_kept", type(quiet._kept)(maxlen=500))
    spoken_of([], "SmolLM2-135M-Instruct")


def passes(message, level="WARNING"):
    return Rule().filter(
        logging.makeLogRecord({"msg": message, "levelno": getattr(logging, level), "levelname": level})
    )


@pytest.mark.parametrize("path", STARTS, ids=lambda path: path.stem)
def test_of_a_recorded_start_only_what_the_checkpoint_recommends_is_shown(path):
    lines = path.read_text().splitlines()
    assert len(lines) > 5 and [line for line in lines if quiet.shown(line) and GENERATION not in line] == []


def test_a_line_that_no_version_had_yet_is_shown_when_it_speaks_of_an_argument_and_else_kept():
    new = "Frobnicator unavailable; max-num-seqs 512 was lowered to 64."
    assert not passes(new) and repr(startup_log()) == f"WARNING: {new}"
    spoken_of(["max_num_seqs"], "org/model")
    assert passes(new) and not passes("Frobnicator unavailable.")


@pytest.mark.parametrize("line", ["model-7B is gated", "The model's config.json lacks a key", "a slow tokenizer"])
def test_what_speaks_of_the_model_is_shown(line):
    spoken_of([], "/models/model-7B")
    assert passes(line)


def test_what_speaks_of_a_variable_is_shown_where_the_reader_set_it(monkeypatch):
    line = "VLLM_ATTENTION_BACKEND is ignored; OMP_NUM_THREADS=2 is set"
    monkeypatch.setattr(os, "environ", os.environ | machine.environment())
    assert not passes(line)  # this package set the second
    monkeypatch.setitem(os.environ, "VLLM_ATTENTION_BACKEND", "FLASH")
    assert passes(line)


def test_errors_and_what_is_said_about_a_readers_call_are_shown():
    assert passes("anything", "ERROR") and not passes("Preempted 3 requests")
    with calling():
        assert passes("Preempted 3 requests") and not passes("about the call", "INFO")


def test_native_lines_are_kept_for_the_log_and_those_about_a_setting_are_shown(capfd):
    spoken_of(["quantization"], "org/model")
    with quiet.quiet():
        os.write(2, b"[W utils.cpp:68] Warning: NUMA binding: membind\nno kernel for this quantization\n")
    assert capfd.readouterr().err == "no kernel for this quantization\n"
    assert "NUMA binding" in repr(startup_log())


def test_python_warnings_of_libraries_are_dropped_and_user_warnings_stay(recwarn):
    with quiet.quiet():
        warnings.warn("old name", FutureWarning, stacklevel=1)
        warnings.warn("your setting", UserWarning, stacklevel=1)
    assert [str(w.message) for w in recwarn] == ["your setting"]


def test_an_error_inside_keeps_what_was_said_for_its_explanation(capfd):
    said = []
    try:
        with quiet.quiet() as said:
            os.write(2, b"NUMA binding\nthe reason\n")
            raise ValueError
    except ValueError:
        os.write(2, b"after\n")
    assert said == ["NUMA binding", "the reason"] and capfd.readouterr().err == "after\n"


def test_streams_without_a_descriptor_have_one_while_the_engine_starts(monkeypatch):
    class Stream(io.StringIO):
        """What some front ends put in place of stdout."""

    stream = Stream()
    monkeypatch.setattr(sys, "stdout", stream)
    with quiet.quiet():
        assert sys.stdout.fileno() == 1
    with pytest.raises(OSError):
        stream.fileno()


def test_the_generators_go_on_as_if_nothing_had_happened():
    def draw():
        return random.random(), float(numpy.random.rand()), float(torch.rand(1))

    random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
    expected = draw()
    random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
    with generators_kept():
        random.seed(9), numpy.random.seed(9), torch.manual_seed(9)
    assert draw() == expected


def test_vllm_is_given_the_filter():
    config = json.loads(Path(machine.environment()["VLLM_LOGGING_CONFIG_PATH"]).read_text())
    assert config["filters"]["rule"]["()"] == "helpers.engine.quiet.Rule"
