"""The gate's rule: new models are taken unless they are worse by more than the margin."""

from dataclasses import asdict, replace

import pyarrow as pa
import pytest
from small_game import write_config

from nip_core.errors import DatasetError, SettingsError
from nip_core.evaluation.figures_in_words import gate_line
from nip_core.game.answer_rows import AnswerPlace
from nip_core.parameters import load_parameters
from nip_core.records.models import ServedModel
from nip_core.rollouts.plan import plan_episodes, replay_episodes
from nip_core.rollouts.storage.schema import EPISODES
from nip_core.session.problems_of_run import load_all_problems
from nip_core.stages.gating import compare_sides

BLANK = {
    "run": "a", "split": "validation", "iteration": 0, "sample": 0, "branch_path": "",
    "protocol": "nip", "question": "q", "solution": "s", "y": 1, "seed": 0, "rounds": 1,
    "outcome": "finished",
}  # fmt: skip


def side(right: int, of: int = 10, reward: float = 1.0, outcome: str = "finished") -> pa.Table:
    """Episodes of `of` problems; the verifier is right on the first `right`, and paid for it."""
    rows = [
        {**BLANK, "key": f"{i}", "problem": f"p{i}", "question_id": f"q{i}", "outcome": outcome,
         "decision": int(i < right),
         "rewards": [{"agent": "verifier", "reward": reward * (i < right)},
                     {"agent": "prover", "reward": 7.0}]}
        for i in range(of)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, EPISODES)


@pytest.mark.parametrize(
    ("old", "new", "margin", "promoted"),
    [
        (6, 7, 0.0, True),
        (6, 6, 0.0, True),
        (6, 5, 0.0, False),
        (8, 7, 0.1, True),  # 0.8 - 0.1 is a little more than 0.7
        (8, 6, 0.1, False),
        (8, 6, 0.19, False),
        (8, 6, 0.2, True),
        (9, 0, 1.0, True),
    ],
)
def test_new_models_may_be_worse_by_the_margin_and_no_more(old, new, margin, promoted):
    found = compare_sides(side(old), side(new), "accuracy", margin, 3)
    assert found.promoted is promoted
    assert (found.validation, found.candidate) == (old / 10, new / 10)
    assert found.difference == pytest.approx((new - old) / 10)
    assert (found.margin, found.problems, found.metric) == (margin, 10, "accuracy")


def test_the_difference_is_paired_and_has_its_interval():
    """Five of ten problems went better, which is not beyond chance by the exact test (p = 1/16)."""
    found = compare_sides(side(4), side(9), "accuracy", 0.0, 0)
    assert found.difference == 0.5
    assert found.ci95 == pytest.approx((0.0, 0.877), abs=1e-3)
    same = compare_sides(side(4), side(4), "accuracy", 0.0, 0)
    assert (same.difference, same.ci95) == (0.0, (0.0, 0.0))


def test_the_verifiers_reward_can_be_what_counts():
    found = compare_sides(side(6, reward=1.0), side(5, reward=2.0), "verifier_reward", 0.0, 0)
    assert (found.promoted, found.validation, found.candidate) == (True, 0.6, 1.0)


def test_candidates_whose_episodes_fail_are_wrong_in_them():
    found = compare_sides(side(5), side(10, outcome="failed"), "accuracy", 0.4, 0)
    assert (found.promoted, found.candidate) == (False, 0.0)


def test_other_problems_on_the_two_sides_are_refused():
    with pytest.raises(DatasetError, match="needs the same problems"):
        compare_sides(side(5), side(5, of=9), "accuracy", 0.0, 0)


def test_the_record_names_the_models_that_were_not_taken():
    model = ServedModel("ft:a", "a", trained_in=3, job_id="j", digest="d")
    decision = compare_sides(side(5), side(4), "accuracy", 0.0, 0)
    found = asdict(replace(decision, candidates={"verifier": model}))
    assert found["promoted"] is False
    assert found["ci95"] == pytest.approx((-0.326, 0.126), abs=1e-3)
    candidate = found["candidates"]["verifier"]
    assert (candidate["model"], candidate["digest"], candidate["trained_in"]) == ("ft:a", "d", 3)


GATE = {"enabled": True, "episodes": 8}


def test_both_sides_play_the_same_problems_with_the_same_seeds(tmp_path):
    parameters = load_parameters(write_config(tmp_path, promotion=GATE))
    problems = load_all_problems(parameters)["validation"]
    old = plan_episodes(parameters, problems, "validation", 2)
    new = replay_episodes(old, "candidate")
    assert [s.problem for s in new] == [s.problem for s in old] and len(new) == 8
    assert [(s.seed, s.stance) for s in new] == [(s.seed, s.stance) for s in old]
    call = (1, "verifier", 0)
    seeds = [[s.generation_seed(5, AnswerPlace(*call)) for s in specs] for specs in (old, new)]
    assert seeds[0] == seeds[1] and len(set(seeds[0])) == 8
    keys = {s.key for s in (*old, *new)} | {
        s.generation_key(AnswerPlace(*call)) for s in (*old, *new)
    }
    assert len(keys) == 32 and {s.split for s in new} == {"candidate"}


def test_as_many_validation_problems_are_played_as_asked_and_half_of_them_are_right(tmp_path):
    def played(**promotion):
        config = write_config(tmp_path, promotion={"enabled": True, **promotion})
        return load_all_problems(load_parameters(config))

    some, more, every = played(episodes=8), played(episodes=20), played()
    assert len(some["validation"]) == 8 and sum(p.y for p in some["validation"]) == 4
    ids = [{p.id for p in problems["validation"]} for problems in (some, more, every)]
    assert ids[0] < ids[1] < ids[2]  # drawn by a stable hash
    assert not ids[2] & {p.id for split in ("train", "test") for p in every[split]}


@pytest.mark.parametrize("is_one_file", [True, False])
def test_a_dataset_needs_no_problems_that_nobody_plays(tmp_path, is_one_file):
    """A column `split` without validation; a split of ten questions of which none is held out."""
    rows = [
        f'{{"question": "{split} {i}", "solution": "s{i}", "y": {i % 2}, "split": "{split}"}}\n'
        for split in ("train", "test")
        for i in range(2)
    ]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("".join(rows[:2]))
    (tmp_path / "data" / "test.jsonl").write_text("".join(rows[2:]))
    (tmp_path / "own.jsonl").write_text("".join(rows))
    dataset = tmp_path / ("own.jsonl" if is_one_file else "data")
    problems = load_all_problems(load_parameters(write_config(tmp_path, dataset=str(dataset))))
    assert {split: len(of) for split, of in problems.items()} == dict(train=2, validation=0, test=2)


def test_a_misspelt_split_is_named_also_where_nobody_plays_the_one_that_lacks(tmp_path):
    rows = [
        f'{{"question": "{split} {i}", "solution": "s{i}", "y": {i % 2}, "split": "{split}"}}\n'
        for split in ("train", "tset")
        for i in range(2)
    ]
    (tmp_path / "own.jsonl").write_text("".join(rows))
    config = write_config(tmp_path, dataset=str(tmp_path / "own.jsonl"))
    with pytest.raises(
        DatasetError, match="the column split has tset; the splits are called train"
    ):
        load_all_problems(load_parameters(config))


def test_a_dataset_without_problems_to_choose_by_is_refused(tmp_path):
    rows = [
        f'{{"question": "{split} {i}", "solution": "s{i}", "y": {i % 2}, "split": "{split}"}}'
        for split in ("train", "test")
        for i in range(4)
    ]
    (tmp_path / "own.jsonl").write_text("\n".join(rows))
    config = write_config(tmp_path, dataset=str(tmp_path / "own.jsonl"), promotion=GATE)
    with pytest.raises(
        DatasetError, match="no row has 'validation' in the column split, which has test, train"
    ):
        load_all_problems(load_parameters(config))


def test_what_is_tested_on_is_not_chosen_by(tmp_path):
    config = write_config(tmp_path, promotion=GATE, test_dataset_split="validation")
    with pytest.raises(SettingsError, match=r"promotion\.enabled"):
        load_parameters(config)


def test_variants_of_one_question_are_told_apart_from_questions():
    """The decision is the same; the interval is by question, and there is none of one alone."""
    old, new = (side(right).to_pylist() for right in (6, 7))
    for question in (1, 5):
        tables = [
            pa.Table.from_pylist(
                [{**row, "question_id": f"q{k % question}"} for k, row in enumerate(rows)], EPISODES
            )
            for rows in (old, new)
        ]
        decision = compare_sides(*tables, "accuracy", 0.0, 0)
        assert decision.promoted and decision.difference == pytest.approx(0.1)
        shown = gate_line(decision)
        if question == 1:
            assert decision.ci95 is None and "no interval: one question" in shown
        else:
            low, high = decision.ci95
            assert low < 0 < high and f"95 % interval {100 * low:+.1f} to " in shown
