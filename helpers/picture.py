"""A picture for eyes, and the same in words."""

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A figure, and what it shows in words for terminals, screen readers and comparisons."""

    figure: "Figure"
    words: str

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.figure.savefig(data, format="png", dpi=100)
        return data.getvalue()

    def __repr__(self) -> str:
        return self.words
