"""What each protocol is worth on a chain of k steps is known by counting, and is what is played."""

import asyncio
from fractions import Fraction

import pytest
from arithmetic_players import every_chance, players
from playing import play

from nip_core.parameters import load_parameters
from nip_core.protocols import ACCEPT, REJECT

STEPS = 6
ROUNDS = {"nip": "nip_protocol", "debate": "debate_protocol"}


def played(protocol, rounds, turns, lying):
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
    result = asyncio.run(play(parameters, players(STEPS, turns, lying), on=problems))
    right = {0: [], 1: []}
    for episode in result.episodes:
        assert episode["outcome"] == "finished", episode
        right[episode["y"]].append(episode["decision"] == (ACCEPT if episode["y"] else REJECT))
    assert [len(right[1]), len(right[0])] == [STEPS, STEPS**2]
    return Fraction(sum(right[1]), STEPS), Fraction(sum(right[0]), STEPS**2)


@pytest.mark.parametrize(
    ("protocol", "rounds", "turns", "lying", "soundness"),
    [
        ("solo_verifier", None, 1, False, Fraction(1, STEPS)),
        ("adp", None, 1, False, Fraction(1)),
        ("adp", None, 1, True, Fraction(1, STEPS)),
        # With r questions the verifier has r + 1 turns, and checks a step in each.
        ("nip", 3, 2, False, Fraction(1)),
        ("nip", 3, 2, True, Fraction(2, STEPS)),
        ("nip", 5, 3, True, Fraction(3, STEPS)),
        ("nip", 7, 4, True, Fraction(4, STEPS)),
        # One of two experts argues for rejection: it names the step, or one that is right.
        ("debate", 3, 2, False, Fraction(1)),
    ],
)
def test_a_verifier_that_checks_a_step_a_turn_is_as_sound_as_counted(
    protocol, rounds, turns, lying, soundness
):
    assert played(protocol, rounds, turns, lying) == (1, soundness)
