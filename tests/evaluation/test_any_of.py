"""Rejecting where any of k plays rejects: counted without bias, whichever plays came first."""

from itertools import combinations

import pytest

from nip_core.evaluation.any_of import any_of, count_right_choices

REJECT, ACCEPT, NONE = 0, 1, 2
PLAYS = {
    ("p0", 0): [ACCEPT, REJECT, ACCEPT, NONE],
    ("p1", 0): [ACCEPT] * 4,
    ("p2", 1): [ACCEPT, NONE, REJECT, ACCEPT],
    ("p3", 1): [NONE, NONE, ACCEPT, NONE],
}


def rows(plays=PLAYS):
    return [
        {"key": f"{problem}-{k}", "problem": problem, "question_id": f"q-{problem}", "y": y, "sample": k, "decision": decision}
        for (problem, y), decisions in plays.items() for k, decision in enumerate(decisions)
    ]  # fmt: skip


def by_hand(decisions, y, k):
    """The mean over all choices of k plays."""
    right = []
    for chosen in combinations(decisions, k):
        decided = REJECT if REJECT in chosen else ACCEPT if ACCEPT in chosen else NONE
        right.append(decided == y)
    return sum(right) / len(right)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_each_k_is_the_mean_over_all_choices_of_k_plays(episodes_of, k):
    row = any_of(episodes_of(*rows()))[k - 1].as_json()
    means = {key: by_hand(decisions, key[1], k) for key, decisions in PLAYS.items()}
    assert row["k"] == k
    for rate, labels in {"soundness": (0,), "completeness": (1,), "accuracy": (0, 1)}.items():
        expected = [mean for (_, y), mean in means.items() if y in labels]
        assert row[rate] == pytest.approx(sum(expected) / len(expected))
        low, high = row[f"{rate}_ci95"]
        assert 0 <= low <= row[rate] <= high <= 1


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_the_majority_of_k_plays_is_the_mean_over_all_choices_too(episodes_of, k):
    counted = count_right_choices(episodes_of(*rows()))
    for (problem, y), decisions in PLAYS.items():
        leads = [c.count(ACCEPT) - c.count(REJECT) for c in combinations(decisions, k)]
        right = sum(lead > 0 if y else lead < 0 for lead in leads)
        assert counted[problem].voted[k - 1] == pytest.approx(right / len(leads))


def test_the_order_of_plays_changes_nothing(episodes_of):
    backwards = {key: decisions[::-1] for key, decisions in PLAYS.items()}
    assert any_of(episodes_of(*rows())) == any_of(episodes_of(*rows(backwards)))


def test_a_failed_play_rejects_nothing(episodes_of):
    failed = [row | {"outcome": "failed"} for row in rows({("p", 0): [REJECT, REJECT]})]
    assert count_right_choices(episodes_of(*failed))["p"].right.tolist() == [0.0, 0.0]


def test_tokens_grow_with_k_and_problems_count_for_the_fewest_plays(episodes_of, generations_of):
    plays = {("p0", 0): [ACCEPT, REJECT, ACCEPT], ("p1", 1): [ACCEPT, ACCEPT]}
    episodes = episodes_of(*rows(plays))
    spoken = generations_of(*({"episode": key} for key in episodes["key"].to_pylist()))
    found = any_of(episodes, spoken)
    assert [row.k for row in found] == [1, 2]
    assert [row.soundness for row in found] == [pytest.approx(1 / 3), pytest.approx(2 / 3)]
    assert [row.generated_tokens for row in found] == [3, 6]
    assert [row.prompt_tokens for row in found] == [10, 20]


def test_of_problems_that_are_played_once_nothing_is_said(episodes_of):
    assert any_of(episodes_of({}, {})) is None
    assert any_of(episodes_of()) is None
