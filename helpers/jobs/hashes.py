"""What makes a row the same row: its id, and a hash of everything that decides its result."""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from helpers import models
from helpers.jobs.fields import decisive
from helpers.jobs.rows import LONGEST_ID, BadRow, Source, decoded, identity
from helpers.problems import Refused

if TYPE_CHECKING:
    from vllm.config import ModelConfig

_ID_FIELDS = ("custom_id", "id")
_SLICES, _SLICE = 16, 4096


class DuplicateIds(Refused):
    """Two rows of the input have one id, so a result could not be told from the other's."""


class Changed(Refused):
    """The input, the settings or the model differ from those with which rows were done already."""


class _Ids(msgspec.Struct, gc=False):
    """All that a first look needs of a JSON line."""

    custom_id: str | int | msgspec.UnsetType | None = msgspec.UNSET
    id: str | int | None = None


_DECODER = msgspec.json.Decoder(_Ids)


@dataclass
class Index:
    """16 bytes a row of the input: hashes of its id and of how it was written, in the input's order."""

    ids: np.ndarray  # uint64
    raws: np.ndarray  # uint64
    batch: bool  # the first row is in OpenAI's batch format

    def __len__(self) -> int:
        return len(self.ids)

    def digest(self, place: int) -> bytes:
        """What `look` said of the row at this place."""
        return np.array([self.ids[place], self.raws[place]], ">u8").tobytes()


def index(source: Source) -> Index:
    """Reads the whole input once. Raises `DuplicateIds`, naming some."""
    digests, style = bytearray(), False
    for piece in pieces(source):
        digest, batch = look(piece)
        style = style if digests else batch  # the first row's
        digests += digest
    ids, raws = np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2).T
    found = Index(ids, raws, style)
    order = np.argsort(found.ids, kind="stable")
    again = order[1:][found.ids[order][1:] == found.ids[order][:-1]]
    if len(again):
        raise DuplicateIds(_duplicates(source, set(again.tolist())))
    return found


class Piece(NamedTuple):
    """One row of the input as it was read."""

    place: int  # among the rows, from 0
    number: int  # line of the file, or position, from 1; blank lines count
    data: bytes | dict[str, Any]


def pieces(source: Source) -> Iterator[Piece]:
    """The rows; blank lines are none."""
    place = 0
    for number, data in enumerate(source, 1):
        if not isinstance(data, bytes) or not data.isspace():
            yield Piece(place, number, data)
            place += 1


def hash64(data: bytes) -> int:
    """64 bits; two of a million rows collide with a probability of 3e-8."""
    return int.from_bytes(_digest(data))


def id_hash(name: str) -> int:
    """Of a row's id."""
    return int.from_bytes(_id_digest(name))


def _content(raw: dict[str, Any]) -> bytes:
    kept = {name: value for name, value in decisive(raw).items() if name not in _ID_FIELDS}
    if isinstance(body := raw.get("body"), dict):
        kept["body"] = decisive(body)
    return msgspec.json.encode(kept, order="sorted")


def content(piece: bytes | dict) -> int:
    """Of what in a row may decide its result, however its JSON was written; of its bytes where it cannot be read."""
    try:
        return hash64(_content(decoded(piece)))
    except (BadRow, TypeError, ValueError, OverflowError, RecursionError):
        return hash64(piece if isinstance(piece, bytes) else repr(piece).encode("utf-8", "surrogatepass"))


def fingerprint(model: str, template: str | None, config: "ModelConfig | None" = None) -> dict[str, str | None]:
    """What the model is: its name, hashes of its settings, tokenizer, template and of samples of its weights, and how
    the engine with this `config` computes with it.

    Weights are sampled (16 pieces of 4 KiB a file), so that a large checkpoint takes no time and another one in the
    same folder is still noticed. Which files a hub id stands for is known once the engine has loaded them: without
    `config` they are left out.
    """
    folder = Path(model).expanduser()
    name = folder.name if folder.is_absolute() or folder.is_dir() else model  # a hub id is more than its last part
    found: dict[str, str | None] = {"name": name, "template": template and _hex(template.encode())}
    if config:
        found |= {"dtype": str(config.dtype), "quantization": config.quantization, "revision": config.revision}
    if config and not folder.is_dir():
        folder = models.in_cache(model, config.revision) or folder
    if folder.is_dir():
        small = [path for path in sorted(folder.iterdir()) if path.suffix in (".json", ".jinja", ".txt", ".model")]
        found["settings"] = _hex(b"".join(path.name.encode() + path.read_bytes() for path in small))
        found["weights"] = _hex(b"".join(map(_samples, sorted(folder.glob("*.safetensors")))))
    return found


def assumed(model: dict[str, str | None], job: dict[str, Any] | None) -> dict[str, str | None]:
    """Before the engine is there: a fingerprint in which what only the engine can tell is as in the journal's job."""
    return (job["model"] if job else {}) | model


def _samples(path: Path) -> bytes:
    size, data = path.stat().st_size, []
    with path.open("rb") as file:
        for part in range(_SLICES):
            file.seek(max(0, size - _SLICE) * part // max(1, _SLICES - 1))
            data.append(file.read(_SLICE))
    return b"".join([path.name.encode(), str(size).encode(), *data])


def _hex(data: bytes) -> str:
    return _digest(data).hex()


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=8).digest()


def _id_digest(name: str) -> bytes:
    return _digest(b"i" + name.encode("utf-8", "surrogatepass"))


def look(row: Piece) -> tuple[bytes, bool]:
    """16 bytes, the hashes of a row's id and of how it is written, and whether it is in OpenAI's format."""
    piece = row.data
    try:
        if isinstance(piece, bytes):
            ids = _DECODER.decode(piece)
            batch = ids.custom_id is not msgspec.UNSET
            name = ids.custom_id if batch else ids.id
            if name and isinstance(name, str) and len(name) <= LONGEST_ID:
                return _id_digest(name) + _digest(piece.strip()), batch
        raw = decoded(piece)
        written = _digest(piece.strip() if isinstance(piece, bytes) else _content(raw))
        return _id_digest(identity(raw)) + written, "custom_id" in raw
    except (BadRow, msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        data = piece if isinstance(piece, bytes) else repr(piece).encode("utf-8", "surrogatepass")
        return _digest(b"n%d" % row.number) + _digest(data), False  # without an id, its place stands for it


def _written_id(piece: bytes | dict) -> str | int:
    """The id of a row of which the rest need not be readable."""
    ids = _DECODER.decode(piece) if isinstance(piece, bytes) else msgspec.convert(dict(piece), _Ids)
    return ids.id if ids.custom_id is msgspec.UNSET else ids.custom_id


def _duplicates(source: Source, repeated: set[int]) -> str:
    """The sentence about ids that come twice: the first few, with where they stand the second time."""
    said = []
    for piece in pieces(source):
        if piece.place in repeated and len(said) < 5:
            said.append(f"{_written_id(piece.data)!r} (again in row {piece.number})")
    more = f" and {len(repeated) - len(said)} more" if len(repeated) > len(said) else ""
    return f"Ids must differ, and these come more than once: {', '.join(said)}{more}. Rename or remove the copies."
