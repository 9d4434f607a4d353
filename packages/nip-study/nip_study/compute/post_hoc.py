"""Hypotheses that were declared by earlier definitions, by those of today: after the fact.

docs/decisions/0057-attacked-figures.md has both definitions. Nothing that was declared changes.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from nip_core.evaluation.figures_in_words import DASH, plain_percent, points_cell
from nip_core.evaluation.split_metrics import Interval95
from nip_study.compute.outcomes import judge_hypotheses
from nip_study.declare.hypotheses import Hypothesis
from nip_study.documents.results_document import HypothesisOutcome
from nip_study.documents.swept_facts import SweepFacts
from nip_study.parts.counted import Counted, LastTest, Verdicts
from nip_study.parts.page_tables import markdown_table

_PAGE = """
### By the definitions of today, after the fact

This was not declared, so it shows nothing; it says what to declare next. Completeness is that with
the honest prover, of a run's own test; soundness is that after the attack; accuracy is the mean of
both. A rate is a mean over runs. A verifier alone is the untrained or the trained one, whichever
has more of the figure. (Above, all figures are of the attack's test, plays are pooled, and a
verifier alone is the trained one.) p is not adjusted, and no gate is waited for; intervals are
calibrated ones of 95 %.

"""


def judge_post_hoc(
    verdicts: pa.Table,
    tests: Mapping[str, LastTest],
    facts: SweepFacts,
    hypotheses: Sequence[Hypothesis],
) -> tuple[HypothesisOutcome, ...]:
    """Compare the arms of hypotheses that were declared by definitions 1 by those of today.

    () where the declaration is by those of today. Left out are hypotheses that are counted alike.
    """
    if facts.definitions != 1:
        return ()
    counter = Counted(Verdicts(verdicts, "calibrated"), tests, 2)
    asked_hypotheses = [
        one.model_copy(update={"primary": True, "gate": False})
        for one in hypotheses
        if one.after is not None or one.any_of is not None
    ]
    return tuple(judge_hypotheses(counter, facts, asked_hypotheses))


def post_hoc_page(outcomes: Sequence[HypothesisOutcome]) -> str:
    """Write their outcomes as a table; "" without one."""
    if not outcomes:
        return ""
    heads = ["hypothesis", "figure", "arm", "against", "difference", "95 % interval", "p"]
    rows = []
    for row in outcomes:
        p_cell = row.because if row.p is None and row.because else _p_cell(row)
        rows.append([row.says, *compared_cells(row), range_cell(row.ci95), p_cell])
    return f"{_PAGE}{markdown_table(heads, rows)}"


def compared_cells(row: HypothesisOutcome) -> list[str]:
    """Write the figure of a hypothesis, both rates with their meaning, and the difference."""
    arm, against = (plain_percent(rate) for rate in row.rates)
    if row.number is not None:
        against += " (given)"
    if row.any_of is not None:
        against += " (one verdict)" if row.any_of == 1 else f" (any of {row.any_of})"
    if row.alone is not None:
        untrained, trained_rate = (plain_percent(rate) for rate in row.alone)
        against += f"; untrained {untrained}, trained {trained_rate}"
    after = row.attack if isinstance(row.attack, str | None) else name_group(row.attack)
    figure = row.figure + (f" after {after}" if after else "")
    return [figure, arm, against, points_cell(row.difference)]


def name_group(attacks: Sequence[str]) -> str:
    """Name several attacks of which the worst counts."""
    return f"the worst of {', '.join(attacks)}"


def range_cell(interval: Interval95 | None) -> str:
    """Write an interval of a difference in points; a dash for None."""
    if interval is None:
        return DASH
    return f"{100 * interval[0]:+.1f} to {100 * interval[1]:+.1f}"


def _p_cell(row: HypothesisOutcome) -> str:
    if row.p is None:
        return DASH
    margin_text = "" if row.margin is None else f" (within ± {100 * row.margin:g})"
    return f"{row.p:.3g}{margin_text}"
