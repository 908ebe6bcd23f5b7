"""Accidents that cost a kernel or a process of their own: construction interrupted, kills, two kernels, a script."""

import os
import subprocess
import sys
import time

import psutil
import pytest
from kernels import ONE, START, Kernel

from helpers import engines
from helpers.engine.registry import is_engine

pytestmark = pytest.mark.apart  # each has processes of its own


def test_an_interrupt_during_construction_leaves_a_usable_kernel_and_a_kill_leaves_nothing():
    with Kernel() as kernel:
        kernel.run("import helpers, vllm")
        call = kernel.start("llm = helpers.get_llm()")
        time.sleep(2)
        kernel.interrupt()
        text, error = kernel.result(call)
        assert error.startswith("KeyboardInterrupt"), text + error
        assert kernel.run(START + ONE)[0].endswith("1 one 0\n")
        owner = kernel.pid
        assert owner in engines().index
        kernel.kill()
        assert owner not in engines().index


def test_two_kernels_start_in_the_same_second_on_a_busy_machine():
    size = int(psutil.virtual_memory().total * 0.42)
    hold = f"import time; held = bytearray({size}); print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE) as busy:
        busy.stdout.readline()
        try:
            with Kernel() as first, Kernel() as second:
                calls = [kernel.start(START + ONE) for kernel in (first, second)]
                for kernel, call in zip((first, second), calls, strict=True):
                    text, error = kernel.result(call)
                    assert error == "" and text.endswith("1 one 0\n")
                assert {first.pid, second.pid} <= set(engines().index)
        finally:
            busy.kill()


def test_an_engine_that_outlives_its_killed_kernel_is_told_of_and_not_killed():
    with Kernel(VLLM_ENABLE_V1_MULTIPROCESSING="1") as kernel:
        kernel.run(START)
        owner = kernel.pid
        parts = [part for part in psutil.Process(owner).children(recursive=True) if is_engine(part)]
        for part in parts:
            part.suspend()  # an engine that hangs does not notice that its owner is gone
        kernel.kill()
        try:
            row = engines().loc[parts[0].pid]
            assert row["state"].startswith(f"orphan: its owner {owner} is gone; `kill {parts[0].pid}")
            assert row["MiB"] > 100 and parts[0].is_running()
        finally:
            for part in parts:
                part.kill()
            psutil.wait_procs(parts, timeout=10)
        assert len(parts) and parts[0].pid not in engines().index


def test_a_plain_script_with_the_engine_in_a_spawned_child(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "from helpers import get_llm, release_llm\n\n\ndef main():\n    llm = get_llm()\n"
        "    from vllm import SamplingParams\n    print(len(llm.generate(['a', 'b'], SamplingParams(max_tokens=2))))\n"
        "    release_llm()\n\n\nif __name__ == '__main__':\n    main()\n"
    )
    forced = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    command = [sys.executable, "-m", "job"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | forced, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "\n2\n" in done.stdout, done.stdout + done.stderr


WITHOUT_GUARD = {
    "the engine": "from helpers import get_llm\nllm = get_llm()\nprint(len(llm.generate('a')))\n",
    "a job": "from helpers import get_llm\nfrom helpers.jobs import run_job\n"
    "rows = [{'id': 'a', 'prompt': 'a', 'max_tokens': 1}]\n"
    "print(run_job(get_llm, rows, 'out.jsonl', model='any', allow=['length'], progress=False).rows)\n",
    "the engine in a pool's child": "import multiprocessing as mp\nfrom helpers import get_llm\n"
    "llm = get_llm()\npool = mp.get_context('spawn').Process(target=print)\npool.start(), pool.join()\n"
    "print(pool.exitcode)\n",
}
SENTENCE = 'put what it does under `if __name__ == "__main__":`'


@pytest.mark.parametrize("child", ["0", "1"], ids=["in-process", "child"])
@pytest.mark.parametrize("script", WITHOUT_GUARD.values(), ids=WITHOUT_GUARD)
def test_a_script_without_a_main_guard_ends_with_what_to_write(script, child, tmp_path):
    """With the engine in the process nothing is spawned: the first two then run. The last spawns a child by itself."""
    if child == "1" and "pool" in script:
        return  # it fails as the first does
    (tmp_path / "job.py").write_text(script)
    forced = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_ENABLE_V1_MULTIPROCESSING": child}
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "job.py"], cwd=tmp_path, env=os.environ | forced, capture_output=True, text=True, timeout=120
    )
    if child == "0" and "pool" not in script:
        assert done.returncode == 0 and done.stdout.splitlines()[-1] == "1", done.stderr
        return
    said = done.stderr if "pool" in script else done.stderr.splitlines()[-1]
    assert SENTENCE in said and "job.py" in said, done.stdout + done.stderr
    assert time.monotonic() - begun < 60  # a machine under load; alone it takes about 10 s
