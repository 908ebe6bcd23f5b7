"""The singleton around the real engine. Each test that needs a fresh process starts one; the rest share an engine."""

import random
import subprocess
import sys
import textwrap

import pytest


def python(program: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs a program in a Python of its own, as a user's script would be."""
    import os

    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=300)


@pytest.fixture(scope="module")
def llm():
    from helpers import get_llm, release_llm

    random.seed(7)
    expected = random.Random(7).random()
    yield get_llm()
    assert random.random() == expected  # construction left the caller's generator alone
    release_llm()


def test_the_first_answer_is_right(llm):
    from vllm import LLM, SamplingParams

    question = [{"role": "user", "content": "What is the capital of France?"}]
    [output] = llm.chat(question, SamplingParams(temperature=0, max_tokens=40))
    assert isinstance(llm, LLM) and "Paris" in output.outputs[0].text and output.outputs[0].finish_reason == "stop"


def test_construction_is_measured_by_phase(llm):
    from helpers import construction

    frame = construction().frame()
    assert frame.loc["load the weights", "MiB"] > 200 and frame.loc["allocate the KV cache", "seconds"] > 0
    assert (frame["seconds"] >= 0).all()


def test_a_conflict_on_the_real_engine_names_the_argument(llm):
    from helpers import EngineConflict, get_llm

    with pytest.raises(EngineConflict, match="max_num_seqs"):
        get_llm(max_num_seqs=3)
    with pytest.raises(TypeError, match="Did you mean max_model_len"):
        get_llm(max_model_length=64)


def test_a14_a_start_says_one_line_and_an_error_is_one_sentence():
    done = python("""
        from helpers import get_llm
        llm = get_llm()
        llm.generate("Hello")
    """)
    assert done.returncode == 0 and done.stdout.count("\n") == 1, done.stdout
    noise = [line for line in done.stderr.splitlines() if "generation_config.json" not in line]  # this one matters
    assert noise == []


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("/no/such/folder", "There is no folder /no/such/folder"),
        ("/tmp", "/tmp is a folder without config.json"),
        ("org/no-such-model", "the hub is switched off here"),
    ],
)
def test_a_model_that_is_not_there_costs_no_start(model, said):
    done = python(f"from helpers import get_llm; get_llm({model!r})")
    assert done.returncode == 1 and said in done.stderr.splitlines()[-1]
