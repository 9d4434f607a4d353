"""Runs that lie far from all others of their arm.

An interval over a few seeds promises too much where one in several collapses, most of all where
none of those that were played did (docs/results/README.md has the figures).
"""

from collections.abc import Iterator, Sequence

from nip_core.evaluation.figures_in_words import plain_percent
from nip_study.documents.results_document import FINISHED, ArmResult, RunResult, SweepResults
from nip_study.parts.page_tables import one_line

_FAR = 0.15
"""The least distance from the nearest other run; it is at least that of all others, too."""
_FEWEST = 3  # runs; of two, neither is the one that lies apart

_PAGE = """
Far from the others: one run lies 15 points or more from its nearest, and at least as far as the
others are spread. An interval of 95 % over such seeds is a rough guess. Simulated with five seeds
drawn from 0, 32, 47, 52 and 52 %, it held their mean in 89 or 90 of 100 draws: in 98 or 99 of those
with such a run, in 80 or 81 of those without. So it promises too much where none was drawn.

"""


def lone_runs_page(results: SweepResults) -> str:
    """Name the figures of which one run lies far from the others, in Markdown; "" without one."""
    lines = [line for arm in results.arms for line in _list_lone(arm, results.runs)]
    return _PAGE + "".join(f"- {line}\n" for line in lines) if lines else ""


def _list_lone(arm: ArmResult, runs: Sequence[RunResult]) -> Iterator[str]:
    of_arm = [run for run in runs if arm.values.items() <= run.values.items()]
    own = [run.last_test.soundness for run in of_arm if run.last_test is not None]
    figures = {"soundness": own}
    for label in arm.attacks:
        attacks = [run.attacks[label] for run in of_arm if label in run.attacks]
        figures[f"soundness after {label}"] = [
            attack.soundness for attack in attacks if attack.status == FINISHED
        ]
    for figure, values in figures.items():
        numbers = [value for value in values if value is not None]
        if (lone := find_lone(numbers)) is not None:
            sorted_numbers = sorted(numbers)
            sorted_numbers.remove(lone)
            yield (
                f"`{one_line(arm.name)}`, {figure}: {plain_percent(lone)}, and the others "
                f"{plain_percent(sorted_numbers[0])} to {plain_percent(sorted_numbers[-1])}"
            )


def find_lone(values: Sequence[float]) -> float | None:
    """Find the value that lies as far from its neighbour as all others lie from each other."""
    if len(values) < _FEWEST:
        return None
    in_order = sorted(values)
    low, high = in_order[1] - in_order[0], in_order[-1] - in_order[-2]
    if low >= max(_FAR, in_order[-1] - in_order[1]):
        return in_order[0]
    return in_order[-1] if high >= max(_FAR, in_order[-2] - in_order[0]) else None
