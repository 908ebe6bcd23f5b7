"""Bad rows: each is rejected with its reason and the others are done; and what holds for any row at all."""

import json
import math

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from job_fakes import LLM, batch, plain, read, write

from helpers.jobs import hashes, run_job
from helpers.jobs.report import Report
from helpers.jobs.rows import BadRow, Source, parse

CHAT = batch(0)


def body(**more):
    return batch(0) | {"body": batch(0)["body"] | more}


def user(content):
    return body(messages=[{"role": "user", "content": content}])


BAD = {
    # not a row at all
    "not JSON": (b"hello", "not JSON"),
    "torn": (b'{"id": "a", "prompt": "he', "not JSON"),
    "half a character": (b'{"id": "a", "prompt": "\xe2\x82"}', "not JSON"),
    "two objects on a line": (b'{"id": "a"}{"id": "b"}', "not JSON"),
    "a comma at the end": (b'{"id": "a", "prompt": "x",}', "not JSON"),
    "single quotes": (b"{'id': 'a'}", "not JSON"),
    "NaN": (b'{"id": "a", "prompt": "x", "temperature": NaN}', "not JSON"),
    "a number": (b"5", "a number, not an object"),
    "a list": (b'["a"]', "a list, not an object"),
    "text": (b'"a"', "text, not an object"),
    "null": (b"null", "not an object"),
    "true": (b"true", "a boolean, not an object"),
    # its id
    "no id": ({"prompt": "x"}, "it has no id"),
    "an empty id": ({"id": "", "prompt": "x"}, "it has no id"),
    "a null id": ({"id": None, "prompt": "x"}, "it has no id"),
    "a list as id": ({"id": ["a"], "prompt": "x"}, "its id is a list, not a string"),
    "a fraction as id": ({"id": 1.5, "prompt": "x"}, "its id is a number, not a string"),
    "a boolean as id": ({"id": True, "prompt": "x"}, "its id is a boolean, not a string"),
    "a long id": ({"id": "a" * 600, "prompt": "x"}, "has 600 characters"),
    "an empty custom_id": (CHAT | {"custom_id": ""}, "it has no custom_id"),
    # the envelope
    "GET": (CHAT | {"method": "GET"}, "its method is 'GET', not POST"),
    "another url": (CHAT | {"url": "/v1/embeddings"}, "its url is '/v1/embeddings'"),
    "no url": ({"custom_id": "a", "body": {}}, "its url is None"),
    "a url that is a number": (CHAT | {"url": 5}, "its url is 5"),
    "no body": ({k: v for k, v in CHAT.items() if k != "body"}, "its body is missing"),
    "a body that is text": (CHAT | {"body": "x"}, "its body is text"),
    "prompt for chat": (body(prompt="x"), "body has prompt"),
    "messages for completions": (body() | {"url": "/v1/completions"}, "body has messages"),
    # the prompt
    "neither prompt nor messages": ({"id": "a"}, "neither prompt nor messages"),
    "both": ({"id": "a", "prompt": "x", "messages": []}, "both prompt and messages"),
    "an empty prompt": (plain(0, prompt=""), "the prompt is empty"),
    "a blank prompt": (plain(0, prompt=" "), "the prompt is empty"),
    "a prompt that is a number": (plain(0, prompt=5), "neither text nor token ids"),
    "a prompt that is an object": (plain(0, prompt={"a": 1}), "neither text nor token ids"),
    "no token ids": (plain(0, prompt=[]), "the prompt is empty"),
    "several prompts": (plain(0, prompt=["a", "b"]), "give each a row of its own"),
    "negative token ids": (plain(0, prompt=[1, -1]), "not of token ids"),
    "mixed token ids": (plain(0, prompt=[1, "a"]), "not of token ids"),
    "a prompt that is too long": (plain(0, prompt="x" * 2000), "longer than the maximum model length"),
    # messages
    "messages that are text": (body(messages="hi"), "messages is text, not a list"),
    "messages that are null": (body(messages=None), "messages is missing, not a list"),
    "no messages": (body(messages=[]), "messages is empty"),
    "a message that is text": (body(messages=["hi"]), "message 1 is text, not an object"),
    "no role": (body(messages=[{"content": "x"}]), "message 1 has no role"),
    "a role that is a number": (body(messages=[{"role": 1, "content": "x"}]), "message 1 has no role"),
    "a role that the template refuses": (body(messages=[{"role": "judge", "content": "x"}]), "does not know the role"),
    "no content": (body(messages=[{"role": "user"}]), "message 1 has no content"),
    "content that is a number": (user(5), "message 1 has content that is a number"),
    "an image": (user([{"type": "image_url", "image_url": {"url": "x"}}]), "content of type image_url"),
    "a part without text": (user([{"type": "text"}]), "a text part without text"),
    "a part that is text": (user(["hi"]), "a part that is text, not an object"),
    # settings: types, ranges, names
    "temperature as text": (body(temperature="hot"), "temperature: expected `float"),
    "temperature below 0": (body(temperature=-1), "temperature: expected `float` >= 0"),
    "temperature above 2": (body(temperature=2.5), "temperature: expected `float` <= 2"),
    "top_p of 0": (body(top_p=0), "top_p: expected `float` > 0"),
    "top_p above 1": (body(top_p=1.5), "top_p: expected `float` <= 1"),
    "top_k as a fraction": (body(top_k=1.5), "top_k: expected `int"),
    "min_p above 1": (body(min_p=7), "min_p: expected `float` <= 1"),
    "max_tokens of 0": (body(max_tokens=0), "max_tokens: expected `int` >= 1"),
    "max_tokens as a fraction": (body(max_tokens=5.5), "max_tokens: expected `int"),
    "max_tokens as text": (body(max_tokens="5"), "max_tokens: expected `int"),
    "max_tokens as a boolean": (body(max_tokens=True), "max_tokens: expected `int"),
    "more min_tokens than max_tokens": (body(max_tokens=2, min_tokens=5), "min_tokens"),
    "n of 0": (body(n=0), "n: expected `int` >= 1"),
    "n without end": (body(n=10**6), "n: expected `int` <= 128"),
    "greedy and n": (body(n=2), "greedy"),
    "seed as text": (body(seed="7"), "seed: expected `int"),
    "a seed of 70 bits": (body(seed=2**70), "seed"),
    "a penalty beyond its range": (body(frequency_penalty=9), "frequency_penalty: expected `float` <= 2"),
    "stop as a number": (body(stop=5), "stop: expected"),
    "an empty stop string": (body(stop=[""]), "stop"),
    "stop ids as text": (body(stop_token_ids=["a"]), "stop_token_ids"),
    "too many logprobs": (body(logprobs=True, top_logprobs=99), "top_logprobs: expected `int` <= 20"),
    "top_logprobs alone": (body(top_logprobs=2), "top_logprobs needs logprobs"),
    "logit_bias beyond its range": (body(logit_bias={"5": 900}), "logit_bias"),
    "a stream": (body(stream=True), "stream"),
    "a setting that nobody knows": (body(temprature=1), "unknown field `temprature`"),
    "an old name for a schema": (body(guided_json={}), "use structured_outputs"),
    "best_of": (body(best_of=3), "best_of is no setting any more"),
    "truncate_prompt_tokens": (body(truncate_prompt_tokens=3), "use generate"),
    "tools": (body(tools=[{"type": "function"}]), "unknown field `tools`"),
    "a schema without a schema": (
        body(response_format={"type": "json_schema"}),
        "response_format of type 'json_schema'",
    ),
    "an unknown format": (body(response_format={"type": "xml"}), "response_format of type 'xml'"),
    "two structures": (body(structured_outputs={"json": {}}, response_format={"type": "text"}), "both"),
    "an unknown structure": (body(structured_outputs={"yaml": 1}), "structured_outputs"),
}


def run(rows, folder):
    report = run_job(LLM(), write(folder / "in.jsonl", rows), folder / "out.jsonl", progress=False)
    return report, read(folder / "out.jsonl")


@pytest.fixture(autouse=True)
def no_report(monkeypatch):
    monkeypatch.setattr(Report, "write", lambda self, sink: None)


def test_there_are_many_kinds():
    assert len(BAD) >= 60


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_row_is_rejected_with_its_reason_and_the_others_are_done(kind, tmp_path):
    bad, reason = BAD[kind]
    report, rows = run([plain(1), bad, batch(2)], tmp_path)
    assert len(rows) == 3 and rows[0]["status"] == "done" and rows[2]["response"] and rows[2]["error"] is None
    error = rows[1]["error"]
    if isinstance(error, dict):
        assert error["code"] == "rejected" and error["line"] == 2 and rows[1]["response"] is None
        error = error["message"]
    else:
        assert rows[1]["status"] == "rejected" and rows[1]["line"] == 2
    assert reason.lower() in error.lower() and "\n" not in error
    assert report.ended == {"done: stop": 2, "rejected: rejected": 1}


def test_all_bad_rows_at_once_and_again(tmp_path):
    rows = [row for number, (bad, _) in enumerate(BAD.values()) for row in (renamed(bad, number), plain(number))]
    report, out = run(rows, tmp_path)
    assert report.ended == {"done: stop": len(BAD), "rejected: rejected": len(BAD)} and len(out) == 2 * len(BAD)
    again = LLM()
    run_job(again, tmp_path / "in.jsonl", tmp_path / "out.jsonl", progress=False)
    assert again.given == [], "a rejected row is an answer, not a missing one"


def renamed(bad, number):
    """The same fault under another id, where the id is not the fault."""
    if isinstance(bad, bytes):
        return bad.replace(b'"a"', b'"bad-%d"' % number)
    fields = [field for field in ("custom_id", "id") if isinstance(bad.get(field), str) and 0 < len(bad[field]) < 600]
    return bad | {field: f"bad-{number}" for field in fields}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["id", "custom_id", "prompt", "messages", "body", "url", "method", "temperature", "max_tokens", "n", "stop"]


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6))
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_object_is_a_row_or_a_reason(raw):
    try:
        row = parse(json.dumps(raw).encode(), 1)
    except BadRow as error:
        assert str(error) and "Traceback" not in str(error)
    else:
        assert row.id and row.prompt


@given(st.binary(max_size=60))
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_bytes_are_a_row_or_a_reason(piece):
    try:
        parse(piece, 1)
    except BadRow as error:
        assert str(error)


@given(st.lists(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5) | st.binary(max_size=20), max_size=12))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_whatever_the_input_there_is_one_row_out_for_each_row_in(tmp_path_factory, pieces):
    folder, lines = tmp_path_factory.mktemp("any"), []
    for number, piece in enumerate(pieces):
        raw = (
            piece.replace(b"\n", b"").replace(b"\xef\xbb\xbf", b"")
            if isinstance(piece, bytes)
            else json.dumps(renamed(piece, number)).encode()
        )
        lines += [raw] if raw.strip() else []
    if len({hashes.id_hash(str(line)) for line in lines}) < len(lines):
        return  # equal ids are another test's matter
    try:
        _, rows = run(lines, folder)
    except hashes.DuplicateIds:
        return
    assert len(rows) == len(lines)


@given(JSON, st.integers(0, 3))
def test_a_key_does_not_depend_on_how_json_is_written(value, indent):
    raw = {"id": "a", "prompt": value, "top_p": 0.5}
    backwards = dict(reversed(raw.items()))
    written = json.dumps(backwards, indent=indent, ensure_ascii=True).encode()
    assert hashes.content(written) == hashes.content(
        json.dumps(raw, ensure_ascii=False).encode("utf-8", "surrogatepass")
    )
    assert hashes.content(raw | {"top_p": 0.25}) != hashes.content(raw)


def test_blank_lines_are_no_rows_and_line_numbers_count_them(tmp_path):
    (tmp_path / "in.jsonl").write_bytes(b'\n{"id": "a", "prompt": "x"}\n \n5\n')
    assert [piece[:2] for piece in hashes.pieces(Source(tmp_path / "in.jsonl"))] == [(0, 2), (1, 4)]


def test_not_a_number_is_no_setting():
    frame = pd.DataFrame([{"id": "a", "prompt": "x", "seed": math.nan}])
    assert list(Source(frame)) == [{"id": "a", "prompt": "x"}]
