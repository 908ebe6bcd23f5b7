"""Why an engine did not start, in one sentence with the way out."""

import re
from collections.abc import Callable
from typing import Any

from helpers.machine import GIB, Gpu, Machine
from helpers.problems import Problem


class EngineStartFailed(Problem):
    """vLLM could not construct the engine; the message says why, and `__cause__` is vLLM's own error."""


def explain(error: BaseException, said: str, args: dict[str, Any]) -> str:
    """One sentence about `error`, which `vllm.LLM(**args)` raised.

    `said` is what vLLM wrote meanwhile: of an engine in a child process, the reason stands only there.
    """
    text = f"{_whole(error)}\n{said}"
    for pattern, sentence in _KNOWN:
        if match := re.search(pattern, text, re.DOTALL):
            return f"The engine did not start: {sentence(match, args)}"
    return f"The engine did not start: vLLM refused {args['model']}: {_reason(error, said)}"


def too_big(here: Machine, on: str, model_bytes: int | None, width_ratio: float) -> str | None:
    """The sentence for weights that cannot fit on "cpu" or "cuda"; None where they may.

    `width_ratio` is the width of the engine's numbers over that of the checkpoint's.
    """
    room, place = here.room(on)[0], here.gpus[0].name if on == "cuda" else "this machine (RAM)"
    need = (model_bytes or 0) * width_ratio
    if need <= room:
        return None
    return (
        f"The engine cannot start: its weights take {need / GIB:.1f} GiB, and {room / GIB:.1f} are free on {place}. "
        "Use a smaller or quantized model, or release what holds the memory."
    )


def no_main_guard(script: str) -> str:
    """The sentence for a script that is run again by each process that it spawns."""
    return (
        f"{script} starts an engine while it is being imported by a process that it spawned itself: put what it does "
        'under `if __name__ == "__main__":`.'
    )


def lowered(asked: float, chosen: float, gpu: Gpu) -> str:
    """Says that the memory fraction was lowered, with the arithmetic."""
    return (
        f"gpu_memory_utilization={asked} would take {asked * gpu.total / GIB:.1f} of {gpu.total / GIB:.1f} GiB, and "
        f"{gpu.free / GIB:.1f} are free: {chosen} is used instead."
    )


def _whole(error: BaseException | None) -> str:
    """The messages of an error and of those that led to it."""
    parts = []
    while error and len(parts) < 10:
        parts.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    return "\n".join(parts)


def _reason(error: BaseException, said: str) -> str:
    """The most telling line: a child's last error where vLLM only points to it, else the error's own first line."""
    lines = [line for line in said.splitlines() if re.search(r"\b\w*(Error|Exception): ", line)]
    if "root cause" in str(error) and lines:
        return re.sub(r"^.*?(\w+(Error|Exception): )", r"\1", lines[-1])
    told = [line.strip() for line in str(error).splitlines() if line.strip()]
    if told and "validation error" in told[0]:  # pydantic's heading; the reason stands below it
        told = [line.split(" [type=")[0] for line in told[1:] if " " in line] or told
    return told[0] if told else type(error).__name__


def _memory(match: re.Match, args: dict[str, Any]) -> str:
    free, total, wanted = match.groups()
    from helpers.engine.registry import others

    return (
        f"it wants {wanted} GiB of {total} GiB, a share of the total, and {free} GiB are free. Release another engine, "
        f"or pass gpu_memory_utilization={int(90 * float(free) / float(total)) / 100}. {others()}".strip()
    )


_KNOWN: list[tuple[str, Callable[[re.Match, dict[str, Any]], str]]] = [
    (r"EngineStartFailed: (\S+ starts an engine while it is being imported[^\n]*)", lambda m, a: m[1]),
    (r"ree memory on device [^(]*\(([\d.]+)/([\d.]+) GiB\).*?utilization \([\d.]+, ([\d.]+) GiB\)", _memory),
    (
        r"Available memory on node \d+ \(([\d.]+)/([\d.]+) GiB\).*?\([\d.]+, ([\d.]+) GiB\)",
        _memory,
    ),
    (
        r"Available memory on node \d+ \(([\d.]+)/[\d.]+ GiB\) on kv cache.*?\(([\d.]+) GiB\)",
        lambda m, a: (
            f"the KV cache wants {m[2]} GiB and {m[1]} GiB of RAM are free; pass a smaller kv_cache_memory_bytes."
        ),
    ),
    (
        r"User-specified max_model_len \((\d+)\) is greater than the derived max_model_len \([^=]*=(\d+)",
        lambda m, a: (
            f"max_model_len={m[1]} is longer than the {m[2]} tokens that the model allows; pass at most {m[2]}."
        ),
    ),
    (
        r"max seq len \((\d+)\).*?([\d.]+) GiB KV cache is needed.*?available KV cache memory \(([\d.]+) GiB\)"
        r"(?:.*?estimated maximum model length is (\d+))?",
        lambda m, a: (
            f"one sequence of max_model_len={m[1]} tokens needs {m[2]} GiB of KV cache, and there are {m[3]}; pass "
            + (f"max_model_len={m[4]} or less, or " if m[4] else "a smaller max_model_len, or ")
            + "more memory for the cache."
        ),
    ),
    (
        r"No available memory for the cache blocks",
        lambda m, a: "no memory is left for the KV cache; raise gpu_memory_utilization or kv_cache_memory_bytes.",
    ),
    (
        r"OutOfMemoryError: .*?Tried to allocate ([\d.]+ \w+)",
        lambda m, a: (
            f"the device ran out of memory, {m[1]} short; use a smaller model, or release what holds the memory."
        ),
    ),
    (
        r"Cannot find any model weights with `?([^`\n]*)`?",
        lambda m, a: f"{a['model']} has a config.json and no weights (.safetensors); the download is not complete.",
    ),
    (
        r"(?:Can't load tokenizer|Couldn't instantiate the backend tokenizer|is not a local folder.*tokenizer)",
        lambda m, a: (
            f"{a['model']} has no tokenizer files; copy tokenizer.json and tokenizer_config.json beside the weights."
        ),
    ),
    (
        r"Model architectures \[([^\]]*)\].*not supported|model type `([^`]*)` but Transformers does not recognize",
        lambda m, a: f"this vLLM does not know the model's architecture {m[1] or repr(m[2])}; a newer one may.",
    ),
    (
        r"(?:Unknown dtype|Bfloat16 is only supported|dtype\b.*(?:not supported|[Ii]nput should be))",
        lambda m, a: (
            f"dtype={a.get('dtype')!r} does not work here; leave dtype out, or pass 'float32' (CPU) or 'half' (GPU)."
        ),
    ),
    (
        r"Address already in use",
        lambda m, a: "a port that it needs is taken, mostly by an engine that is just ending; try again in a moment.",
    ),
    (
        r"(?:/dev/shm|shared memory).*(?:No space|full)|No space left on device.*shm",
        lambda m, a: "the shared memory (/dev/shm) is full; in a container start it with --shm-size=2g.",
    ),
]
