"""The lock under which engines start, one after the other; whoever waits is told for whom."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from helpers.engine import registry
from helpers.problems import Problem


class StartBlocked(Problem):
    """The start lock is held by a process that will never let it go; the message says which."""


@contextmanager
def start_lock() -> Iterator[None]:
    """One engine of this user starts at a time, so that none measures memory while another takes it.

    Says for whom it waits. Raises `StartBlocked` when that one waits for this process, or is gone.
    """
    lock, holder = FileLock(registry.folder() / "start.lock"), registry.folder() / "start.holder"
    told = None
    while not lock.is_locked:
        try:
            lock.acquire(timeout=0.2 if told is None else 1)
        except Timeout:
            told = _wait_for(holder, told)
    try:
        me = psutil.Process()
        holder.write_text(f"{me.pid} {me.create_time()} {registry.who_am_i()}")
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def _wait_for(holder: Path, told: str | None) -> str:
    """Says once who starts an engine, and returns that. Raises `StartBlocked` where waiting has no end."""
    try:
        pid, started, who = holder.read_text().split(maxsplit=2)
    except (OSError, ValueError):  # it has just begun, or is just ending
        pid, started, who = "", "", ""
    if pid and int(pid) in {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}:
        raise StartBlocked(
            f"This process (pid {os.getpid()}) was started by {who} (pid {pid}) while that one starts an engine, and "
            "cannot start one too: each would wait for the other. Start engines in the outermost process alone."
        )
    if pid and not registry.alive(int(pid), float(started)):
        raise StartBlocked(
            f"{who} (pid {pid}) was starting an engine and is gone, but {registry.folder() / 'start.lock'} is still "
            "held: end the process that has it open (`fuser` names it), or remove the file where there is none; then "
            "start again."
        )
    now = f"{who} (pid {pid})" if pid else "Another engine"
    if now != told and (pid or told is None):
        print(f"{now} is starting on this machine: waiting for it.", flush=True)
        return now
    return told
