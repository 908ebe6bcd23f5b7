"""What keeps memory alive is named, and nothing else."""

import weakref

from helpers.memory import holders


class Weights:
    pass


def test_only_variables_that_lead_to_it_are_named():
    weights = Weights()
    names = {"mine": [{"deep": (weights,)}], "other": [1, 2], "function": lambda: weights}
    names["all"] = names  # as a notebook's shell keeps its own namespace
    assert holders([weakref.ref(weights)], names) == ["mine", "function"]


def test_what_is_gone_is_held_by_nobody():
    weights = Weights()
    kept = [weakref.ref(weights)]
    del weights
    assert holders(kept, {"mine": []}) == []


def test_a_search_ends():
    weights = Weights()
    far = weights
    for _ in range(100):
        far = [far]
    assert holders([weakref.ref(weights)], {"far": far}, reach=50) == []
