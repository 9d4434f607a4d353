"""An attack's soundness stands beside a theorem's, and beside the untrained verifier's."""

import math
from itertools import product

import pytest

from nip_core.attack_figures.controls import measure_guarantee, take_control
from nip_core.attack_figures.metrics_document import ShownAttack, UntrainedControl
from nip_core.attack_figures.sentences import loss_sentences
from nip_core.evaluation.confidence_intervals import wilson, wilson_of_rate
from nip_core.evaluation.statistics.guaranteed import count_trials, p_below


@pytest.mark.parametrize(("right", "trials"), product((0, 1, 150, 263, 300), (300,)))
def test_the_test_against_a_guarantee_is_the_binomial_one(right, trials):
    found = count_trials(right / trials, wilson(right, trials))
    assert found == trials
    tail = sum(math.comb(trials, k) * 0.875**k * 0.125 ** (trials - k) for k in range(right + 1))
    assert p_below(right / trials, found, 0.875) == pytest.approx(tail, rel=1e-9, abs=1e-300)


def test_an_interval_by_question_is_of_as_many_trials_as_its_width_says():
    assert count_trials(0.4, wilson_of_rate(0.4, 37.25)) == pytest.approx(37.25, rel=1e-6)


def shown(soundness=0.77, **more):
    row = {
        "n": 1,
        "soundness": soundness,
        "soundness_ci95": wilson(round(soundness * 300), 300),
        "completeness": 0.9,
        "completeness_ci95": None,
    }
    return ShownAttack.model_validate({"by_n": [row], **more})


def test_a_verifier_is_said_to_be_below_a_guarantee_only_beyond_chance():
    for soundness, words in (
        (0.77, "This one keeps 77.0 %: below that (one-sided p < 0.0001)."),
        (0.86, "This one keeps 86.0 %: not below that beyond chance (one-sided p = 0.24)."),
    ):
        attack = shown(soundness)
        beside = attack.model_copy(update={"guarantee": measure_guarantee(attack, 0.875)})
        assert loss_sentences(beside)[-1] == (
            f"Guaranteed to a verifier that checks all it can, against any prover: 87.5 %. {words}"
        )
    assert measure_guarantee(shown(), 0.0).p is None  # nothing is lower
    assert loss_sentences(shown()) == []


def test_an_attack_has_the_untrained_verifier_beside_it_or_says_that_there_is_none():
    untrained = take_control("run-no-answer-0", shown(143 / 300))
    assert loss_sentences(shown(control=untrained.as_json()))[-1] == (
        "The untrained verifier under the same attack (run-no-answer-0): soundness 47.7 % (95 % "
        "interval 42.1 to 53.3 %), completeness 90.0 %."
    )
    assert loss_sentences(shown(control=None))[-1] == (
        "No untrained control: whether training made this better or worse can't be told. The same "
        "attack with --iteration 0 plays it."
    )
    assert isinstance(untrained, UntrainedControl)
