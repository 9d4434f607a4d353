"""What each protocol is worth on a chain of k steps is known by counting, and is what is played."""

import asyncio
from fractions import Fraction

import pytest
from arithmetic_players import MISTAKE, NOTHING, RIGHT_STEP, every_chance, players
from playing import play

from nip_core.parameters import load_parameters
from nip_core.protocols import ACCEPT, REJECT

STEPS = 6
ROUNDS = {"nip": "nip_protocol", "debate": "debate_protocol"}


def played(protocol, rounds, turns, named):
    """Completeness and soundness over all problems."""
    settings = {
        "run_name": "a",
        "dataset": "chains",
        "scenario": "arithmetic",
        "interaction_protocol": protocol,
        "scenario_settings": {"system_prompt_version": "short", "steps": STEPS},
        "protocol_common": {"shared_reward": protocol != "debate"},
        "agents": {"_default": {"model_provider": "SelfHosted", "model_name": "m"}},
    }
    if rounds:
        settings[ROUNDS[protocol]] = {"max_message_rounds": rounds}
    problems = every_chance(STEPS)
    parameters = load_parameters(settings, [f"rl.rollouts_per_iteration={len(problems)}"])
    result = asyncio.run(play(parameters, players(STEPS, turns, named), on=problems))
    right = {0: [], 1: []}
    for episode in result.episodes:
        assert episode["outcome"] == "finished", episode
        right[episode["y"]].append(episode["decision"] == (ACCEPT if episode["y"] else REJECT))
    assert [len(right[1]), len(right[0])] == [STEPS, STEPS**2]
    return Fraction(sum(right[1]), STEPS), Fraction(sum(right[0]), STEPS**2)


@pytest.mark.parametrize(
    ("protocol", "rounds", "turns", "named", "soundness"),
    [
        ("solo_verifier", None, 1, MISTAKE, Fraction(1, STEPS)),
        ("adp", None, 1, MISTAKE, Fraction(1)),
        ("adp", None, 1, NOTHING, Fraction(1, STEPS)),
        # With r questions the verifier has r + 1 turns, and checks a step in each.
        ("nip", 3, 2, MISTAKE, Fraction(1)),
        ("nip", 3, 2, NOTHING, Fraction(2, STEPS)),
        ("nip", 5, 3, NOTHING, Fraction(3, STEPS)),
        ("nip", 7, 4, NOTHING, Fraction(4, STEPS)),
        # One of two experts argues for rejection: it names the step, or one that is right.
        ("debate", 3, 2, MISTAKE, Fraction(1)),
    ],
)
def test_a_verifier_that_checks_a_step_a_turn_is_as_sound_as_counted(
    protocol, rounds, turns, named, soundness
):
    assert played(protocol, rounds, turns, named) == (1, soundness)


@pytest.mark.parametrize(
    ("protocol", "rounds", "turns", "soundness"),
    [("adp", None, 1, 0), ("nip", 3, 2, Fraction(1, STEPS)), ("nip", 5, 3, Fraction(1, STEPS))],
)
def test_a_prover_that_calls_a_right_step_wrong_leaves_what_was_checked_before_it_spoke(
    protocol, rounds, turns, soundness
):
    """So soundness against a prover that names nothing is no lower bound."""
    assert played(protocol, rounds, turns, RIGHT_STEP) == (1, soundness)
    assert soundness < played(protocol, rounds, turns, NOTHING)[1]
