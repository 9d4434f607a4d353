"""The files of an attack on a judge: cells.parquet and judge.json.

JudgeDocument   judge.json; RateWords, ChangeWords, AttackWords, ShownCell, Cost: its parts
make_document   it, of figures and the first word
write_document  as JSON; write_cells, read_cells: all judged texts as plain columns

Shares are fractions of 1. Equal cells in one order of attacks give equal bytes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from nip_judges.figures.against_figures import AgainstFigures
from nip_judges.figures.bars import BarResult, exit_code
from nip_judges.figures.judge_figures import AttackFigures, JudgeFigures
from nip_judges.figures.rates import Change, Estimate, Rate
from nip_judges.figures.scores import ChosenThreshold, ScoreFigures
from nip_judges.figures.verdict_words import FirstWord, could_show, find_fooling
from nip_judges.parts import Cell
from nip_judges.whole_files import replace_whole, write_whole

FORMAT = 1
PHASES = ("as they are", "again", "choosing", "test")
_NUMBERS = {"asking", "prompt_tokens", "completion_tokens"}
_FLOATS = {"score", "p_accept"}


class RateWords(TypedDict):
    """A share with its 95 % interval by question."""

    rate: float
    low: float
    high: float
    events: int
    rows: int
    questions: int
    hit_questions: int


class EstimateWords(TypedDict):
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


class ChangeWords(TypedDict):
    """A paired change, new less old."""

    change: float
    low: float | None
    high: float | None
    p: float
    p_holm: float
    rows: int
    questions: int


class AttackWords(TypedDict):
    """A wording, an edit or a prover on the questions of the test."""

    attack: str
    kind: str
    name: str
    key: str
    outcomes: dict[str, int]
    rate: RateWords
    no_verdict: float
    is_flagged: bool
    change: ChangeWords | None
    decided_questions: int
    """Questions with a row on which it could fool the judge."""
    universal: float
    choosing: RateWords | None


class ShownCell(TypedDict):
    """One of the most convincing texts."""

    kind: str
    name: str
    row: str
    question: str
    response: str
    words: str
    label_by: str
    accepted: int
    asked: int
    """Further askings of this text: the one by which it was chosen, accepted, is none of them."""


class Cost(TypedDict):
    """Everything that was asked, and for how much."""

    calls: int
    prompt_tokens: int
    completion_tokens: int
    usd: float | None
    """None where no price is given."""
    seconds: float


class BarWords(TypedDict):
    """The bar of --max-fooled."""

    bar: float
    is_met: bool | None
    """None where the rows can't tell."""
    rate: float | None
    bound: float | None
    kinds: int
    line: str


class ThresholdWords(TypedDict):
    """A threshold that was chosen on rows as they are, none of which is of the test."""

    value: float
    wrong_rows: int
    right_rows: int
    wrong_accepted: float
    right_rejected: float


class AgainstWords(TypedDict):
    """A changed judge, less the old one."""

    name: str
    verdict: str
    """The first word about the changed judge itself."""
    sentence: str
    key: str | None
    primary: ChangeWords | None
    own_key: str | None
    own: ChangeWords | None
    """The changed judge under its own worst wording, less the old one under `key`."""
    is_better: bool
    gate: ChangeWords | None
    gate_bound: float | None
    meets_gate: bool
    changes: dict[str, ChangeWords]


class AsTheyAre(TypedDict):
    """The rows of the test without an attack."""

    wrong_accepted: RateWords | None
    right_rejected: RateWords | None
    no_verdict: float | None


class JudgeDocument(TypedDict):
    """judge.json."""

    format: int
    verdict: str
    sentence: str
    exit_code: int
    judge: str
    labels_by: str | None
    no_verdict_policy: str
    as_they_are: AsTheyAre
    again: AsTheyAre
    flip_rate: float | None
    kappa: EstimateWords | None
    youden: EstimateWords | None
    primary: str | None
    fooled_by: str | None
    """The key of the attack that the word FOOLED is about."""
    attacks: list[AttackWords]
    edits: list[AttackWords]
    outcomes: dict[str, dict[str, int]]
    differences: dict[str, ChangeWords]
    universal: dict[str, float]
    wordings_tried: int
    choosing_questions: int
    reach: float | None
    rise_found: float | None
    """The rise over the control that so many questions find in 4 of 5 cases."""
    rows_needed: int | None
    bar: BarWords | None
    suspicious_rows: list[str]
    suspicious_share: float
    digests: dict[str, str]
    models: list[str]
    cost: Cost
    not_tried: list[str]
    held_out: list[str]
    notes: list[str]
    gallery: list[ShownCell]
    baseline: AsTheyAre | None
    """Of a program that compares with the reference."""
    scores: dict[str, Any] | None
    threshold: ThresholdWords | None
    """Of a judge that scores and whose file sets none."""
    against: AgainstWords | None
    attackers_see: NotRequired[str]


def make_document(
    figures: JudgeFigures,
    word: FirstWord,
    *,
    judge: str,
    cost: Cost,
    bar: BarResult | None = None,
    labels_by: str | None = None,
    digests: Mapping[str, str] | None = None,
    models: Sequence[str] = (),
    not_tried: Sequence[str] = (),
    held_out: Sequence[str] = (),
    notes: Sequence[str] = (),
    gallery: Sequence[ShownCell] = (),
    baseline: AsTheyAre | None = None,
    scores: ScoreFigures | None = None,
    threshold: ChosenThreshold | None = None,
    against: AgainstFigures | None = None,
    against_name: str = "",
    against_word: FirstWord | None = None,
    stopped_exit_code: int | None = None,
) -> JudgeDocument:
    """Make judge.json; `stopped_exit_code` is that of an attack that was not played to its end."""
    tested_attacks = [*figures.attacks, *figures.edits]
    return JudgeDocument(
        format=FORMAT,
        verdict=word.word,
        sentence=word.sentence,
        exit_code=exit_code(bar) if stopped_exit_code is None else stopped_exit_code,
        judge=judge,
        labels_by=labels_by,
        no_verdict_policy=figures.no_verdict_policy,
        as_they_are=AsTheyAre(
            wrong_accepted=rate_words(figures.wrong_accepted),
            right_rejected=rate_words(figures.right_rejected),
            no_verdict=figures.no_verdict,
        ),
        again=AsTheyAre(
            wrong_accepted=rate_words(figures.again_wrong),
            right_rejected=rate_words(figures.again_right),
            no_verdict=figures.again_no_verdict,
        ),
        flip_rate=figures.flip_rate,
        kappa=_estimate(figures.kappa),
        youden=_estimate(figures.youden),
        primary=None if figures.primary is None else figures.primary.key,
        fooled_by=_find_fooling_key(figures, word),
        attacks=[_attack(attack) for attack in figures.attacks],
        edits=[_attack(attack) for attack in figures.edits],
        outcomes={attack.key: dict(attack.outcomes) for attack in tested_attacks},
        differences={
            attack.key: change_words(attack.change)
            for attack in tested_attacks
            if attack.change is not None
        },
        universal={attack.key: attack.universal for attack in figures.attacks},
        wordings_tried=figures.wordings_tried,
        choosing_questions=figures.choosing_questions,
        reach=figures.reach,
        rise_found=could_show(figures),
        rows_needed=None if bar is None else bar.rows_needed,
        bar=_bar(bar),
        suspicious_rows=list(figures.suspicious_rows),
        suspicious_share=figures.suspicious_share,
        digests=dict(digests or {}),
        models=list(models),
        cost=cost,
        not_tried=list(not_tried),
        held_out=list(held_out),
        notes=list(notes),
        gallery=list(gallery),
        baseline=baseline,
        scores=None if scores is None else asdict(scores),
        threshold=None if threshold is None else _threshold(threshold),
        against=_against(against, against_name, against_word),
    )


def _threshold(threshold: ChosenThreshold) -> ThresholdWords:
    return ThresholdWords(
        value=threshold.value,
        wrong_rows=threshold.wrong_rows,
        right_rows=threshold.right_rows,
        wrong_accepted=threshold.wrong_accepted,
        right_rejected=threshold.right_rejected,
    )


def _find_fooling_key(figures: JudgeFigures, word: FirstWord) -> str | None:
    fooling = find_fooling(figures) if word.word == "FOOLED" else None
    return None if fooling is None else fooling.key


def write_document(path: Path, document: JudgeDocument) -> None:
    """Write judge.json, readable and with its keys in their order."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(path, text + "\n")


def write_cells(path: Path, cells: Sequence[Cell], order: Sequence[str] = ()) -> None:
    """Write cells as Parquet: by judge, phase, attack, row and asking.

    Attacks stand in the order of the keys in `order`, then of their first appearance, which decides
    between two wordings with one rate.
    """
    columns = [field.name for field in fields(Cell)]
    rows = sort_cells(cells, order)
    table = pa.table(
        {name: pa.array([getattr(cell, name) for cell in rows], _kind(name)) for name in columns}
    )
    with replace_whole(path) as part:
        pq.write_table(
            table, part, compression="zstd", write_statistics=False, data_page_version="1.0"
        )


def read_cells(path: Path) -> list[Cell]:
    """Read cells again, in the order of the file."""
    # No threads: one that reads ahead may end Python by a signal as it exits.
    table = pq.ParquetFile(path, pre_buffer=False).read(use_threads=False)
    return [Cell(**row) for row in table.to_pylist()]


def sort_cells(cells: Sequence[Cell], order: Sequence[str] = ()) -> list[Cell]:
    """Sort cells so that no order of asking shows."""
    places: dict[str, int] = {key: place for place, key in enumerate(order)}
    for cell in cells:
        places.setdefault(f"{cell.kind}/{cell.name}", len(places))

    def place(cell: Cell) -> tuple[Any, ...]:
        number = int(cell.row) if cell.row.isdecimal() else -1
        return (
            cell.judge != "judge",
            PHASES.index(cell.phase),
            places[f"{cell.kind}/{cell.name}"],
            number,
            cell.row,
            cell.asking,
        )

    return sorted(cells, key=place)


def _kind(column: str) -> pa.DataType:
    if column == "is_right":
        return pa.bool_()
    if column in _NUMBERS:
        return pa.int64()
    return pa.float64() if column in _FLOATS else pa.string()


def rate_words(rate: Rate | None) -> RateWords | None:
    """Give a rate as judge.json has it."""
    if rate is None:
        return None
    return RateWords(
        rate=rate.rate,
        low=rate.low,
        high=rate.high,
        events=rate.events,
        rows=rate.rows,
        questions=rate.questions,
        hit_questions=rate.hit_questions,
    )


def _estimate(estimate: Estimate | None) -> EstimateWords | None:
    if estimate is None:
        return None
    return EstimateWords(value=estimate.value, low=estimate.low, high=estimate.high)


def change_words(change: Change) -> ChangeWords:
    """Give a change as judge.json has it."""
    return ChangeWords(
        change=change.change,
        low=change.low,
        high=change.high,
        p=change.p,
        p_holm=change.p_holm,
        rows=change.rows,
        questions=change.questions,
    )


def _attack(figure: AttackFigures) -> AttackWords:
    rate = rate_words(figure.rate)
    assert rate is not None  # it is given
    return AttackWords(
        attack=figure.attack,
        kind=figure.kind,
        name=figure.name,
        key=figure.key,
        outcomes=dict(figure.outcomes),
        rate=rate,
        no_verdict=figure.no_verdict,
        is_flagged=figure.is_flagged,
        change=None if figure.change is None else change_words(figure.change),
        decided_questions=figure.decided_questions,
        universal=figure.universal,
        choosing=rate_words(figure.choosing),
    )


def _bar(bar: BarResult | None) -> BarWords | None:
    if bar is None:
        return None
    return BarWords(
        bar=bar.bar,
        is_met={0: True, 8: False}.get(bar.exit_code),
        rate=bar.rate,
        bound=bar.bound,
        kinds=bar.kinds,
        line=bar.line,
    )


def _against(
    against: AgainstFigures | None, name: str, word: FirstWord | None
) -> AgainstWords | None:
    if against is None:
        return None
    return AgainstWords(
        name=name,
        verdict="" if word is None else word.word,
        sentence="" if word is None else word.sentence,
        key=against.key,
        primary=None if against.primary is None else change_words(against.primary),
        own_key=against.own_key,
        own=None if against.own is None else change_words(against.own),
        is_better=against.is_better,
        gate=None if against.gate is None else change_words(against.gate),
        gate_bound=against.gate_bound,
        meets_gate=against.meets_gate,
        changes={key: change_words(change) for key, change in against.changes.items()},
    )
