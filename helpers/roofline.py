"""How fast this machine could decode at most: memory bandwidth and arithmetic, measured, and where a run stands."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helpers import machine
from helpers.picture import Picture

if TYPE_CHECKING:
    import torch

SECONDS = 0.4  # for each of the two measurements


@dataclass(frozen=True)
class Peaks:
    """What the device reached: bytes read from memory a second, floating-point operations a second."""

    bandwidth: float
    arithmetic: float

    def limit(self, intensity: float) -> float:
        """The most operations a second for work that does `intensity` operations on each byte it reads."""
        return min(self.arithmetic, self.bandwidth * intensity)

    def __repr__(self) -> str:
        return f"{self.bandwidth / 1e9:,.0f} GB/s, {self.arithmetic / 1e9:,.0f} GFLOP/s"


@dataclass(frozen=True)
class Decode:
    """One measured decode: `batch` requests at once, `rate` tokens a second in all, of a model with these weights.

    A step reads every weight once (`weight_bytes`) and does two operations a weight and token; the KV cache's reads
    are left out, which short contexts allow.
    """

    batch: int
    rate: float
    parameters: int
    weight_bytes: int

    @property
    def intensity(self) -> float:
        """Operations on each byte read."""
        return 2 * self.parameters * self.batch / self.weight_bytes

    @property
    def reached(self) -> float:
        """Operations a second."""
        return 2 * self.parameters * self.rate


def measure(dtype: "torch.dtype") -> Peaks:
    """Measures the device that the engine uses: reading whole numbers that fill no cache, and a large product.

    The reading does no arithmetic of `dtype`: on a processor, a product in bfloat16 waits for the conversion instead.
    """
    import torch

    on = machine.device()
    count, side = (2**28, 4096) if on == "cuda" else (2**25, 1024)
    numbers, square = torch.arange(count, device=on), torch.rand(side, side, device=on).to(dtype)
    wait = torch.cuda.synchronize if on == "cuda" else lambda: None
    read = _per_second(numbers.max, wait)
    product = _per_second(lambda: torch.mm(square, square), wait)
    return Peaks(read * numbers.nbytes, product * 2 * side**3)


def draw(peaks: Peaks, decodes: list[Decode]) -> Picture:
    """The roofline with each decode on it."""
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.4), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    ridge = peaks.arithmetic / peaks.bandwidth
    spots = [ridge, *(decode.intensity for decode in decodes)]
    reach = np.geomspace(min(spots) / 2, max(spots) * 4, 50)
    axes.loglog(reach, [peaks.limit(x) / 1e9 for x in reach], color="black", label="what the device could do")
    for decode, marker in zip(decodes, "osD^", strict=False):
        label = f"decode, batch of {decode.batch}"
        axes.loglog(decode.intensity, decode.reached / 1e9, marker, markersize=9, color="#4477aa", label=label)
    axes.axvline(ridge, color="gray", linestyle=":", label="more operations a byte: arithmetic limits")
    axes.set(xlabel="operations on each byte read", ylabel="GFLOP/s")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    lines = [
        f"batch of {d.batch}: {d.reached / 1e9:,.1f} GFLOP/s at {d.intensity:.1f} operations a byte, "
        f"{d.reached / peaks.limit(d.intensity):.0%} of the limit there ({_bound(peaks, d)})"
        for d in decodes
    ]
    return Picture(figure, "\n".join([f"device: {peaks}, limits meet at {ridge:.0f} operations a byte", *lines]))


def _bound(peaks: Peaks, decode: Decode) -> str:
    return "memory" if peaks.bandwidth * decode.intensity < peaks.arithmetic else "arithmetic"


def _per_second(work: Callable[[], object], wait: Callable[[], None]) -> float:
    """How often a second `work` runs, at best, timed in groups of at least a hundredth of a second."""
    count, best, end = 1, 0.0, time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(count):
            work()
        wait()
        took = time.perf_counter() - start
        if took < 0.01:
            count *= 2
        else:
            best = max(best, count / took)
    return best
