"""The everyday accidents of an engine in a notebook, in real kernels, with the engine in the kernel and in a child."""

import os
import re
import time

import pytest
from kernels import ONE, START, Kernel

LONG = 'llm.generate([f"Story {i}: once upon a time" for i in range(200)], SamplingParams(max_tokens=1000))'


@pytest.fixture(params=["0", "1"], ids=["in-process", "child"], scope="module")
def kernel(request):
    with Kernel(VLLM_ENABLE_V1_MULTIPROCESSING=request.param) as kernel:
        text, error = kernel.run(START)
        assert not error and text.count("\n") == 1, text + error
        yield kernel


def in_process(kernel) -> bool:
    return kernel.run("print(os.environ['VLLM_ENABLE_V1_MULTIPROCESSING'])")[0] == "0\n"


def test_an_interrupted_call_leaves_nothing(kernel):
    call = kernel.start(LONG)
    time.sleep(3)
    pressed = time.monotonic()
    kernel.interrupt()
    _, error = kernel.result(call, timeout=60)
    assert error.startswith("KeyboardInterrupt") and time.monotonic() - pressed < 10
    assert kernel.run(ONE, timeout=60) == ("1 one 0\n", "")


def test_twice_and_in_a_loop_of_the_users_own(kernel):
    call = kernel.start(
        'llm.enqueue(["long"] * 50, SamplingParams(max_tokens=1000, ignore_eos=True))\n'
        "while True: llm.llm_engine.step()"
    )
    time.sleep(2)
    kernel.interrupt()
    text, error = kernel.result(call, timeout=60)
    assert error.startswith("KeyboardInterrupt")
    assert "This cell left 50 unfinished requests in the engine: aborted." in text
    assert kernel.run(ONE, timeout=60) == ("1 one 0\n", "")


def test_a_chat_that_fails_takes_its_good_rows_along(kernel):
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


def test_a_running_event_loop_does_not_matter(kernel):
    text, error = kernel.run("import asyncio\nawait asyncio.sleep(0)\nassert get_llm() is llm\n" + ONE)
    assert (text, error) == ("1 one 0\n", "")


def test_no_thread_is_pinned(kernel):
    program = """
import psutil
pids = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
masks = {len(os.sched_getaffinity(int(task))) for pid in pids for task in os.listdir(f"/proc/{pid}/task")}
print(masks)
"""
    assert kernel.run(program) == (f"{{{len(os.sched_getaffinity(0))}}}\n", "")


def test_what_keeps_memory_is_named_and_a_dead_engine_is_replaced(kernel):
    if in_process(kernel):
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


def test_release_gives_memory_back_and_another_engine_starts(kernel):
    """Runs last. In a child the second engine is the one that replaced the dead one above: it costs half a minute."""
    again = "; llm = get_llm(max_num_seqs=4)" + ONE
    if in_process(kernel):
        kernel.run("del mine\nllm = get_llm()")
    text, error = kernel.run("release_llm(); release_llm()" + (again if in_process(kernel) else ""))
    assert error == "" and "No engine to release" in text
    before, after = (int(number.replace(",", "")) for number in re.search(r"([\d,]+) -> ([\d,]+) MiB", text).groups())
    assert before - after > 900
    assert not in_process(kernel) or text.endswith("1 one 0\n")
