"""Who speaks when, what ends an episode, who is paid: round by round, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_core.parameters import load_parameters
from nip_core.protocols import ACCEPT, NO_DECISION, PROTOCOLS, REJECT, Move, make_protocol


def protocol(name="nip", **settings):
    return make_protocol(
        load_parameters({"run_name": "a", "dataset": "x", "interaction_protocol": name, **settings})
    )


def verdict(decision):
    return {"verifier": Move(decision=decision)}


SAYS = {"prover": Move(messages={"main": "Answer: yes"})}
ASKS = {"verifier": Move(messages={"main": "Question: why"})}


def speakers(game):
    return [next(iter(game.active(r, 0))) for r in range(game.max_message_rounds)]


def test_nip_alternates_and_ends_with_the_verifier():
    v, p = "verifier", "prover"
    assert speakers(protocol(nip_protocol={"max_message_rounds": 5})) == [v, p, v, p, v]
    provers_first = protocol(
        nip_protocol={"max_message_rounds": 4}, protocol_common={"verifier_first": False}
    )
    assert speakers(provers_first) == [p, v, p, v]


def test_adp_is_one_message_and_a_verdict():
    assert speakers(protocol("adp")) == ["prover", "verifier"]


def test_the_solo_verifier_has_one_round():
    assert speakers(protocol("solo_verifier")) == ["verifier"]


@pytest.mark.parametrize(("rounds", "questions"), [(1, 0), (3, 1), (5, 2), (9, 4)])
def test_questions_left_are_the_verifiers_turns_but_one(rounds, questions):
    assert protocol(nip_protocol={"max_message_rounds": rounds}).max_questions(0) == questions


@pytest.mark.parametrize(
    ("decision", "y", "verifier", "prover"),
    [(ACCEPT, 1, 1, 1), (ACCEPT, 0, -1, 1), (REJECT, 1, -1, 0), (REJECT, 0, 1, 0)],
)
def test_a_verdict_pays_the_verifier_for_truth_and_the_prover_for_acceptance(
    decision, y, verifier, prover
):
    result = protocol().judge(2, 0, y, None, verdict(decision))
    assert result.done and not result.terminated and result.decision == decision
    assert result.rewards == {"verifier": verifier, "prover": prover}


@pytest.mark.parametrize(("stance", "prover"), [(0, 1.0), (1, 0.0)])
def test_a_drawn_stance_decides_what_the_prover_is_paid_for(stance, prover):
    result = protocol().judge(0, 0, 1, stance, verdict(REJECT))
    assert result.rewards["prover"] == prover


def test_a_shared_reward_pays_the_prover_what_the_verifier_gets():
    game = protocol(protocol_common={"shared_reward": True, "verifier_incorrect_penalty": -0.5})
    assert game.judge(0, 0, 0, None, verdict(ACCEPT)).rewards == {"verifier": -0.5, "prover": -0.5}


def test_no_verdict_in_the_last_round_terminates_with_the_penalty():
    game = protocol(nip_protocol={"max_message_rounds": 3})
    result = game.judge(2, 0, 1, None, ASKS)
    assert result.terminated and not result.done and result.decision == NO_DECISION
    assert result.rewards == {"verifier": -1.0, "prover": 0.0}


def test_rounds_without_verdict_pay_the_no_guess_reward_on_the_verifiers_turn_only():
    game = protocol(protocol_common={"verifier_no_guess_reward": 0.25})
    assert game.judge(0, 0, 1, None, ASKS).rewards["verifier"] == 0.25
    assert game.judge(1, 0, 1, None, SAYS).rewards["verifier"] == 0.0


def test_an_early_verdict_is_not_registered():
    game = protocol(nip_protocol={"max_message_rounds": 5, "min_message_rounds": 3})
    early = game.judge(0, 0, 1, None, verdict(ACCEPT))
    assert not early.done and early.decision == NO_DECISION and early.rewards["prover"] == 0
    assert game.judge(2, 0, 1, None, verdict(ACCEPT)).done


@pytest.mark.parametrize("name", list(PROTOCOLS))
@given(seed=st.integers(0, 2**31 - 1))
def test_agents_write_only_where_they_see_and_the_verifier_has_the_last_turn(name, seed):
    game = protocol(name)
    for r in range(game.max_message_rounds):
        for agent, channels in game.active(r, seed).items():
            assert set(channels) <= set(game.visible_channels(agent))
    assert "verifier" in game.active(game.max_message_rounds - 1, seed)
