"""The laws of similarity: symmetric, in [0, 1], and 1 for equal inputs."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_core.protocols import ACCEPT, NEITHER, NO_DECISION, REJECT, Move, TokenChoice, Turn
from nip_core.protocols.similarity import move_similarity, text_similarity, token_similarity

TEXTS = st.one_of(st.text(max_size=30), st.text("ab \n", max_size=30))
LOGPROBS = st.one_of(st.floats(-20, 0.001), st.sampled_from([0.0, -9999.0, -math.inf]))
CHOICES = st.builds(
    TokenChoice, st.sampled_from("ab"), LOGPROBS, st.dictionaries(st.sampled_from("abc"), LOGPROBS)
)
ANSWERS = st.lists(CHOICES, max_size=4)
MOVES = st.one_of(
    st.dictionaries(st.sampled_from("cd"), TEXTS, min_size=1).map(Move),
    st.builds(
        lambda value: Move(decision=NEITHER if value == 0 else int(value > 0), value=value),
        st.sampled_from([-1.0, -0.4, 0.0, 0.6, 1.0]),
    ),
    st.builds(lambda decision: Move(decision=decision), st.sampled_from([REJECT, ACCEPT, NEITHER])),
)
TURNS = st.tuples(MOVES, st.none() | ANSWERS).map(lambda drawn: Turn(0, "a", "", *drawn))


def check_laws(similarity, a, b):
    value = similarity(a, b)
    assert 0 <= value <= 1
    assert value == similarity(b, a)
    assert similarity(a, a) == 1


@given(TEXTS, TEXTS)
def test_similarity_of_texts_is_lawful(a, b):
    check_laws(text_similarity, a, b)


@given(ANSWERS, ANSWERS)
def test_similarity_of_tokens_is_lawful(a, b):
    check_laws(token_similarity, a, b)


@given(TURNS, TURNS)
def test_similarity_of_moves_is_lawful(a, b):
    check_laws(lambda x, y: move_similarity(x, y, by_tokens=False), a, b)
    if a.tokens is not None and b.tokens is not None:
        check_laws(lambda x, y: move_similarity(x, y, by_tokens=True), a, b)


def test_texts_are_compared_by_their_characters():
    near = text_similarity("Why does the loop end at n?", "Why does the loop end at n-1?")
    far = text_similarity("Why does the loop end at n?", "Is 0 handled?")
    assert 0.8 < near < 1 and 0 <= far < 0.2
    assert text_similarity("A  b\n", "a B") == 1  # case and spacing are ignored
    assert text_similarity("", "a") == 0
    # Pieces " ab" "ab " and " ab" "abc" "bc ": one of them in common.
    assert text_similarity("ab", "abc") == pytest.approx(1 / math.sqrt(2 * 3))


def choice(token, **probabilities):
    logs = {name: math.log(p) for name, p in probabilities.items()}
    return TokenChoice(token, logs[token], logs)


def test_tokens_are_compared_by_their_distributions_up_to_the_first_difference():
    one, other = choice("a", a=0.5, b=0.5), choice("a", a=0.75, b=0.25)
    assert token_similarity([one], [other]) == pytest.approx(0.75)
    assert token_similarity([one, one], [other]) == pytest.approx(0.375)
    drawn_otherwise = choice("b", a=0.5, b=0.5)
    assert token_similarity([one, one], [drawn_otherwise, one]) == pytest.approx(0.5)


def test_few_reported_tokens_make_equal_answers_no_less_alike():
    reported = choice("a", a=0.3, b=0.2)
    assert token_similarity([reported], [choice("a", a=0.3, b=0.2)]) == 1
    assert token_similarity([reported], [choice("c", c=0.5)]) == 0


def turn(move, tokens=None):
    return Turn(0, "a", "", move, tokens)


@pytest.mark.parametrize("by_tokens", [False, True])
def test_who_decides_is_not_like_who_asks_or_is_silent(by_tokens):
    same = (choice("a", a=1.0),)
    decides, asks = turn(Move(decision=ACCEPT, value=1.0), same), turn(Move({"c": "accept"}), same)
    assert move_similarity(decides, asks, by_tokens) == 0
    assert move_similarity(asks, None, by_tokens) == 0


def test_turns_without_log_probabilities_are_not_alike_by_tokens():
    asks = turn(Move({"c": "Why?"}))
    assert move_similarity(asks, asks, by_tokens=True) == 0
    assert move_similarity(asks, turn(Move({"c": "Why?"}), ()), by_tokens=True) == 0


def test_decisions_are_compared_by_value():
    def decided(value):
        return turn(Move(decision=ACCEPT if value > 0 else REJECT, value=value))

    assert move_similarity(decided(1.0), decided(-1.0), by_tokens=False) == 0
    assert move_similarity(decided(1.0), decided(0.4), by_tokens=False) == pytest.approx(0.7)
    bare = turn(Move(decision=REJECT))  # without a value it is the full one
    assert move_similarity(bare, decided(-1.0), by_tokens=False) == 1


def test_a_message_without_a_partner_is_not_alike():
    both, one = turn(Move({"c": "Why?", "d": "How?"})), turn(Move({"e": "Why?"}))
    assert move_similarity(both, one, by_tokens=False) == pytest.approx(0.5)
    silent = turn(Move(decision=NO_DECISION))
    assert move_similarity(silent, silent, by_tokens=False) == 0  # nothing said earns nothing


def test_the_form_that_the_game_asks_for_is_no_similarity():
    def asked(*texts):
        return turn(Move({str(i): text for i, text in enumerate(texts)}))

    one = asked("Question for Expert_1: Does it loop?", "Question for Expert_2: Is x 2?")
    other = asked("**question for Expert 1:** Why minus nine?", "Question for Expert_2: Is x 2?")
    assert move_similarity(one, other, by_tokens=False) == pytest.approx(0.5, abs=0.05)
    nothing, something = asked("Question: Does it loop?"), asked("Question: Why minus nine?")
    assert move_similarity(nothing, something, by_tokens=False) == 0
    # What only one of them begins with is part of what it says.
    assert move_similarity(asked("Why: x"), asked("How: x"), by_tokens=False) < 1
