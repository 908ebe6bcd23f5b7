"""The same rows through the embedded engine and through the server, and what follows from the two."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from helpers.outputs import NEAR_TIE, parted
from helpers.picture import Picture
from helpers.serving import client

if TYPE_CHECKING:
    import pandas as pd
    from vllm import RequestOutput, SamplingParams

    from helpers.serving.server import Server

DAY = 24 * 3600
# What a request must carry so that both sides run with the same settings: the server fills in what is left out.
FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "max_tokens", "min_tokens", "seed", "stop", "stop_token_ids"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos"),
    *("logit_bias", "bad_words", "include_stop_str_in_output", "skip_special_tokens"),
)


# What vLLM sets for itself and what decides no token.
OWN = ("output_kind", "skip_clone", "output_text_buffer_length", "stream_interval", "detokenize")


@dataclass(frozen=True)
class Run:
    """One way through all rows; seconds without the start, which `load_seconds` has."""

    name: str
    seconds: float
    load_seconds: float
    prompts: tuple[tuple[int, ...], ...]  # token ids
    tokens: tuple[tuple[int, ...], ...]  # token ids of the completions
    first_token: tuple[float, ...] = ()  # seconds; of streamed answers

    @classmethod
    def of(cls, name: str, outputs: "Iterable[RequestOutput]", seconds: float, load_seconds: float) -> "Run":
        """What the embedded engine gave in so many seconds."""
        pairs = [(tuple(output.prompt_token_ids), tuple(output.outputs[0].token_ids)) for output in outputs]
        prompts, tokens = zip(*pairs, strict=True)
        return cls(name, seconds, load_seconds, prompts, tokens)

    @property
    def rate(self) -> float:
        """Completion tokens a second."""
        return sum(map(len, self.tokens)) / self.seconds


def fields(params: "SamplingParams") -> dict[str, Any]:
    """The sampling fields as a request sends them, also those at their defaults: the server has defaults of its own.

    Raises `ValueError` for a field outside of `FIELDS` that is not at its default: the two sides would differ.
    """
    usual = type(params)()
    for name in params.__struct_fields__:
        if name not in (*FIELDS, *OWN) and not name.startswith("_") and getattr(params, name) != getattr(usual, name):
            raise ValueError(f"{name}={getattr(params, name)!r} is not sent to the server here: leave it out.")
    given = {name: getattr(params, name) for name in FIELDS}
    return {name: value for name, value in given.items() if value is not None and value != []}


async def served(
    server: "Server",
    conversations: Sequence,
    params: Sequence["SamplingParams"],
    concurrency: int,
    connections: int | None = None,
    stream: bool = False,
) -> Run:
    """All rows through the server with `concurrency` requests in flight, over `connections` (default: as many).

    Times to first token are there for streamed answers alone.
    """
    start = time.perf_counter()
    sent = list(map(fields, params))
    answers = await client.closed_loop(server, conversations, sent, concurrency, connections, stream)
    took = time.perf_counter() - start
    name = f"served, {concurrency} {f'tasks over {connections} connections' if connections else 'in flight'}"
    name += ", streamed" * stream
    return Run(
        name,
        took,
        server.start_seconds,
        tuple(answer.prompt_ids for answer in answers),
        tuple(answer.token_ids for answer in answers),
        tuple(answer.first_token for answer in answers) if stream else (),
    )


def different(left: Run, right: Run, margins: Sequence[Sequence[float]] = ()) -> dict[str, list[int]]:
    """Positions of the rows whose `prompts` differ, and of those whose `tokens` do though the prompts are equal.

    `margins` are the left run's, from `outputs.margins`: a greedy row that parts where the two best tokens were less
    than `NEAR_TIE` apart is under `near_ties` instead, since rounding decided it.
    """
    found: dict[str, list[int]] = {"prompts": [], "tokens": [], "near_ties": []}
    for row, (mine, other) in enumerate(zip(left.tokens, right.tokens, strict=True)):
        position = parted(mine, other)
        if left.prompts[row] != right.prompts[row]:
            found["prompts"].append(row)
        elif position is not None:
            near = bool(margins) and margins[row][position] < NEAR_TIE
            found["near_ties" if near else "tokens"].append(row)
    return found


def fastest(runs: Iterable[Run]) -> Run:
    """The run with the highest rate."""
    return max(runs, key=lambda run: run.rate)


def table(runs: Iterable[Run]) -> "pd.DataFrame":
    """A row a run: tokens a second, that over the first run's, the start, and the first token (median and p90)."""
    import pandas as pd

    runs = list(runs)
    rows = []
    for run in runs:
        first = pd.Series(run.first_token, dtype="float64")
        rows.append((run.rate, run.rate / runs[0].rate, run.load_seconds, first.median(), first.quantile(0.9)))
    columns = ["tokens/s", f"of {runs[0].name.split(',')[0]}", "start, s", "first token, s", "p90, s"]
    return pd.DataFrame(rows, columns=columns, index=pd.Index([run.name for run in runs], name="way"))


def draw(runs: Iterable[Run]) -> Picture:
    """Tokens a second of each way."""
    from matplotlib.figure import Figure

    frame = table(runs)
    figure = Figure(figsize=(8, 0.8 + 0.35 * len(frame)), layout="constrained", facecolor="white")
    rate = figure.subplots()
    rate.barh(frame.index, frame["tokens/s"], color="#4477aa")
    rate.bar_label(rate.containers[0], [f"{value:,.0f}" for value in frame["tokens/s"]], padding=3)
    rate.set_xlim(0, 1.15 * frame["tokens/s"].max())
    rate.set_title("tokens/s")
    rate.invert_yaxis()
    return Picture(figure, frame.round(3).to_string(na_rep=""))


@dataclass(frozen=True)
class BreakEven:
    """From one embedded and one served run: when which of the two takes less of the card's time."""

    tokens: float  # of one job, above which starting an engine for it pays; infinite where it never does
    embedded_a_day: float  # jobs like the measured one that fill a card's day, each with its start
    served_a_day: float
    share_of_start: float  # of the embedded job's time

    def __repr__(self) -> str:
        pays = f"from {self.tokens:,.0f} tokens on" if self.tokens < float("inf") else "never, by speed alone"
        return (
            f"Against a warm server, starting an engine for a job pays {pays}. "
            f"The start is {self.share_of_start:.0%} of this job; a day of the card has room for "
            f"{self.embedded_a_day:,.0f} of them embedded, and {self.served_a_day:,.0f} served."
        )


def break_even(embedded: Run, served: Run) -> BreakEven:
    """The break-even points; the server is warm, the embedded engine starts for each job."""
    gain = 1 / served.rate - 1 / embedded.rate  # seconds a token
    whole, tokens = embedded.load_seconds + embedded.seconds, sum(map(len, embedded.tokens))
    return BreakEven(
        embedded.load_seconds / gain if gain > 0 else float("inf"),
        DAY / whole,
        DAY * served.rate / tokens,
        embedded.load_seconds / whole,
    )
