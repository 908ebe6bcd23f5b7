"""The ledger of statements, and `prove`, which a cell uses to show that one of them holds on the engine at hand."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml

from helpers.problems import Problem


class ClaimFailed(Problem, AssertionError):
    """A statement of this workbook did not hold on the engine at hand."""


@dataclass(frozen=True)
class Proof:
    """A statement with what was observed; one sentence each, the same in a notebook and in a terminal."""

    claim: str
    statement: str
    observed: str

    def __repr__(self) -> str:
        return f"{self.claim}: {self.statement}\nObserved here: {self.observed}"

    def _repr_markdown_(self) -> str:
        return f"**{self.claim}**: {self.statement}\n\n*Observed here:* {self.observed}"


@cache
def ledger() -> dict[str, str]:
    """Every statement by its id, in the order of the course."""
    return yaml.safe_load(files("helpers.teaching").joinpath("claims.yaml").read_text())


def prove(claim: str, holds: bool, observed: str) -> Proof:
    """Shows the statement with id `claim` and what was observed.

    Raises `ClaimFailed` when `holds` is false, and `KeyError` for an id that is not in the ledger.
    """
    statement = ledger()[claim]
    if not holds:
        raise ClaimFailed(f"{claim} does not hold here: {statement} Observed: {observed}")
    return Proof(claim, statement, observed)
