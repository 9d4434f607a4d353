"""What P(accept) says of a batch, against numbers counted by hand and a brute-force count."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_core.evaluation.acceptance_figures import measure_acceptance
from nip_core.evaluation.calibration import calibrate, measure_separation
from nip_core.evaluation.confidence_intervals import wilson
from nip_core.rollouts.acceptance import find_acceptance


def verdict(episode, decision, p, **more):
    return {"episode": episode, "agent": "verifier", "decision": decision, "p_accept": p, **more}


def test_an_episode_has_the_p_accept_of_the_answer_that_gave_its_verdict(
    episodes_of, generations_of
):
    episodes = episodes_of(
        {"decision": 1},
        {"decision": 0},  # replaced by the protocol: the verifier said otherwise
        {"decision": 1, "outcome": "failed"},
        {"decision": 2},
        {"decision": 1},  # its verdict has none, an earlier one had
        {"decision": 0},
    )
    generations = generations_of(
        verdict("e0", 1, 0.6, round=1),
        verdict("e0", 1, 0.9, round=3),
        verdict("e0", 1, 0.1, round=5, invalid_reason="two contradicting decisions"),
        {"episode": "e0", "agent": "prover", "round": 6, "decision": 1, "p_accept": 0.2},
        verdict("e1", 1, 0.8),
        verdict("e2", 1, 0.7),
        verdict("e3", 2, None),
        verdict("e4", 1, 0.5, round=1),
        verdict("e4", 1, None, round=2),
        verdict("e5", 0, 0.25),
    )
    found = [0.9, None, None, None, None, 0.25]
    assert find_acceptance(episodes, generations).to_pylist() == found
    backwards = generations.take(list(reversed(range(generations.num_rows))))
    assert find_acceptance(episodes, backwards).to_pylist() == found


def test_in_a_tree_each_leaf_has_the_p_accept_of_the_verdict_on_its_way(
    episodes_of, generations_of
):
    same = {"problem": "p", "decision": 1}
    paths = ("0.0", "0.1", "1.0")
    episodes = episodes_of(*({**same, "branch_path": path} for path in paths))
    generations = generations_of(
        verdict("e0", 1, 0.6, round=0, branch_path="0"),  # shared by the first two
        verdict("e1", 1, 0.8, round=1, branch_path="0.1"),
        verdict("e2", 1, 0.3, round=1, branch_path="1.0"),
    )
    assert find_acceptance(episodes, generations).to_pylist() == [0.6, 0.8, 0.3]


def test_p_accept_is_measured_as_by_hand(episodes_of, generations_of):
    said = [(1, 1, 0.9), (1, 0, 0.4), (0, 1, 0.9), (0, 0, 0.2)]
    episodes = episodes_of(*({"y": y, "decision": d} for y, d, _ in said), {"decision": 2})
    generations = generations_of(*(verdict(f"e{i}", d, p) for i, (_, d, p) in enumerate(said)))
    found = measure_acceptance(episodes, generations)
    assert found.episodes == 4
    assert found.mean_if_right == pytest.approx(0.65)
    assert found.mean_if_wrong == pytest.approx(0.55)
    assert found.brier == pytest.approx((0.01 + 0.36 + 0.81 + 0.04) / 4)
    assert found.brier_ci95[0] < found.brier < found.brier_ci95[1]
    # 0.2 and 0.4 in tenths of their own, both 0.9 together: |0.2 - 0|, |0.4 - 1|, 2 |0.9 - 0.5|.
    assert found.calibration_error == pytest.approx((0.2 + 0.6 + 0.8) / 4)
    assert found.auroc == pytest.approx((0.5 + 1 + 0 + 1) / 4)
    # By question the means are the same, and two questions leave more open than four.
    questions = {f"p{i}": f"q{i % 2}" for i in range(5)}
    alike = measure_acceptance(episodes, generations, questions=questions)
    assert alike.brier == found.brier and alike.brier_ci95 != found.brier_ci95


def test_without_p_accept_there_are_no_figures(episodes_of, generations_of):
    assert measure_acceptance(episodes_of({}), generations_of(verdict("e0", 1, None))) is None
    # Problems without a label have nothing to be compared with.
    unlabelled = episodes_of({"y": -1})
    assert measure_acceptance(unlabelled, generations_of(verdict("e0", 1, 0.5))) is None


CLAIMS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 0.3, 0.5, 0.75, 1.0]), st.integers(0, 1)), min_size=1
)


@given(CLAIMS)
def test_separation_is_the_share_of_pairs_in_the_right_order(said):
    claims, y = (np.array(column, dtype=np.float64) for column in zip(*said, strict=True))
    pairs = [(a, b) for a, at in said for b, bt in said if at == 1 and bt == 0]
    expected = sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs) if pairs else None
    found = measure_separation(claims, y)
    assert found is expected is None or math.isclose(found, expected)


@given(CLAIMS)
def test_what_is_always_so_as_often_as_it_is_said_has_no_calibration_error(said):
    claims, y = (np.array(column, dtype=np.float64) for column in zip(*said, strict=True))
    found = calibrate(np.full(len(y), y.mean()), y)
    assert found.error == pytest.approx(0) and found.episodes == len(y)
    (group,) = found.groups
    assert group.interval == wilson(float(y.sum()), len(y))
    whole = calibrate(claims, y)
    assert sum(group.episodes for group in whole.groups) == len(y)
    assert whole.brier == pytest.approx(float(np.mean((claims - y) ** 2)))
    assert calibrate(claims[::-1], y[::-1]) == whole
