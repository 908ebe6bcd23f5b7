"""Embed the engine or call a server: five questions, the answer, the sentence to say, and the failure it avoids."""

from dataclasses import dataclass

OWNERS = ("this job alone", "others too")
LONG = 10  # times its start: from here on an embedded job's start is less than a tenth of its work


@dataclass(frozen=True)
class Case:
    """What decides. Times in seconds of one run."""

    owner: str = OWNERS[0]
    interactive: bool = False  # somebody waits for answers: there is an objective for latency
    work: float = 3600.0
    start: float = 60.0
    comparable: bool = False  # results are compared over versions of the model or of vLLM
    observed: bool = False  # somebody must see queue, preemptions and rates while it runs


@dataclass(frozen=True)
class Decision:
    """The answer, with what it trades and what it avoids."""

    answer: str
    sentence: str
    trade: str
    failure: str

    def __repr__(self) -> str:
        return f"{self.answer}\n“{self.sentence}”\nTrade: {self.trade}\nAvoids: {self.failure}"

    def _repr_markdown_(self) -> str:
        return f"**{self.answer}**\n\n> {self.sentence}\n\n*Trade:* {self.trade}\n\n*Avoids:* {self.failure}"


def decide(case: Case) -> Decision:
    """One of five answers; ownership is asked first, then who waits, then the start against the work.

    A job that is compared over versions stays embedded even where somebody wants to see it: it pins them itself.
    """
    if case.interactive and case.owner == OWNERS[0]:
        return SEPARATE
    if case.interactive or case.owner == OWNERS[1]:
        return SHARED
    if case.work < LONG * case.start:
        return WARM
    if case.observed and not case.comparable:
        return SEEN
    return EMBED


EMBED = Decision(
    "Embed: LLM in the job's own process, on a device of its own.",
    "It is one bounded job that owns its card, and its start is less than a tenth of its work, so I embed the engine, "
    "pin the versions, write each row as it finishes and check the finish reasons at the end.",
    "full density and nothing to deploy, for no metrics endpoint and nobody else on the card.",
    "a crash that loses the run, and a truncated data set that nobody notices.",
)
WARM = Decision(
    "Server: send the job to an endpoint that is warm already.",
    "Starting an engine is more than a tenth of the work it would do, so the job is a client of a warm server, with "
    "hundreds of requests in flight and a pool that allows them.",
    "some throughput and somebody else's queue, for no start, and metrics while it runs.",
    "paying weights and profiling every time, or a client that lets the batch run empty.",
)
SEEN = Decision(
    "Server: the job must be seen while it runs.",
    "Somebody has to see queue, preemptions and rates during the job, and an embedded engine tells them to nobody, so "
    "it runs against a server whose metrics are collected.",
    "a server to stand up and some throughput, for metrics, logs for each request and a place to stop it.",
    "a job that slows down for hours before anybody can say why.",
)
SHARED = Decision(
    "Server: the card is shared, and the batch is one more client, with a cap.",
    "Others have a claim on this card, so it belongs to a server with an objective for latency, and my batch gets a "
    "concurrency cap that keeps their first tokens where they were.",
    "the batch takes longer, for everybody else's latency and one place to observe and to stop it.",
    "an embedded job that nobody sees, which starves a serving replica of KV blocks or fails at its start.",
)
SEPARATE = Decision(
    "Both: a server for those who wait, and the batch on a replica or a node of its own.",
    "Interactive and batch traffic pull the same scheduler in two directions, so I part them by node, not by process: "
    "the server keeps its objective, the batch keeps its density.",
    "a second device, for not having to tune two kinds of traffic against each other.",
    "two engines on one card, each of which believes that its share of the memory is its own.",
)

# The four follow-ups, by what is asked.
SCENARIOS = {
    "a data set of a million rows, once, on a node of your own": Case(work=6 * 3600),
    "ten requests every ten minutes, from a scheduled job": Case(work=20),
    "labelling in the background on the card that answers the chat": Case(owner=OWNERS[1], interactive=True),
    "a nightly eval, results compared over model versions": Case(work=2 * 3600, comparable=True, observed=True),
}
EXPECTED = (EMBED, WARM, SHARED, EMBED)
