"""Completions whose tokens show how probable they were: a line under each, and its alternatives on hover and focus."""

import html
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helpers import outputs

if TYPE_CHECKING:
    import pandas as pd
    from vllm import RequestOutput

# The alternatives stand in an attribute: where a notebook is not trusted, styles are dropped and nothing else appears.
_STYLE = """<style>
.token-view { color: var(--jp-content-font-color1, CanvasText); line-height: 2.3; white-space: pre-wrap; }
.token-view .token { position: relative; cursor: default; }
.token-view .token:hover, .token-view .token:focus { outline: 2px solid currentColor; outline-offset: 1px; }
.token-view .token:hover::after, .token-view .token:focus::after {
  content: attr(data-beside); position: absolute; left: 0; top: 1.7em; z-index: 9; width: max-content;
  padding: 4px 8px; line-height: 1.5; white-space: pre; font-family: monospace; font-size: 12px;
  background: var(--jp-layout-color1, Canvas); border: 1px solid currentColor; }
</style>"""


@dataclass(frozen=True)
class TokenView:
    """The tokens of some completions, as `outputs.tokens` has them."""

    frame: "pd.DataFrame"

    def _repr_html_(self) -> str:
        texts = [
            f'<p class="token-view">{"".join(_span(token) for token in part.itertuples())}</p>'
            for _, part in self.frame.groupby(["request_id", "index"], sort=False)
        ]
        # Room in px for the box of the last line's tokens.
        room = 18 * self.frame.alternatives.str.len().max() + 16 if len(self.frame) else 0
        return f'{_STYLE}{"".join(texts)}<div style="height: {room}px"></div>'

    def __repr__(self) -> str:
        """A line a token: the token, its probability, and the alternatives."""
        lines = []
        for _, part in self.frame.groupby(["request_id", "index"], sort=False):
            lines += ["".join(part.token.fillna("")), *(f"  {_words(token)}" for token in part.itertuples())]
        return "\n".join(lines)


def view(given: "Iterable[RequestOutput]") -> TokenView:
    """Shows completions token by token: the thicker the line under a token, the less probable it was.

    Needs outputs made with `SamplingParams(logprobs=N)`; without, it warns and shows no probabilities.
    """
    return TokenView(outputs.tokens(given))


def _span(token) -> str:
    text = html.escape(token.token if isinstance(token.token, str) else f"[{token.token_id}]")
    words = html.escape(_words(token), quote=True)
    width = 0 if token.probability != token.probability else round(4 * (1 - token.probability), 1)
    beside = html.escape("\n".join(f"{p:7.2%}  {name!r}" for name, p in token.alternatives), quote=True)
    return (
        f'<span class="token" tabindex="0" role="note" aria-label="{words}" data-beside="{beside}" '
        f'style="border-bottom: {width}px solid">{text}</span>'
    )


def _words(token) -> str:
    others = [f"{name!r} {p:.0%}" for name, p in token.alternatives if name != token.token]
    known = f"{token.probability:.0%}" if token.probability == token.probability else "probability unknown"
    return f"{token.token!r} {known}" + (f"; else {', '.join(others)}" if others else "")
