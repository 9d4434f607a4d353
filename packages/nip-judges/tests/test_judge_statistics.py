"""Intervals, words and bars keep the error rates that they name, by draws of which the truth is known."""

import random
from dataclasses import replace

import numpy as np
import pytest
from simulated_cells import first_cells, make_cell, noisy, oracle, play

from nip_judges.documents.gallery import choose_texts, list_gallery
from nip_judges.figures.against_figures import compare_judges
from nip_judges.figures.as_they_are import ends_after_first_look, ends_as_they_are, youden
from nip_judges.figures.bars import CANNOT_TELL, DONE, NOT_MET, check_bar
from nip_judges.figures.judge_figures import measure
from nip_judges.figures.rates import bound_rise, compare_rows, youden_index
from nip_judges.figures.scores import measure_scores
from nip_judges.figures.verdict_words import choose_word, find_fooling
from nip_judges.parts import Cell, JudgeAnswer
from nip_judges.play.pairs import judge_pair

QUESTIONS = [str(number) for number in range(100)]


def test_few_rises_leave_an_interval_as_wide_as_none_does() -> None:
    highs = []
    for rises in range(4):
        change = compare_rows([n < rises for n in range(100)], [False] * 100, QUESTIONS)
        assert change is not None and change.high is not None
        highs.append(change.high)
    assert highs == sorted(highs) and highs[1] > 0.05  # Student's alone ends at 0.0298
    # A true rise of 3 points lies above the interval in at most 1 of 40 cases.
    beyond = [highs[min(3, k)] < 0.03 for k in np.random.default_rng(0).binomial(100, 0.03, 2_000)]
    assert np.mean(beyond) <= 0.025


def test_an_interval_excludes_zero_exactly_where_the_test_does() -> None:
    rng = random.Random(0)
    for _ in range(60):
        new, old = ([rng.random() < rate for _ in QUESTIONS] for rate in (0.2, 0.1))
        change = compare_rows(new, old, QUESTIONS)
        assert change is not None and change.low is not None and change.high is not None
        assert (change.low > 0 or change.high < 0) == (change.p < 0.05)
        assert change.low <= change.change <= change.high


@pytest.mark.parametrize(("rows", "gained"), [(100, 0.0), (100, 0.01), (275, 0.0), (690, 0.01)])
def test_a_gate_is_met_in_one_of_twenty_cases_by_a_judge_that_loses_three_points(
    rows: int, gained: float
) -> None:
    rates = [0.03 + gained, gained, 0.97 - 2 * gained]
    draws, counts = np.unique(
        np.random.default_rng(0).multinomial(rows, rates, size=2_000), axis=0, return_counts=True
    )
    met = 0
    for (lost, won, kept), count in zip(draws.tolist(), counts.tolist(), strict=True):
        bound = bound_rise([1.0] * lost + [-1.0] * won + [0.0] * kept, [*map(str, range(rows))])
        met += count if bound is not None and bound <= 0.03 else 0
    assert met / 2_000 <= 0.065  # Student's bound alone: 0.20 of 100 rows


def test_a_pair_judge_that_tosses_a_coin_a_question_is_seldom_called_better_than_chance() -> None:
    rng = np.random.default_rng(1)
    better = 0
    for _ in range(400):
        wins = rng.random(100) < 0.5
        index = youden_index(wins.tolist(), QUESTIONS, (~wins).tolist(), QUESTIONS)
        better += index is not None and not index.holds_zero
    assert better / 400 <= 0.06  # as if both labels were independent: 0.11


def test_a_steady_judge_of_few_questions_is_attacked() -> None:
    def steady(rng: random.Random, is_right: bool, key: str, question: int) -> str:
        return "accept" if is_right else ("accept" if question == 3 else "reject")

    for rows in (8, 10, 20):
        assert ends_after_first_look(first_cells(steady, 0, rows)) is None
        assert ends_as_they_are(first_cells(steady, 0, rows)) is None
    assert ends_as_they_are(first_cells(noisy(0.5, 0.5), 0, 10)) is not None


def test_rows_without_a_verdict_make_no_judge_better_where_they_are_dropped() -> None:
    def silent(rng: random.Random, is_right: bool, key: str, question: int) -> str:
        return "accept" if is_right or question % 5 < 2 else "none"

    cells = first_cells(silent, 0, 100)
    kept, dropped = youden(cells, "reject"), youden(cells, "drop")
    assert kept is not None and not kept.holds_zero
    assert dropped is not None and dropped.holds_zero
    assert "no better than chance" in str(ends_as_they_are(cells, "drop"))


def test_a_judge_that_chooses_by_position_has_verdicts_and_is_said_to() -> None:
    first, second = JudgeAnswer("accept", "A"), JudgeAnswer("accept", "A")
    outcome = judge_pair(first, second).position_outcome
    assert outcome == "by position"
    cells = [
        replace(cell, verdict="none", outcome=outcome, reason="wins in one order alone")
        for cell in first_cells(oracle, 0)
    ]
    assert "chose by position in all 80 askings" in str(ends_after_first_look(cells, "accept"))
    figures = measure(cells, no_verdict="accept")
    assert figures.no_verdict == 0 and figures.wrong_accepted is not None
    assert figures.wrong_accepted.events == 0


def test_rows_that_are_right_after_all_have_no_control() -> None:
    cells = play(noisy(0.15), 1)
    mislabelled = {str(2 * question + 1) for question in range(30)}
    changed = [
        replace(cell, outcome="right after all", verdict="accept")
        if cell.phase == "as they are" and cell.row in mislabelled
        else cell
        for cell in cells
    ]
    attack = measure(changed).attacks[0]
    assert attack.change is not None
    assert (attack.rate.rows, attack.change.rows) == (100, 70)


def test_a_kind_that_fools_after_holm_is_no_judge_that_is_not_fooled() -> None:
    rng = random.Random(0)
    # In choosing another one was higher by luck.
    cells = [
        replace(cell, verdict="accept", outcome="fooled")
        if cell.phase == "choosing" and cell.kind == "sure"
        else cell
        for cell in play(noisy(0.05, holes={"opener/Thought process:": 0.5}), 4)
    ]
    figures = measure(cells)
    assert figures.primary is not None and figures.primary.kind == "sure"
    fooling = find_fooling(figures)
    assert fooling is not None and fooling.kind == "opener"
    word = choose_word(figures)
    assert word.word == "FOOLED" and "after Holm, as another was highest" in word.sentence
    # Of 200 judges without a hole at most 1 in 20 is called fooled.
    called = sum(
        choose_word(measure(play(noisy(0.15, 0.9), rng.randrange(10**9), rows=40))).word == "FOOLED"
        for _ in range(100)
    )
    assert called <= 5


def test_a_bar_is_not_met_by_who_needs_no_attack_nor_by_texts_that_could_not_fool() -> None:
    def lenient(rng: random.Random, is_right: bool, key: str, question: int) -> str:
        return "accept" if is_right or (not key and question % 8 == 0) else "reject"

    weak = check_bar(measure(play(lenient, 0, rows=200)), 0.05)
    assert weak.exit_code == NOT_MET and weak.rate == 0.125
    whole = play(oracle, 0, rows=200)
    assert check_bar(measure(whole), 0.05).exit_code == DONE
    undecided = [
        replace(cell, outcome="not certain", label_by="")
        if cell.kind == "opener" and cell.phase == "test" and int(cell.row) > 80
        else cell
        for cell in whole
    ]
    result = check_bar(measure(undecided), 0.05)
    assert result.exit_code == CANNOT_TELL and result.bound is not None and result.bound > 0.09


def test_a_bar_that_chance_may_miss_says_so() -> None:
    result = check_bar(measure(play(noisy(0.06), 0, rows=100)), 0.05)
    assert result.exit_code == NOT_MET and "though chance may do it" in result.line


def test_texts_that_were_asked_again_are_shown_by_these_askings_alone() -> None:
    cells = play(noisy(0.3), 0)
    chosen = choose_texts(cells)
    again = [
        replace(cell, phase="again", asking=asking, verdict="reject", outcome="rejected")
        for cell in chosen
        for asking in (2, 3, 4)
    ]
    shown = list_gallery([*cells, *again], {})
    # Not others, of which nothing more is known than that they were accepted once.
    assert {(text["kind"], text["row"]) for text in shown} == {(c.kind, c.row) for c in chosen}
    assert {(text["accepted"], text["asked"]) for text in shown} == {(0, 3)}


def test_a_text_for_several_rows_of_a_question_is_shown_once() -> None:
    def accepts(rng: random.Random, is_right: bool, key: str, question: int) -> str:
        return "accept"

    cells = [
        make_cell(accepts, random.Random(0), question, False, "test", "opener/so", "wording")
        for question in range(2)
    ]
    same = [replace(cell, row=f"{cell.row}b") for cell in cells]
    assert len(choose_texts([*cells, *same])) == 2
    assert len({cell.question_id for cell in choose_texts([*cells, *same])}) == 2


def test_scores_of_texts_that_are_right_after_all_raise_no_wrong_answer() -> None:
    def scored(cell: Cell) -> Cell:
        is_turned = cell.phase == "test" and cell.kind == "opener" and int(cell.row) < 100
        return replace(
            cell,
            score=1.0 if cell.is_right or is_turned else 0.0,
            outcome="right after all" if is_turned else cell.outcome,
        )

    figures = measure_scores([scored(cell) for cell in play(oracle, 0)])
    assert figures is not None and figures.rises["opener/Thought process:"][0] == 0
    assert figures.auroc_under["opener/Thought process:"] == 1


def test_a_hole_that_moved_to_another_wording_makes_no_judge_better() -> None:
    old = play(noisy(0.02, holes={"opener/Thought process:": 0.6}), 0)
    moved = play(noisy(0.02, holes={"sure/twice": 0.6}), 1, judge="against")
    found = compare_judges([*old, *moved])
    assert found.primary is not None and found.primary.high is not None and found.primary.high < 0
    assert (found.key, found.own_key) == ("opener/Thought process:", "sure/twice")
    assert found.own is not None and found.own.low is not None and found.own.low < 0.1
    assert not found.is_better
    closed = compare_judges([*old, *play(noisy(0.02), 1, judge="against")])
    assert closed.is_better
