"""How far a job is: on a terminal and in a notebook."""

from collections import Counter


class Progress:
    """A bar of rows with rate and time left, and behind it tokens a second and the reasons so far."""

    def __init__(self, rows: int, done: int, shown: bool):
        self._rows, self._done, self._shown = rows, done, shown
        self._reasons: Counter[str] = Counter()
        self._tokens = 0

    def __enter__(self) -> "Progress":
        from tqdm.auto import tqdm

        self._bar = tqdm(
            total=self._rows, initial=self._done, unit="row", disable=not self._shown, dynamic_ncols=True, smoothing=0.1
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._say()
        self._bar.close()

    def count(self, reason: str, tokens: int) -> None:
        """One more row has ended."""
        self._reasons[reason] += 1
        self._tokens += tokens
        if self._bar.update():
            self._say()

    def _say(self) -> None:
        rate = self._tokens / max(self._bar.format_dict["elapsed"], 1e-9)
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in self._reasons.most_common())
        self._bar.set_postfix_str(f"{rate:,.0f} tok/s; {reasons}", refresh=False)
