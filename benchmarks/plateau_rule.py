"""How often does the rule by which an attack ends at a plateau end it too early, or never?

    python benchmarks/plateau_rule.py > table.md
    python benchmarks/plateau_rule.py --bound > bound.md

Draws the verdicts of an attack's tests, every 5 steps until 100 at most, from a soundness that is
known at every step, and asks the rule of `nip_core.attack_figures.plateau` after each test.
Questions differ in how hard they are (a spread of 2 of their log-odds), each has one wrong problem,
and each test draws anew. Groups of episodes have unequal rewards throughout, so no course is
without signal.

Prints tables in Markdown; each is the same every time. By course and number of questions it has how
many of 500 courses, in percent, ended with a plateau while soundness had more than 3 points left to
fall; how many ended with one after that; and the median of the last steps. The others ended with
the most steps, "not reached". With --bound the table has how often, in percent of 1,500 draws, the
one-sided 95 % bound of the fall between two tests was no less than the fall itself. Both tables are
in docs/decisions/0045-plateau.md.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nip_core.attack_figures.plateau import RULE, bound_fall, find_window, judge_course

EVERY, MOST = 5, 100
QUESTIONS = (100, 200, 400, 1000)
SPREAD = 2.0
"""Of the log-odds of questions."""
SHIFTS = np.linspace(-15, 15, 151)
"""Of all log-odds, between which the one with a given soundness is interpolated."""
Soundness = Callable[[float], float]
"""Of a step."""


def flat(soundness: float) -> Soundness:
    return lambda _: soundness


def falls(points: float, pause: float = 0) -> Soundness:
    """From 90 to 30 %, so many points a step, with a pause of so many steps after step 20."""

    def after(step: float) -> float:
        return max(0.3, 0.9 - points / 100 * (min(step, 20) + max(0.0, step - 20 - pause)))

    return after


COURSES = {
    "flat at 90 %": flat(0.9),
    "flat at 50 %": flat(0.5),
    "flat at 10 %": flat(0.1),
    "falls by 1 point a step": falls(1),
    "the same, pausing for 10 steps": falls(1, 10),
    "the same, pausing for 15 steps": falls(1, 15),
    "the same, pausing for 20 steps": falls(1, 20),
    "the same, pausing for 40 steps": falls(1, 40),
    "falls by 6 points in 20 steps": falls(0.3),
    "falls by 3 points in 20 steps": falls(0.15),
}


FALLS = (
    *((0.97, 0.97), (0.97, 0.94), (0.97, 0.87)),
    *((0.9, 0.9), (0.9, 0.87), (0.9, 0.8)),
    *((0.5, 0.5), (0.5, 0.47), (0.5, 0.4)),
    *((0.1, 0.1), (0.1, 0.07)),
)
"""Soundness before and after, of which the bound is asked."""


@dataclass(frozen=True)
class End:
    """How a course ended."""

    step: int
    is_plateau: bool
    left: float
    """How much further soundness falls until the most steps."""


def play(soundness: Soundness, questions: int, random: np.random.Generator) -> End:
    """Play a course until the rule ends it."""
    odds = random.normal(0, SPREAD, questions)
    means = _expit(SHIFTS[:, None] + odds).mean(axis=1)
    tests: dict[int, NDArray[np.float64]] = {}
    for step in range(0, MOST + 1, EVERY):
        shift = np.interp(soundness(step), means, SHIFTS)
        tests[step] = (random.random(questions) < _expit(shift + odds)).astype(float)
        since, fall = find_window(tests, step), None
        if since is not None:
            fall = bound_fall(tests[since], tests[step], np.arange(questions))
        verdict = judge_course(step, MOST, fall, None)
        if verdict is not None:
            return End(step, verdict == "plateau", soundness(step) - soundness(MOST))
    raise AssertionError("a course has an end")


def _expit(odds: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-odds)))


def print_courses(courses: int) -> None:
    """Print how the rule ends courses."""
    _print_head("soundness")
    for row, (name, soundness) in enumerate(COURSES.items()):
        print(f"| {name} |", end="")
        for questions in QUESTIONS:
            random = np.random.default_rng([row, questions])
            ends = [play(soundness, questions, random) for _ in range(courses)]
            early = np.mean([end.is_plateau and end.left > RULE.most_fall for end in ends])
            later = np.mean([end.is_plateau for end in ends]) - early
            step = int(np.median([end.step for end in ends]))
            print(f" {100 * early:.1f}, {100 * later:.1f}, {step} |", end="", flush=True)
        print()


def print_bound(draws: int) -> None:
    """Print how often the bound of the fall holds."""
    _print_head("soundness, before and after")
    for row, (before, after) in enumerate(FALLS):
        print(f"| {before:.0%}, {after:.0%} |", end="")
        for questions in QUESTIONS:
            random = np.random.default_rng([100 + row, questions])
            held = np.mean([_holds(before, after, questions, random) for _ in range(draws)])
            print(f" {100 * held:.1f} |", end="", flush=True)
        print()


def _holds(before: float, after: float, questions: int, random: np.random.Generator) -> bool:
    odds = random.normal(0, SPREAD, questions)
    means = _expit(SHIFTS[:, None] + odds).mean(axis=1)
    chances = [_expit(np.interp(of, means, SHIFTS) + odds) for of in (before, after)]
    first, second = ((random.random(questions) < of).astype(float) for of in chances)
    fall = float((chances[0] - chances[1]).mean())
    return bound_fall(first, second, np.arange(questions)).at_most >= fall


def _print_head(first: str) -> None:
    print(f"| {first} |", *(f"{questions:,} questions |" for questions in QUESTIONS))
    print("|---|", "---|" * len(QUESTIONS), sep="")


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--courses", type=int, default=500, help="in each cell of the table")
    parser.add_argument("--bound", action="store_true", help="how often the bound holds")
    options = parser.parse_args()
    if options.bound:
        print_bound(3 * options.courses)
    else:
        print_courses(options.courses)


if __name__ == "__main__":
    main()
