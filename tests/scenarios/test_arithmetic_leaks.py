"""`generator: chains-2`: nothing but calculating a step tells whether a calculation is right."""

import random
from collections import Counter
from functools import cache

import pytest
from arithmetic_rules import OF_LINES, OF_QUESTIONS, OF_RESULTS, accuracy, problems

from nip_core.errors import DatasetError
from nip_core.hashing import digest
from nip_core.scenarios import find_scenario
from nip_games.arithmetic.chains import CALCULATE, list_operands
from nip_games.arithmetic.pairs import draw_pair

SIZE = 2000
FOUR_DEVIATIONS = 4 * 0.5 / (SIZE / 2) ** 0.5  # of a share of the half that is asked
CASES = {
    "as it is": {},
    "long, with products": {"steps": 9, "operators": ["+", "-", "*"]},
    "sums alone": {"operators": ["+"]},
    "larger": {"numbers": 1000, "steps": 3, "form": "words"},
}


@cache
def seen(case):
    return problems(SIZE, generator="chains-2", **CASES[case])


@pytest.mark.parametrize(
    "case",
    [
        "as it is",
        *(pytest.param(case, marks=pytest.mark.long) for case in CASES if case != "as it is"),
    ],
)
def test_no_rule_of_the_question_or_of_the_results_tells_the_label_better_than_chance(case):
    for rules in (OF_QUESTIONS, OF_RESULTS):
        told = {name: accuracy(seen(case), rule) - 0.5 for name, rule in rules.items()}
        assert max(told.values()) < FOUR_DEVIATIONS, told
    # The rules are no blind ones: a glance at each line tells something, as it should.
    assert max(accuracy(seen(case), rule) for rule in OF_LINES.values()) > 0.6


def test_the_rules_find_what_the_first_generator_told():
    before = problems(SIZE, generator="chains-1")
    assert any(OF_QUESTIONS["range"](one) != (False, False) for one in before)
    assert accuracy(before, OF_RESULTS["largest jump"]) > 0.6
    products = problems(SIZE, generator="chains-1", **CASES["long, with products"])
    assert accuracy(products, OF_QUESTIONS["range"]) > 0.57


@pytest.mark.parametrize("case", CASES)
def test_true_and_shown_values_stay_in_the_range_and_either_may_be_the_truth(case):
    """What is shown in the wrong step another step from the same number would rightly give."""
    signs = CASES[case].get("operators", ["+", "-"])
    for one in seen(case):
        assert all(2 <= value < one.below for value in (*one.true, *one.shown))
        wrong = [line for line in one.lines if line.result != line.true_result]
        assert len(wrong) == 1 - one.y
        for line in wrong:
            rightly = {
                CALCULATE[sign](line.left, number)
                for sign in signs
                for number in list_operands(sign, line.left, one.below)
            }
            assert line.result in rightly
        # The calculation goes on with it, and does what is asked.
        assert [line.left for line in one.lines] == one.shown[:-1]
        assert [(line.sign, line.right) for line in one.lines] == list(one.asked.steps)


def test_which_step_is_wrong_and_its_label_are_even():
    places = Counter(
        next(place for place, line in enumerate(one.lines) if line.result != line.true_result)
        for one in seen("as it is")
        if one.y == 0
    )
    expected = SIZE / 2 / 4
    assert all(abs(places[place] - expected) < 4 * expected**0.5 for place in range(4)), places
    assert Counter(one.y for one in seen("as it is")) == {0: SIZE / 2, 1: SIZE / 2}


def test_one_step_is_wrong_as_often_for_each_question_and_for_each_result():
    """Each question, and each result, comes with both labels equally often."""
    by_question, by_result = Counter(), Counter()
    for number in range(4000):
        draw = random.Random(number)
        pair = draw_pair(draw, draw.choice((20, 21)), 1, 40, "+-", ("off_by_one", "wrong_operator"))
        right, wrong, _ = pair
        y = number % 2
        [line] = right if y else wrong
        by_question[line.left, line.sign, line.right, y] += 1
        by_result[line.left, line.result, y] += 1
    for counted in (by_question, by_result):
        for (*what, y), count in counted.items():
            other = counted[(*what, 1 - y)]
            assert abs(count - other) < 4 * (count + other) ** 0.5, (what, count, other)


def test_what_is_drawn_stays_what_it_is_and_without_the_setting_is_what_it_was():
    kind = find_scenario("arithmetic")

    def drawn(**settings):
        rows = kind(kind.Settings(train_size=40, **settings)).generate("chains", "train")
        return digest(list(rows))[:16]

    assert drawn() == drawn(generator="chains-1") == "d241f8e53221d0fd"
    assert drawn(generator="chains-2") == "a8896d0fb6989adc"


def test_mistakes_that_no_step_allows_are_an_error_that_says_what_to_change():
    with pytest.raises(DatasetError, match=r"only 0 different .* name more operators or mistakes"):
        problems(10, generator="chains-2", operators=["+"], mistakes=["carry"])
