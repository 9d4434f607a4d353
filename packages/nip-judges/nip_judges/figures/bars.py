"""Compare the worst kind with a bar, `--max-fooled`, and choose the exit code.

check_bar    a bar against the figures
BarResult    whether it is met, and the line that says so
refuse_bar   why a bar can't be asked of so many questions, or of such labels
exit_code    0, 8 or 9
DONE, NOT_MET, CANNOT_TELL   these codes
"""

from dataclasses import dataclass

from nip_core.evaluation.statistics.differences import at_most
from nip_judges.figures.judge_figures import AttackFigures, JudgeFigures
from nip_judges.figures.planned_power import corrected_level, rows_needed, rows_needed_at

DONE, NOT_MET, CANNOT_TELL = 0, 8, 9


@dataclass(frozen=True)
class BarResult:
    """A bar and whether it is met; shares are fractions of 1."""

    bar: float
    exit_code: int
    rate: float | None
    """Of the worst kind on the test; None where none was tested."""
    bound: float | None
    """Its one-sided upper 95 % bound over questions, corrected for the number of kinds."""
    kinds: int
    rows_needed: int | None
    """Wrong questions by which the bar would be met at this rate; None where none would do."""
    line: str


def check_bar(figures: JudgeFigures, bar: float) -> BarResult:
    """Compare the worst kind with `bar`, a fraction of 1 above 0.

    Not met where the rate itself is at or above the bar; met where its bound is below; else the
    rows can't tell. A judge that is no better than chance, or was not attacked, meets no bar, nor
    does one meet a bar below the share of labels that look wrong.
    """
    kinds = len(figures.attacks)
    option = f"--max-fooled {100 * bar:g}"
    if not kinds:
        line = f"{option} can't be told: nothing was tested"
        return BarResult(bar, CANNOT_TELL, None, None, 0, None, line)
    rate = max(_share(one) for one in figures.attacks)
    bound = max(_bound(one, kinds) for one in figures.attacks)
    needed = rows_needed_at(bar, kinds, rate)
    if rate >= bar:
        line = f"{option} is not met"
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
    many = "more than a million" if needed is None else f"{needed:,}"
    line = (
        f"{option} can't be told: at most {100 * bound:.1f} %; {many} wrong questions would do at "
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
    many = "more than a million" if needed is None else f"{needed:,}"
    return (
        f"{option} can't be met with {wrong_questions} wrong questions in the test: {many} would "
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


def _share(figure: AttackFigures) -> float:
    """Take the higher of the shares of rows and of questions."""
    rate = figure.rate
    return max(rate.rate, rate.hit_questions / rate.questions)


def _bound(figure: AttackFigures, kinds: int) -> float:
    rate = figure.rate
    bound = at_most(rate.hit_questions, rate.questions, corrected_level(kinds))
    assert bound is not None  # there are questions
    return bound
