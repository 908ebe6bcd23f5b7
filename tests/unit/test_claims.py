"""`prove` shows what it proved and fails when it does not hold."""

import pytest

from helpers.teaching.claims import ClaimFailed, ledger, prove


def test_a_proof_says_the_statement_and_what_was_seen():
    proof = prove("max-tokens-16", holds=True, observed="16 tokens")
    for text in (repr(proof), proof._repr_markdown_()):
        assert ledger()["max-tokens-16"] in text and "16 tokens" in text


def test_what_does_not_hold_fails_with_both():
    with pytest.raises(ClaimFailed, match=r"max-tokens-16 does not hold here.*Observed: 17 tokens"):
        prove("max-tokens-16", holds=False, observed="17 tokens")


def test_an_unknown_statement_is_a_mistake_of_the_notebook():
    with pytest.raises(KeyError):
        prove("no-such-row", holds=True, observed="")
