"""Advantages by hand and by law; a trajectory is what was generated, token for token."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import InMemory
from stored_rows import typed_tables

from nip_core.errors import StageError
from nip_core.game.render import Game
from nip_core.parameters import PureTextGrpoParameters, load_parameters
from nip_core.rollouts.storage.row_tables import RolloutTables
from nip_core.trainers.base import OfProblems
from nip_core.trainers.grpo import choose_trajectories, compute_advantages

LAWS = settings(max_examples=40, deadline=None)
AGENTS = ("prover", "verifier")
SIZE = 4


def make_game(**grpo):
    return Game(
        load_parameters(
            {
                "run_name": "a",
                "dataset": "x",
                "trainer": "pure_text_grpo",
                "agents": {
                    "_default": {"model_provider": "SelfHosted", "fine_tune_from_scratch": False}
                },
                "rl": {"rollouts_per_iteration": 8},
                "pure_text_grpo": {"group_size": SIZE, **grpo},
            }
        )
    )


class Written:
    """Rollouts written by hand: groups of SIZE episodes of a problem."""

    def __init__(self, run="a"):
        self.run, self.episodes, self.generations = run, [], []

    def add(self, problem, sample, reward, *, stance=None, outcome="finished", **more):
        """`reward` of the verifier; the prover has ten times as much. `more`: of the moves."""
        key = f"{self.run}-{problem}-{sample}"
        self.episodes.append(
            {
                "key": key,
                "run": self.run,
                "split": "train",
                "iteration": 0,
                "problem": problem,
                "question_id": f"q-{problem}",
                "sample": sample,
                "branch_path": "",
                "protocol": "nip",
                "question": "question",
                "solution": "solution",
                "y": 1,
                "seed": 5,
                "prover_stance": stance,
                "rounds": 3,
                "decision": 1,
                "outcome": outcome,
                "rewards": [
                    {"agent": "prover", "reward": 10 * reward},
                    {"agent": "verifier", "reward": reward},
                ],
            }
        )
        self._move(key, **more)
        return self

    def _move(self, key, moves=("verifier", "prover", "verifier"), invalid=(), tokens=True):
        size = len(self.episodes)
        for round_, agent in enumerate(moves):
            for attempt in range(2 if round_ in invalid else 1):
                valid = attempt == (1 if round_ in invalid else 0)
                answer = [100 * size + 10 * round_ + attempt, 7]
                self.generations.append(
                    {
                        "key": f"{key}-{round_}-{attempt}",
                        "episode": key,
                        "branch_path": "",
                        "round": round_,
                        "agent": agent,
                        "attempt": attempt,
                        "model_asked": "m",
                        "model_served": "m",
                        "text": "text",
                        "decision": 2,
                        "finish_reason": "stop",
                        "invalid_reason": None if valid else "no form",
                        "prompt_tokens": 3,
                        "completion_tokens": 2,
                        "prompt_token_ids": [1, 2, round_] if tokens else None,
                        "completion_token_ids": answer if tokens else None,
                        "completion_logprobs": [-0.5, -0.25] if tokens else None,
                    }
                )

    def group(self, problem, rewards, **more):
        for sample, reward in enumerate(rewards):
            self.add(problem, sample, reward, **more)
        return self

    def tables(self, shard=None, order=None):
        """In shards of `shard` episodes, or in one; `order` shuffles the episodes."""
        episodes = list(self.episodes)
        if order is not None:
            random.Random(order).shuffle(episodes)
        size = shard or max(len(episodes), 1)
        parts = []
        for start in range(0, max(len(episodes), 1), size):
            own = episodes[start : start + size]
            keys = {episode["key"] for episode in own}
            rows = [row for row in self.generations if row["episode"] in keys]
            made = typed_tables(own, rows)
            parts.append(RolloutTables(made.episodes, made.generations))
        return InMemory(tuple(parts))


def choose(written, agents=("verifier",), game=None, **how):
    tables = written.tables() if isinstance(written, Written) else written
    choice = choose_trajectories(game or make_game(**how), "verifier", 0, tables, agents)
    assert choice.method == "trajectories"
    return list(choice.examples), choice.counts


def by_episode(examples):
    return {example.episode: example.advantage for example in examples}


# Advantages by hand

REWARDS = (1.0, 0.0, 0.0, 3.0)  # the mean is 1, the sum of squares around it 6


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, [0.0, -1.0, -1.0, 2.0]),
        ({"scale_by_std": True}, [0.0, -1 / math.sqrt(2), -1 / math.sqrt(2), math.sqrt(2)]),
        ({"baseline": "leave_one_out"}, [1 - 3 / 3, 0 - 4 / 3, 0 - 4 / 3, 3 - 1 / 3]),
        ({"advantage_shift": 0.5}, [0.5, -0.5, -0.5, 2.5]),
        (
            {"scale_by_std": True, "advantage_shift": 1.0},  # it is added after the division
            [1.0, 1 - 1 / math.sqrt(2), 1 - 1 / math.sqrt(2), 1 + math.sqrt(2)],
        ),
        (
            {"baseline": "leave_one_out", "scale_by_std": True},
            [0, -4 / 3 / math.sqrt(2), -4 / 3 / math.sqrt(2), 8 / 3 / math.sqrt(2)],
        ),
    ],
)
def test_advantages_of_a_group_are_those_computed_by_hand(how, expected):
    examples, _ = choose(Written().group("p", REWARDS), **how)
    assert [e.advantage for e in examples] == pytest.approx(expected)
    assert [e.reward for e in examples] == list(REWARDS)
    assert len({e.group_id for e in examples}) == 1


def test_each_problem_is_compared_with_itself_and_each_agent_by_its_own_rewards():
    written = Written().group("p", REWARDS).group("q", (5.0, 5.0, 5.0, 9.0))
    examples, counts = choose(written, AGENTS)
    of = {(e.problem, e.agent): [] for e in examples}
    for example in examples:
        of[example.problem, example.agent].append(example.advantage)
    assert of == {
        ("p", "verifier"): [0.0, -1.0, -1.0, 2.0],
        ("p", "prover"): [0.0, -10.0, -10.0, 20.0],
        ("q", "verifier"): [-1.0, -1.0, -1.0, 3.0],
        ("q", "prover"): [-10.0, -10.0, -10.0, 30.0],
    }
    assert len({e.group_id for e in examples}) == 4
    assert counts == {"candidates": 4}


def test_the_role_s_baseline_is_the_mean_over_all_problems_with_the_same_stance():
    written = Written()
    for sample, (reward, stance) in enumerate([(1.0, 1), (0.0, 1), (5.0, 0), (9.0, 0)]):
        written.add("p", sample, reward, stance=stance)
        written.add("q", sample, reward + 2, stance=stance)
    examples, _ = choose(written, baseline="role")
    # Stance 1: 1, 0, 3, 2 around 1.5. Stance 0: 5, 9, 7, 11 around 8.
    found = by_episode(examples)
    assert [found[f"a-p-{i}"] for i in range(4)] == [-0.5, -1.5, -3.0, 1.0]
    assert [found[f"a-q-{i}"] for i in range(4)] == [1.5, 0.5, -1.0, 3.0]
    scaled, _ = choose(written, baseline="role", scale_by_std=True)
    std_1, std_0 = math.sqrt(5 / 3), math.sqrt(20 / 3)
    assert by_episode(scaled)["a-p-1"] == pytest.approx(-1.5 / std_1)
    assert by_episode(scaled)["a-q-3"] == pytest.approx(3.0 / std_0)


def test_a_group_of_one_problem_on_the_role_s_baseline_needs_no_second_episode():
    written = Written().add("p", 0, 1.0).add("q", 0, 0.0)
    examples, counts = choose(written, baseline="role", group_size=1)
    assert by_episode(examples) == {"a-p-0": 0.5, "a-q-0": -0.5}
    assert counts == {"candidates": 1}


def test_a_problem_that_comes_twice_in_an_iteration_has_two_groups():
    written = Written().group("p", [0.0, 1.0, 0.0, 1.0, 8.0, 9.0, 8.0, 9.0])
    examples, counts = choose(written)
    assert {abs(e.advantage) for e in examples} == {0.5} and counts["candidates"] == 2


# What is left out


def test_groups_with_equal_rewards_are_left_out_and_counted():
    written = Written().group("p", REWARDS).group("same", [0.1 + 0.2, 0.3, 0.3, 0.3])
    examples, counts = choose(written)
    assert {e.problem for e in examples} == {"p"}
    assert counts == {"candidates": 2, "zero_variance_groups": 1, "zero_variance_episodes": 4}


def test_a_shift_trains_groups_with_equal_rewards_too_with_the_shift_as_advantage():
    written = Written().group("p", (1.0, 0.0)).group("right", [1.0] * 2).group("wrong", [0.0] * 2)
    examples, counts = choose(written.add("alone", 0, 1.0), advantage_shift=0.25)
    of = {problem: [] for problem in ("p", "right", "wrong")}
    for example in examples:
        of[example.problem].append(example.advantage)
    assert of == {"p": [0.75, -0.25], "right": [0.25] * 2, "wrong": [0.25] * 2}
    assert counts == {"candidates": 4, "small_groups": 1}  # one alone is compared with nothing


def test_failed_episodes_are_left_out_before_the_mean_is_taken():
    written = Written().group("p", (1.0, 0.0)).add("p", 2, 0.0, outcome="failed")
    examples, counts = choose(written)
    assert by_episode(examples) == {"a-p-0": 0.5, "a-p-1": -0.5}
    assert counts == {"candidates": 1, "failed_episodes": 1}


def test_an_episode_in_which_the_agent_never_acted_is_not_compared():
    written = Written().group("p", (1.0, 0.0))
    written.add("p", 2, 6.0, moves=("verifier",))  # it decided at once
    examples, counts = choose(written, AGENTS)
    assert by_episode([e for e in examples if e.agent == "prover"]) == {
        "a-p-0": 5.0,
        "a-p-1": -5.0,
    }
    assert len([e for e in examples if e.agent == "verifier"]) == 3
    assert counts == {"candidates": 2, "not_acted": 1}


def test_what_has_nothing_left_to_compare_with_is_left_out_and_counted():
    written = Written().add("p", 0, 1.0).add("p", 1, 0.0, outcome="failed")
    examples, counts = choose(written)
    assert examples == []
    assert counts == {"candidates": 1, "failed_episodes": 1, "small_groups": 1}


def test_no_rollouts_are_no_trajectories():
    assert choose(Written().tables())[0] == []
    nothing_admitted = OfProblems(Written().group("p", REWARDS).tables(shard=2), frozenset())
    assert choose(nothing_admitted) == ([], {"candidates": 0})


def test_of_some_problems_only_those_are_compared():
    played = Written().group("p", REWARDS).group("q", REWARDS[::-1]).tables(shard=3)
    examples, counts = choose(OfProblems(played, {"q"}))
    assert [e.advantage for e in examples] == [2.0, -1.0, -1.0, 0.0]
    assert {e.problem for e in examples} == {"q"} and counts == {"candidates": 1}


# What a trajectory is


def test_a_trajectory_has_the_agent_s_valid_answers_in_order_token_for_token():
    written = Written().group("p", REWARDS, invalid=(0,))
    example = choose(written)[0][1]
    assert example.generations == ("a-p-1-0-1", "a-p-1-2-0")
    first, last = example.turns
    assert (list(first.prompt_token_ids), list(first.completion_token_ids)) == ([1, 2, 0], [201, 7])
    assert (list(last.prompt_token_ids), list(last.completion_token_ids)) == ([1, 2, 2], [220, 7])
    assert [list(turn.logprobs) for turn in example.turns] == [[-0.5, -0.25]] * 2
    assert example.tokens == 10
    assert (example.agent, example.episode, example.problem) == ("verifier", "a-p-1", "p")
    assert (example.question_id, example.iteration, example.y) == ("q-p", 0, 1)
    assert example.reason == "baseline group"


def test_rollouts_without_recorded_tokens_are_refused_with_the_episode():
    written = Written().group("p", REWARDS, tokens=False)
    with pytest.raises(StageError, match=r"episode a-p-0: generation .* in a new run"):
        choose(written)


def test_rollouts_without_log_probabilities_leave_them_to_the_server():
    written = Written().group("p", REWARDS)
    for row in written.generations:
        row["completion_logprobs"] = None
    assert {turn.logprobs for e in choose(written)[0] for turn in e.turns} == {None}


# Laws

reward_lists = st.lists(
    st.one_of(st.sampled_from([0.0, 1.0, -1.0, 0.3]), st.floats(-100, 100)), min_size=2, max_size=9
)


@st.composite
def written_rollouts(draw):
    written = Written()
    for number in range(draw(st.integers(1, 4))):
        for sample in range(draw(st.integers(1, 2 * SIZE))):
            written.add(
                f"p{number}",
                sample,
                draw(st.sampled_from([0.0, 1.0, 0.5, -2.0])),
                stance=draw(st.sampled_from([None, 0, 1])),
                outcome=draw(st.sampled_from(["finished", "finished", "terminated", "failed"])),
                moves=draw(st.sampled_from([("verifier", "prover", "verifier"), ("verifier",)])),
                invalid=draw(st.sampled_from([(), (0,)])),
            )
    return written


baselines = st.sampled_from(["group", "leave_one_out", "role"])


def settings_of(baseline, scale):
    return PureTextGrpoParameters(group_size=SIZE, baseline=baseline, scale_by_std=scale)


@LAWS
@given(reward_lists, baselines, st.booleans())
def test_advantages_sum_to_zero_and_keep_the_order_of_the_rewards(rewards, baseline, scale):
    found = compute_advantages(rewards, settings_of(baseline, scale))
    if found is None:
        assert max(rewards) - min(rewards) <= 1e-9 * max(1.0, *map(abs, rewards))
        return
    assert math.fsum(found) == pytest.approx(0.0, abs=1e-9 * max(1.0, *map(abs, found)))
    order = sorted(range(len(rewards)), key=lambda i: rewards[i])
    assert [found[i] for i in order] == sorted(found)


@pytest.mark.parametrize("scale", [False, True])
def test_rewards_that_differ_by_rounding_teach_nothing(scale):
    """0.1 + 0.2 - 0.3 is not quite 0, which dividing by the deviation would make a whole one."""
    for rewards in ([0.0, 0.1 + 0.2 - 0.3], [0.9, 0.1 + 0.1 + 0.7, 0.9]):
        assert compute_advantages(rewards, settings_of("group", scale)) is None


def test_rewards_whose_squares_are_too_big_for_numbers_are_scaled_like_others():
    for size in (1e-8, 1.0, 1e300):
        found = compute_advantages([0.0, size], settings_of("group", True))
        assert found == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)])


@LAWS
@given(reward_lists)
def test_leave_one_out_takes_away_the_mean_of_the_others(rewards):
    found = compute_advantages(rewards, settings_of("leave_one_out", False))
    for i, advantage in enumerate(found or ()):
        others = rewards[:i] + rewards[i + 1 :]
        assert advantage == pytest.approx(
            rewards[i] - math.fsum(others) / len(others), rel=1e-9, abs=1e-9
        )


@LAWS
@given(written_rollouts(), baselines)
def test_advantages_sum_to_zero_over_each_group_of_a_dataset(written, baseline):
    sums = {}
    for example in choose(written, AGENTS, baseline=baseline)[0]:
        sums.setdefault(example.group_id, []).append(example.advantage)
    for found in sums.values():
        assert math.fsum(found) == pytest.approx(0.0, abs=1e-9)
        assert any(found)


@LAWS
@given(written_rollouts(), baselines)
def test_nothing_is_invented_and_every_candidate_is_accounted_for(written, baseline):
    examples, counts = choose(written, AGENTS, baseline=baseline)
    episodes = {e["key"]: e for e in written.episodes}
    rows = {g["key"]: g for g in written.generations}
    assert len({(e.episode, e.agent) for e in examples}) == len(examples)
    for example in examples:
        assert episodes[example.episode]["outcome"] != "failed"
        paid = {r["agent"]: r["reward"] for r in episodes[example.episode]["rewards"]}
        assert example.reward == paid[example.agent]
        own = [rows[key] for key in example.generations]
        assert all(r["episode"] == example.episode for r in own)
        assert all(r["agent"] == example.agent and r["invalid_reason"] is None for r in own)
        assert [r["round"] for r in own] == sorted({r["round"] for r in own})
        assert [list(t.completion_token_ids) for t in example.turns] == [
            r["completion_token_ids"] for r in own
        ]
    left = sum(counts.get(name, 0) for name in ("small_groups", "zero_variance_groups"))
    assert counts["candidates"] == left + len({e.group_id for e in examples})


@LAWS
@given(written_rollouts(), baselines, st.integers(0, 5), st.integers(1, 5))
def test_neither_the_order_of_the_rows_nor_the_shards_matter(written, baseline, order, shard):
    game = make_game(baseline=baseline)
    expected = choose(written, AGENTS, game)
    again = choose(written.tables(shard, order), AGENTS, game)
    assert sorted(again[0], key=lambda e: e.key) == sorted(expected[0], key=lambda e: e.key)
    assert again[1] == expected[1]
    assert choose(written.tables(shard), AGENTS, game)[0] == expected[0]  # the order of play


def test_two_runs_of_the_same_game_give_the_same_data_but_for_the_keys():
    one, other = Written("a").group("p", REWARDS), Written("b").group("p", REWARDS)
    mine, theirs = choose(one, AGENTS)[0], choose(other, AGENTS)[0]
    assert {e.key for e in mine}.isdisjoint(e.key for e in theirs)
    same = {"key": "", "episode": "", "generations": ()}
    assert [replace(e, **same) for e in mine] == [replace(e, **same) for e in theirs]
