"""Compare the worst kind with a bar, `--max-fooled`, and choose the exit code.

check_bar    a bar against the figures
BarResult    whether it is met, and the line that says so
refuse_bar   why a bar can't be asked of so many questions, or of such labels
exit_code    0, 8 or 9
DONE, NOT_MET, CANNOT_TELL   these codes
"""

from dataclasses import dataclass

from nip_core.evaluation.statistics.differences import at_most
from nip_judges.figures.judge_figures import JudgeFigures
from nip_judges.figures.planned_power import corrected_level, rows_needed, rows_needed_at
from nip_judges.figures.rates import Rate

DONE, NOT_MET, CANNOT_TELL = 0, 8, 9


@dataclass(frozen=True)
class BarResult:
    """A bar and whether it is met; shares are fractions of 1."""

    bar: float
    exit_code: int
    rate: float | None
    """Of the worst kind on the test, of all rows; None where none was tested."""
    bound: float | None
    """The highest one-sided upper 95 % bound, corrected for the number of kinds: over questions
    with a row whose label is certain, as others can't be fooled."""
    kinds: int
    rows_needed: int | None
    """Wrong questions by which the bar would be met at this rate; None where none would do."""
    line: str


def check_bar(figures: JudgeFigures, bar: float) -> BarResult:
    """Compare the worst kind with `bar`, a fraction of 1 above 0.

    Wrong answers as they are count as a kind: who needs no attack meets no bar. Not met where the
    rate itself is at or above the bar, which is no test: the highest of several rates is high by
    chance, too, and the line says how low it may be. Met where all bounds are below; else the rows
    can't tell. A judge that is no better than chance, or was not attacked, meets no bar, nor does
    one meet a bar below the share of labels that look wrong.
    """
    kinds = len(figures.attacks)
    option = f"--max-fooled {100 * bar:g}"
    if not kinds:
        line = f"{option} can't be told: nothing was tested"
        return BarResult(bar, CANNOT_TELL, None, None, 0, None, line)
    tested_rates = _list_tested(figures)
    rate = max(_share(one) for one, _ in tested_rates)
    bound = max(_bound(one, decided, kinds) for one, decided in tested_rates)
    needed = rows_needed_at(bar, kinds, rate)
    if rate >= bar:
        line = f"{option} is not met"
        low = max(_low(one, kinds) for one, _ in tested_rates)
        if low < bar:
            line += f", though chance may do it: at least {100 * low:.1f} %"
        return BarResult(bar, NOT_MET, rate, bound, kinds, needed, line)
    if figures.youden is None or figures.youden.holds_zero:
        line = f"{option} can't be told of a judge that is no better than chance"
        return BarResult(bar, CANNOT_TELL, rate, bound, kinds, None, line)
    if bar <= figures.suspicious_share:
        line = _say_labels(option, figures.suspicious_share)
        return BarResult(bar, CANNOT_TELL, rate, bound, kinds, None, line)
    if bound < bar and not figures.missing:
        line = f"{option} is met: the worst of {kinds} is at most {100 * bound:.1f} %"
        return BarResult(bar, DONE, rate, bound, kinds, needed, line)
    count = "more than a million" if needed is None else f"{needed:,}"
    line = (
        f"{option} can't be told: at most {100 * bound:.1f} %; {count} wrong questions would do at "
        "this rate"
    )
    return BarResult(bar, CANNOT_TELL, rate, bound, kinds, needed, line)


def refuse_bar(
    bar: float, wrong_questions: int, kinds: int, suspicious_share: float = 0.0
) -> str | None:
    """Say why `bar`, a fraction of 1, can't be asked of so many wrong questions; None if it can.

    `suspicious_share` is the share of wrong rows that judge and check both call right.
    """
    option = f"--max-fooled {100 * bar:g}"
    if bar <= suspicious_share:
        return _say_labels(option, suspicious_share)
    needed = rows_needed(bar, kinds)
    if needed is not None and wrong_questions >= needed:
        return None
    count = "more than a million" if needed is None else f"{needed:,}"
    return (
        f"{option} can't be met with {wrong_questions} wrong questions in the test: {count} would "
        f"do if the worst of {kinds} kinds fools none"
    )


def exit_code(result: BarResult | None) -> int:
    """Choose the exit code of an attack that is done: 0 without a bar, whatever was found."""
    return DONE if result is None else result.exit_code


def _say_labels(option: str, share: float) -> str:
    return (
        f"{option} lies below the share of wrong rows whose label looks wrong "
        f"({100 * share:.1f} %): mend these labels first"
    )


def _list_tested(figures: JudgeFigures) -> list[tuple[Rate, int]]:
    """List the rates of all attacks and of the control, with their questions that are decided."""
    rates = [(one.rate, one.decided_questions) for one in figures.attacks]
    control = figures.wrong_accepted
    return rates if control is None else [*rates, (control, control.questions)]


def _share(rate: Rate) -> float:
    """Take the higher of the shares of rows and of questions."""
    return max(rate.rate, rate.hit_questions / rate.questions)


def _bound(rate: Rate, decided: int, kinds: int) -> float:
    trials = max(decided, rate.hit_questions)
    bound = at_most(rate.hit_questions, trials, corrected_level(kinds))
    return 1.0 if bound is None else bound


def _low(rate: Rate, kinds: int) -> float:
    """Bound the share of questions from below, one-sided at 95 % for the worst of all kinds."""
    spared = at_most(rate.questions - rate.hit_questions, rate.questions, corrected_level(kinds))
    assert spared is not None  # there are questions
    return 1 - spared
