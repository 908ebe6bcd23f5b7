"""Ctrl-C and SIGTERM as a request to stop in order."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether a stop was asked for, and by which signal."""

    def __init__(self) -> None:
        self.by: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.by is not None


@contextmanager
def noted() -> Iterator[Stop]:
    """Notes the signals for the block instead of breaking it off; a second one of a kind does what it usually does."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    usual = {number: signal.getsignal(number) for number in SIGNALS}

    def note(number: int, frame: object) -> None:
        stop.by = signal.Signals(number)
        signal.signal(number, usual[number])

    for number in SIGNALS:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
