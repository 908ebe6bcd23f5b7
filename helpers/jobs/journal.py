"""The journal: every result is appended the moment it exists, and whatever a crash tore is mended on opening."""

import errno
import mmap
import os
import struct
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import msgspec
import numpy as np
from filelock import FileLock, Timeout

from helpers.problems import Problem

Policy = Literal["row", "seconds", "off"]
STATUSES = ("done", "rejected", "failed")
_ROW, _JOB, _SETTINGS = b',"row":', b'{"job":', b'{"settings":'
_RECORD = struct.Struct("=24sqIHB")
_FIELDS = np.dtype([("keys", ">u8", 3), ("offsets", "i8"), ("tokens", "u4"), ("reasons", "u2"), ("status", "u1")])


class JournalProblem(Problem):
    """The journal cannot be opened or written; the message says why and what is safe."""


class Head(msgspec.Struct, gc=False):
    """What stands before a row in its line: hashes of id, raw bytes and content, and how it ended."""

    key: str  # 48 hexadecimal digits
    crc: int  # CRC-32 of the row as it is written
    status: str
    reason: str
    tokens: int


@dataclass
class Entries:
    """The journal's rows: 63 bytes each, the last one for each id counts."""

    keys: np.ndarray = field(default_factory=lambda: np.zeros((0, 3), np.uint64))  # id, raw, content
    status: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint8))  # position in STATUSES
    offsets: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    reasons: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint16))  # position in `names`
    tokens: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint32))
    names: list[str] = field(default_factory=list)
    job: dict[str, Any] | None = None  # as the last job line has it

    def find(self, ids: np.ndarray) -> np.ndarray:
        """For each id hash the position of its last entry, or -1."""
        if not len(self.keys):
            return np.full(len(ids), -1)
        order = np.argsort(self.keys[:, 0], kind="stable")
        ordered = self.keys[order, 0]
        place = np.searchsorted(ordered, ids, side="right") - 1
        return np.where((place >= 0) & (ordered[place] == ids), order[place], -1)

    def counts(self, chosen: np.ndarray) -> Counter[str]:
        """How many of the chosen entries ended as "status: reason"."""
        pairs = self.status[chosen].astype(np.uint32) * 65536 + self.reasons[chosen]
        values, numbers = np.unique(pairs, return_counts=True)
        return Counter(
            {
                f"{STATUSES[value // 65536]}: {self.names[value % 65536]}": int(number)
                for value, number in zip(values.tolist(), numbers, strict=True)
            }
        )


class Journal:
    """One file of JSON lines that only grows. `with Journal(path) as journal`: one process at a time.

    `fsync` says when results reach the disk itself: after each row, at most `interval` seconds late (the default), or
    when the system pleases. What was written survives the death of this process under every policy; the policy is for
    the death of the machine.
    """

    def __init__(self, path: Path, fsync: Policy = "seconds", interval: float = 1.0):
        self.path, self.fsync, self.interval = Path(path), fsync, interval
        self.mended = ""
        self._lock = FileLock(f"{path}.lock")

    def __enter__(self) -> "Journal":
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise JournalProblem(f"Another job writes {self.path} now: wait for it, or name another output.") from None
        except OSError as error:
            raise JournalProblem(f"{self.path} cannot be written ({error.strerror}): name another output.") from error
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._mend()
        except OSError as error:
            self._lock.release()
            raise JournalProblem(f"{self.path} cannot be opened ({error.strerror}): name another output.") from error
        self._size = os.fstat(self._file).st_size
        self._synced = time.monotonic()
        self._dirty = False
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.sync()
        finally:
            os.close(self._file)
            if not self._size:  # of a run that was refused
                self.path.unlink(missing_ok=True)
            self._lock.release()

    def append(self, line: bytes) -> None:
        """Writes one line, whole or not at all. Raises `JournalProblem` when the disk is full."""
        data = memoryview(line + b"\n")
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            os.ftruncate(self._file, self._size)  # what was torn
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise JournalProblem(
                f"{'The disk is full' if full else error.strerror}: {self.path} keeps every row that was finished. "
                "Make room and run the same command again."
            ) from error
        self._size += len(line) + 1
        self._dirty = True
        if self.fsync == "row":
            self.sync()
        else:
            self.tick()

    def tick(self) -> None:
        """Once a step: brings what is older than the interval to the disk."""
        if self._dirty and self.fsync == "seconds" and time.monotonic() - self._synced >= self.interval:
            self.sync()

    def sync(self) -> None:
        """Brings everything to the disk now."""
        if self._dirty and self.fsync != "off":
            try:
                os.fsync(self._file)
            except OSError as error:
                raise JournalProblem(f"{self.path} does not reach the disk: {error.strerror}. Run again.") from error
        self._dirty, self._synced = False, time.monotonic()

    def _mend(self) -> None:
        """Cuts a torn last line off, or ends a whole one that lacks only its newline."""
        size = os.fstat(self._file).st_size
        start = size
        tail = b""
        while start and b"\n" not in tail:
            step = min(start, 2**16)
            start -= step
            tail = os.pread(self._file, step, start) + tail
        rest = tail[tail.rfind(b"\n") + 1 :]
        if not rest:
            return
        try:
            whole = isinstance(msgspec.json.decode(rest), dict)
        except (msgspec.DecodeError, UnicodeDecodeError):
            whole = False
        if whole:
            os.write(self._file, b"\n")
            self.mended = f"The last row of {self.path.name} lacked its newline: mended."
        else:
            os.ftruncate(self._file, size - len(rest))
            self.mended = f"The last row of {self.path.name} was torn ({len(rest)} bytes): cut off, it is done again."


def line(key: tuple[int, int, int], status: str, reason: str, tokens: int, row: dict[str, Any]) -> bytes:
    """A result as the journal has it; the row comes last, so that reading back needs to decode only the head."""
    data = msgspec.json.encode(row)
    head = Head("".join(f"{part:016x}" for part in key), crc32(data), status, reason, tokens)
    return msgspec.json.encode(head)[:-1] + _ROW + data + b"}"


def rows_written(path: Path) -> int:
    """How many rows a journal has so far."""
    return len(read(path).keys)


def read(path: Path) -> Entries:
    """Every row of a journal, as arrays.

    Lines that are damaged, and rows before any readable job line, are passed over: they count as missing.
    """
    found, records, names = Entries(), bytearray(), {}
    decoder, places = msgspec.json.Decoder(Head), {name: place for place, name in enumerate(STATUSES)}
    if not Path(path).exists():
        return found
    with Path(path).open("rb", buffering=2**20) as file:
        offset = 0
        for data in file:
            cut = data.find(_ROW, 0, 400)
            try:
                if cut > 0:
                    head = decoder.decode(data[:cut] + b"}")
                    key, place = bytes.fromhex(head.key), places[head.status]
                    if len(key) == 24 and found.job and crc32(data[cut + len(_ROW) : -2]) == head.crc:
                        reason = names.setdefault(head.reason, len(names))
                        records += _RECORD.pack(key, offset, head.tokens, reason, place)
                elif data.startswith(_JOB):
                    job = msgspec.json.decode(data)["job"]
                    if job != found.job:
                        records.clear()  # what was done for another job does not count
                    found.job = job
            except (msgspec.MsgspecError, ValueError, KeyError, struct.error):
                pass
            offset += len(data)
    kept = np.frombuffer(records, _FIELDS)
    found.keys = kept["keys"].astype(np.uint64)
    found.offsets, found.tokens, found.reasons, found.status = (kept[name] for name in _FIELDS.names[1:])
    found.names = list(names)
    return found


def rows(path: Path, offsets: np.ndarray) -> Iterator[bytes]:
    """The rows that begin at these offsets, as JSON, in this order."""
    if not len(offsets):
        return
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for offset in offsets.tolist():
            start = data.find(_ROW, offset) + len(_ROW)
            yield data[start : data.find(b"\n", start) - 1]


def job_line(job: dict[str, Any]) -> bytes:
    """What the rows after it were done for: the model and what all rows have in common."""
    return msgspec.json.encode({"job": job})


def settings_line(settings: dict[str, Any]) -> bytes:
    """The own settings of the rows after it, up to the next such line."""
    return msgspec.json.encode({"settings": settings})


def settings_at(path: Path, offset: int) -> dict[str, Any]:
    """The settings with which the row at this offset was done."""
    found: dict[str, Any] = {}
    with Path(path).open("rb") as file:
        at = 0
        for data in file:
            if at >= offset:
                break
            if data.startswith(_SETTINGS):
                found = msgspec.json.decode(data)["settings"]
            at += len(data)
    return found
