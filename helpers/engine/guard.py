"""Around one engine: a caller at a time, interrupts between two steps, and no request left behind."""

import functools
import inspect
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from helpers.engine import inside
from helpers.engine.quiet import calling
from helpers.problems import Problem

if TYPE_CHECKING:
    from vllm import LLM

# Methods of `LLM` that run requests to their end, and those that only put them in the queue.
RUN = ("generate", "chat", "wait_for_completion", "beam_search", "embed", "encode", "classify", "score")
QUEUE = ("enqueue", "enqueue_chat")


class EngineBusy(Problem):
    """Another thread is using this process's engine."""


class Guard:
    """Wraps the methods of one `LLM` object in place; their names, signatures and results stay vLLM's.

    * A second thread gets `EngineBusy` at once instead of the first one's rows; inside `my_turn()` it waits.
    * An interrupt ends a call after the step that is running. Inside a step it would leave the engine so that the next
      call never returns (vLLM 0.32, engine in this process).
    * A call that ends by any exception takes its unfinished requests with it.
    * `use_tqdm` is off unless asked for: progress bars end up in saved outputs.
    * `abort_request` takes the ids that `enqueue` returns as well as those of outputs, and says which are not there.
    """

    def __init__(self, llm: "LLM"):
        self._engine = llm.llm_engine
        self._lock = threading.RLock()
        self._owner = (
            threading.current_thread()
        )  # the last thread that had its turn: requests in the engine are its own
        self._usual: Callable | None = None  # the caller's handler, while SIGINT is kept back
        self._presses = 0
        for name in RUN + QUEUE:
            if hasattr(llm, name):
                setattr(llm, name, self._call(getattr(llm, name)))
        for name in ("step", "add_request"):
            setattr(self._engine, name, self._step(getattr(self._engine, name)))
        self._engine.abort_request = self._abort_any(self._engine.abort_request)

    def alive(self) -> bool:
        """Whether the engine still runs; one in a child process can die without this process."""
        return inside.alive(self._engine)

    def pending(self) -> set[str]:
        """Internal ids of the requests that are in the engine."""
        return inside.pending(self._engine)

    def abort(self, ids: set[str]) -> None:
        """Takes requests out of the engine."""
        if ids:
            self._engine.abort_request(list(ids), internal=True)

    def _abort_any(self, method):
        """vLLM's `abort_request` ignores an id of the wrong kind without a word: `enqueue` returns the internal one."""

        @functools.wraps(method)
        def abort_request(request_ids, internal=False):
            if internal:
                return method(request_ids, internal=True)
            outer, inner = inside.by_kind(self._engine, request_ids)
            if gone := set(request_ids) - {*outer, *inner}:
                print(f"Not aborted: {', '.join(sorted(gone))}. No request in the engine has this id: has it ended?")
            method(outer)
            method(inner, internal=True)

        return abort_request

    @contextmanager
    def turn(self, timeout: float | None = 0) -> Iterator[None]:
        """This thread's turn: waits up to `timeout` seconds for it, for ever if None, and raises `EngineBusy`."""
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            raise EngineBusy(_BUSY)
        try:
            me = threading.current_thread()
            if self._owner is not me and self._owner.is_alive() and self.pending():
                raise EngineBusy(_BUSY)
            self._owner = me
            yield
        finally:
            self._lock.release()

    def _call(self, method):
        """A method of `LLM`, run in this thread's turn."""
        signature = inspect.signature(method)

        @functools.wraps(method)
        def call(*args, **kwargs):
            with self.turn(), self._interrupts(), calling():
                before = self.pending()
                try:
                    return method(*args, **_without_bar(signature, args, kwargs))
                except BaseException:
                    self.abort(self.pending() - before)
                    raise

        return call

    def _step(self, method):
        """A method of the engine that must not be broken off in the middle."""

        @functools.wraps(method)
        def step(*args, **kwargs):
            with self._interrupts():
                result = method(*args, **kwargs)
                self._deliver()
                return result

        return step

    @contextmanager
    def _interrupts(self) -> Iterator[None]:
        """Keeps SIGINT back until the step that is running is over; a third press is let through at once.

        Then the caller's own handler is called: Python's raises KeyboardInterrupt.
        """
        usual = signal.getsignal(signal.SIGINT)
        outermost = threading.current_thread() is threading.main_thread() and not self._usual
        if not outermost or not callable(usual):
            yield
            return

        def keep(signum, frame):
            self._presses += 1
            if self._presses > 2:
                usual(signum, frame)

        self._usual, self._presses = usual, 0
        signal.signal(signal.SIGINT, keep)
        try:
            yield
            self._deliver()  # it came after the last step
        finally:
            if signal.getsignal(signal.SIGINT) is keep:  # the caller's handler may have set another
                signal.signal(signal.SIGINT, usual)
            self._usual, self._presses = None, 0

    def _deliver(self) -> None:
        """Gives a press that was kept back to the handler that it was meant for."""
        if self._presses and self._usual:
            self._presses = 0
            self._usual(signal.SIGINT, None)


def _without_bar(signature: inspect.Signature, args: tuple, kwargs: dict) -> dict:
    """`kwargs`, with use_tqdm off where the method has it and the caller left it out."""
    if "use_tqdm" in kwargs:
        return kwargs
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return kwargs  # a wrong call: vLLM's own message is the better one
    return kwargs | {"use_tqdm": False} if "use_tqdm" in signature.parameters.keys() - given.keys() else kwargs


_BUSY = (
    "The engine is busy with another thread's requests. Try again when they are done, or wait for your turn: "
    "`with my_turn(): llm.generate(...)`."
)
