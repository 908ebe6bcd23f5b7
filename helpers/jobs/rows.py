"""The rows of a job: read lazily from a file, a frame or any iterable, and checked one by one."""

import gzip
import io
import math
import os
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from helpers.problems import Refused

BATCH_URLS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}
LONGEST_ID = 512  # characters
SUFFIXES = (".jsonl", ".ndjson", ".gz", ".zst", ".parquet")  # the middle ones compress JSON lines
_BOM = b"\xef\xbb\xbf"


class SourceProblem(Refused):
    """The input as a whole cannot be read; the message names it and the way out."""


class BadRow(Refused):
    """One row that no engine should see; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row that can go to the engine."""

    number: int  # line of the file, or position, from 1
    id: str
    name: str | int  # the id as it was given
    prompt: str | list[int] | list[dict[str, Any]]  # text, token ids, or messages
    chat: bool
    settings: dict[str, Any]  # the row's own sampling fields
    batch: bool  # in OpenAI's batch format


class Source:
    """Rows as raw pieces, in order, as often as asked: JSON lines as bytes, everything else as dicts."""

    def __init__(self, given: Any):
        self.name = str(given) if isinstance(given, str | Path) else type(given).__name__
        if isinstance(given, Iterator):
            given = _spooled(given)  # it can be read once, and a job reads twice
            weakref.finalize(self, Path(given).unlink, missing_ok=True)
        self._given = given
        if not isinstance(given, str | Path):
            return
        if not Path(given).is_file():
            raise SourceProblem(f"There is no file {given}: name a .jsonl (also .gz or .zst) or .parquet file.")
        if Path(given).suffix not in SUFFIXES:
            raise SourceProblem(f"{given} is of no known kind: rows are read from {', '.join(SUFFIXES)}.")

    def __iter__(self) -> Iterator[bytes | dict]:
        given = self._given
        if hasattr(given, "iloc"):
            for start in range(0, len(given), 4096):
                yield from (_present(row) for row in given.iloc[start : start + 4096].to_dict("records"))
        elif isinstance(given, str | Path):
            try:
                yield from _parquet(given) if Path(given).suffix == ".parquet" else _lines(Path(given))
            except (OSError, EOFError, ValueError, zlib.error) as error:
                if number := getattr(error, "errno", None):
                    raise SourceProblem(f"{given} cannot be read: {os.strerror(number)}.") from error
                raise SourceProblem(f"{given} ends in the middle or is damaged ({error}): get it again.") from error
        elif isinstance(given, Iterable) and not isinstance(given, Mapping | bytes):
            yield from given
        else:
            raise SourceProblem(f"A {self.name} is no source: give a path, a DataFrame or an iterable of dicts.")


def parse(piece: bytes | dict, number: int) -> Row:
    """One row, checked as far as is possible without an engine. Raises `BadRow` with the reason."""
    raw = decoded(piece)
    name = identity(raw)
    batch = "custom_id" in raw
    if batch:
        body, field = _batch_body(raw)
        given = {key: value for key, value in body.items() if key != field}
        other = "prompt" if field == "messages" else "messages"
        if other in given:
            raise BadRow(f"body has {other}, which {raw.get('url')} does not take")
        content = body.get(field)
    else:
        given = {key: value for key, value in raw.items() if key not in ("id", "prompt", "messages")}
        fields = [key for key in ("prompt", "messages") if raw.get(key) is not None]
        if len(fields) != 1:
            raise BadRow("it has both prompt and messages" if fields else "it has neither prompt nor messages")
        [field] = fields
        content = raw[field]
    prompt = _messages(content) if field == "messages" else _prompt(content)
    return Row(number, name, given_id(raw), prompt, field == "messages", given, batch)


def decoded(piece: bytes | dict) -> dict[str, Any]:
    """The piece as a dict. Raises `BadRow`."""
    if isinstance(piece, bytes):
        try:
            piece = msgspec.json.decode(piece)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRow(f"it is not JSON ({error})") from None
    elif isinstance(piece, Mapping):
        try:
            msgspec.json.encode(piece)
        except (TypeError, ValueError, RecursionError) as error:
            raise BadRow(f"it cannot be written as JSON ({error})") from None
    if not isinstance(piece, Mapping):
        raise BadRow(f"it is {_kind(piece)}, not an object")
    return dict(piece)


def identity(raw: Mapping[str, Any]) -> str:
    """The row's id as text: `custom_id`, else `id`. Raises `BadRow`."""
    field = _id_field(raw)
    name = raw.get(field)
    if isinstance(name, int) and not isinstance(name, bool):
        name = str(name)
    if not isinstance(name, str) or not name:
        raise BadRow(f"it has no {field}" if name in (None, "") else f"its {field} is {_kind(name)}, not a string")
    if len(name) > LONGEST_ID:
        raise BadRow(f"its {field} has {len(name)} characters, more than {LONGEST_ID}")
    return name


def given_id(raw: Mapping[str, Any]) -> str | int:
    """The row's id as it was given, a number where it is one."""
    return raw[_id_field(raw)]


def _id_field(raw: Mapping[str, Any]) -> str:
    return "custom_id" if "custom_id" in raw else "id"


def _batch_body(raw: Mapping[str, Any]) -> tuple[dict, str]:
    url, body = raw.get("url"), raw.get("body")
    if raw.get("method", "POST") != "POST":
        raise BadRow(f"its method is {raw['method']!r}, not POST")
    if not isinstance(url, str) or url not in BATCH_URLS:
        raise BadRow(f"its url is {url!r}; this job knows {' and '.join(BATCH_URLS)}")
    if not isinstance(body, Mapping):
        raise BadRow(f"its body is {_kind(body)}, not an object")
    return {key: value for key, value in body.items() if value is not None}, BATCH_URLS[url]


def _prompt(content: Any) -> str | list[int]:
    if isinstance(content, str):
        if not content:
            raise BadRow("the prompt is empty")
        return content
    if not isinstance(content, list):
        raise BadRow(f"the prompt is {_kind(content)}, neither text nor token ids")
    if not content:
        raise BadRow("the prompt is empty")
    if all(isinstance(entry, str) for entry in content):
        raise BadRow("the prompt is a list of texts: give each a row of its own")
    if not all(isinstance(entry, int) and not isinstance(entry, bool) and entry >= 0 for entry in content):
        raise BadRow("the prompt is a list, but not of token ids")
    return content


def _messages(content: Any) -> list[dict[str, Any]]:
    if not isinstance(content, list):
        raise BadRow(f"messages is {_kind(content)}, not a list")
    if not content:
        raise BadRow("messages is empty")
    for position, message in enumerate(content, 1):
        if not isinstance(message, Mapping):
            raise BadRow(f"message {position} is {_kind(message)}, not an object")
        role, text = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role:
            raise BadRow(f"message {position} has no role")
        if isinstance(text, list):
            _parts(text, position)
        elif not isinstance(text, str):
            raise BadRow(f"message {position} has {'no content' if text is None else 'content that is ' + _kind(text)}")
    return content


def _parts(content: list, position: int) -> None:
    """Content in parts, all of them text."""
    for part in content:
        if not isinstance(part, Mapping):
            raise BadRow(f"message {position} has a part that is {_kind(part)}, not an object")
        if part.get("type") != "text":
            raise BadRow(f"message {position} has content of type {part.get('type')}; this job takes text")
        if not isinstance(part.get("text"), str):
            raise BadRow(f"message {position} has a text part without text")


def _present(row: dict[str, Any]) -> dict[str, Any]:
    """A frame's row without its missing values."""
    return {key: _plain(value) for key, value in row.items() if not _missing(value)}


def _plain(value: Any) -> Any:
    """numpy's scalars and arrays as Python's; a frame turns whole numbers into floats where some are missing."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return _present(value)
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value)) or type(value).__name__ == "NAType"


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "missing" if value is None else f"a {type(value).__name__}")


def _parquet(path: str | Path) -> Iterator[dict]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        for part in file.iter_batches(4096):
            yield from (_present(row) for row in part.to_pylist())


def _lines(path: Path) -> Iterator[bytes]:
    with _opened(path) as lines:
        yield next(lines, b"\n").removeprefix(_BOM)
        yield from lines


def _opened(path: Path) -> io.BufferedIOBase:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".zst":
        import pyarrow

        return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "zstd"), 2**20)
    return path.open("rb", buffering=2**20)


def _spooled(rows: Iterator[Any]) -> str:
    """A one-shot iterator's rows in a temporary file: flat in memory, readable twice."""
    file = tempfile.NamedTemporaryFile("wb", suffix=".jsonl", delete=False)  # noqa: SIM115
    try:
        with file:
            for number, row in enumerate(rows, 1):
                file.write((row.rstrip(b"\n") if isinstance(row, bytes) else _json(row, number)) + b"\n")
    except BaseException:
        Path(file.name).unlink()
        raise
    return file.name


def _json(row: Any, number: int) -> bytes:
    try:
        return msgspec.json.encode(row)
    except (TypeError, ValueError, RecursionError) as error:
        raise SourceProblem(f"Row {number} cannot be written as JSON ({error}): change or drop it.") from error
