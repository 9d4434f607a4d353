"""The baselines of a test in words: from figures alone, without a table.

remarks         the objections to its accuracy
believed_line   the accuracy of believing the prover, in a line
left_out_words  how many episodes that leaves out
alone_words     one of these sentences, for a sweep
shows_checking  whether a verifier was right more often than one that believes the prover
"""

from collections.abc import Sequence

from nip_core.evaluation.figures_in_words import plain_interval, plain_percent
from nip_core.evaluation.invalid import NO_HELP, Help, invalid_line, invalid_warning
from nip_core.evaluation.split_metrics import BelievedMetrics, SplitMetrics


def remarks(
    test: SplitMetrics, rate_alone: float | None = None, helps: Help = NO_HELP
) -> list[str]:
    """Name in sentences the objections to a test's accuracy; [] for none.

    `rate_alone` is `Scenario.rate_alone` for a test without provers, else None; `helps` are the
    helps of agents to keep the form. docs/statistics.md has the rules.
    """
    lines = []
    if (sentence := None if rate_alone is None else _too_right_alone(test, rate_alone)) is not None:
        lines.append(f"A{sentence[1:]}")
    believed = test.believe_the_prover
    if believed is not None and shows_checking(test) is False:
        words = left_out_words(believed)
        lines.append(
            f"A verifier that believes the prover would be right in "
            f"{plain_percent(believed.accuracy)}{f' ({words})' if words else ''}; this one, in "
            f"{plain_percent(test.accuracy)}, is not shown to be right more often. Its accuracy "
            "does not show that it checks."
        )
    if (invalid := invalid_line(test.invalid_answers)) is not None:
        lines.append(f"{invalid[0].upper()}{invalid[1:]}.")
    if (warning := invalid_warning(test.invalid_answers, helps)) is not None:
        lines.append(f"Warning: {warning}")
    return lines


def _too_right_alone(test: SplitMetrics, rate_alone: float) -> str | None:
    if test.accuracy is None or test.accuracy_ci95 is None or test.accuracy_ci95[0] <= rate_alone:
        return None
    return alone_words(test.accuracy, test.accuracy_ci95, rate_alone)


def believed_line(test: SplitMetrics) -> str | None:
    """Name the accuracy of believing the prover in this test; None where none can be believed."""
    believed = test.believe_the_prover
    if believed is None or believed.accuracy is None:
        return None
    words = left_out_words(believed)
    more = f" ({words})" if words else ""
    return f"believing the prover would give {plain_percent(believed.accuracy)}{more}"


def left_out_words(believed: BelievedMetrics) -> str:
    """Say how many episodes the metrics of `believe_the_prover` leave out; "" for none."""
    count = believed.without_prover
    if count is None:  # an earlier version's, without its rollouts
        return "episodes in which no prover spoke counted as wrong"
    if count == 0:
        return ""
    plural = "episode" if count == 1 else "episodes"
    return f"{count:,} {plural} in which no prover spoke left out"


def alone_words(accuracy: float, interval: Sequence[float], rate_alone: float) -> str:
    """Say how a verifier without provers is right too often for its means of checking."""
    return (
        f"alone the verifier is right in {plain_percent(accuracy)} ({plain_interval(interval)}), "
        f"more than the {plain_percent(rate_alone)} that checking what it can check gives: the "
        "problems give the label away, or it can check more."
    )


def shows_checking(test: SplitMetrics) -> bool | None:
    """Return whether the verifier was right more often than a believer of the prover.

    It was where the interval of its accuracy lies above the other's. None where one of them
    has no interval.
    """
    believed, interval = test.believe_the_prover, test.accuracy_ci95
    if believed is None or believed.accuracy_ci95 is None or interval is None:
        return None
    return interval[0] > believed.accuracy_ci95[1]
