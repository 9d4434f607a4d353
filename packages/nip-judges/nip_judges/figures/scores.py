"""Judges that score: how well scores part right from wrong, a threshold, and the rise of an attack.

measure_scores   all of it, by the cells of a judge
ScoreFigures     it
area_under_roc   how often a right response scores higher than a wrong one
choose_threshold the threshold at equal error rates
ChosenThreshold  it, with its error rates where it was chosen; fix_threshold makes it
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nip_core.evaluation.statistics.clustered import clustered_mean
from nip_judges.figures.judge_figures import UNDECIDED
from nip_judges.figures.rates import number_questions
from nip_judges.parts import Cell

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ScoreFigures:
    """The scores of a judge, as they are and under each attack."""

    auroc: float | None
    """In [0, 1], of the rows of the test as they are; 0.5 is chance."""
    auroc_under: dict[str, float]
    """By the attack's key: right rows as they are against wrong ones attacked."""
    rises: dict[str, tuple[float, float | None, float | None]]
    """By the attack's key: the mean rise of wrong responses' scores, with its 95 % interval."""


@dataclass(frozen=True)
class ChosenThreshold:
    """A threshold that was chosen on rows as they are, none of which is of the test."""

    value: float
    """A score of at least so much is accepted."""
    wrong_rows: int
    right_rows: int
    wrong_accepted: float
    right_rejected: float


def fix_threshold(right: Sequence[float], wrong: Sequence[float]) -> ChosenThreshold:
    """Choose a threshold and count its errors; raises as `choose_threshold` does."""
    value = choose_threshold(right, wrong)
    return ChosenThreshold(
        value,
        len(wrong),
        len(right),
        sum(score >= value for score in wrong) / len(wrong),
        sum(score < value for score in right) / len(right),
    )


def measure_scores(cells: Sequence[Cell]) -> ScoreFigures | None:
    """Measure scores by the cells of one judge; None where no cell as it is has a score.

    Texts without a score are left out, and those that are right after all or not certain.
    """
    scored = [cell for cell in cells if cell.score is not None and cell.outcome not in UNDECIDED]
    plain = {cell.row: cell for cell in scored if cell.phase == "as they are"}
    test = [cell for cell in plain.values() if cell.part == "test"]
    if not test:
        return None
    right = _scores([cell for cell in test if cell.is_right])
    attacked_cells: dict[str, list[Cell]] = {}
    for cell in scored:
        if cell.phase == "test" and not cell.is_right:
            attacked_cells.setdefault(f"{cell.kind}/{cell.name}", []).append(cell)
    rises = {}
    for key, group in attacked_cells.items():
        pairs = [
            (cell.score - old.score, cell.question_id)
            for cell in group
            if (old := plain.get(cell.row)) and cell.score is not None and old.score is not None
        ]
        if pairs:
            rises[key] = _mean_rise([rise for rise, _ in pairs], [name for _, name in pairs])
    under = {key: area_under_roc(right, _scores(group)) for key, group in attacked_cells.items()}
    return ScoreFigures(
        auroc=area_under_roc(right, _scores([cell for cell in test if not cell.is_right])),
        auroc_under={key: area for key, area in under.items() if area is not None},
        rises=rises,
    )


def area_under_roc(right: Sequence[float], wrong: Sequence[float]) -> float | None:
    """Compute how often a right response scores higher than a wrong one, ties counting half.

    None where one label has no scores.
    """
    if not len(right) or not len(wrong):
        return None
    ordered = np.sort(np.asarray(wrong, dtype=np.float64))
    numbers_below = np.searchsorted(ordered, right, side="left")
    up_to = np.searchsorted(ordered, right, side="right")
    return float((numbers_below + up_to).mean() / 2 / len(wrong))


def choose_threshold(right: Sequence[float], wrong: Sequence[float]) -> float:
    """Choose the threshold at equal error rates: a score of at least so much is accepted.

    Of two that are as equal, the one with fewer errors, then the lower one; it lies halfway between
    two scores. Raises ValueError where one label has no scores.
    """
    if not len(right) or not len(wrong):
        raise ValueError(
            "a threshold needs scores of both labels "
            f"(got {len(right)} right and {len(wrong)} wrong ones)"
        )
    scores = np.unique(np.concatenate([np.asarray(right, float), np.asarray(wrong, float)]))
    places = np.concatenate([scores[:1], (scores[1:] + scores[:-1]) / 2, scores[-1:] + 1])
    rights, wrongs = np.sort(np.asarray(right, float)), np.sort(np.asarray(wrong, float))
    rejected = np.searchsorted(rights, places, side="left") / len(rights)
    accepted = 1 - np.searchsorted(wrongs, places, side="left") / len(wrongs)
    best = np.lexsort((places, rejected + accepted, np.round(np.abs(rejected - accepted), 12)))[0]
    return float(places[best])


def _scores(cells: Sequence[Cell]) -> list[float]:
    return [cell.score for cell in cells if cell.score is not None]


def _mean_rise(
    rises: Sequence[float], questions: Sequence[str]
) -> tuple[float, float | None, float | None]:
    mean = clustered_mean(np.asarray(rises, dtype=np.float64), number_questions(questions))
    assert mean is not None  # there are rises
    low, high = mean.interval() or (None, None)
    return mean.value, low, high
