"""What the answers of the decision scales are worth."""

from typing import get_args

import pytest

from nip_core.protocols.scales import (
    ACCEPT,
    NEITHER,
    REJECT,
    SCALES,
    ScaleName,
    round_value,
)

COUNTS = {
    "accept_reject": 2,
    "likert_scale_4": 4,
    "likert_scale_5": 5,
    "likert_scale_6": 6,
    "likert_scale_7": 7,
    "likert_int_scale_11": 11,
    "out_of_10": 11,
    "out_of_100": 101,
}


def test_the_documented_scales_are_there():
    assert {name: len(scale.values) for name, scale in SCALES.items()} == COUNTS
    assert set(get_args(ScaleName)) == set(SCALES)


@pytest.mark.parametrize("scale", SCALES.values(), ids=lambda scale: scale.name)
def test_a_scale_rises_from_full_rejection_to_full_acceptance_symmetrically(scale):
    values = list(scale.values.values())
    assert values == sorted(set(values))
    assert (values[0], values[-1]) == (-1.0, 1.0)
    assert values == [-value for value in reversed(values)]
    # Half reject, half accept, and the middle, where there is one, is neither.
    half, odd = divmod(len(values), 2)
    assert [round_value(v) for v in values] == [REJECT] * half + [NEITHER] * odd + [ACCEPT] * half


@pytest.mark.parametrize("scale", SCALES.values(), ids=lambda scale: scale.name)
def test_the_ends_are_the_right_answers(scale):
    first, *_, last = scale.values
    assert scale.right_answer(ACCEPT) == scale.highest == last
    assert scale.right_answer(REJECT) == scale.lowest == first
    assert scale.is_numeric == last.isdigit()


def test_answers_are_what_prompts_ask_for():
    assert SCALES["likert_scale_6"].values["somewhat agree"] == 0.333
    assert SCALES["likert_scale_7"].values["neither agree nor disagree"] == 0.0
    assert SCALES["likert_scale_4"].values["disagree"] == -0.5
    assert SCALES["out_of_10"].values["7"] == 0.4
    assert SCALES["likert_int_scale_11"].values["5"] == 0.0
    assert SCALES["out_of_100"].values["1"] == -0.98
