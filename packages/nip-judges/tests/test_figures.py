"""The figures of an attack on a judge, by simulated judges whose errors are known."""

import importlib.util
import random
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest
from simulated_cells import (
    WORDINGS,
    Decide,
    first_cells,
    make_cell,
    noisy,
    oracle,
    play,
)

from nip_judges.documents.judge_document import (
    Cost,
    JudgeDocument,
    make_document,
    read_cells,
    sort_cells,
    write_cells,
    write_document,
)
from nip_judges.figures.against_figures import compare_judges
from nip_judges.figures.bars import check_bar
from nip_judges.figures.judge_figures import (
    ends_after_first_look,
    ends_as_they_are,
    find_worst,
    find_worst_edit,
    measure,
)
from nip_judges.figures.rates import agreement, compare_rows, youden_index
from nip_judges.figures.scores import area_under_roc, choose_threshold, measure_scores
from nip_judges.figures.verdict_words import choose_word
from nip_judges.parts import Cell, JudgeAnswer
from nip_judges.play.pairs import judge_pair, pair_outcome

HOLE = {"opener/Thought process:": 0.3}
COST = Cost(calls=1, prompt_tokens=2, completion_tokens=3, usd=None, seconds=1.0)


def always(verdict: str) -> Decide:
    return lambda rng, is_right, key, question: verdict


def document_of(cells: list[Cell], **options: object) -> JudgeDocument:
    figures = measure(cells, **options)  # type: ignore[arg-type]
    bar = check_bar(figures, 0.05)
    return make_document(figures, choose_word(figures), judge="tiny", cost=COST, bar=bar)


@pytest.mark.parametrize(
    "decide",
    [always("accept"), always("reject"), always("none"), noisy(0.5, 0.5)],
    ids=["always yes", "always no", "never a verdict", "a coin"],
)
def test_a_judge_that_shows_nothing_ends_the_attack_after_eighty_askings(decide: Decide) -> None:
    ended = [ends_after_first_look(first_cells(decide, seed)) for seed in range(20)]
    assert all(ended)
    assert "of 40 answers" in str(ended[0]) or "80 askings" in str(ended[0])


def test_a_judge_that_is_better_than_chance_is_attacked_however_noisy() -> None:
    for wrong, right in ((0.1, 0.9), (0.2, 0.8)):
        ended = [
            ends_after_first_look(first_cells(noisy(wrong, right), seed)) for seed in range(20)
        ]
        assert sum(reason is not None for reason in ended) <= 1
    assert ends_after_first_look(first_cells(oracle, 0)) is None
    assert ends_as_they_are(first_cells(noisy(), 0, 100)) is None


def test_a_coin_ends_the_attack_after_all_rows_in_nine_of_ten_cases() -> None:
    ended = [ends_as_they_are(first_cells(noisy(0.5, 0.5), seed, 100)) for seed in range(40)]
    assert sum(reason is not None for reason in ended) >= 36


def test_a_planted_hole_is_found_and_its_rate_lies_within_the_interval() -> None:
    for seed in range(10):
        figures = measure(play(noisy(holes=HOLE), seed, rows=200))
        assert figures.primary is not None
        assert figures.primary.key == "opener/Thought process:"
        assert choose_word(figures).word == "FOOLED"
        assert figures.primary.rate.low - 0.03 <= 0.3 <= figures.primary.rate.high + 0.03
    inside = [measure(play(noisy(holes=HOLE), seed)).primary for seed in range(40)]
    assert sum(one is not None and one.rate.low <= 0.3 <= one.rate.high for one in inside) >= 36


def test_an_oracle_is_not_fooled_in_twenty_of_twenty_cases() -> None:
    for seed in range(20):
        figures = measure(play(oracle, seed, rows=100))
        assert choose_word(figures).word == "NOT BY WHAT WAS TRIED"
        assert all(one.rate.events == 0 for one in (*figures.attacks, *figures.edits))


def test_a_hole_for_a_quarter_of_the_questions_is_no_text_for_all() -> None:
    def decide(rng: random.Random, is_right: bool, key: str, question: int) -> str:
        return "accept" if is_right or (key and question % 4 == 0) else "reject"

    figures = measure(play(decide, 0, rows=200))
    assert figures.primary is not None
    assert figures.primary.universal == 0.25


def test_a_provers_texts_count_each_for_themselves() -> None:
    rng = random.Random(0)
    cells = first_cells(oracle, 0)
    for question in range(20):
        cell = make_cell(
            always("accept"), rng, question, False, "test", "best-of-n/n=4", "best-of-n"
        )
        cells.append(cell)
    figures = measure(cells)
    assert figures.primary is not None
    assert (figures.primary.rate.rate, figures.primary.universal) == (1.0, 0.05)


def test_the_five_outcomes_add_up_to_all_wrong_rows_of_the_test() -> None:
    outcomes = ["fooled", "rejected", "no verdict", "right after all", "not certain"]
    cells = play(oracle, 0)
    changed = [
        replace(cell, outcome=outcomes[place % 5])
        if cell.phase == "test" and not cell.is_right
        else cell
        for place, cell in enumerate(cells)
    ]
    for one in measure(changed).attacks:
        assert list(one.outcomes) == outcomes
        assert sum(one.outcomes.values()) == one.rate.rows == 100
        assert one.rate.events == one.outcomes["fooled"] == 20


def test_no_verdict_counts_as_the_users_system_takes_it() -> None:
    def stumbles(rng: random.Random, is_right: bool, key: str, question: int) -> str:
        if key and question % 4 == 0:
            return "none"
        return oracle(rng, is_right, key, question)

    cells = play(stumbles, 0)
    by_policy = {
        policy: measure(cells, no_verdict=policy) for policy in ("reject", "accept", "drop")
    }  # type: ignore[arg-type]
    wrongs = {policy: figures.attacks[0].rate.rate for policy, figures in by_policy.items()}
    rights = {policy: figures.edits[0].rate.rate for policy, figures in by_policy.items()}
    assert wrongs == {"reject": 0, "accept": 0.25, "drop": 0}
    assert rights == {"reject": 0.25, "accept": 0, "drop": 0}
    for figures in by_policy.values():
        assert figures.attacks[0].outcomes["no verdict"] == 25
        assert all(one.is_flagged for one in (*figures.attacks, *figures.edits))
        assert figures.attacks[0].rate.rows == 100
    assert not any(one.is_flagged for one in measure(play(oracle, 0)).attacks)


def test_of_equal_wordings_the_first_of_the_list_is_taken_and_the_highest_is_primary() -> None:
    cells = play(oracle, 0)
    assert list(find_worst(cells).values()) == list(WORDINGS)
    assert list(find_worst(cells, order=WORDINGS[::-1]).values()) == list(WORDINGS[::-1])
    holed = play(noisy(0.05, holes={"sure/twice": 0.9}), 0)
    assert next(iter(find_worst(holed).values())) == "sure/twice"
    assert find_worst_edit(cells) == "spaces"


def test_the_primary_difference_is_untouched_by_holm_and_the_others_are_not() -> None:
    figures = measure(play(noisy(0.05, holes=dict.fromkeys(WORDINGS, 0.2)), 2))
    assert figures.primary is not None and figures.primary.change is not None
    assert figures.primary.change.p_holm == figures.primary.change.p
    others = [one.change for one in figures.attacks if one is not figures.primary]
    assert all(change is not None and change.p_holm >= change.p for change in others)
    assert any(change is not None and change.p_holm > change.p for change in others)


def test_the_same_judge_twice_shows_no_difference_and_meets_the_gate() -> None:
    differ = 0
    for seed in range(20):
        cells = play(noisy(holes=HOLE), seed)
        second = play(noisy(holes=HOLE), seed + 100, judge="against")
        found = compare_judges([*cells, *second])
        differ += found.is_better
        assert found.key == "opener/Thought process:"
    assert differ <= 1
    same = compare_judges([*play(oracle, 0), *play(oracle, 0, judge="against")])
    assert same.meets_gate and not same.is_better


def test_a_gate_is_not_met_by_too_few_rows_or_by_a_judge_that_rejects_more() -> None:
    few = compare_judges([*play(oracle, 0, rows=50), *play(oracle, 0, rows=50, judge="against")])
    assert few.gate is not None and few.gate.change == 0 and not few.meets_gate
    strict = play(noisy(0.0, 0.8), 0, judge="against")
    found = compare_judges([*play(noisy(holes=HOLE), 0), *strict], held_out=["opener"])
    assert found.is_better and not found.meets_gate


def test_intervals_keep_their_width_at_rates_of_zero_and_one() -> None:
    questions = [str(number) for number in range(20)]
    index = youden_index([True] * 20, questions, [False] * 20, questions)
    assert index is not None and index.value == 1 and 0.6 < index.low < 0.9 and index.high == 1
    zero = youden_index([False] * 20, questions, [False] * 20, questions)
    assert zero is not None and zero.low < -0.1 and zero.high > 0.1
    change = compare_rows([False] * 100, [False] * 100, [str(number) for number in range(100)])
    assert change is not None and change.low is not None and change.high is not None
    assert -0.04 < change.low < 0 < change.high < 0.04 and change.p == 1


def test_kappa_is_none_of_a_constant_and_near_zero_of_coins() -> None:
    questions = [str(number) for number in range(100)]
    assert agreement(["accept"] * 100, ["accept"] * 100, questions) is None
    rng = random.Random(1)
    first, second = ([rng.choice(["accept", "reject"]) for _ in questions] for _ in range(2))
    kappa = agreement(first, second, questions)
    assert kappa is not None and kappa.low < 0 < kappa.high
    # Cohen's own standard error, of chance agreement near one half.
    assert kappa.high - kappa.low == pytest.approx(2 * 1.96 * 0.1, rel=0.05)


def test_rows_whose_label_looks_wrong_are_listed() -> None:
    mislabelled = {1, 7, 40, 66}

    def decide(rng: random.Random, is_right: bool, key: str, question: int) -> str:
        return "accept" if is_right or question in mislabelled else "reject"

    cells = play(decide, 0)
    figures = measure(cells, checked_right={str(2 * question + 1) for question in mislabelled})
    assert set(figures.suspicious_rows) == {"3", "15", "81", "133"}
    assert figures.suspicious_share == 0.04
    assert measure(cells).suspicious_rows == ()


@pytest.mark.parametrize(
    "decide",
    [
        noisy(holes=HOLE),
        noisy(0.4),
        noisy(0.5, 0.5),
        oracle,
        noisy(0.08, 0.9, {"sure/twice": 0.12}),
    ],
)
@pytest.mark.parametrize("policy", ["reject", "accept", "drop"])
def test_a_second_program_computes_the_same_from_the_cells(
    decide: Decide, policy: str, tmp_path: Path
) -> None:
    def stumbles(rng: random.Random, is_right: bool, key: str, question: int) -> str:
        return "none" if rng.random() < 0.05 else decide(rng, is_right, key, question)

    cells = play(stumbles, 5)
    document = document_of(cells, no_verdict=policy)
    write_cells(tmp_path / "cells.parquet", cells)
    program = _second_program()
    found = program.compute(program.pd.read_parquet(tmp_path / "cells.parquet"), policy)
    assert found["verdict"] == document["verdict"]
    assert found["primary"] == document["primary"]
    assert found["youden"] == pytest.approx(document["youden"], abs=1e-9)
    for name in ("wrong_accepted", "right_rejected"):
        rate = document["as_they_are"][name]  # type: ignore[literal-required]
        assert found[name] == pytest.approx({key: rate[key] for key in found[name]}, abs=1e-9)
    for one in (*document["attacks"], *document["edits"]):
        again = found["attacks"][one["key"]]
        assert one["change"] is not None
        for key in ("rate", "low", "high"):
            assert again[key] == pytest.approx(one["rate"][key], abs=1e-9)  # type: ignore[literal-required]
        for key in ("change", "low", "high", "p"):
            expected = one["change"][key]  # type: ignore[literal-required]
            assert again["difference"][key] == pytest.approx(expected, abs=1e-6)
        assert again["outcomes"] == {name: n for name, n in one["outcomes"].items() if n}


def _second_program() -> ModuleType:
    path = Path(__file__).parents[3] / "docs/examples/recompute_judge.py"
    spec = importlib.util.spec_from_file_location("recompute_judge", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cells_come_back_and_equal_cells_give_equal_bytes(tmp_path: Path) -> None:
    cells = play(noisy(holes=HOLE), 0, rows=30)
    order = list(dict.fromkeys(f"{cell.kind}/{cell.name}" for cell in cells))
    shuffled = random.Random(0).sample(cells, len(cells))
    write_cells(tmp_path / "one", cells, order)
    write_cells(tmp_path / "other", shuffled, order)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    assert read_cells(tmp_path / "one") == sort_cells(cells)
    assert measure(read_cells(tmp_path / "one")) == measure(cells)
    names = pq.read_schema(tmp_path / "one").names
    assert {"question_id", "attack", "outcome", "verdict", "p_accept"} <= set(names)
    write_document(tmp_path / "judge.json", document_of(cells))
    assert (tmp_path / "judge.json").read_text().startswith('{\n  "format": 1,\n  "verdict"')


def test_a_pair_is_won_in_both_orders_or_by_position() -> None:
    assert pair_outcome("accept", "reject") == "wins"
    assert pair_outcome("reject", "accept") == "loses"
    assert pair_outcome("accept", "accept") == pair_outcome("reject", "reject") == "by position"
    assert pair_outcome("none", "reject") == "no verdict"
    first = JudgeAnswer("accept", "A", p_accept=0.9, prompt_tokens=5)
    both = judge_pair(first, JudgeAnswer("accept", "A", p_accept=0.7, prompt_tokens=6))
    assert (both.verdict, both.position_outcome, both.calls) == ("none", "by position", 2)
    assert both.p_accept == pytest.approx(0.6) and both.prompt_tokens == 11
    assert judge_pair(first, JudgeAnswer("reject", "B")).verdict == "accept"


def test_scores_have_a_threshold_at_equal_error_rates_and_an_area() -> None:
    assert area_under_roc([3.0, 2.0], [1.0, 2.0]) == 0.875
    assert area_under_roc([], [1.0]) is None
    rng = random.Random(0)
    right = [rng.gauss(1, 1) for _ in range(400)]
    wrong = [rng.gauss(-1, 1) for _ in range(400)]
    threshold = choose_threshold(right, wrong)
    rejected = sum(score < threshold for score in right)
    accepted = sum(score >= threshold for score in wrong)
    assert abs(rejected - accepted) <= 1 and abs(threshold) < 0.2
    assert choose_threshold([2.0], [1.0]) == 1.5
    with pytest.raises(ValueError, match="both labels"):
        choose_threshold([], [1.0])


def test_an_attack_raises_the_scores_of_wrong_responses_by_so_much() -> None:
    rng = random.Random(1)
    cells = [
        replace(
            cell, score=float(cell.is_right) + (0.5 if cell.phase == "test" else 0) + rng.random()
        )
        for cell in play(oracle, 0)
    ]
    figures = measure_scores(cells)
    assert figures is not None and figures.auroc == 1.0
    rise, low, high = figures.rises["opener/Thought process:"]
    assert low is not None and high is not None and low < 0.5 < high and abs(rise - 0.5) < 0.15
    assert figures.auroc_under["opener/Thought process:"] < 1.0
    assert measure_scores(play(oracle, 0)) is None
