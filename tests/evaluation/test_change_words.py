"""What differs is said with its figures: what it is, what it was, and how sure that is."""

from dataclasses import replace

import pytest

from nip_core.evaluation.change_words import describe_changes, describe_pairs
from nip_core.evaluation.verdict_changes import RateChange, VerdictChanges

SURE = RateChange(0.55, 1.0, (0.395, 0.49), 400)
NOISE = RateChange(0.51, 0.4825, (-0.09, 0.03), 400)
CHANGES = VerdictChanges(400, 400, 400, SURE, NOISE, {"prover": SURE}, 177, 4, 0)
INTERVAL = "95\u202f% interval"
POINTS = "+45.0\u202fpts"


def test_what_it_was_stands_beside_what_it_is():
    assert describe_pairs(CHANGES) == "400 episodes"
    several = replace(CHANGES, problems=200, questions=20)
    assert describe_pairs(several) == "400 episodes (200 problems of 20 questions)"
    assert describe_changes(CHANGES, with_accuracy=False) == [
        "The verifier follows the prover in 100.0\u202f% of episodes; it was 55.0\u202f% "
        f"({POINTS}, {INTERVAL} +39.5 to +49.0).",
        "It accepts in 48.2\u202f% of episodes; it was 51.0\u202f% (−2.8\u202fpts, no clear "
        f"change, {INTERVAL} −9.0 to +3.0).",
        "177 verdicts became right, 4 became wrong.",
    ]


def test_of_two_runs_none_is_said_to_be_the_earlier():
    lines = describe_changes(CHANGES, ("a@2", "b@2"))
    assert lines[0].startswith(
        "The verifier follows the prover in 100.0\u202f% of episodes in b@2 and 55.0\u202f% in a@2 ("
    )
    assert "no clear difference" in lines[1]
    assert lines[2].startswith(
        "It is right in 100.0\u202f% of episodes in b@2 and 55.0\u202f% in a@2"
    )
    assert lines[-1] == "Verdicts that are right in one only: 177 in b@2 alone, 4 in a@2 alone."
    assert "was" not in " ".join(lines) and "became" not in " ".join(lines)


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (
            RateChange(0.5, 0.5, (-0.1, 0.1), 400),
            "50.0\u202f% of episodes, as before (+0.0\u202fpts, no clear",
        ),
        (RateChange(0.5, 1.0, None, 400), "(+50.0\u202fpts, no interval: one question)"),
        (RateChange(0.0, 1.0, (1.0, 1.0), 400), "(+100.0\u202fpts, the same on each problem)"),
        (RateChange(0.5, 0.75, (0.1, 0.4), 12), "+10.0 to +40.0, over 12 of the episodes)"),
    ],
)
def test_how_sure_a_difference_is_stands_behind_it(rate, words):
    assert words in describe_changes(replace(CHANGES, acceptance=rate))[1]


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ((1, 0, 0), "1 verdict became right, 0 became wrong."),
        ((0, 0, 0), "No verdict became right or wrong."),
        ((0, 0, 3), "No verdict became right or wrong. 3 changed from wrong to wrong."),
        (
            (2, 1_234, 1),
            "2 verdicts became right, 1,234 became wrong. 1 changed from wrong to wrong.",
        ),
    ],
)
def test_verdicts_that_changed_are_counted(counts, words):
    mended, broken, other = counts
    changed = replace(CHANGES, mended=mended, broken=broken, other=other)
    assert describe_changes(changed)[-1] == words


def test_without_labels_nothing_is_called_right():
    lines = describe_changes(replace(CHANGES, accuracy=None, other=7))
    assert lines[-1] == "7 verdicts changed."
    assert "right" not in " ".join(lines)


def test_several_provers_are_named():
    lines = describe_changes(replace(CHANGES, follows={"prover0": SURE, "prover1": NOISE}))
    assert "follows prover0 in 100.0" in lines[0] and "follows prover1 in 48.2" in lines[1]
