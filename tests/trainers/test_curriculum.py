"""Which problems a curriculum lets in, by hand: the schedule, the ranking, what is left out."""

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import InMemory
from stored_rows import typed_tables

from nip_core.parameters import CurriculumParameters, load_parameters
from nip_core.rollouts.storage.row_tables import RolloutTables
from nip_core.trainers.curriculum import admit, percentile

LAWS = settings(max_examples=60, deadline=None)


def parameters(seed=1, **curriculum):
    return load_parameters(
        {
            "run_name": "a",
            "dataset": "x",
            "seed": seed,
            "curriculum": {"enabled": True, **curriculum},
        }
    )


def episode(problem, sample, reward, *, outcome="finished", path="", iteration=0, other=0.0):
    return {
        "key": f"{iteration}-{problem}-{sample}-{path}",
        "run": "a",
        "split": "train",
        "iteration": iteration,
        "problem": problem,
        "question_id": problem,
        "sample": sample,
        "branch_path": path,
        "protocol": "nip",
        "question": "question",
        "solution": "solution",
        "y": 1,
        "seed": 5,
        "rounds": 1,
        "decision": 1,
        "outcome": outcome,
        "rewards": [
            {"agent": "prover", "reward": other},
            {"agent": "verifier", "reward": reward},
        ],
    }


def rollouts(*episodes, shuffled=None):
    rows = list(episodes)
    if shuffled is not None:
        random.Random(shuffled).shuffle(rows)
    tables = typed_tables(rows, [])
    return InMemory((RolloutTables(tables.episodes, tables.generations),))


def ten(rewards=range(10)):
    """Ten problems, each played once; p9 pays most."""
    return rollouts(*(episode(f"p{i}", 0, float(reward)) for i, reward in enumerate(rewards)))


def names(*numbers):
    return {f"p{number}" for number in numbers}


# The schedule


def test_ten_problems_at_the_defaults_come_in_by_three_five_seven_nine_ten():
    sizes = [len(admit(parameters(), ["verifier"], i, ten()).problems) for i in range(22)]
    assert sizes == [3] * 4 + [5] * 5 + [7] * 5 + [9] * 5 + [10] * 3


def test_the_state_says_where_the_schedule_stands():
    settings_ = CurriculumParameters()
    assert [percentile(settings_, i) for i in (0, 3, 4, 8, 9, 14, 19, 500)] == [
        (0.3, -1), (0.3, -1), (0.5, 4), (0.5, 4), (0.7, 9), (0.9, 14), (1.0, 19), (1.0, 19)
    ]  # fmt: skip


def test_the_last_step_ends_at_all_problems():
    settings_ = CurriculumParameters(
        initial_percentile=0.8, increment_percentile=0.9, expansion_interval=1
    )
    assert [percentile(settings_, i) for i in range(3)] == [(1.0, 0)] * 3


def test_the_state_is_json_and_names_what_is_in():
    state = admit(parameters(), ["verifier"], 4, ten()).state
    assert (
        json.loads(json.dumps(state))
        == state
        == {
            "current_percentile": 0.5,
            "last_expansion_epoch": 4,
            "total_groups": 10,
            "included_groups": ["p5", "p6", "p7", "p8", "p9"],
            "left_out": {"too_equal": 0, "too_early": 5, "not_drawn": 0},
        }
    )


# The ranking


def test_the_highest_rewards_come_first_or_the_lowest_by_setting():
    assert admit(parameters(), ["verifier"], 0, ten()).problems == names(9, 8, 7)
    assert admit(parameters(sort_ascending=True), ["verifier"], 0, ten()).problems == names(0, 1, 2)


def test_problems_are_ranked_by_the_mean_over_the_agents_and_their_episodes():
    played = rollouts(
        episode("low", 0, 1.0, other=0.0), episode("low", 1, 0.0, other=0.2),  # mean 0.3
        episode("high", 0, 0.2, other=0.0), episode("high", 1, 0.0, other=3.0),  # mean 0.8
    )  # fmt: skip
    few = parameters(initial_percentile=0.5)
    assert admit(few, ["prover", "verifier"], 0, played).problems == {"high"}
    assert admit(few, ["verifier"], 0, played).problems == {"low"}


def test_a_tree_counts_as_one_episode_with_the_mean_of_the_leaves_that_did_not_fail():
    played = rollouts(
        episode("tree", 0, 1.0, path="0"), episode("tree", 0, 0.0, path="1"),
        episode("tree", 0, 9.0, path="2", outcome="failed"),  # mean 0.5, one episode
        episode("p1", 0, 0.4), episode("p2", 0, 0.6),
    )  # fmt: skip
    assert admit(parameters(initial_percentile=0.6), ["verifier"], 0, played).problems == {
        "p2",
        "tree",
    }
    ranked = admit(parameters(initial_percentile=0.3), ["verifier"], 0, played)
    assert ranked.problems == {"p2"} and ranked.state["left_out"]["too_equal"] == 0


def test_in_a_tree_every_answer_counts_the_same_however_many_leaves_it_has():
    """One right answer of three: a third, although it has two of the nine leaves."""
    wrong = [f"{i}.{j}" for i in (1, 2) for j in range(4)][:7]
    played = rollouts(
        episode("tree", 0, 1.0, path="0.0"), episode("tree", 0, 1.0, path="0.1"),
        *(episode("tree", 0, 0.0, path=path) for path in wrong),
        episode("plain", 0, 0.3),
    )  # fmt: skip
    half = parameters(initial_percentile=0.5)
    assert admit(half, ["verifier"], 0, played).problems == {"tree"}


def test_rounding_errors_neither_rank_problems_nor_leave_them_out():
    third = 0.1 + 0.2  # a little more than 0.3
    first = admit(parameters(), ["verifier"], 0, ten([0.3] * 10)).problems
    assert admit(parameters(), ["verifier"], 0, ten([0.3, third] * 5)).problems == first
    played = rollouts(episode("p", 0, 0.8), episode("p", 1, 0.7), episode("q", 0, 0.0))
    assert "p" in admit(parameters(initial_percentile=1.0), ["verifier"], 0, played).problems


def test_a_problem_of_several_iterations_is_ranked_by_all_of_them():
    played = rollouts(
        episode("p1", 0, 1.0), episode("p1", 0, 0.0, iteration=1), episode("p2", 0, 0.6)
    )
    assert admit(parameters(initial_percentile=0.5), ["verifier"], 1, played).problems == {"p2"}


# What is left out


def test_problems_whose_episodes_hardly_differ_are_left_out_and_counted():
    played = rollouts(
        *(episode("same", i, 1.0) for i in range(3)),
        episode("differs", 0, 0.2), episode("differs", 1, 0.1),
        episode("once", 0, 0.0),
    )  # fmt: skip
    found = admit(parameters(initial_percentile=1.0), ["verifier"], 0, played)
    assert found.problems == {"differs", "once"}
    assert found.state["left_out"] == {"too_equal": 1, "too_early": 0, "not_drawn": 0}
    assert found.state["total_groups"] == 3


def test_where_all_are_too_equal_the_set_is_empty():
    played = rollouts(*(episode(f"p{i % 3}", i // 3, 1.0) for i in range(6)))
    found = admit(parameters(), ["verifier"], 0, played)
    assert found.problems == frozenset() and found.state["left_out"]["too_equal"] == 3
    assert found.state["included_groups"] == []


def test_failed_episodes_have_no_reward_and_a_problem_of_such_is_none():
    played = rollouts(
        episode("p1", 0, 0.5), episode("p1", 1, -9.0, outcome="failed"),
        episode("p2", 0, 0.1), episode("gone", 0, 5.0, outcome="failed"),
    )  # fmt: skip
    found = admit(parameters(initial_percentile=0.5), ["verifier"], 0, played)
    assert found.problems == {"p1"} and found.state["total_groups"] == 2


def test_nothing_played_admits_nothing():
    assert admit(parameters(), ["verifier"], 0, rollouts()).problems == frozenset()


def test_a_single_problem_is_taken_as_it_is():
    played = rollouts(episode("p", 0, 1.0), episode("p", 1, 1.0))
    assert admit(parameters(random_subsample=0.1), ["verifier"], 0, played).problems == {"p"}


def test_without_a_curriculum_all_problems_are_used():
    found = admit(parameters(enabled=False), ["verifier"], 0, ten([0.0] * 10))
    assert len(found.problems) == 10 and found.state == {}


# Draws


def test_a_subsample_is_drawn_anew_in_each_iteration_by_the_seed():
    def draw(seed, iteration):
        asked = parameters(seed, initial_percentile=1.0, random_subsample=0.35)
        return admit(asked, ["verifier"], iteration, ten()).problems

    assert len(draw(1, 0)) == math.ceil(3.5)
    assert draw(1, 0) == draw(1, 0)
    assert len({draw(1, i) for i in range(4)}) > 1
    assert len({draw(seed, 0) for seed in range(4)}) > 1


def test_equal_rewards_are_ordered_by_the_seed_alike_in_all_iterations():
    chosen = {
        seed: [admit(parameters(seed), ["verifier"], i, ten([0.0] * 10)).problems for i in range(4)]
        for seed in range(5)
    }
    assert all(len(set(found)) == 1 for found in chosen.values())
    assert len({found[0] for found in chosen.values()}) > 1


@LAWS
@given(
    st.lists(st.sampled_from([0.0, 0.05, 0.5, 1.0]), min_size=1, max_size=24),
    st.integers(0, 12),
    st.sampled_from([None, 0.1, 0.5, 1.0]),
    st.booleans(),
    st.integers(0, 3),
)
def test_only_problems_that_were_played_come_in_whatever_the_order_of_the_rows(
    rewards, iteration, fraction, ascending, order
):
    rows = [episode(f"p{i % 7}", i, reward) for i, reward in enumerate(rewards)]
    asked = parameters(random_subsample=fraction, sort_ascending=ascending)
    found = admit(asked, ["verifier"], iteration, rollouts(*rows))
    assert admit(asked, ["verifier"], iteration, rollouts(*rows, shuffled=order)) == found
    played = {row["problem"] for row in rows}
    assert found.problems <= played
    assert len(played) == len(found.problems) + sum(found.state["left_out"].values())


@LAWS
@given(st.integers(1, 40), st.floats(0.01, 1), st.floats(0.01, 1), st.integers(1, 6))
def test_what_is_in_stays_in_as_long_as_the_rewards_stay(size, initial, increment, interval):
    asked = parameters(
        initial_percentile=initial, increment_percentile=increment, expansion_interval=interval
    )
    played = rollouts(*(episode(f"p{i}", 0, float(i % 5)) for i in range(size)))
    before = frozenset()
    for iteration in range(12):
        now = admit(asked, ["verifier"], iteration, played).problems
        assert before <= now and now
        before = now


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7, 1.0])
def test_a_share_of_the_problems_is_not_one_more_by_rounding(share):
    asked = parameters(initial_percentile=share)
    assert len(admit(asked, ["verifier"], 0, ten()).problems) == round(10 * share)
