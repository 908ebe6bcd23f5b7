"""Noise goes, warnings that matter stay (A14)."""

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

from helpers import devices
from helpers.quiet import Noise, generators_kept, quiet


def test_a14_only_noise_is_dropped_from_loggers():
    record = logging.makeLogRecord
    assert not Noise().filter(record({"msg": "Enforce eager set, disabling torch.compile"}))
    assert Noise().filter(record({"msg": "Preempted 3 requests: the KV cache is full"}))


def test_native_noise_is_dropped_and_the_rest_is_shown(capfd):
    with quiet():
        os.write(2, b"[W utils.cpp:68] Warning: NUMA binding: membind\n")
        os.write(2, b"out of memory in a kernel\n")
    shown = capfd.readouterr().err
    assert "NUMA" not in shown and "out of memory in a kernel" in shown


def test_python_warnings_of_libraries_are_dropped_and_user_warnings_stay(recwarn):
    with quiet():
        warnings.warn("old name", FutureWarning, stacklevel=1)
        warnings.warn("your setting", UserWarning, stacklevel=1)
    assert [str(w.message) for w in recwarn] == ["your setting"]


def test_an_error_inside_keeps_what_was_said_for_its_explanation(capfd):
    said = []
    try:
        with quiet() as said:
            os.write(2, b"NUMA binding\nthe reason\n")
            raise ValueError
    except ValueError:
        os.write(2, b"after\n")
    assert said == ["the reason"] and capfd.readouterr().err == "after\n"


def test_streams_without_a_descriptor_have_one_while_the_engine_starts(monkeypatch):
    class Stream(io.StringIO):
        """What some front ends put in place of stdout."""

    stream = Stream()
    monkeypatch.setattr(sys, "stdout", stream)
    with quiet():
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
    config = json.loads(Path(devices.environment()["VLLM_LOGGING_CONFIG_PATH"]).read_text())
    assert config["filters"]["noise"]["()"] == "helpers.quiet.Noise"
