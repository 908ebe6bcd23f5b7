"""Which engines live on this machine: a file for each, which heals itself."""

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from helpers.memory import resident
from helpers.models import cache_folder


@dataclass(frozen=True)
class Entry:
    """One engine: the process that constructed it, and its children in which it runs, if any."""

    pid: int
    started: float  # the process's own start, which tells it from a later one with the same number
    who: str  # a notebook's or a script's name
    model: str
    device: str
    since: float
    workers: dict[int, float]  # pid and start of each child that belongs to the engine


def folder() -> Path:
    """Where the entries lie, one JSON file a process."""
    path = cache_folder() / "engines"
    path.mkdir(parents=True, exist_ok=True)
    return path


def register(model: str, device: str, server: int | None = None) -> None:
    """Writes an entry: this process's engine is constructed, or that of a `server`, by its process's number."""
    owner = psutil.Process(server)
    parts = [child for child in owner.children(recursive=True) if server or is_engine(child)]
    workers = {child.pid: child.create_time() for child in parts}
    who = f"server of {who_am_i()}" if server else who_am_i()
    entry = Entry(owner.pid, owner.create_time(), who, model, device, time.time(), workers)
    part = folder() / f"{owner.pid}.part"
    part.write_text(json.dumps(asdict(entry)))
    os.replace(part, folder() / f"{owner.pid}.json")


def unregister(server: int | None = None) -> None:
    """Removes the entry of this process, or of a server; its engine is gone."""
    (folder() / f"{server or os.getpid()}.json").unlink(missing_ok=True)


def entries() -> list[Entry]:
    """The engines of which some process still lives; entries of those that are gone are removed on the way."""
    found = []
    for file in sorted(folder().glob("*.json")):
        try:
            fields = json.loads(file.read_text())
            fields["workers"] = {int(pid): started for pid, started in fields["workers"].items()}
            entry = Entry(**fields)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):  # torn, or of another version
            entry = None
        if entry and living(entry):
            found.append(entry)
        else:
            file.unlink(missing_ok=True)
    return found


def living(entry: Entry) -> list[int]:
    """The processes of an engine that still live."""
    return [pid for pid, started in {entry.pid: entry.started, **entry.workers}.items() if alive(pid, started)]


def alive(pid: int, started: float) -> bool:
    """Whether the process that began at `started` still runs under this number."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return abs(process.create_time() - started) < 1 and process.status() != psutil.STATUS_ZOMBIE
    return False


def is_engine(process: psutil.Process) -> bool:
    """Whether vLLM named this process as a part of an engine."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline()).startswith("VLLM::")
    return False


def memory(pids: list[int], device: str) -> int | None:
    """Bytes that these processes hold: on the card for "cuda" (None where the driver hides it), else resident."""
    if device == "cuda":
        return card_memory(set(pids))
    return resident(process for process in psutil.process_iter() if process.pid in pids)


def card_memory(pids: set[int]) -> int | None:
    """Bytes that these processes hold on all cards together, or None where the driver does not tell."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            running = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(index))
            found += [process.usedGpuMemory for process in running if process.pid in pids]
        return sum(found) if found and None not in found else None
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def engines():
    """A pandas frame of the engines on this machine: process, notebook or script, model, memory, and what to do.

    `state` is "this process", "running", or, where the owner was killed and the engine lives on, "orphan" with the
    command that ends it. Nothing is ended here.
    """
    import pandas as pd

    columns = ["pid", "who", "model", "device", "MiB", "since", "state"]
    rows = []
    for entry in entries():
        pids = living(entry)
        held = memory(pids, entry.device)
        rows.append(
            {
                "pid": entry.pid if entry.pid in pids else pids[0],
                "who": entry.who,
                "model": entry.model,
                "device": entry.device,
                "MiB": None if held is None else round(held / 2**20),
                "since": time.strftime("%H:%M:%S", time.localtime(entry.since)),
                "state": state(entry, pids),
            }
        )
    return pd.DataFrame(rows, columns=columns).set_index("pid")


def state(entry: Entry, pids: list[int]) -> str:
    """One of the three states that `engines` lists."""
    if entry.pid == os.getpid():
        return "this process"
    if entry.pid in pids:
        return "running"
    return f"orphan: its owner {entry.pid} is gone; `kill {' '.join(map(str, pids))}` ends it"


def others() -> str:
    """One sentence about other processes' engines, with orphans and how to end them; empty where there are none."""
    rows = engines()
    rows = rows[rows["state"] != "this process"] if len(rows) else rows
    held = [
        f"{row.who} (pid {pid}, {row.model}, {row.MiB if row.MiB is not None else 'unknown'} MiB, {row.state})"
        for pid, row in rows.iterrows()
    ]
    return f"Other engines on this machine: {'; '.join(held)}." if held else ""


def who_am_i() -> str:
    """The notebook's name as Jupyter or an editor tells it, else the script's."""
    name = os.environ.get("JPY_SESSION_NAME") or sys.argv[0]
    main = sys.modules["__main__"]
    name = getattr(main, "__vsc_ipynb_file__", name)
    if "ipykernel_launcher" in name or not name or name == "-c":
        return "a notebook" if "ipykernel" in sys.modules else "python"
    path = Path(name)
    return path.parent.name if path.name == "__main__.py" else path.name
