"""What came of declared hypotheses: differences between arms over seeds and questions.

outcomes    a hypothesis each: the difference, its interval, its p-value, and what follows
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nip_core.errors import DatasetError
from nip_core.evaluation.statistics.clustered import Mean
from nip_core.evaluation.statistics.differences import equivalence, holm
from nip_core.evaluation.statistics.distributions import t_cdf
from nip_core.evaluation.statistics.two_way import TwoWay, two_way
from nip_core.hashing import derive_seed
from nip_core.sweep.counted import Counted, Counts, rate
from nip_core.sweep.declaration import Hypothesis, pairs
from nip_core.sweep.plan import Sweep


@dataclass(frozen=True)
class Compared:
    """Two arms, run by run."""

    difference: TwoWay | None
    rates: tuple[float | None, float | None]
    """Of both arms."""
    pairs: int
    """Of runs, that are finished."""


def outcomes(
    counted: Counted, sweep: Sweep, hypotheses: Sequence[Hypothesis]
) -> list[dict[str, Any]]:
    """Compare the arms of each hypothesis, in their order.

    `counted` knows the runs that are finished. Differences are paired by run and question, their
    intervals and p-values count seeds and questions as drawn (`two_way`). p-values are adjusted
    after Holm among the hypotheses that are not primary. "shown", "contradicted" or "not shown"
    follow from them; "not tested" says why in ``because``.
    """
    compared = [_compare(counted, sweep, hypothesis) for hypothesis in hypotheses]
    p_values = [
        _p(hypothesis, both) if _untested(counted, sweep, hypothesis, both) is None else None
        for hypothesis, both in zip(hypotheses, compared, strict=True)
    ]
    adjusted = _adjusted(hypotheses, p_values)
    return [
        {
            "says": hypothesis.says,
            "primary": hypothesis.primary,
            "figure": hypothesis.figure,
            "rates": list(both.rates),
            "difference": both.difference and both.difference.value,
            "ci95": both.difference and both.difference.ci95 and list(both.difference.ci95),
            "pairs": both.pairs,
            "questions": both.difference and both.difference.questions,
            "p": p,
            "p_holm": p_holm,
            "alpha": hypothesis.alpha,
            **_verdict(hypothesis, both, p_holm, _untested(counted, sweep, hypothesis, both)),
        }
        for hypothesis, both, p, p_holm in zip(
            hypotheses, compared, p_values, adjusted, strict=True
        )
    ]


def _compare(counted: Counted, sweep: Sweep, hypothesis: Hypothesis) -> Compared:
    both: list[tuple[Counts, Counts]] = []
    for run, other in pairs(sweep, hypothesis):
        first, second = (counted.of(r.name, hypothesis.figure) for r in (run, other))
        if first is not None and second is not None:
            if {q: n for q, (_, n) in first.items()} != {q: n for q, (_, n) in second.items()}:
                raise DatasetError(
                    f"{run.name} and {other.name} were not tested on the same problems, so they "
                    "can't be compared in pairs"
                )
            both.append((first, second))
    rates = tuple(rate([pair[side] for pair in both]) for side in (0, 1))
    questions = sorted({question for first, _ in both for question in first})
    if not questions:
        return Compared(None, (rates[0], rates[1]), len(both))
    sums = np.array(
        [[first.get(q, (0.0, 0))[0] - second.get(q, (0.0, 0))[0] for q in questions]
         for first, second in both]
    )  # fmt: skip
    counts = np.array([[float(first.get(q, (0.0, 0))[1]) for q in questions] for first, _ in both])
    difference = two_way(sums, counts, derive_seed("hypothesis", hypothesis.says))
    return Compared(difference, (rates[0], rates[1]), len(both))


def _untested(counted: Counted, sweep: Sweep, hypothesis: Hypothesis, both: Compared) -> str | None:
    """Return why nothing can be said, or None."""
    if both.difference is None:
        return "no pair of runs is finished"
    if not both.difference.error:
        return "one run, one question or no difference between them shows no spread"
    for figure, least in hypothesis.where.items():
        for side in (0, 1):
            runs = [pair[side] for pair in pairs(sweep, hypothesis)]
            reached = rate([c for run in runs if (c := counted.of(run.name, figure)) is not None])
            if reached is None or reached < least:
                which = "arm" if side == 0 else "against"
                measured = "unknown" if reached is None else f"{reached:.3f}"
                return f"{figure} of {which} is {measured}, below {least:g}"
    return None


def _p(hypothesis: Hypothesis, both: Compared) -> float:
    difference = both.difference
    assert difference is not None and difference.error
    if hypothesis.margin is not None:
        tested = equivalence(
            Mean(difference.value, difference.error, difference.df, difference.questions),
            hypothesis.margin,
            hypothesis.alpha,
        )
        assert tested is not None  # it has an error
        return tested.p
    t = abs(difference.value) / difference.error
    return min(1.0, 2 * (1 - t_cdf(t, difference.df)))


def _adjusted(
    hypotheses: Sequence[Hypothesis], p_values: Sequence[float | None]
) -> list[float | None]:
    """After Holm, among the hypotheses that are not primary and were tested."""
    adjusted: list[float | None] = list(p_values)
    places = [
        place
        for place, (hypothesis, p) in enumerate(zip(hypotheses, p_values, strict=True))
        if p is not None and not hypothesis.primary
    ]
    values = [p for p in (p_values[place] for place in places) if p is not None]
    for place, p in zip(places, holm(values), strict=True):
        adjusted[place] = p
    return adjusted


def _verdict(
    hypothesis: Hypothesis, both: Compared, p: float | None, untested: str | None
) -> dict[str, str]:
    if untested is not None or p is None or both.difference is None:
        return {"outcome": "not tested", "because": untested or "no p-value"}
    if p > hypothesis.alpha:
        return {"outcome": "not shown"}
    if hypothesis.expected == "equal":
        return {"outcome": "shown"}
    is_higher = both.difference.value > 0
    as_expected = is_higher == (hypothesis.expected == "higher")
    return {"outcome": "shown" if as_expected else "contradicted"}
