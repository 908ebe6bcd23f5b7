"""Embed or serve: the plain function, its view, and the arithmetic of the comparison."""

import asyncio
import math
from types import SimpleNamespace

import pytest

from helpers.serving import client, compare
from helpers.teaching import decisions
from helpers.teaching.decisions import EMBED, OWNERS, SEEN, SEPARATE, SHARED, WARM, Case, decide
from helpers.widgets.decision import DecisionView


@pytest.mark.parametrize(
    "case, answer",
    [
        (Case(), EMBED),
        (Case(owner=OWNERS[1]), SHARED),
        (Case(owner=OWNERS[1], interactive=True), SHARED),
        (Case(interactive=True), SEPARATE),
        (Case(work=20, start=60), WARM),
        (Case(work=599, start=60), WARM),
        (Case(work=600, start=60), EMBED),
        (Case(owner=OWNERS[1], work=20), SHARED),
        (Case(work=20, comparable=True), WARM),
        (Case(observed=True), SEEN),
        (Case(observed=True, comparable=True), EMBED),
    ],
)
def test_the_answer_for_a_case(case, answer):
    assert decide(case) is answer


def test_the_four_scenarios_and_that_every_answer_names_its_trade_and_failure():
    assert tuple(map(decide, decisions.SCENARIOS.values())) == decisions.EXPECTED
    for answer in (EMBED, WARM, SEEN, SHARED, SEPARATE):
        assert answer.sentence and answer.trade and answer.failure and repr(answer).count("\n") == 3


def test_the_view_follows_its_controls_and_says_what_is_wrong_under_them():
    view = DecisionView()
    assert repr(view).startswith(EMBED.answer) and "Run this cell" in repr(view)
    view._waits.value = True
    assert decide(view.case) is SEPARATE and SEPARATE.answer in view._answer.value
    view._work.value = -5
    assert "a number of 0 or more, not -5" in view._answer.value and decide(view.case) is SEPARATE
    view._work.value, view._waits.value, view._start.value = 10, False, 60
    assert WARM.answer in view._answer.value
    bundle = view._repr_mimebundle_()
    assert bundle["text/plain"] == repr(view) and "application/vnd.jupyter.widget-view+json" in bundle


def run(name, seconds, tokens=10, load=0.0, prompt=(1,), first=()):
    return compare.Run(name, seconds, load, (prompt, (2,)), ((5,) * tokens, (6,) * tokens), first)


def test_break_even_is_where_the_starts_are_paid_back():
    found = compare.break_even(run("embedded", 2.0, load=8.0), run("served", 4.0))
    assert found.tokens == pytest.approx(80)  # 8 s of start over 0.1 s a token saved
    assert found.embedded_a_day == 8640 and found.served_a_day == 21600 and found.share_of_start == 0.8
    assert "from 80 tokens on" in repr(found) and "8,640 of them embedded, and 21,600 served" in repr(found)
    assert compare.break_even(run("a", 4.0, load=8.0), run("b", 2.0)).tokens == float("inf")


def test_prompts_are_compared_before_tokens():
    one, other = run("a", 1.0), run("b", 1.0, tokens=9, prompt=(7,))
    assert compare.different(one, one) == {"prompts": [], "tokens": [], "near_ties": []}
    assert compare.different(one, other) == {"prompts": [0], "tokens": [1], "near_ties": []}


@pytest.mark.parametrize("margin, under", [(0.1, "near_ties"), (2.0, "tokens"), (math.nan, "tokens")])
def test_a_row_that_parts_at_a_near_tie_is_listed_as_one(margin, under):
    one, other = run("a", 1.0), run("b", 1.0, tokens=9)
    margins = [[5.0] * 9 + [margin]] * 2
    assert compare.different(one, other, margins) == {"prompts": [], "tokens": [], "near_ties": []} | {under: [0, 1]}


def test_the_table_and_the_picture_have_a_row_a_way():
    runs = [run("embedded, one chat()", 2.0), run("served", 4.0, first=(0.1, 0.3))]
    table = compare.table(runs)
    assert table["of embedded"].tolist() == [1.0, 0.5] and table["first token, s"].iloc[1] == pytest.approx(0.2)
    picture = compare.draw(runs)
    assert picture._repr_png_().startswith(b"\x89PNG") and "served" in repr(picture)


def test_every_sampling_field_is_sent():
    from vllm import SamplingParams

    sent = compare.fields(SamplingParams(temperature=0, max_tokens=5))
    assert sent["top_p"] == 1.0 and sent["repetition_penalty"] == 1.0 and sent["top_k"] == 0 and "seed" not in sent
    compare.fields(SamplingParams(stop=["x"], stop_token_ids=[4], bad_words=["a"], logit_bias={5: 1.0}))
    for more in ({"n": 2}, {"logprobs": 3}, {"allowed_token_ids": [1]}):
        with pytest.raises(ValueError, match=f"{next(iter(more))}=.* is not sent to the server"):
            compare.fields(SamplingParams(**more))


def test_what_would_wait_for_ever_or_mix_answers_is_refused():
    here = SimpleNamespace(url="http://127.0.0.1:9/v1", key="k")
    for flight, connections in ((0, None), (1, 0)):
        with pytest.raises(ValueError, match="never end: give 1 or more"):
            asyncio.run(client.closed_loop(here, [], [], flight, connections))
    with pytest.raises(ValueError, match="n=2: this client asks for one"):
        asyncio.run(client.ask(None, [], n=2))


def test_a_request_that_fails_is_named_and_ends_the_others(monkeypatch):
    async def ask(api, messages, **_):
        if messages == "bad":
            raise OSError("refused\nhere")
        await asyncio.sleep(60)

    monkeypatch.setattr(client, "ask", ask)
    here = SimpleNamespace(url="http://127.0.0.1:9/v1", key="k")
    with pytest.raises(client.RequestFailed, match="Request 2 failed: refused here"):
        asyncio.run(client.closed_loop(here, ["a", "b", "bad"], [{}] * 3, 3))
