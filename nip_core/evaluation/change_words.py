"""The changes between two places of runs, in sentences.

They compare the verdicts, with the interval of the difference, and say nothing of causes.
"""

from nip_core.evaluation.figures_in_words import (
    number,
    percent,
    points,
    problems_words,
    true_minus,
)
from nip_core.evaluation.verdict_changes import RateChange, VerdictChanges


def describe_pairs(changes: VerdictChanges) -> str:
    """Say on how many episodes the changes rest, as "800 episodes (400 problems)"."""
    episodes = f"{number(changes.episodes)} episode{'' if changes.episodes == 1 else 's'}"
    if changes.episodes == changes.problems == changes.questions:
        return episodes
    return f"{episodes} ({problems_words(changes.problems, changes.questions)})"


def describe_changes(
    changes: VerdictChanges, names: tuple[str, str] | None = None, *, with_accuracy: bool = True
) -> list[str]:
    """Describe the changes in sentences; `names` are given where neither side is the earlier.

    Without `with_accuracy` the sentences that other lines repeat are left out.
    """
    rates = [
        (f"follows {'the prover' if prover == 'prover' else prover} in", followed)
        for prover, followed in changes.follows.items()
    ]
    rates.append(("accepts in", changes.acceptance))
    if with_accuracy and changes.accuracy is not None:
        rates.append(("is right in", changes.accuracy))
    lines = [
        f"{'It' if k else 'The verifier'} {does} {_describe_rate(rate, names, changes.episodes)}."
        for k, (does, rate) in enumerate(rates)
    ]
    return [*lines, _describe_counts(changes, names)]


def _describe_rate(rate: RateChange, names: tuple[str, str] | None, episodes: int) -> str:
    earlier, later = percent(rate.before), percent(rate.after)
    among = "" if rate.episodes == episodes else f", over {number(rate.episodes)} of the episodes"
    is_change = names is None
    interval = f"{_describe_difference(rate, is_change)}{among}"
    if names is not None:
        return f"{later} of episodes in {names[1]} and {earlier} in {names[0]} ({interval})"
    if rate.before == rate.after:
        return f"{later} of episodes, as before ({interval})"
    return f"{later} of episodes; it was {earlier} ({interval})"


def _describe_difference(rate: RateChange, is_change: bool) -> str:
    """Say how sure a difference is."""
    if rate.ci95 is None:
        return f"{points(rate.difference, True)}, no interval: one question"
    low, high = rate.ci95
    if low == high:
        return f"{points(rate.difference, True)}, the same on each problem"
    interval = f"95\u202f% interval {100 * low:+.1f} to {100 * high:+.1f}"
    unclear = f"no clear {'change' if is_change else 'difference'}, " if low <= 0 <= high else ""
    return f"{points(rate.difference, True)}, {unclear}{true_minus(interval)}"


def _describe_counts(changes: VerdictChanges, names: tuple[str, str] | None) -> str:
    mended, broken, other_changes = map(number, (changes.mended, changes.broken, changes.other))
    if changes.accuracy is None:
        return f"{other_changes} verdict{'' if changes.other == 1 else 's'} changed."
    still_wrong = f" {other_changes} changed from wrong to wrong." if changes.other else ""
    if not changes.mended and not changes.broken:
        return f"No verdict became right or wrong.{still_wrong}"
    if names is not None:
        counts = f"{mended} in {names[1]} alone, {broken} in {names[0]} alone"
        return f"Verdicts that are right in one only: {counts}.{still_wrong}"
    plural = "" if changes.mended == 1 else "s"
    return f"{mended} verdict{plural} became right, {broken} became wrong.{still_wrong}"
