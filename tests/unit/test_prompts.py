"""What is wrong with a prompt, and what older names became: without an engine."""

import pytest

from helpers import prompts, sampling


@pytest.mark.parametrize(
    "count, said", [(0, "empty"), (1, None), (9, None), (10, "too long: 10 tokens"), (99, "allows 9")]
)
def test_what_would_fail_the_call_is_known_before_it(count, said):
    found = prompts.problem([7] * count, 10)
    assert (said in found) if said else found is None


@pytest.mark.parametrize(
    "ids, bos, doubled",
    [([1, 1, 5], 1, True), ([1, 5, 1], 1, False), ([1], 1, False), ([], 1, False), ([5, 5], None, False)],
)
def test_two_bos_are_flagged(ids, bos, doubled):
    assert prompts.doubled_bos(ids, bos) is doubled


def test_a_system_message_opens_the_first_user_message():
    system, user = {"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}
    assert prompts.without_system([system, user]) == [{"role": "user", "content": "Be short.\n\nHi"}]
    assert prompts.without_system([user]) == [user] and user["content"] == "Hi"


@pytest.mark.parametrize("name", sampling.REPLACED)
def test_an_old_name_is_answered_with_the_new_one(name):
    pytest.importorskip("vllm")
    with pytest.raises(TypeError) as error:
        sampling.check_names({"temperature": 0.5, name: 1})
    assert name in str(error.value) and sampling.REPLACED[name] in str(error.value)


def test_a_typing_error_gets_the_nearest_name():
    with pytest.raises(TypeError, match="Did you mean temperature"):
        sampling.check_names({"temprature": 1})
