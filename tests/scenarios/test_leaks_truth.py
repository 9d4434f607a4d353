"""A label that leaks shows in the baselines, and how is known beforehand by counting."""

import asyncio
from dataclasses import replace
from fractions import Fraction

import pytest
from arithmetic_players import every_chance
from leaking_players import answers
from playing import play

from nip_core.evaluation.baseline_verifiers import believe_the_prover
from nip_core.parameters import load_parameters
from nip_core.protocols import ACCEPT, REJECT
from nip_games.arithmetic import Arithmetic
from nip_games.arithmetic.chains import STORIES, read_question

STEPS = 4
HALF, ALONE = Fraction(1, 2), Fraction(1, 2) + Fraction(1, 2 * STEPS)
RANDOM = "random"


def worded(problem, y):
    """A problem whose wording gives its label away."""
    if y == 0:
        return problem
    return replace(problem, question=read_question(problem.question).text(STORIES[0]))


def accuracy(verifier, prover=None, leaks=False):
    """With as many right as wrong problems: of the verifier, and of one that believes the prover.

    Without a prover, the first alone.
    """
    agents = {name: {"model_provider": "SelfHosted", "model_name": "m"} for name in ("verifier",)}
    if prover is not None:
        agents["prover"] = {"is_random": True} if prover == RANDOM else dict(agents["verifier"])
    problems = every_chance(STEPS)
    problems = [worded(p, p.y) for p in problems] if leaks else problems
    parameters = load_parameters(
        {
            "run_name": "a",
            "dataset": "chains",
            "scenario": "arithmetic",
            "interaction_protocol": "adp" if prover else "solo_verifier",
            "scenario_settings": {"system_prompt_version": "short", "steps": STEPS},
            "agents": agents,
            "rl": {"rollouts_per_iteration": len(problems)},
        }
    )
    script = answers(verifier, prover if prover != RANDOM else "untrained")
    result = asyncio.run(play(parameters, script, on=problems))
    right = {0: [], 1: []}
    for episode in result.episodes:
        right[episode["y"]].append(episode["decision"] == (ACCEPT if episode["y"] else REJECT))
    assert [len(right[1]), len(right[0])] == [STEPS, STEPS**2]
    rate = (Fraction(sum(right[1]), STEPS) + Fraction(sum(right[0]), STEPS**2)) / 2
    if prover is None:
        return rate
    tables = result.tables()
    believed = believe_the_prover(tables.episodes, tables.generations, Arithmetic.claims)
    return rate, (believed.completeness + believed.soundness) / 2


@pytest.mark.parametrize(
    ("verifier", "prover", "leaks", "alone", "together", "believed", "with_random"),
    [
        # The prover names the wrong step, and the verifier looks: what it can without help stays.
        ("checks", "honest", False, ALONE, 1, 1, ALONE),
        # The prover says what the label is, with no argument: without it the verifier has nothing.
        ("obeys_verdict", "verdict", False, HALF, 1, 1, HALF),
        # The same, in words that nobody but the verifier knows: believing needs to know them, too.
        ("obeys_code", "code", False, HALF, 1, 0, HALF),
        # The problems say it: nobody needs to talk.
        ("reads", "honest", True, 1, 1, 1, 1),
    ],
)
def test_where_the_label_comes_from_is_seen_in_the_baselines(
    verifier, prover, leaks, alone, together, believed, with_random
):
    assert accuracy(verifier, leaks=leaks) == alone
    assert accuracy(verifier, prover, leaks) == (together, believed)
    assert accuracy(verifier, RANDOM, leaks)[0] == with_random
    # A prover that has learned nothing says as little as a random one.
    assert accuracy(verifier, "untrained", leaks)[0] == with_random


def test_what_a_verifier_can_do_alone_is_what_the_scenario_says():
    parameters = {"scenario_settings": {"steps": STEPS}}
    settings = Arithmetic.Settings(**parameters["scenario_settings"])
    assert Arithmetic(settings).rate_alone() == accuracy("checks") == ALONE


def test_a_verdict_without_an_argument_does_not_help_one_who_checks():
    assert accuracy("checks", "verdict") == (ALONE, 1)
    assert accuracy("checks", "code") == (ALONE, 0)
