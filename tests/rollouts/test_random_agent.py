"""What an agent without a model says."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_core.game.answers.parsing import AnswerForm, parse_response
from nip_core.protocols import NO_DECISION
from nip_core.protocols.scales import SCALES
from nip_core.rollouts.model_call import random_answer

HEADERS = {"a": "Question for Expert_1:", "b": "To everyone:", "c": "@judge"}


def form(scale, headers=None, reasoning=False):
    headers = headers or {}
    return AnswerForm(tuple(headers) or ("main",), headers, SCALES.get(scale), reasoning)


@given(
    st.integers(0, 2**63 - 1),
    st.sampled_from([None, *SCALES]),
    st.sampled_from([{}, HEADERS]),
    st.booleans(),
)
def test_every_answer_is_valid_and_follows_from_the_seed(seed, scale, headers, reasoning):
    form_ = form(scale, headers, reasoning)
    text = random_answer(form_, seed)
    move = parse_response(text, form_)
    assert text == random_answer(form_, seed)
    if move.decision == NO_DECISION:
        assert tuple(move.messages) == form_.channels
    else:
        assert scale is not None and text.startswith("Decision: ")


@pytest.mark.parametrize("scale", SCALES)
def test_two_turns_of_five_decide_with_every_answer_equally_likely(scale):
    moves = [parse_response(random_answer(form(scale), seed), form(scale)) for seed in range(1500)]
    values = Counter(move.value for move in moves if move.decision != NO_DECISION)
    assert 0.36 < values.total() / len(moves) < 0.44
    assert set(values) == set(SCALES[scale].values.values())
    expected = values.total() / len(SCALES[scale].values)
    assert all(abs(count - expected) < 5 * expected**0.5 for count in values.values())


def test_messages_differ():
    assert len({random_answer(form(None), seed) for seed in range(1000)}) == 1000
