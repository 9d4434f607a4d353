"""The rates under attacks over their effort: calls, tokens, and dollars where prices are known."""

from collections.abc import Iterator, Sequence

from nip_core.attack_figures.metrics_document import ChoiceMetrics, ShownAttack
from nip_study.documents.results_document import ArmPoint, AttackPoint, SweepResults
from nip_study.documents.swept_facts import AttackFacts, EffortOfTest
from nip_study.parts.counted import (
    Figure,
    LastTest,
    Play,
    Verdicts,
    average_runs,
    count_plays,
    share_right,
)
from nip_study.parts.document_parts import OverRuns, sum_up
from nip_study.parts.page_tables import markdown_table, one_line, write_cell

_RATES: tuple[Figure, ...] = ("soundness", "completeness")
UNTRAINED, WORST = "before training", "worst by validation"
_OVER_EFFORT = """
What each attack took until then, in the mean over finished attacks, and what it left. Of best-of-n
that is an attack with this number of messages alone, with what was played on to judge them; of one
by training playing and training, without tests. Tokens are those read, written and trained on. An
attack by a script takes the verifier's calls alone.
"""
_IN_FIGURE = """
In the figure: soundness by tokens (0: before any training), with its interval; dashed is soundness
in the arm's own test.
"""


def list_efforts(attack: ShownAttack) -> Iterator[EffortOfTest]:
    """List the effort until each test that verdicts are kept of; older figures have none."""
    efforts = {
        row.n if isinstance(row, ChoiceMetrics) else row.step: row.effort for row in attack.rows
    }
    places: list[tuple[str, int, int | None, int]]
    if attack.by_n is not None:
        places = [(f"n {row.n}", 0, row.n, row.n) for row in attack.by_n]
    elif attack.course_on is None:
        steps = [row.step for row in attack.by_step or ()]
        places = [(f"step {step}", step, None, step) for step in steps]
    else:
        worst = attack.worst.step if attack.worst is not None else 0
        places = [(UNTRAINED, 0, None, 0), (WORST, attack.last_test, None, worst)]
        # With provers that were the worst before any training there is one test.
        places = places[: 1 if attack.last_test == 0 else 2]
    for place, iteration, n, key in places:
        effort = efforts.get(key)
        if effort is not None:
            yield EffortOfTest(
                place=place,
                iteration=iteration,
                n=n,
                calls=effort.calls,
                tokens=effort.tokens,
                usd=effort.usd,
            )


def measure_curve(verdicts: Verdicts, attack: AttackFacts) -> tuple[AttackPoint, ...]:
    """Put the rates in each test of a finished attack beside the effort until then."""
    points = []
    for effort in attack.efforts:
        plays = _plays(verdicts, attack, effort)
        sound, complete = (share_right([count_plays(plays, rate)]) for rate in _RATES)
        points.append(
            AttackPoint(
                place=effort.place,
                calls=effort.calls,
                tokens=effort.tokens,
                usd=effort.usd,
                soundness=sound,
                completeness=complete,
            )
        )
    return tuple(points)


def _plays(verdicts: Verdicts, attack: AttackFacts, effort: EffortOfTest) -> Sequence[Play]:
    return verdicts.tests(attack.name).get(LastTest(effort.iteration, effort.n), ())


def average_curves(
    verdicts: Verdicts, attacks: Sequence[AttackFacts], name: str
) -> tuple[ArmPoint, ...]:
    """Average the curves of finished attacks, point by point; `name` seeds the intervals.

    The test that counts is a figure of the arm, and has the interval that the arm's table has.
    """
    by_place: dict[str, list[tuple[AttackFacts, EffortOfTest]]] = {}
    has_worst = any(effort.place == WORST for attack in attacks for effort in attack.efforts)
    for attack in attacks:
        for effort in attack.efforts:
            by_place.setdefault(effort.place, []).append((attack, effort))
        # Where its provers were the worst before any training, their one test is both.
        if has_worst and [effort.place for effort in attack.efforts] == [UNTRAINED]:
            by_place.setdefault(WORST, []).append((attack, attack.efforts[0]))
    points = []
    for place, efforts in by_place.items():
        rates: dict[str, OverRuns | None] = {}
        counts_for_arm = all(
            (effort.iteration, effort.n) == (attack.iteration, attack.n)
            for attack, effort in efforts
        )
        point = name if counts_for_arm else f"{name} {place}"
        for figure in _RATES:
            counts = [count_plays(_plays(verdicts, *one), figure) for one in efforts]
            values = [share_right([of_attack]) for of_attack in counts]
            rates[figure] = sum_up(
                values, average_runs(counts, f"{point} {figure}", verdicts.spread)
            )
        dollars = [effort.usd for _, effort in efforts]
        paid = [usd for usd in dollars if usd is not None]
        points.append(
            ArmPoint(
                place=place,
                attacks=len(efforts),
                calls=sum(effort.calls for _, effort in efforts) / len(efforts),
                tokens=sum(effort.tokens for _, effort in efforts) / len(efforts),
                usd=sum(paid) / len(paid) if len(paid) == len(dollars) else None,
                soundness=rates["soundness"],
                completeness=rates["completeness"],
            )
        )
    return tuple(points)


def effort_page(results: SweepResults) -> str:
    """Write the rates under attacks over their effort; "" without such figures."""
    points = [
        (arm.name, label, point)
        for arm in results.arms
        for label, attack in arm.attacks.items()
        for point in attack.by_effort
    ]
    if not points:
        return ""
    is_paid = any(point.usd for _, _, point in points)
    heads = ["arm", "attack", "at", "calls", "tokens", *(["US dollars"] if is_paid else [])]
    rows = []
    for arm, label, point in points:
        usd = "\u2013" if point.usd is None else f"{point.usd:,.2f}"
        cells = [arm, label, one_line(point.place), f"{point.calls:,.0f}", f"{point.tokens:,.0f}"]
        cells += [usd] if is_paid else []
        rows.append([*cells, write_cell(point.soundness), write_cell(point.completeness)])
    table = markdown_table([*heads, "soundness", "completeness"], rows)
    text = f"\n## Attacks over what they took\n{_OVER_EFFORT}"
    if any(point.soundness is not None for _, _, point in points):
        text += f"{_IN_FIGURE}\n![Soundness over tokens, by arm](efforts.svg)\n"
    return f"{text}\n{table}"
