"""Intervals by question in the metrics of a batch, and what is told of the difference of two."""

import json

import numpy as np
import pytest

from nip_core.evaluation.confidence_intervals import wilson
from nip_core.evaluation.interval_parts import pick_intervals, replace_intervals
from nip_core.evaluation.metrics import evaluate, paired_difference
from nip_core.evaluation.spread import find_questions
from nip_core.evaluation.statistics.clustered import clustered_mean, clustered_rate


def variants(right: list[int], plays: int = 1) -> list[dict]:
    """Eight variants of a question each, of which so many are decided rightly; half have bugs."""
    return [
        {
            "problem": f"q{question}-{k}", "question_id": f"q{question}", "y": k % 2,
            "decision": k % 2 if k < hits else 1 - k % 2, "sample": play, "key": f"{question}{k}{play}",
            "rewards": {"verifier": float(k < hits)},
        }
        for question, hits in enumerate(right) for k in range(8) for play in range(plays)
    ]  # fmt: skip


def test_without_variants_both_say_the_same(episodes_of) -> None:
    table = episodes_of(
        *[{"decision": int(k % 3 > 0), "rewards": {"verifier": k / 7}} for k in range(30)]
    )
    by_problem = evaluate(table, None, seed=3)
    assert evaluate(table, None, seed=3, questions=find_questions(table)) == by_problem
    trees = episodes_of(
        *[{"problem": f"p{k // 2}", "question_id": f"q{k // 2}", "branch_path": f"0.{k % 2}",
           "decision": int(k % 3 > 0)} for k in range(12)]
    )  # fmt: skip
    assert evaluate(trees, None, questions=find_questions(trees)) == evaluate(trees, None)


def test_variants_of_a_question_count_as_one_another(episodes_of) -> None:
    right = [8, 8, 0, 8, 0, 8, 8, 8, 0, 8]
    table = episodes_of(*variants(right))
    by_problem = evaluate(table, None)
    by_question = evaluate(table, None, questions=find_questions(table))
    assert by_problem.accuracy_ci95 == wilson(56, 80)
    clusters = np.repeat(np.arange(10), 8)
    hits = np.repeat(np.array(right) == 8, 8)
    assert by_question.accuracy_ci95 == clustered_rate(hits, clusters)
    low, high = by_question.accuracy_ci95
    assert high - low > 2 * (by_problem.accuracy_ci95[1] - by_problem.accuracy_ci95[0])
    mean = clustered_mean(hits.astype(float), clusters)
    assert by_question.agents["verifier"].mean_reward_ci95 == mean.interval()
    # In the breakdowns and for other shares of the rows, too.
    assert by_question.by_mutation["none"].accuracy_ci95 != wilson(28, 40)
    assert by_question.soundness_ci95 == clustered_rate(hits[::2], clusters[::2])
    assert by_question.accuracy == 0.7


def test_plays_of_a_problem_count_as_variants(episodes_of) -> None:
    table = episodes_of(*variants([8, 0, 4, 8, 6], plays=3))
    by_question = evaluate(table, None, questions=find_questions(table))
    assert by_question.agreement_ci95 == wilson(5, 5)
    low, high = by_question.always_fail_rate_ci95
    assert low < by_question.always_fail_rate < high


def test_problems_about_one_text_count_as_one_where_the_scenario_splits_by_it(episodes_of) -> None:
    passages = [{"columns": json.dumps({"passage": f"text {k // 3}"})} for k in range(6)]
    table = episodes_of(*passages)
    assert len({*find_questions(table).values()}) == 6
    assert len({*find_questions(table, ("article_id", "passage")).values()}) == 2
    assert find_questions(table, ("question",)) == find_questions(table)
    with_null = episodes_of({"columns": None})
    assert find_questions(with_null, ("passage",)) == {"p0": "id q0"}


def test_intervals_apart_from_metrics_make_them_whole_again(episodes_of) -> None:
    table = episodes_of(*variants([8, 8, 0, 8, 1, 7]))
    by_problem = evaluate(table, None).as_json()
    by_question = evaluate(table, None, questions=find_questions(table)).as_json()
    apart = pick_intervals(by_question, by_problem)
    assert replace_intervals(by_problem, apart) == by_question
    assert "accuracy" not in apart and "verifier" in apart["agents"]
    assert pick_intervals(by_problem, by_problem) == {}
    # Metrics of an earlier version have fewer numbers.
    older = {"accuracy": 0.5, "accuracy_ci95": [0.4, 0.6]}
    assert [*replace_intervals(older, apart)] == [*older]


def test_a_paired_difference_of_variants_is_by_question(episodes_of) -> None:
    before = episodes_of(*variants([8, 0, 4, 2, 6, 0]))
    after = episodes_of(*variants([8, 8, 8, 2, 8, 8]))
    paired = paired_difference(before, after, 0)
    changes = np.array([0, 8, 4, 0, 2, 8])
    mean = clustered_mean(changes / 8, np.arange(6))
    assert paired.difference == pytest.approx(22 / 48)
    assert paired.ci95 == pytest.approx(mean.interval())
    assert (paired.problems, paired.questions) == (48, 6)
    # Four questions changed, all for the better: two of sixteen ways to flip them are as extreme.
    assert paired.p == pytest.approx(2 / 16)
    assert paired_difference(after, before, 0).p == paired.p
    assert paired_difference(before, after, 0, reward_of="verifier").p is None


def test_a_paired_difference_of_one_question_has_no_interval(episodes_of) -> None:
    before, after = (episodes_of(*variants([hits])) for hits in (3, 6))
    paired = paired_difference(before, after, 0)
    assert paired.ci95 is None and paired.p == 1.0
    twice = episodes_of(*variants([6], plays=2))
    assert paired_difference(before, twice, 0).p is None
