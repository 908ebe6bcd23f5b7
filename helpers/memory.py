"""Memory that an engine takes: how much, and that it comes back."""

import ctypes
import gc
import sys
import types
import weakref
from collections.abc import Iterable
from contextlib import suppress

import psutil

from helpers import machine


def memory_used(on: str) -> int:
    """Bytes that this process and its children hold ("cpu": resident), or all processes on its first card ("cuda").

    Asks the driver, not torch, which would take memory on the card for the answer.
    """
    if on == "cuda":
        card = machine.here().gpus[0]
        return card.total - card.free
    return resident((me := psutil.Process(), *me.children(recursive=True)))


def resident(processes: Iterable[psutil.Process]) -> int:
    """Bytes of resident memory that these processes hold together."""
    total = 0
    for process in processes:
        with suppress(psutil.Error):  # it has just ended
            total += process.memory_info().rss
    return total


def give_back() -> None:
    """Collects what nobody refers to and hands free memory to the card and to the operating system."""
    gc.collect()
    if (torch := sys.modules.get("torch")) and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    with suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def holders(kept: list[weakref.ref], names: dict[str, object], reach: int = 20_000) -> list[str]:
    """Which of the variables `names` lead to an object of `kept` that is still alive.

    Looks at most at `reach` objects behind each variable, and not into modules, classes and `names` itself.
    """
    targets = {id(target) for ref in kept if (target := ref()) is not None}
    return [name for name, value in names.items() if targets and _leads_to(value, targets, id(names), reach)]


def _leads_to(value: object, targets: set[int], namespace: int, reach: int) -> bool:
    seen, queue = {namespace}, [value]
    while queue and len(seen) < reach:
        thing = queue.pop()
        if id(thing) in targets:
            return True
        if id(thing) in seen or isinstance(thing, types.ModuleType | type):
            continue
        seen.add(id(thing))
        if isinstance(thing, types.FunctionType):  # its globals are every variable there is
            queue += thing.__closure__ or ()
        else:
            queue += gc.get_referents(thing)
    return False
