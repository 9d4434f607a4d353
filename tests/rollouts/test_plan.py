"""Laws of the plan: endless passes, identities, seeds, shards."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_core.game.answer_rows import AnswerPlace
from nip_core.parameters import load_parameters
from nip_core.protocols import make_protocol
from nip_core.rollouts.plan import cut_into_shards, plan_episodes, shuffle_labels
from nip_core.scenarios import Problem

LAWS = settings(max_examples=60, deadline=None)


def parameters(**changes):
    return load_parameters({"run_name": "a", "dataset": "x", **changes})


def per_iteration(count, **changes):
    return parameters(rl={"rollouts_per_iteration": count}, **changes)


def problems(count):
    return [
        Problem(f"p{i}", f"q{i}", f"question {i}", f"solution {i}", i % 2, "easy", None)
        for i in range(count)
    ]


def ids(specs):
    return [spec.problem.id for spec in specs]


# Training: an endless sequence of shuffled passes


@LAWS
@given(st.integers(1, 23), st.integers(1, 40), st.integers(1, 6), st.integers(0, 2**31 - 1))
def test_each_problem_is_played_once_before_any_is_played_twice(size, count, iterations, seed):
    settings_ = per_iteration(count, seed=seed)
    played = []
    for iteration in range(iterations):
        specs = plan_episodes(settings_, problems(size), "train", iteration)
        assert len(specs) == count and {s.iteration for s in specs} == {iteration}
        played += specs
    for pass_, start in enumerate(range(0, len(played), size)):
        part = played[start : start + size]
        assert len(set(ids(part))) == len(part)
        assert {spec.sample for spec in part} == {pass_}


@LAWS
@given(st.integers(2, 30), st.integers(1, 15))
def test_iterations_are_disjoint_until_the_pass_is_over(size, count):
    seen = set()
    for iteration in range(size // count):
        now = set(ids(plan_episodes(per_iteration(count), problems(size), "train", iteration)))
        assert len(now) == count and not now & seen
        seen |= now
    assert len(seen) == size - size % count


def test_every_pass_and_every_seed_has_an_order_of_its_own():
    first, second = (
        ids(plan_episodes(per_iteration(30), problems(30), "train", i)) for i in (0, 1)
    )
    other = ids(plan_episodes(per_iteration(30, seed=7), problems(30), "train", 0))
    assert sorted(first) == sorted(second) == sorted(other)
    assert len({tuple(order) for order in (first, second, other, sorted(first))}) == 4


def test_without_a_number_an_iteration_is_one_pass():
    specs = plan_episodes(per_iteration(None), problems(9), "train", 2)
    assert sorted(ids(specs)) == sorted(p.id for p in problems(9))
    assert {spec.sample for spec in specs} == {2}


# Groups of episodes that are compared


def in_groups(size, count, **changes):
    hosted = {"model_provider": "SelfHosted", "fine_tune_from_scratch": False}
    compared = {"group_size": size, "baseline": "group" if size > 1 else "role"}
    return per_iteration(
        count,
        trainer="pure_text_grpo",
        pure_text_grpo=compared,
        agents={"_default": hosted},
        **changes,
    )


@LAWS
@given(st.integers(1, 9), st.integers(1, 12), st.integers(2, 5), st.integers(1, 4))
def test_groups_take_the_problems_in_the_same_endless_passes(size, groups, members, iterations):
    asked = in_groups(members, groups * members)
    for iteration in range(iterations):
        specs = plan_episodes(asked, problems(size), "train", iteration)
        single = plan_episodes(per_iteration(groups), problems(size), "train", iteration)
        assert ids(specs) == [spec.problem.id for spec in single for _ in range(members)]
        places = [(spec.problem.id, spec.sample) for spec in specs]
        assert len(set(places)) == len(specs) == groups * members
        assert len({spec.key for spec in specs}) == len(specs)
        assert [s.sample for s in specs] == [
            spec.sample * members + member for spec in single for member in range(members)
        ]


def test_without_a_number_an_iteration_plays_every_problem_as_one_group():
    specs = plan_episodes(in_groups(3, None), problems(7), "train", 1)
    assert Counter(ids(specs)) == {f"p{i}": 3 for i in range(7)}


def test_the_episodes_of_a_group_differ_only_in_what_is_generated():
    drawn = {"randomize_prover_stance": True}
    asked = in_groups(4, 60, protocol_common=drawn)
    specs = plan_episodes(asked, problems(12), "train", 0)
    groups = [specs[i : i + 4] for i in range(0, 60, 4)]
    assert all(len({(s.seed, s.stance, s.problem.id) for s in group}) == 1 for group in groups)
    # A problem that comes again has a situation of its own.
    assert len({group[0].seed for group in groups}) == 15
    seeds = [seed for spec in specs for _, seed in calls(spec, 5)]
    assert len(set(seeds)) == len(seeds)
    keys = [key for spec in specs for key, _ in calls(spec, 5)]
    assert len(set(keys)) == len(keys)


def test_one_prover_speaks_in_all_episodes_of_a_group():
    asked = in_groups(4, 40, interaction_protocol="merlin_arthur")
    protocol = make_protocol(asked)
    specs = plan_episodes(asked, problems(10), "train", 0)
    groups = [specs[i : i + 4] for i in range(0, 40, 4)]
    speakers = [{protocol.speaker(spec.seed) for spec in group} for group in groups]
    assert all(len(speaker) == 1 for speaker in speakers)
    assert set.union(*speakers) == {"prover0", "prover1"}


@pytest.mark.parametrize("split", ["test", "validation"])
def test_groups_are_for_training_alone(split):
    assert plan_episodes(in_groups(4, 8), problems(9), split, 1) == plan_episodes(
        per_iteration(8), problems(9), split, 1
    )


def test_groups_of_one_are_the_episodes_of_the_other_trainers():
    assert plan_episodes(in_groups(1, 8), problems(5), "train", 2) == plan_episodes(
        per_iteration(8), problems(5), "train", 2
    )


# Tests: every problem, as often as asked


@LAWS
@given(st.integers(1, 20), st.integers(1, 4), st.sampled_from(["test", "validation"]))
def test_tests_play_every_problem_as_often_as_asked(size, times, split):
    asked = parameters(rl={"num_test_iterations": times, "rollouts_per_iteration": 3})
    specs = plan_episodes(asked, problems(size), split, 1)
    assert Counter((s.problem.id, s.sample) for s in specs) == {
        (f"p{i}", sample): 1 for i in range(size) for sample in range(times)
    }
    assert {(s.split, s.iteration) for s in specs} == {(split, 1)}


def test_a_partial_test_plays_the_same_part_in_every_iteration():
    asked = per_iteration(5, text_rl={"test_on_whole_dataset": False})
    parts = [ids(plan_episodes(asked, problems(20), "test", i)) for i in range(3)]
    assert parts[0] == parts[1] == parts[2] and len(set(parts[0])) == 5
    assert ids(plan_episodes(asked, problems(20)[::-1], "test", 0)) == parts[0]


# Identity


@LAWS
@given(st.permutations(problems(8)), st.sampled_from(["train", "validation", "test"]))
def test_the_order_of_the_problems_does_not_matter(shuffled, split):
    asked = per_iteration(11)
    for iteration in (0, 1):
        assert plan_episodes(asked, shuffled, split, iteration) == plan_episodes(
            asked, problems(8), split, iteration
        )


def all_specs(asked):
    return [
        spec
        for split in ("train", "validation", "test")
        for iteration in range(4)
        for spec in plan_episodes(asked, problems(7), split, iteration)
    ]


def calls(spec, seed):
    places = [
        AnswerPlace(r, agent, a)
        for r in range(3)
        for agent in ("prover", "verifier")
        for a in (0, 1)
    ]
    return [(spec.generation_key(place), spec.generation_seed(seed, place)) for place in places]


def test_seeds_do_not_depend_on_the_runs_name_but_keys_do():
    one, other = (all_specs(per_iteration(10, run_name=name)) for name in ("one", "other"))
    for a, b in zip(one, other, strict=True):
        assert (a.problem, a.seed, a.sample, a.stance) == (b.problem, b.seed, b.sample, b.stance)
        assert a.key != b.key
        for (key_a, seed_a), (key_b, seed_b) in zip(calls(a, 5), calls(b, 5), strict=True):
            assert seed_a == seed_b and key_a != key_b


def test_no_two_episodes_and_no_two_calls_share_a_key():
    specs = all_specs(per_iteration(10))
    assert len({spec.key for spec in specs}) == len(specs)
    keys = [key for spec in specs for key, _ in calls(spec, 5)]
    assert len(set(keys)) == len(keys)
    # Seeds have 31 bits: a few hundred of them do not meet by chance.
    seeds = [seed for spec in specs for _, seed in calls(spec, 5)]
    assert len(set(seeds)) == len(seeds)


def test_another_seed_of_the_run_gives_other_seeds_everywhere():
    by_key = {s.key: s for s in all_specs(per_iteration(7, seed=1))}
    others = {s.key: s for s in all_specs(per_iteration(7, seed=2))}
    assert by_key.keys() == others.keys()
    assert all(by_key[key].seed != others[key].seed for key in by_key)
    for spec in by_key.values():
        pairs = zip(calls(spec, 1), calls(spec, 2), strict=True)
        assert all(a[0] == b[0] and a[1] != b[1] for a, b in pairs)


def test_identities_are_the_ones_that_older_runs_have_on_disk():
    """Changing any of these makes a run that is under way pay again for what it has."""
    [spec] = plan_episodes(per_iteration(1), problems(1), "train", 3)
    assert spec.sample == 3
    assert (spec.key, spec.seed) == ("vM7rmaX9vHpesaDl", 633538045)
    assert spec.generation_key(AnswerPlace(2, "verifier", 1)) == "A_Jhp_mAepbdW6C2"
    assert spec.generation_seed(6198, AnswerPlace(2, "verifier", 1)) == 430492458


# Stances and labels


def test_a_drawn_stance_belongs_to_the_solution_alone():
    drawn = {"randomize_prover_stance": True}
    specs = [
        spec
        for seed in (1, 2)
        for split in ("train", "test")
        for spec in plan_episodes(
            per_iteration(40, seed=seed, protocol_common=drawn), problems(40), split, seed
        )
    ]
    by_solution = {}
    for spec in specs:
        by_solution.setdefault(spec.problem.solution, set()).add(spec.stance)
    assert all(len(stances) == 1 for stances in by_solution.values())
    assert 10 < sum(stances == {1} for stances in by_solution.values()) < 30


def test_without_that_setting_there_is_no_drawn_stance():
    assert {spec.stance for spec in all_specs(per_iteration(10))} == {None}


def test_shuffled_labels_say_nothing_about_the_truth():
    truth = problems(400)
    shuffled = shuffle_labels(truth, 5)
    assert [p.id for p in shuffled] == [p.id for p in truth]
    assert {p.y for p in shuffled} == {0, 1}
    assert 160 < sum(a.y == b.y for a, b in zip(truth, shuffled, strict=True)) < 240
    assert shuffle_labels(truth[::-1], 5) == shuffled[::-1]
    assert shuffle_labels(truth, 6) != shuffled


# Shards


@LAWS
@given(st.integers(0, 60), st.integers(1, 25))
def test_shards_hold_every_episode_once_and_only_the_last_is_smaller(size, most):
    specs = plan_episodes(per_iteration(size), problems(7), "train", 0) if size else []
    parts = cut_into_shards(specs, most)
    assert [spec for shard in parts for spec in shard] == specs
    assert all(len(shard) == most for shard in parts[:-1])
    assert all(1 <= len(shard) <= most for shard in parts)


@pytest.mark.parametrize("most", [1, 5, 20, 100])
def test_the_size_of_shards_changes_no_episode(most):
    cut_small = per_iteration(20, rollouts={"episodes_per_shard": most})
    assert plan_episodes(cut_small, problems(9), "train", 1) == plan_episodes(
        per_iteration(20), problems(9), "train", 1
    )
