"""One caller at a time, interrupts between steps, nothing left behind; with a fake engine."""

import inspect
import os
import signal
import threading
import time

import pytest
from fakes import LLM

from helpers.engine.guard import EngineBusy, Guard


@pytest.fixture
def llm():
    return LLM()


@pytest.fixture
def guard(llm):
    return Guard(llm)


@pytest.fixture(autouse=True)
def interrupts():
    """Python's own handler, whatever started the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press():
    """What Ctrl-C and the stop button send."""
    os.kill(os.getpid(), signal.SIGINT)


def test_results_and_signature_are_those_of_vllm(llm, guard):
    assert llm.generate(["bb", "a"]) == ["a", "bb"]
    assert str(inspect.signature(llm.generate)) == str(inspect.signature(LLM().generate))


def test_bars_are_off_unless_asked_for(llm, guard):
    llm.generate(["a"])
    llm.generate(["a"], use_tqdm=True)
    assert llm.bars == [False, True]


def test_a_wrong_call_keeps_vllms_own_message(llm, guard):
    with pytest.raises(TypeError, match="unexpected keyword argument 'prompt_token_ids'"):
        llm.generate(prompt_token_ids=[[1]])


def test_an_interrupt_ends_the_call_after_the_step_and_empties_the_engine(llm, guard):
    finished = []

    def during():
        press()
        finished.append("this step came to its end")

    llm.llm_engine.during_step = during
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["long prompt"] * 3)
    assert len(finished) == 1 and guard.pending() == set()
    llm.llm_engine.during_step = lambda: None
    assert llm.generate(["one"]) == ["one"]


def test_a_users_own_step_loop_is_interrupted_between_steps_too(llm, guard):
    llm.enqueue(["abc"])
    llm.llm_engine.during_step = press
    with pytest.raises(KeyboardInterrupt):
        llm.llm_engine.step()
    assert llm.llm_engine.output_processor.request_states == {"abc": 2}  # the step itself was done


def test_the_handler_is_the_users_again_afterwards(llm, guard):
    before = signal.getsignal(signal.SIGINT)
    llm.generate(["a"])
    assert signal.getsignal(signal.SIGINT) is before


def test_a_step_that_never_ends_gives_way_at_the_third_press(llm, guard):
    presses = []

    def during():
        for _ in range(3):
            presses.append(press())

    llm.llm_engine.during_step = during
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a"])
    assert len(presses) == 2  # the third raised inside the step


def test_a_call_that_fails_takes_only_its_own_requests_with_it(llm, guard):
    llm.enqueue(["mine"])
    with pytest.raises(ValueError, match="too long"):
        llm.generate(["good", "too long"])
    assert guard.pending() == {"mine"}


def test_a_second_thread_is_refused_and_the_first_gets_its_rows(llm, guard):
    inside, refused = threading.Event(), []

    def other():
        inside.wait()
        try:
            llm.generate(["b"])
        except EngineBusy as busy:
            refused.append(str(busy))

    thread = threading.Thread(target=other)
    thread.start()
    llm.llm_engine.during_step = lambda: (inside.set(), thread.join())
    assert llm.generate(["a"]) == ["a"]
    assert "my_turn()" in refused[0]


def test_a_second_thread_waits_when_it_asks_to(llm, guard):
    inside, got = threading.Event(), []

    def other():
        inside.wait()
        with guard.turn(timeout=None):
            got.extend(llm.generate(["b"]))

    thread = threading.Thread(target=other)
    thread.start()
    llm.llm_engine.during_step = lambda: (inside.set(), time.sleep(0.01))
    assert llm.generate(["aaa"]) == ["aaa"]
    thread.join()
    assert got == ["b"]


def test_a_wait_ends_when_its_time_is_over(llm, guard):
    hold, free = threading.Event(), threading.Event()

    def other():
        with guard.turn():
            hold.set()
            free.wait()

    thread = threading.Thread(target=other)
    thread.start()
    hold.wait()
    with pytest.raises(EngineBusy), guard.turn(timeout=0.01):
        pass
    free.set()
    thread.join()


def test_requests_that_a_living_thread_has_queued_are_not_taken_by_another(llm, guard):
    queued, free = threading.Event(), threading.Event()

    def other():
        llm.enqueue(["theirs"])
        queued.set()
        free.wait()

    thread = threading.Thread(target=other)
    thread.start()
    queued.wait()
    with pytest.raises(EngineBusy):
        llm.generate(["mine"])
    free.set()
    thread.join()


def test_an_ignored_interrupt_stays_ignored_as_by_vllm_itself(llm, guard):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    llm.llm_engine.during_step = press
    assert llm.generate(["aaa"]) == ["aaa"] and signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_request_is_aborted_by_the_id_of_enqueue_and_by_the_id_of_its_output(llm, guard, capsys):
    for outer in ("a", "bb", "ccc"):
        llm.enqueue([outer])
    states = llm.llm_engine.output_processor
    states.external_req_ids = {f"{name}-outer": [name] for name in states.request_states}
    llm.llm_engine.abort_request(["a", "bb-outer"])
    assert guard.pending() == {"ccc"} and capsys.readouterr().out == ""


def test_an_id_that_is_not_in_the_engine_is_said_and_hurts_no_other(llm, guard, capsys):
    llm.enqueue(["a"])
    llm.llm_engine.abort_request(["a", "7"])
    assert guard.pending() == set()
    assert capsys.readouterr().out == ("Not aborted: 7. No request in the engine has this id: has it ended?\n")
