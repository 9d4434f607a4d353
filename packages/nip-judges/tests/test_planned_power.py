"""The dry run's table: what so many questions can show, computed exactly."""

import time

import numpy as np
import pytest

from nip_core.evaluation.statistics.differences import at_most, mcnemar
from nip_judges.figures.planned_power import (
    detectable_rise,
    gate_rows,
    missed_rise,
    plan_power,
    rise_power,
    rows_needed,
    rows_needed_at,
)
from nip_judges.figures.rates import bound_rise


def test_the_table_of_the_dry_run_is_computed_within_a_second() -> None:
    began_s = time.monotonic()
    detectable_rise.cache_clear()
    rows = plan_power([40, 100, 200, 400], kinds=11)
    assert time.monotonic() - began_s < 1
    table = [
        [row.one_at_most, row.worst_at_most, row.rise_steady, row.rise_changing] for row in rows
    ]
    expected = [
        [7.2, 12.6, 19, 22],
        [3.0, 5.3, 8, 11],
        [1.5, 2.7, 4, 7],
        [0.75, 1.3, 2, 4.5],
    ]
    assert 100 * np.array(table, dtype=float)[:, :2] == pytest.approx(
        np.array(expected)[:, :2], abs=0.06
    )
    assert 100 * np.array(table, dtype=float) == pytest.approx(np.array(expected), abs=1)


@pytest.mark.parametrize(
    ("bar", "kinds", "needed"),
    [(0.05, 11, [106, 148, 218]), (0.01, 11, [537, 751, 1107]), (0.05, 1, [59, 93, 153])],
)
def test_a_bar_needs_so_many_questions(bar: float, kinds: int, needed: list[int]) -> None:
    assert [rows_needed(bar, kinds, fooled) for fooled in (0, 1, 3)] == needed


def test_a_bar_at_a_rate_needs_more_questions_the_nearer_the_rate_is() -> None:
    needed = [rows_needed_at(0.05, 11, rate) for rate in (0.0, 0.01, 0.03)]
    assert needed[0] == 106 and needed == sorted(needed, key=lambda one: one or 0)
    assert rows_needed_at(0.05, 11, 0.05) is None


def test_the_gate_needs_so_many_right_questions() -> None:
    assert [gate_rows(changing) for changing in (0.02, 0.04, 0.10)] == [225, 340, 717]
    rng = np.random.default_rng(0)
    met = [
        bound_rise([1.0] * lost + [-1.0] * gained + [0.0] * kept, [*map(str, range(340))])
        for lost, gained, kept in rng.multinomial(340, [0.02, 0.02, 0.96], size=200).tolist()
    ]
    assert np.mean([bound is not None and bound <= 0.03 for bound in met]) > 0.75


@pytest.mark.parametrize(("questions", "rise", "changing"), [(40, 0.2, 0.0), (60, 0.15, 0.04)])
def test_the_power_is_that_of_simulated_tests(questions: int, rise: float, changing: float) -> None:
    rng = np.random.default_rng(0)
    rates = [rise + changing, changing, 1 - rise - 2 * changing]
    draws = rng.multinomial(questions, rates, size=2_000)
    found = [g > l and mcnemar(int(g), int(l)) < 0.05 for g, l, _ in draws]  # noqa: E741
    assert np.mean(found) == pytest.approx(rise_power(questions, rise, changing), abs=0.03)


def test_a_rise_is_found_at_the_power_that_it_is_named_for_and_none_by_few_questions() -> None:
    rise = detectable_rise(100, 0.02)
    assert rise is not None
    assert rise_power(100, rise, 0.02) == pytest.approx(0.8, abs=0.001)
    assert detectable_rise(5) is None
    with pytest.raises(ValueError, match="1 or more"):
        plan_power([0], 11)


def test_a_wording_may_be_passed_over_the_sooner_the_more_verdicts_change_by_themselves() -> None:
    assert missed_rise(40, 6) == pytest.approx(at_most(0, 40), abs=1e-5)
    rng = np.random.default_rng(0)
    rise = missed_rise(40, 6, flips=0.1)
    assert rise is not None and rise > 0.2

    def draw(gains: float, size: tuple[int, ...]) -> np.ndarray:
        draws = rng.multinomial(40, [gains, 0.05, 0.95 - gains], size=size)
        return draws[..., 0] - draws[..., 1]

    others = draw(0.05, (4_000, 5)).max(axis=1)
    assert np.mean(draw(0.05 + rise, (4_000,)) > others) == pytest.approx(0.95, abs=0.015)
    assert missed_rise(0, 6) is None and missed_rise(2, 6, flips=0.5) is None
