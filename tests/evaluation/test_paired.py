"""A paired change: its interval excludes 0 exactly if its p-value is below 0.05."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_core.evaluation.metrics import paired_difference
from nip_core.evaluation.statistics.clustered import clustered_mean
from nip_core.evaluation.statistics.differences import sign_flips
from nip_core.evaluation.statistics.paired import compare_pairs

CHANGES = st.integers(-1, 1)
QUESTIONS = st.lists(st.lists(CHANGES, min_size=1, max_size=5), min_size=1, max_size=40)


def compare(questions):
    """Compare problems that changed by -1, 0 or 1, by question."""
    changes = np.array([change for rows in questions for change in rows], dtype=np.float64)
    clusters = np.repeat(np.arange(len(questions)), [len(rows) for rows in questions])
    totals = np.array([sum(rows) for rows in questions], dtype=np.float64)
    return changes, clusters, compare_pairs(changes, clusters, totals), totals


def play(episodes_of, *decisions):
    """Tables of right solutions, each a question, with these decisions."""
    return [
        episodes_of(*({"problem": f"p{k}", "decision": int(d)} for k, d in enumerate(word)))
        for word in decisions
    ]


@given(QUESTIONS)
def test_interval_and_p_agree_and_neither_is_surer_than_its_test(questions):
    changes, clusters, found, totals = compare(questions)
    assert found.p >= sign_flips(totals)
    student = clustered_mean(changes, clusters).interval()
    if found.interval is None:
        assert student is None
        return
    low, high = found.interval
    assert (low <= 0 <= high) == (found.p >= 0.05)
    assert low <= student[0] and high >= student[1]


@given(QUESTIONS)
def test_both_runs_the_other_way_around_say_the_same(questions):
    found, back = compare(questions)[2], compare([[-c for c in rows] for rows in questions])[2]
    assert back.p == pytest.approx(found.p)
    if found.interval is not None:
        assert [-bound for bound in back.interval[::-1]] == pytest.approx([*found.interval])


def test_twenty_problems_are_not_surer_in_one_place_than_in_the_other(episodes_of):
    # Eight became right and two wrong: the exact test says 0.11, a bootstrap excluded 0.
    before, after = play(episodes_of, "11" + "0" * 8 + "1" * 10, "00" + "1" * 8 + "1" * 10)
    found = paired_difference(before, after, 0)
    assert found.p == pytest.approx(0.109375)
    assert found.ci95[0] <= 0 < found.ci95[1]


def test_what_few_changes_all_in_one_way_show_is_what_the_exact_test_says(episodes_of):
    before, after = play(episodes_of, "0" * 5 + "1" * 95, "1" * 100)
    found = paired_difference(before, after, 0)
    # Student's t alone would exclude 0.
    assert found.p == pytest.approx(2 / 32) and found.ci95[0] == 0.0
