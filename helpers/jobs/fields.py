"""A row's sampling fields, OpenAI's and vLLM's, checked and turned into `SamplingParams`."""

import hashlib
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from helpers.jobs.rows import BadRow, Row
from helpers.problems import one_line
from helpers.sampling import REPLACED

if TYPE_CHECKING:
    from vllm import SamplingParams

Count = Annotated[int, Meta(ge=1, le=2**31)]
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
# Fields of a request that do not decide its result here: the engine is given, and no answer is streamed or stored.
IGNORED = (
    "model",
    "user",
    "metadata",
    "store",
    "service_tier",
    "stream_options",
    "parallel_tool_calls",
    "safety_identifier",
)


class SamplingFields(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The fields that a row may set, with types and ranges; others are refused, so that none is silently ignored."""

    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    min_p: Share | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[Annotated[str, Meta(min_length=1)]] | None = None
    stop_token_ids: list[Annotated[int, Meta(ge=0)]] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    bad_words: list[Annotated[str, Meta(min_length=1)]] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    logprobs: bool | Annotated[int, Meta(ge=0, le=20)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    structured_outputs: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    stream: Literal[False] | None = None


_NAMED = {"max_completion_tokens", "logprobs", "top_logprobs", "structured_outputs", "response_format", "stream"}


def decisive(given: dict[str, Any]) -> dict[str, Any]:
    """The fields that may decide a result."""
    return {name: value for name, value in given.items() if name not in IGNORED}


def checked(given: dict[str, Any]) -> SamplingFields:
    """The fields with their types and ranges checked. Raises `BadRow` that names the field."""
    given = decisive(given)
    for name in given:
        if name in REPLACED and name not in SamplingFields.__struct_fields__:
            raise BadRow(f"{name} is no setting any more: use {REPLACED[name]}")
    try:
        return msgspec.convert(given, SamplingFields)
    except msgspec.ValidationError as error:
        said, _, place = str(error).partition(" - at `$.")
        raise BadRow(f"{place.rstrip('`')}: {said[0].lower()}{said[1:]}" if place else said) from None


def sampling_params(row: Row, common: dict[str, Any], override: dict[str, Any], seed: int | None) -> "SamplingParams":
    """`SamplingParams` of a row: `common` (the checkpoint's and the job's), its own fields, then `override`.

    As with the server, a row without max_tokens may fill the context. A row that samples and has no seed gets one from
    (`seed`, id), which a resume, another order or another number of shards does not change. Raises `BadRow`.
    """
    from vllm.sampling_params import SamplingParams  # not from vllm, which looks it up anew: this is once a row

    own = {name: value for name, value in row.settings.items() if value is not None}
    fields = checked(_one_limit(common) | _one_limit(own) | _one_limit(override))
    values = {name: value for name, value in msgspec.to_builtins(fields).items() if name not in _NAMED}
    values.setdefault("max_tokens", None)
    if (asked := _logprobs(fields)) is not None:
        values["logprobs"] = asked
    if shape := _structure(fields):
        values["structured_outputs"] = shape
    if seed is not None and "seed" not in values and values.get("temperature", 1) > 0:
        values["seed"] = derived_seed(seed, row.id)
    try:
        if "logit_bias" in values:
            values["logit_bias"] = {_token_id(token): bias for token, bias in values["logit_bias"].items()}
        return SamplingParams(**values)
    except Exception as error:  # a combination that vLLM refuses
        raise BadRow(one_line(error)) from None


def derived_seed(seed: int, name: str) -> int:
    """31 bits from the job's seed and the row's id."""
    return int.from_bytes(hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=4).digest()) >> 1


def _token_id(name: str) -> int:
    try:
        return int(name)
    except ValueError:
        raise BadRow(f"logit_bias: {name!r} is no token id") from None


def _one_limit(given: dict[str, Any]) -> dict[str, Any]:
    """max_completion_tokens under its other name, so that a later layer's limit replaces an earlier one's."""
    if "max_completion_tokens" not in given:
        return given
    rest = {name: value for name, value in given.items() if name != "max_completion_tokens"}
    most = given["max_completion_tokens"]
    return rest if most is None else rest | {"max_tokens": most}


def _logprobs(fields: SamplingFields) -> int | None:
    """OpenAI's chat has a switch and a number, its completions a number."""
    if isinstance(fields.logprobs, bool) or fields.logprobs is None:
        if fields.top_logprobs and not fields.logprobs:
            raise BadRow("top_logprobs needs logprobs: true")
        return (fields.top_logprobs or 0) if fields.logprobs else None
    return fields.logprobs


def _structure(fields: SamplingFields):
    from vllm.sampling_params import StructuredOutputsParams

    asked = dict(fields.structured_outputs or {})
    if form := fields.response_format:
        if asked:
            raise BadRow("it has both structured_outputs and response_format")
        kind = form.get("type")
        if kind == "json_schema" and isinstance(form.get("json_schema"), dict) and "schema" in form["json_schema"]:
            asked = {"json": form["json_schema"]["schema"]}
        elif kind == "json_object":
            asked = {"json_object": True}
        elif kind != "text":
            raise BadRow(f"response_format of type {kind!r} without what belongs to it")
    if not asked:
        return None
    try:
        return StructuredOutputsParams(**asked)
    except Exception as error:
        raise BadRow(f"structured_outputs: {one_line(error)}") from None
