"""Figures of a sweep of judges, from its judged texts and facts alone.

compute_results  facts, cells and the declaration -> SweepResults, which is results.json
bound_rise       the bound of a gate, with its p-value

A comparison is paired by seed and row. All rows and seeds of a question count together: the seeds
split the same rows, so they are no further questions. The wording is chosen anew in each seed.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from nip_core.evaluation.statistics.clustered import clustered_mean
from nip_core.evaluation.statistics.differences import holm
from nip_core.evaluation.statistics.distributions import t_cdf
from nip_judges.documents.judge_document import ChangeWords, change_words, rate_words
from nip_judges.figures.as_they_are import (
    ends_after_first_look,
    ends_as_they_are,
    is_hit,
    rate_of,
    share_without,
)
from nip_judges.figures.judge_figures import find_worst, measure
from nip_judges.figures.rates import Change, compare_rows, number_questions
from nip_judges.figures.rates import bound_rise as bound_mean_rise
from nip_judges.figures.verdict_words import choose_word
from nip_judges.parts import Cell
from nip_judges.sweeps.sweep_declaration import JudgeDeclaration
from nip_judges.sweeps.sweep_documents import (
    KeyedRate,
    KindRates,
    SeedChange,
    SeedRates,
    SweepFacts,
    SweepResults,
    SweptChange,
    SweptRates,
    TestedClaim,
    TestedGate,
    WayRates,
)
from nip_judges.sweeps.sweep_plan import FIGURES, OWN, SweepFigure, SweepHypothesis, list_pairs
from nip_judges.sweeps.sweep_play import SweptCell

_ALPHA = 0.05


class _Pair(NamedTuple):
    """Two verdicts on a row: whether each is the error that its label allows."""

    new: bool
    old: bool
    question: str


@dataclass(frozen=True)
class _Compared:
    """Two judges by one figure, over all seeds."""

    pairs: tuple[_Pair, ...]
    seeds: tuple[SeedChange, ...]
    change: Change | None


class _Cells:
    """The cells of a sweep, by judge, seed and the judge whose texts they are."""

    def __init__(self, cells: Iterable[SweptCell], facts: SweepFacts) -> None:
        self._facts = facts
        self._groups: dict[tuple[str, int, str, str], list[Cell]] = {}
        for one in cells:
            place = (one.judge, one.seed, one.texts_of, one.way)
            self._groups.setdefault(place, []).append(replace(one.cell, judge="judge"))

    def list_cells(
        self, judge: str, seed: int, texts_of: str | None = None, way: str = ""
    ) -> list[Cell]:
        return self._groups.get((judge, seed, texts_of or judge, way), [])

    def list_plain(self, judge: str, seed: int, *, is_right: bool) -> list[Cell]:
        """List the test rows of a label as they are."""
        return [
            cell
            for cell in self.list_cells(judge, seed)
            if cell.phase == "as they are" and cell.part == "test" and cell.is_right is is_right
        ]

    def find_key(self, judge: str, seed: int, *, held_out: bool) -> str | None:
        """Find the wording that fooled a judge most in choosing, and was tested."""
        cells = self.list_cells(judge, seed)
        if not any(cell.phase == "test" for cell in cells):
            return None
        ranked = find_worst(cells, policy=self._facts.no_verdict)
        kinds = self._facts.held_out if held_out else ranked
        return next((key for kind, key in ranked.items() if kind in kinds), None)

    def list_tested(self, judge: str, seed: int, key: str, texts_of: str) -> list[Cell]:
        return [
            cell
            for cell in self.list_cells(judge, seed, texts_of)
            if cell.phase == "test"
            and cell.attack == "wording"
            and f"{cell.kind}/{cell.name}" == key
        ]

    def pair(
        self, judge: str, against: str, figure: SweepFigure, seed: int
    ) -> tuple[str, list[Cell], list[Cell]]:
        """Return the wording of a figure, with the cells of both judges."""
        if figure in ("wrong_accepted", "right_rejected"):
            is_right = figure == "right_rejected"
            sides = [self.list_plain(one, seed, is_right=is_right) for one in (judge, against)]
            return "", sides[0], sides[1]
        is_held_out = "held_out" in figure
        old_key = self.find_key(against, seed, held_out=is_held_out)
        texts_of = judge if figure.endswith(OWN) else against
        new_key = self.find_key(texts_of, seed, held_out=is_held_out)
        if old_key is None or new_key is None:
            return "", [], []
        return (
            old_key if texts_of == against else f"{new_key}, {old_key}",
            self.list_tested(judge, seed, new_key, texts_of),
            self.list_tested(against, seed, old_key, against),
        )


def compute_results(
    facts: SweepFacts, cells: Sequence[SweptCell], declaration: JudgeDeclaration | None
) -> SweepResults:
    """Compute all results of a sweep; equal arguments give equal results."""
    grouped = _Cells(cells, facts)
    hypotheses = () if declaration is None else declaration.plan.hypotheses
    gates = [_test_gate(grouped, facts, one) for one in hypotheses if one.gate is not None]
    earlier = list(facts.earlier)
    return SweepResults(
        format=1,
        sweep=facts.sweep,
        declaration=facts.declaration,
        declared_at=None if declaration is None else declaration.declared_at,
        tries=len(earlier) + 1,
        earlier=earlier,
        departures=list(facts.departures),
        failures=dict(facts.failures),
        held_out=list(facts.held_out),
        judges=[_measure_judge(grouped, facts, judge) for judge in facts.order],
        kinds=[_measure_kind(grouped, facts, kind) for kind in facts.kinds],
        ways=[
            _measure_way(grouped, facts, judge, way) for way in facts.ways for judge in facts.order
        ],
        claims=_test_claims(grouped, facts, hypotheses, gates),
        gates=gates,
        differences=_list_differences(grouped, facts),
        cost={
            "calls": facts.calls,
            "prompt_tokens": facts.prompt_tokens,
            "completion_tokens": facts.completion_tokens,
            "usd": facts.usd,
        },
    )


def _measure_judge(grouped: _Cells, facts: SweepFacts, judge: str) -> SweptRates:
    return SweptRates(
        judge=judge,
        label=facts.judges[judge],
        seeds=[_measure_seed(grouped, facts, judge, seed) for seed in facts.seeds],
    )


def _measure_seed(grouped: _Cells, facts: SweepFacts, judge: str, seed: int) -> SeedRates:
    policy = facts.no_verdict
    cells = grouped.list_cells(judge, seed)
    wrong, right = (grouped.list_plain(judge, seed, is_right=one) for one in (False, True))

    def under(held_out: bool) -> KeyedRate | None:
        key = grouped.find_key(judge, seed, held_out=held_out)
        rate = None
        if key is not None:
            rate = rate_words(rate_of(grouped.list_tested(judge, seed, key, judge), policy))
        return None if key is None or rate is None else KeyedRate(key=key, rate=rate)

    stopped = facts.failures.get(f"{facts.sweep}-{judge}-{seed}")
    is_early = not any(cell.phase == "choosing" and cell.attack != "none" for cell in cells)
    early = (
        ends_as_they_are(cells, policy) or ends_after_first_look(cells, policy)
        if is_early
        else None
    )
    word = choose_word(
        measure(cells, no_verdict=policy),
        stopped="not played" if not cells else stopped,
        ended_early=early,
    )
    return SeedRates(
        seed=seed,
        verdict=word.word,
        wrong_accepted=rate_words(rate_of(wrong, policy)),
        right_rejected=rate_words(rate_of(right, policy)),
        no_verdict=share_without([*wrong, *right]),
        worst=under(False),
        held_out=under(True) if facts.held_out else None,
    )


def _measure_kind(grouped: _Cells, facts: SweepFacts, kind: str) -> KindRates:
    rates = {}
    for judge in facts.order:
        by_seed = [
            [
                cell
                for cell in grouped.list_cells(judge, seed)
                if cell.phase == "test" and cell.attack == "wording" and cell.kind == kind
            ]
            for seed in facts.seeds
        ]
        rate = rate_words(rate_of([cell for cells in by_seed for cell in cells], facts.no_verdict))
        if rate is not None and all(by_seed):
            rates[judge] = rate
    return KindRates(kind=kind, is_held_out=kind in facts.held_out, rates=rates)


def _measure_way(grouped: _Cells, facts: SweepFacts, judge: str, way: str) -> WayRates:
    """Measure a judge under texts of a model: of several numbers of texts by the last."""
    strongest, seeds = list[Cell](), list[KeyedRate]()
    for seed in facts.seeds:
        cells = grouped.list_cells(judge, seed, way=way)
        of_last = [cell for cell in cells if cell.name == cells[-1].name]
        rate = rate_words(rate_of(of_last, facts.no_verdict))
        if rate is not None and f"{facts.sweep}-{judge}-{seed}-{way}" not in facts.failures:
            strongest += of_last
            seeds.append(KeyedRate(key=f"{of_last[0].kind}/{of_last[0].name}", rate=rate))
    is_whole = len(seeds) == len(facts.seeds)
    rate_of_all = rate_words(rate_of(strongest, facts.no_verdict)) if is_whole else None
    return WayRates(way=way, judge=judge, rate=rate_of_all, seeds=seeds)


def _compare(
    grouped: _Cells, facts: SweepFacts, judge: str, against: str, figure: SweepFigure
) -> _Compared:
    """Compare two judges over all seeds; no change is given unless each seed has the test."""
    pairs: list[_Pair] = []
    seeds: list[SeedChange] = []
    for seed in facts.seeds:
        key, new, old = grouped.pair(judge, against, figure, seed)
        by_row = {cell.row: cell for cell in old}
        of_seed = [
            _Pair(
                is_hit(cell, facts.no_verdict),
                is_hit(by_row[cell.row], facts.no_verdict),
                cell.question_id,
            )
            for cell in new
            if cell.row in by_row
        ]
        # A judge that was stopped has a part of the rows, and not one drawn by chance.
        if not of_seed or not len(new) == len(old) == len(of_seed):
            continue
        change = sum(one.new - one.old for one in of_seed) / len(of_seed)
        seeds.append(SeedChange(seed=seed, key=key, change=change))
        pairs += of_seed
    is_whole = len(seeds) == len(facts.seeds)
    new_hits, old_hits, questions = (
        ([*side] for side in zip(*pairs, strict=True))
        if pairs
        else (
            [],
            [],
            [],
        )
    )
    change_of_all = compare_rows(new_hits, old_hits, questions) if is_whole else None
    return _Compared(tuple(pairs), tuple(seeds), change_of_all)


def _test_gate(grouped: _Cells, facts: SweepFacts, hypothesis: SweepHypothesis) -> TestedGate:
    """Test whether a figure rises by less than the margin; not met where a seed has no test."""
    compared = _compare(grouped, facts, hypothesis.judge, hypothesis.against, hypothesis.measure)
    bound, p = (
        (None, 1.0) if compared.change is None else bound_rise(compared.pairs, hypothesis.limit)
    )
    return TestedGate(
        judge=hypothesis.judge,
        against=hypothesis.against,
        figure=hypothesis.measure,
        margin=hypothesis.limit,
        change=_words(compared.change),
        bound=bound,
        p=p,
        is_met=bound is not None and bound <= hypothesis.limit,
    )


def bound_rise(
    pairs: Sequence[tuple[bool, bool, str]], margin: float
) -> tuple[float | None, float]:
    """Compute the one-sided upper 95 % bound of a rise, and the p-value of one of `margin`.

    Pairs are new, old and question. (None, 1) with one question.
    """
    differences = [float(new) - float(old) for new, old, _ in pairs]
    questions = [question for _, _, question in pairs]
    bound = bound_mean_rise(differences, questions)
    mean = clustered_mean(np.array(differences), number_questions(questions))
    if mean is None or bound is None:
        return None, 1.0
    if mean.error:
        p = t_cdf((mean.value - margin) / mean.error, mean.df)
    else:
        room = min(1.0, max(0.0, margin - mean.value))
        p = float((1 - room) ** len(set(questions)))
    # The bound is the higher of two; a p-value of one alone would contradict it.
    return bound, max(p, math.nextafter(_ALPHA, 1)) if bound > margin else p


def _test_claims(
    grouped: _Cells,
    facts: SweepFacts,
    hypotheses: Sequence[SweepHypothesis],
    gates: Sequence[TestedGate],
) -> list[TestedClaim]:
    """Test the claims; of a claim and its gates all must hold, so the largest p-value counts."""
    claims = []
    for hypothesis in hypotheses:
        if hypothesis.figure is None:
            continue
        change = _compare(
            grouped, facts, hypothesis.judge, hypothesis.against, hypothesis.figure
        ).change
        its_gates = [
            g for g in gates if (g["judge"], g["against"]) == (hypothesis.judge, hypothesis.against)
        ]
        p = max([1.0 if change is None else change.p, *(gate["p"] for gate in its_gates)])
        meets = all(gate["is_met"] for gate in its_gates) if its_gates else None
        claims.append(
            TestedClaim(
                judge=hypothesis.judge,
                against=hypothesis.against,
                figure=hypothesis.figure,
                direction=hypothesis.direction or "",
                change=_words(change),
                p=p,
                p_holm=p,
                meets_gates=meets,
                is_shown=_lies(change, hypothesis.direction) and meets is not False,
            )
        )
    for claim, adjusted in zip(claims, holm([claim["p"] for claim in claims]), strict=True):
        claim["p_holm"] = adjusted
        claim["is_shown"] = claim["is_shown"] and adjusted < _ALPHA
    return claims


def _lies(change: Change | None, direction: str | None) -> bool:
    """Tell whether the whole interval lies on the side that was declared."""
    if change is None or change.low is None or change.high is None:
        return False
    return change.high < 0 if direction == "below" else change.low > 0


def _list_differences(grouped: _Cells, facts: SweepFacts) -> list[SweptChange]:
    """Compare each judge with the baseline, and those of hypotheses, by all figures; after Holm."""
    figures = [compared for compared in FIGURES if facts.held_out or "held_out" not in compared]
    listed = [
        (judge, against, figure, _compare(grouped, facts, judge, against, figure))
        for judge, against in list_pairs(facts.order, facts.hypotheses)
        for figure in figures
    ]
    are_tested = [
        not figure.endswith(OWN) and compared.change is not None for *_, figure, compared in listed
    ]
    p_values = [
        compared.change.p
        for (*_, compared), is_tested in zip(listed, are_tested, strict=True)
        if is_tested and compared.change is not None
    ]
    adjusted = iter(holm(p_values))
    return [
        SweptChange(
            judge=judge,
            against=against,
            figure=figure,
            mean=None if compared.change is None else compared.change.change,
            change=_words(
                replace(compared.change, p_holm=next(adjusted))
                if is_tested and compared.change
                else None
            ),
            seeds=list(compared.seeds),
        )
        for (judge, against, figure, compared), is_tested in zip(listed, are_tested, strict=True)
    ]


def _words(change: Change | None) -> ChangeWords | None:
    return None if change is None else change_words(change)
