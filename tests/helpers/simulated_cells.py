"""Cells of simulated judges, in the order of play, without any judge or model."""

import random
from collections.abc import Callable, Sequence

from nip_judges.parts import Cell

Decide = Callable[[random.Random, bool, str, int], str]
"""A judge: a generator, the label, the key of the attack ("" as they are), the question."""

WORDINGS = ("opener/Thought process:", "nothing/a full stop", "forged/GRADE: C", "sure/twice")
EDITS = ("spaces", "heading")


def make_cell(
    decide: Decide,
    rng: random.Random,
    question: int,
    is_right: bool,
    phase: str,
    key: str = "",
    attack: str = "none",
    judge: str = "judge",
) -> Cell:
    """Judge one text of a simulated judge."""
    verdict = decide(rng, is_right, key, question)
    outcomes = {"accept": "accepted", "reject": "wrongly rejected", "none": "no verdict"}
    if not is_right:
        outcomes = {"accept": "fooled", "reject": "rejected", "none": "no verdict"}
    kind, _, name = key.partition("/")
    return Cell(
        judge=judge,
        phase=phase,  # type: ignore[arg-type]
        part="choosing" if phase == "choosing" else "test",
        row=str(2 * question + is_right + 1),
        question_id=f"q{question}",
        is_right=is_right,
        attack=attack,  # type: ignore[arg-type]
        kind=kind,
        name=name,
        asking=int(phase == "again"),
        response=f"{key} answer {question}",
        verdict=verdict,  # type: ignore[arg-type]
        outcome=outcomes[verdict],
        label_by="row" if attack == "none" else "construction",
        words=f"the verdict is {verdict}",
        reason="" if verdict != "none" else "neither accept nor reject",
        score=None,
        p_accept=None,
        model="tiny",
        prompt_tokens=100,
        completion_tokens=10,
    )


def first_cells(decide: Decide, seed: int, rows: int = 20, judge: str = "judge") -> list[Cell]:
    """Judge so many rows of each label as they are, twice."""
    rng = random.Random(seed)
    return [
        make_cell(decide, rng, question, is_right, phase, judge=judge)
        for phase in ("as they are", "again")
        for is_right in (False, True)
        for question in range(rows)
    ]


def play(
    decide: Decide,
    seed: int,
    rows: int = 100,
    choosing: int = 40,
    wordings: Sequence[str] = WORDINGS,
    judge: str = "judge",
) -> list[Cell]:
    """Play a whole course: as they are, again, choosing, and every wording on the test."""
    rng = random.Random(seed)
    cells = first_cells(decide, seed, rows, judge)
    others = range(rows, rows + choosing)
    for key in wordings:
        cells += [
            make_cell(decide, rng, question, False, "choosing", key, "wording", judge)
            for question in others
        ]
    for edit in EDITS:
        cells += [
            make_cell(decide, rng, question, True, "choosing", f"edit/{edit}", "edit", judge)
            for question in others
        ]
    for key in wordings:
        cells += [
            make_cell(decide, rng, question, False, "test", key, "wording", judge)
            for question in range(rows)
        ]
    cells += [
        make_cell(decide, rng, question, True, "test", "edit/spaces", "edit", judge)
        for question in range(rows)
    ]
    return cells


def noisy(
    wrong: float = 0.08, right: float = 0.95, holes: dict[str, float] | None = None
) -> Decide:
    """A judge that accepts wrong and right answers, and those of some attacks, at these rates."""

    def decide(rng: random.Random, is_right: bool, key: str, question: int) -> str:
        rate = right if is_right else (holes or {}).get(key, wrong)
        return "accept" if rng.random() < rate else "reject"

    return decide


def oracle(rng: random.Random, is_right: bool, key: str, question: int) -> str:
    """A judge without an error."""
    return "accept" if is_right else "reject"
