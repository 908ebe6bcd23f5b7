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


def test_recording_the_scheduler_changes_nothing(llm):
    from vllm import SamplingParams

    from helpers.timeline import record

    prompts = [f"Fact number {number}: the" for number in range(6)]
    params = [SamplingParams(temperature=0, max_tokens=4 + number, ignore_eos=True) for number in range(6)]
    without = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
    with record(llm) as timeline:
        recorded = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
    assert recorded == without
    frame = timeline.frame()
    assert frame[frame.phase == "decode"].groupby("request", sort=False).size().tolist() == [3, 4, 5, 6, 7, 8]


def test_a_start_says_one_line_and_an_error_is_one_sentence():
    done = python("""
        from helpers import get_llm
        llm = get_llm()
        llm.generate("Hello")
    """)
    assert done.returncode == 0 and done.stdout.count("\n") == 1, done.stdout
    noise = [line for line in done.stderr.splitlines() if "generation_config.json" not in line]  # this one matters
    assert noise == []


def test_real_failures_have_their_sentences_and_leave_the_process_usable(tmp_path):
    """One process, several refused starts, then one that works."""
    done = python(
        """
        import json, os, shutil, sys
        from pathlib import Path
        from helpers import EngineStartFailed, get_llm
        from helpers.models import ModelProblem, model

        folder = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ["FOLDER"])
        def copy(name, *without):
            shutil.copytree(model(), folder / name, ignore=shutil.ignore_patterns(*without))
            return str(folder / name)

        odd = copy("odd")
        settings = json.loads(Path(odd, "config.json").read_text())
        settings |= {"architectures": ["FooForCausalLM"], "model_type": "foo"}
        Path(odd, "config.json").write_text(json.dumps(settings))
        starts = {
            "too long": {"max_model_len": 99_999},
            "no weights": {"model": copy("empty", "*.safetensors")},
            "no tokenizer": {"model": copy("mute", "tokenizer*")},
            "dtype": {"dtype": "float99"},
            "small cache": {"kv_cache_memory_bytes": 2**25},
            "all of memory": {"gpu_memory_utilization": 1.0, "kv_cache_memory_bytes": None},
            "architecture": {"model": odd},
            "no folder": {"model": "/no/such/folder"},
            "no checkpoint": {"model": str(folder)},
            "hub": {"model": "org/no-such-model"},
        }
        for name, args in starts.items():
            try:
                get_llm(**args)
            except (EngineStartFailed, ModelProblem) as failed:
                print(name, "|", failed)
        print(len(get_llm().generate("Hello")))
    """,
        FOLDER=str(tmp_path),
    )
    said = dict(line.split(" | ", 1) for line in done.stdout.splitlines() if " | " in line)
    expected = {
        "too long": "max_model_len=99999 is longer than the 8192 tokens that the model allows",
        "no weights": "has a config.json and no weights",
        "no tokenizer": "has no tokenizer files",
        "dtype": "dtype='float99' does not work here",
        "small cache": "one sequence of max_model_len=2048 tokens needs 0.0",
        "all of memory": "a share of the total, and",
        "architecture": "does not know the model's architecture 'foo'",
        "no folder": "There is no folder /no/such/folder",
        "no checkpoint": "is a folder without config.json",
        "hub": "the hub is switched off here",
    }
    wrong = {name: said.get(name) for name, part in expected.items() if part not in said.get(name, "")}
    assert not wrong and done.stdout.endswith("\n1\n"), f"{wrong} {done.stdout} {done.stderr[-2000:]}"


def test_the_rooflines_weights_are_those_of_the_file(llm):
    from safetensors import safe_open

    from helpers import models

    checkpoint = models.checkpoint()
    [file] = checkpoint.files
    with safe_open(file, "pt") as tensors:
        whole = sum(tensors.get_tensor(name).numel() for name in tensors.keys())  # noqa: SIM118
    seen = llm.apply_model(lambda model: sum({p.data_ptr(): p.numel() for p in model.parameters()}.values()))[0]
    assert checkpoint.parameters() == whole == 134_515_008
    assert seen <= whole  # equal on a card; on a CPU vLLM packs the linear layers out of sight
