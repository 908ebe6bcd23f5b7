"""The timeline of a scheduler that is scripted here; the real one is in tests/engine."""

from types import SimpleNamespace as Fake

import pytest

from helpers.timeline import COLUMNS, Timeline, record


def scheduler(script):
    """A scheduler that decides as told: (tokens by request, new requests with prompt lengths, preempted, waiting)."""
    steps = iter(script)
    fake = Fake(waiting=[], kv_cache_manager=Fake(usage=0.5))

    def schedule():
        tokens, new, preempted, waiting = next(steps)
        fake.waiting = [Fake(request_id=name, status=Fake(name="PREEMPTED")) for name in preempted]
        fake.waiting += [Fake(request_id="w", status=Fake(name="WAITING"))] * waiting
        admitted = [Fake(req_id=name, prompt_token_ids=[0] * n, num_computed_tokens=0) for name, n in new.items()]
        return Fake(num_scheduled_tokens=tokens, scheduled_new_reqs=admitted)

    fake.schedule = schedule
    return fake


SCRIPT = [
    ({"0-aa": 3, "1-bb": 4}, {"0-aa": 3, "1-bb": 6}, [], 1),  # the prompt of 1 in two chunks
    ({"0-aa": 1, "1-bb": 2}, {}, [], 1),
    ({"0-aa": 1, "1-bb": 1}, {}, [], 1),
    ({"1-bb": 1, "2-cc": 2}, {"2-cc": 2}, [], 0),
    ({"1-bb": 1}, {}, ["2-cc"], 0),
    ({"1-bb": 1}, {}, ["2-cc"], 0),
    ({"2-cc": 3}, {}, [], 0),  # computed again
    ({"2-cc": 1}, {}, [], 0),
    ({}, {}, [], 0),  # nothing to do: no iteration
]


@pytest.fixture
def timeline():
    fake = scheduler(SCRIPT)
    core = Fake(engine_core=Fake(scheduler=fake))
    llm = Fake(llm_engine=Fake(engine_core=core, add_request=lambda request_id: None, step=list))
    original = fake.schedule
    with record(llm) as timeline:
        for _ in SCRIPT:
            fake.schedule()
    assert fake.schedule is original
    return timeline


def test_prefill_and_decode_are_told_apart_over_chunks_and_preemptions(timeline):
    frame = timeline.frame()
    phases = {request: part.phase.to_list() for request, part in frame.groupby("request")}
    assert phases["0"] == ["prefill", "decode", "decode"]
    assert phases["1"] == ["prefill", "prefill", "decode", "decode", "decode", "decode"]
    assert phases["2"] == ["prefill", "prefill", "decode"]


def test_iterations_say_what_changed(timeline):
    steps = timeline.iterations()
    assert steps.admitted.to_list() == [["0", "1"], [], [], ["2"], [], [], [], []]
    assert steps.preempted.to_list() == [[], [], [], [], ["2"], [], [], []]
    assert steps.finished.to_list() == [[], [], ["0"], [], [], ["1"], [], ["2"]]
    assert steps.waiting.to_list() == [1, 1, 1, 0, 1, 1, 0, 0]
    assert (steps.prefill + steps.decode).to_list() == [7, 3, 2, 3, 1, 1, 3, 1]


def test_the_transcript_has_a_line_for_each_change(timeline):
    lines = timeline.transcript().splitlines()
    assert lines[0] == "iteration 1: 2 running, 1 waiting, KV 50%; admitted 0, 1"
    assert lines[1] == "iteration 2: the same requests go on"
    assert "preempted 2" in lines[4] and len(lines) == 8


def test_the_picture_is_drawn_with_a_row_a_request(timeline):
    picture = timeline.draw()
    axes = picture.figure.axes[0]
    assert picture._repr_png_().startswith(b"\x89PNG") and repr(picture) == timeline.transcript()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "2"]
    assert {text.get_text() for text in axes.get_legend().get_texts()} == {"prefill", "decode", "admitted", "preempted"}
    assert repr(timeline) == "8 iterations, 3 requests, at most 2 at once, 1 preemptions"


def test_an_empty_recording_has_all_views():
    empty = Timeline()
    assert len(empty.frame()) == len(empty.iterations()) == 0 and empty.transcript() == ""
    assert empty.draw().figure.axes


def test_an_engine_in_a_child_gives_spans_and_says_what_is_not_visible():
    left = [["0", False], ["1", False]]

    def step():
        request = left.pop()[0]
        return [Fake(request_id=request, finished=True)]

    engine = Fake(engine_core=Fake(resources=None), add_request=lambda request_id: None, step=step)
    before = engine.add_request, engine.step
    with record(Fake(llm_engine=engine)) as timeline:
        engine.add_request("0")
        engine.add_request("1")
        engine.add_request("2")
        engine.step()
        engine.step()
    assert (engine.add_request, engine.step) == before
    assert timeline.requests() == ["0", "1", "2"] and list(timeline.returned) == ["1", "0"]
    assert timeline.spans().returned.isna().tolist() == [False, False, True]
    hidden, first, second, never = timeline.transcript().splitlines()
    assert (
        "VLLM_ENABLE_V1_MULTIPROCESSING=0" in hidden
        and first.startswith("request 1")
        and second.startswith("request 0")
    )
    assert "did not come back" in never and "iterations are not visible" in repr(timeline)
    assert timeline.draw()._repr_png_().startswith(b"\x89PNG")
    assert len(timeline.iterations()) == 0 and list(timeline.iterations()) == COLUMNS
