"""RequestOutputs to frames: typed, the same for any data, honest about what is missing."""

import json
import math
import warnings
from types import SimpleNamespace as Fake

import pandas as pd
import pytest

from helpers import outputs


def logprob(value, rank=1, token="a"):
    return Fake(logprob=value, rank=rank, decoded_token=token)


def completion(index=0, reason="stop", **more):
    base = {"text": "ab", "token_ids": [5, 6], "cumulative_logprob": None, "logprobs": None, "stop_reason": None}
    return Fake(index=index, finish_reason=reason, **(base | more))


def request(number=0, metrics=None, prompt="p", completions=None):
    return Fake(
        request_id=str(number),
        prompt=prompt,
        prompt_token_ids=[1, 2, 3],
        num_cached_tokens=None,
        outputs=completions or [completion()],
        finished=True,
        metrics=metrics,
    )


STATS = Fake(
    queued_ts=10.0,
    scheduled_ts=10.5,
    first_token_ts=11.0,
    last_token_ts=13.0,
    first_token_latency=1.25,
    num_preemptions=2,
)


def test_without_statistics_timings_are_nan_and_the_hint_names_the_argument():
    with pytest.warns(UserWarning, match="disable_log_stats=False"):
        frame = outputs.requests([request()])
    assert frame[["queued", "prefill", "decode", "first_token"]].isna().all(axis=None)


def test_a_timestamp_that_was_never_set_is_nan_and_never_zero():
    never = Fake(queued_ts=10.0, scheduled_ts=0.0, first_token_ts=0.0, last_token_ts=0.0, first_token_latency=0.0)
    assert outputs.requests([request(metrics=never)])[["queued", "prefill", "decode"]].isna().all(axis=None)


def test_timings_are_spans_of_the_monotonic_clock():
    row = outputs.requests([request(metrics=STATS)]).iloc[0]
    assert (row.queued, row.prefill, row.decode, row.first_token, row.preemptions) == (0.5, 0.5, 2.0, 1.25, 2)


def test_what_max_tokens_cut_is_flagged():
    frame = outputs.completions([request(completions=[completion(reason="length"), completion(1, reason="stop")])])
    assert frame.truncated.to_list() == [True, False] and frame["index"].to_list() == [0, 1]


@pytest.mark.parametrize("reason", ["stop", "length", "abort", "error", "repetition", None, "new_reason"])
def test_every_reason_is_counted_under_its_own_name(reason):
    [name] = outputs.finish_reasons([request(completions=[completion(reason=reason)])]).index
    assert name == (reason or "none")


def test_no_cumulative_logprob_is_nan():
    assert math.isnan(outputs.completions([request()]).cumulative_logprob[0])
    with pytest.warns(UserWarning, match="logprobs=N"):
        frame = outputs.tokens([request()])
    assert len(frame) == 2 and frame.logprob.isna().all() and frame.alternatives.to_list() == [[], []]


def test_tokens_carry_probabilities_and_alternatives_in_order():
    steps = [{5: logprob(math.log(0.25), 2, "x"), 9: logprob(math.log(0.5), 1, "y")}, {6: logprob(-math.inf, 3, "z")}]
    frame = outputs.tokens([request(completions=[completion(logprobs=steps)])])
    assert frame.token.to_list() == ["x", "z"] and frame["rank"].to_list() == [2, 3]
    assert frame.probability.to_list() == pytest.approx([0.25, 0])
    assert [token for token, _ in frame.alternatives[0]] == ["y", "x"]


@pytest.mark.parametrize("view", [outputs.requests, outputs.completions, outputs.tokens])
def test_columns_and_types_are_the_same_for_any_data(view):
    full = [
        request(metrics=STATS, completions=[completion(logprobs=[{5: logprob(0.0)}, {6: logprob(0.0)}], stop_reason=7)])
    ]
    bare = [request(prompt=None)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        types = [view(data).dtypes.to_dict() for data in (full, bare, [], full + bare)]
    assert types[0] == types[1] == types[2] == types[3]


def test_records_are_valid_json():
    frame = pd.DataFrame({"a": [math.nan, math.inf, 1.5], "b": pd.array([1, None, 3], dtype="Int64")})
    frame["c"] = [[("x", -math.inf)], [], None]
    text = json.dumps(outputs.records(frame), allow_nan=False)
    assert json.loads(text)[0] == {"a": None, "b": 1, "c": [["x", None]]}
    assert json.loads(text)[1]["b"] is None and json.loads(text)[2]["a"] == 1.5


def test_where_two_answers_part_and_how_near_the_two_best_tokens_were():
    steps = [{5: logprob(0.0)}, {6: logprob(math.log(0.5)), 7: logprob(math.log(0.4))}]
    left = request(completions=[completion(logprobs=steps)])
    assert outputs.first_difference(left, request()) is None
    other = outputs.first_difference(left, request(completions=[completion(token_ids=[5, 7])]))
    assert (other["position"], other["left"], other["right"]) == (1, 6, 7)
    assert other["margin"] == pytest.approx(math.log(0.5 / 0.4)) and other["margin"] < outputs.NEAR_TIE
    shorter = outputs.first_difference(request(), request(completions=[completion(token_ids=[5])]))
    assert shorter["right"] is None and math.isnan(shorter["margin"])
    one_known, two_known = outputs.margins([left])[0]
    assert math.isnan(one_known) and two_known == other["margin"]
