"""The everyday accidents of an engine in a notebook, in real kernels, with the engine in the kernel and in a child."""

import os
import re
import subprocess
import sys
import time

import psutil
import pytest
from kernels import Kernel

from helpers import engines
from helpers.registry import is_engine

START = """
import os
from helpers import engines, get_llm, my_turn, release_llm
llm = get_llm()
from vllm import SamplingParams
"""
LONG = 'llm.generate([f"Story {i}: once upon a time" for i in range(200)], SamplingParams(max_tokens=1000))'
ONE = """
outputs = llm.generate(["one"], SamplingParams(max_tokens=4))
print(len(outputs), outputs[0].prompt, len(llm.llm_engine.output_processor.request_states))
"""


@pytest.fixture(params=["0", "1"], ids=["in-process", "child"], scope="module")
def kernel(request):
    with Kernel(VLLM_ENABLE_V1_MULTIPROCESSING=request.param) as kernel:
        text, error = kernel.run(START)
        assert not error and text.count("\n") == 1, text + error
        yield kernel


def test_a1_an_interrupted_call_leaves_nothing(kernel):
    call = kernel.start(LONG)
    time.sleep(3)
    pressed = time.monotonic()
    kernel.interrupt()
    _, error = kernel.result(call, timeout=60)
    assert error.startswith("KeyboardInterrupt") and time.monotonic() - pressed < 10
    assert kernel.run(ONE, timeout=60) == ("1 one 0\n", "")


def test_a1_twice_and_in_a_loop_of_the_users_own(kernel):
    call = kernel.start(
        'llm.enqueue(["long"] * 50, SamplingParams(max_tokens=1000))\nwhile True: llm.llm_engine.step()'
    )
    time.sleep(2)
    kernel.interrupt()
    text, error = kernel.result(call, timeout=60)
    assert error.startswith("KeyboardInterrupt")
    assert "This cell left 50 unfinished requests in the engine: aborted." in text
    assert kernel.run(ONE, timeout=60) == ("1 one 0\n", "")


def test_a2_a_chat_that_fails_takes_its_good_rows_along(kernel):
    ask = '[{"role": "user", "content": "Hi"}], [{"role": "user", "content": "Hello"}]'
    long = '[{"role": "user", "content": "word " * 5000}]'
    _, error = kernel.run(f"llm.chat([{ask}, {long}], SamplingParams(max_tokens=4))")
    assert "VLLMValidationError" in error or "ValueError" in error
    assert kernel.run(ONE, timeout=60) == ("1 one 0\n", "")


def test_threads_wait_for_their_turn_or_are_refused(kernel):
    program = """
import threading
from helpers import EngineBusy
got = {}
def other(wait):
    try:
        if wait:
            with my_turn(): got[wait] = [o.prompt for o in llm.generate(["theirs"], SamplingParams(max_tokens=2))]
        else:
            got[wait] = [o.prompt for o in llm.generate(["theirs"], SamplingParams(max_tokens=2))]
    except EngineBusy as busy:
        got[wait] = "busy"
threads = [threading.Timer(0.5, other, [wait]) for wait in (True, False)]
[t.start() for t in threads]
mine = [o.prompt for o in llm.generate(["mine"] * 8, SamplingParams(max_tokens=60, ignore_eos=True))]
[t.join() for t in threads]
print(set(mine), len(mine), got[True], got[False])
"""
    assert kernel.run(program, timeout=120) == ("{'mine'} 8 ['theirs'] busy\n", "")


def test_a16_a_running_event_loop_does_not_matter(kernel):
    text, error = kernel.run("import asyncio\nawait asyncio.sleep(0)\nassert get_llm() is llm\n" + ONE)
    assert (text, error) == ("1 one 0\n", "")


def test_a10_no_thread_is_pinned(kernel):
    program = """
import psutil
pids = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
masks = {len(os.sched_getaffinity(int(task))) for pid in pids for task in os.listdir(f"/proc/{pid}/task")}
print(masks)
"""
    assert kernel.run(program) == (f"{{{len(os.sched_getaffinity(0))}}}\n", "")


def test_a3_a4_release_gives_memory_back_and_another_engine_starts(kernel):
    text, error = kernel.run("release_llm(); release_llm(); llm = get_llm(max_num_seqs=4)" + ONE)
    assert error == "" and "No engine to release" in text and text.endswith("1 one 0\n")
    before, after = (int(number.replace(",", "")) for number in re.search(r"([\d,]+) -> ([\d,]+) MiB", text).groups())
    assert after < before
    in_process = kernel.run("print(os.environ['VLLM_ENABLE_V1_MULTIPROCESSING'])")[0] == "0\n"
    assert not in_process or before - after > 900


def test_what_keeps_memory_is_named_and_a_dead_engine_is_replaced(kernel):
    """Runs last: it breaks the engine."""
    if kernel.run("print(os.environ['VLLM_ENABLE_V1_MULTIPROCESSING'])")[0] == "0\n":
        path = "llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.model"
        text, error = kernel.run(f"mine = [{path}]\nrelease_llm()")
        assert "Some of it is kept alive by: mine. `del mine` frees it." in text
        return
    text, _ = kernel.run("""
import psutil, time
for child in psutil.Process().children(recursive=True): child.kill()
time.sleep(3)
""")
    assert "The engine of this process has died; the next get_llm() starts a new one." in text
    text, error = kernel.run("llm = get_llm()\n" + ONE)
    assert error == "" and "has died; its requests are lost" in text and text.endswith("1 one 0\n")


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


def test_a6_a9_two_kernels_start_in_the_same_second_on_a_busy_machine():
    hold = f"import time; held = bytearray(int({psutil.virtual_memory().total} * 0.42)); print(flush=True); time.sleep(600)"
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


def test_a5_an_engine_that_outlives_its_killed_kernel_is_told_of_and_not_killed():
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
