"""Right and buggy variants of solutions, told apart by the tests of their problems.

    find_passing_rewrites  a problem's right solutions, written in other ways as well
    find_candidates        the candidates for rows: right variants, each with mutants of it
    try_mutants            run mutants, a few at a time, until each right variant has a buggy one
    pair_mutants           right variants, each with the mutant of it that says most
    is_buggy               the tests noticed a fault in part of it
    is_killed              they noticed one at all

Which rewrites and mutants are tried, and in which order, follows from stable hashes of texts.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from nip_core.hashing import derive_key
from nip_problems.mutation.mutate import Mutant, mutants
from nip_problems.mutation.rewrite import rewrites
from nip_problems.tested import Reports, Tested, TestRunner
from nip_sandbox.sandbox import TestReport

T = TypeVar("T")
_SAY_S = 10.0


@dataclass(frozen=True)
class Candidates:
    """The candidates for rows of one problem: right variants, each with mutants of it."""

    problem: Tested
    right: tuple[str, ...]
    mutants: tuple[tuple[Mutant, ...], ...]


def sort_by_hash(texts: Iterable[str], purpose: str) -> list[str]:
    """Put texts in an order by hash, to say nothing about them."""
    return sorted(texts, key=lambda text: derive_key(purpose, text))


def report_progress(
    items: Sequence[T], say: Callable[[str], None], noun: str, every_s: float = _SAY_S
) -> Iterator[T]:
    """The items, one after another; how many are done is said every `every_s` seconds."""
    said_at = time.monotonic()
    for number, item in enumerate(items):
        if time.monotonic() - said_at >= every_s:
            said_at = time.monotonic()
            say(f"{number} of {len(items)} {noun}")
        yield item


def find_passing_rewrites(
    right: Sequence[tuple[Tested, tuple[str, ...]]],
    runner: TestRunner,
    *,
    at_most: int,
    tried: int,
    depth: int = 1,
) -> list[tuple[str, ...]]:
    """Find for each problem up to `at_most` right texts, its own solutions first.

    Of each problem, up to `tried` rewrites are run. With a `depth` of 2 the rewrites are written
    differently once more where a problem has too few of them, and so on.
    """
    limited_texts = [texts[:at_most] for _, texts in right]
    latest = [texts for _, texts in right]
    for _ in range(depth):
        fresh: list[list[str]] = []
        pairs = list(zip(limited_texts, latest, strict=True))
        for texts, sources in report_progress(
            pairs, runner.say, "problems are written in other ways"
        ):
            few = len(texts) < at_most
            new = {r.source for text in sources for r in rewrites(text)} if few else set()
            fresh.append(sort_by_hash(new - set(texts), "problems: rewrites")[:tried])
        problems = [problem for problem, _ in right]
        reports = runner.run(
            (problem, text)
            for problem, texts in zip(problems, fresh, strict=True)
            for text in texts
        )
        latest = [
            tuple(text for text in texts if reports[problem.name, text].all_passed)
            for problem, texts in zip(problems, fresh, strict=True)
        ]
        limited_texts = [(*a, *b)[:at_most] for a, b in zip(limited_texts, latest, strict=True)]
    return limited_texts


def find_candidates(problem: Tested, right: tuple[str, ...], tried: int) -> Candidates:
    """Return the right variants of a problem with up to `tried` mutants of each."""
    groups = (mutants(text, at_most=tried) for text in right)
    return Candidates(
        problem, right, tuple(tuple(m for m in group if m.source not in right) for group in groups)
    )


def try_mutants(
    candidates: Sequence[Candidates], runner: TestRunner, *, at_once: int
) -> dict[tuple[str, str], TestReport]:
    """Run mutants, a few of each right variant at a time, until each variant has a buggy one."""
    reports: dict[tuple[str, str], TestReport] = {}
    longest = max((len(group) for c in candidates for group in c.mutants), default=0)
    for first in range(0, longest, at_once):
        pairs = [
            (c.problem, mutant.source)
            for c in candidates
            for group in c.mutants
            if not any(_is_known_bug(reports, c.problem, m) for m in group)
            for mutant in group[first : first + at_once]
        ]
        reports.update(runner.run(pairs))
    return reports


def _is_known_bug(reports: Reports, problem: Tested, mutant: Mutant) -> bool:
    report = reports.get((problem.name, mutant.source))
    return report is not None and is_buggy(report)


def is_killed(report: TestReport) -> bool:
    """Tell whether a test failed or raised, in a run with an end of its own."""
    return (
        report.status == "ok"
        and report.load_error is None
        and report.passed < len(report.outcomes)
        and "timeout" not in report.outcomes
    )


def is_buggy(report: TestReport) -> bool:
    """Return whether the tests found a fault in part of it, neither a crash nor a loop."""
    return is_killed(report) and report.failed >= 1 and report.passed >= 1


def pair_mutants(
    candidates: Candidates, reports: Reports, is_usable: Callable[[TestReport], bool]
) -> list[tuple[str, Mutant]]:
    """Pair right variants with a usable mutant of each; those without one are left out."""
    problem = candidates.problem.name
    kinds: set[str] = set()
    used: set[str] = set()
    pairs: list[tuple[str, Mutant]] = []
    # A kind that this problem doesn't have yet; boundaries, which are few, before others,
    # exchanged variables, of which there are most, after them.
    rank = {"boundary": 0, "variable": 2}

    def order(mutant: Mutant) -> tuple[bool, bool, int]:
        whole = not is_buggy(reports[problem, mutant.source])
        return whole, mutant.kind in kinds, rank.get(mutant.kind, 1)

    for text, group in zip(candidates.right, candidates.mutants, strict=True):
        tried = [m for m in group if (problem, m.source) in reports and m.source not in used]
        usable = [m for m in tried if is_usable(reports[problem, m.source])]
        if usable:
            mutant = min(usable, key=order)
            kinds.add(mutant.kind)
            used.add(mutant.source)
            pairs.append((text, mutant))
    return pairs


@dataclass
class Endings:
    """The endings of variants' tests, in numbers."""

    passed_all: int = 0
    failed_some: int = 0
    failed_all: int = 0
    no_end: int = 0


def count_endings(reports: Mapping[tuple[str, str], TestReport]) -> Endings:
    """Count variants by the endings of their tests."""
    endings = Endings()
    for report in reports.values():
        if report.all_passed:
            endings.passed_all += 1
        elif report.status != "ok" or "timeout" in report.outcomes:
            endings.no_end += 1
        elif report.passed:
            endings.failed_some += 1
        else:
            endings.failed_all += 1
    return endings
