"""From problems with tests to rows: right solutions, and variants that their tests prove wrong.

    examine_source     which solutions pass their tests, and which mutants of them do not
    Examined           the results
    WrittenVariants    variants from elsewhere, such as a language model
    make_rows          as many right as buggy rows of each problem, by split
    name_moved_splits  which problems are in another split than their source says

Labels follow from the tests alone. Solutions and variants are written alike, without
comments and docstrings, so that no style tells them apart. A variant that passes all tests is left
out: it may be right.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nip_core.errors import DatasetError
from nip_core.hashing import derive_key
from nip_core.scenarios.rows import SPLITS, Row, choose_splits
from nip_problems.mutation.mutate import Mutant
from nip_problems.sources import Source
from nip_problems.tested import (
    LeftOut,
    Tested,
    TestRunner,
    describe_first_failure,
    is_settled,
    write_plainly,
)
from nip_problems.variants import (
    Candidates,
    find_candidates,
    find_passing_rewrites,
    is_buggy,
    is_killed,
    pair_mutants,
    report_progress,
    sort_by_hash,
    try_mutants,
)
from nip_sandbox.sandbox import Limits, TestReport

MAX_STEPS = 2_000_000
"""Lines that a test of a right solution may execute, unless told otherwise."""
LIMITS = Limits(wall_s=60.0, cpu_s=60.0, test_cpu_s=10.0, memory_mb=512, processes=1)
MIN_PROBLEMS = 3
MOST_CHARACTERS = 100_000
"""Of a solution: writing it in other ways takes a minute then, and no model reads it."""
_MUTANTS_TRIED, _MUTANTS_AT_ONCE = 12, 4
_FEW_STEPS = 20_000
_ROOM = 10  # a variant may take so many times the steps that a right solution may
_DETAIL_CHARACTERS = 300


@dataclass(frozen=True)
class WrittenVariants:
    """Variants of one problem that were written, with the kind of each; labels come from tests."""

    buggy: Mapping[str, str] = field(default_factory=dict)
    """Kinds by text, of the variants that failed a test."""
    right: tuple[str, ...] = ()
    """The variants that passed all tests, as they should."""


@dataclass(frozen=True)
class Examined:
    """The results of a source's tests."""

    source: Source
    candidates: tuple[Candidates, ...]
    reports: Mapping[tuple[str, str], TestReport]
    """Of the mutants that were tried."""
    runner: TestRunner
    """With the limits of each problem."""
    tried: int
    """Solutions that were run on the tests of their problem."""
    passed: int
    """Those of them that passed."""
    left_out: tuple[LeftOut, ...]


def examine_source(source: Source, runner: TestRunner, variants: int) -> Examined:
    """Run the solutions of a source, write them in other ways, and run mutants of them.

    Args:
        source: the problems.
        runner: runs them; its limit of steps holds for right solutions.
        variants: as many right and as many buggy rows of a problem at most.

    Raises:
        DatasetError: no solution passes its tests.
        SandboxError: code can't be run here.
    """
    texts, left_out = _plain_texts(source.problems, variants)
    reports, steps_of = _run_right(source.problems, texts, runner)
    right: list[tuple[Tested, tuple[str, ...]]] = []
    for problem in source.problems:
        passing = tuple(t for t in texts[problem.name] if reports[problem.name, t].all_passed)
        failures = [
            LeftOut(problem.name, *_failure(problem, reports[problem.name, text]))
            for text in texts[problem.name]
            if text not in passing
        ]
        if passing:
            right.append((problem, passing))
        left_out += failures if passing else failures[:1]  # of a problem without any, one is enough
    tried = sum(map(len, texts.values()))
    if not right:
        reason = " ".join(f"{left_out[0].reason}: {left_out[0].detail}".split())
        raise DatasetError(
            f"{source.name}: no solution passes its own tests; of {left_out[0].problem}, {reason}"
        )
    runner = runner.with_steps(steps_of)
    rewrites = find_passing_rewrites(right, runner, at_most=variants, tried=2 * variants, depth=2)
    candidates = tuple(
        find_candidates(problem, variants_, _MUTANTS_TRIED)
        for (problem, _), variants_ in report_progress(
            list(zip(right, rewrites, strict=True)), runner.say, "problems have mutants"
        )
    )
    return Examined(
        source=source,
        candidates=candidates,
        reports=try_mutants(candidates, runner, at_once=_MUTANTS_AT_ONCE),
        runner=runner,
        tried=tried,
        passed=sum(len(passing) for _, passing in right),
        left_out=tuple(left_out),
    )


def _plain_texts(
    problems: Sequence[Tested], at_most: int
) -> tuple[dict[str, tuple[str, ...]], list[LeftOut]]:
    """Write each problem's solutions as rows have them, and name those left out."""
    texts: dict[str, tuple[str, ...]] = {}
    left_out: list[LeftOut] = []
    for problem in problems:
        own_texts: dict[str, None] = {}
        for solution in problem.solutions:
            if len(solution) > MOST_CHARACTERS:
                size = f"{len(solution)} characters, at most {MOST_CHARACTERS} are read"
                left_out.append(LeftOut(problem.name, "solution is too long", size))
                continue
            try:
                own_texts[write_plainly(solution)] = None
            except (SyntaxError, ValueError, RecursionError) as error:
                left_out.append(LeftOut(problem.name, "solution is not Python", str(error)))
            if len(own_texts) == at_most:
                break
        texts[problem.name] = tuple(own_texts)
    return texts, left_out


def _run_right(
    problems: Sequence[Tested], texts: Mapping[str, tuple[str, ...]], runner: TestRunner
) -> tuple[dict[tuple[str, str], TestReport], dict[str, int]]:
    """Run solutions with few steps at first, and give variants room by the steps needed."""
    reports: dict[tuple[str, str], TestReport] = {}
    steps_of: dict[str, int] = {}
    by_name = {problem.name: problem for problem in problems}
    waiting = [(problem, text) for problem in problems for text in texts[problem.name]]
    step_limit = runner.max_steps
    for steps in sorted(
        {max(step_limit // part, min(_FEW_STEPS, step_limit)) for part in (100, 10, 1)}
    ):
        rung = dict.fromkeys(by_name, steps)
        reports.update(runner.with_steps(rung).run(waiting))
        for problem, text in waiting:
            if reports[problem.name, text].all_passed:
                steps_of[problem.name] = _ROOM * steps
        waiting = [(p, text) for p, text in waiting if _ran_out(reports[p.name, text])]
    return reports, steps_of


def _ran_out(report: TestReport) -> bool:
    """Return whether it came to the limit of steps, and to no other."""
    return report.status == "timeout" and is_settled(report)


def _failure(problem: Tested, report: TestReport) -> tuple[str, str]:
    detail = describe_first_failure(problem.tests, report)
    detail = detail if len(detail) <= _DETAIL_CHARACTERS else f"{detail[:_DETAIL_CHARACTERS]}..."
    if report.status == "timeout":
        return "tests do not end", detail
    return "solution fails its tests", detail


def make_rows(
    examined: Examined,
    variants: int,
    variants_by_problem: Mapping[str, WrittenVariants],
    difficulty: Mapping[str, str] | None = None,
) -> tuple[dict[str, list[Row]], list[LeftOut]]:
    """Make the rows by split, and name the problems without any.

    Args:
        examined: the problems, with mutants.
        variants: as many right and as many buggy rows of a problem at most.
        variants_by_problem: variants from elsewhere, such as a language model.
        difficulty: by problem, in the place of the source's own.

    Raises:
        DatasetError: no variant fails a test, so that all labels would be equal, or fewer than
            MIN_PROBLEMS problems are left, so that a split would be empty.
    """
    labelled = {
        c.problem.name: _labelled(
            c, examined, variants, variants_by_problem.get(c.problem.name, WrittenVariants())
        )
        for c in examined.candidates
    }
    usable = [c.problem for c in examined.candidates if labelled[c.problem.name]]
    left_out = [
        LeftOut(name, "no variant fails a test", "its tests notice none of the changes tried")
        for name, texts in labelled.items()
        if not texts
    ]
    name = examined.source.name
    if not usable:
        raise DatasetError(
            f"{name}: no variant of any solution fails a test, so all labels would be equal; the "
            "tests tell nothing apart: add some"
        )
    if len(usable) < MIN_PROBLEMS:
        out = [*examined.source.left_out, *examined.left_out, *left_out]
        number = len(examined.source.problems) + len(examined.source.left_out)
        message = f"{name}: only {len(usable)} of {number} problems are left"
        if out:
            reason = " ".join(f"{out[0].reason}, {out[0].detail}".split())
            message += f" ({out[0].problem} is not: {reason})"
        raise DatasetError(f"{message}, and three splits need {MIN_PROBLEMS}; add problems")
    splits = choose_splits({problem.name: problem.split for problem in usable})
    rows: dict[str, list[Row]] = {split: [] for split in SPLITS}
    for problem in sorted(usable, key=lambda p: derive_key("problems: order", p.name)):
        texts = labelled[problem.name]
        rows[splits[problem.name]] += [
            Row(
                id=f"{name}/{problem.name}/{number}",
                question_id=f"{name}/{problem.name}",
                question=problem.question,
                solution=text,
                y=int(texts[text] is None),
                difficulty=(difficulty or {}).get(problem.name, problem.difficulty),
                mutation=texts[text],
            )
            for number, text in enumerate(sort_by_hash(texts, "problems: order of variants"))
        ]
    return rows, left_out


def name_moved_splits(source: Source, rows: Mapping[str, Sequence[Row]]) -> tuple[str, ...]:
    """Name the problems in another split than their source says, and why."""
    placed = {row.question_id: split for split, part in rows.items() for row in part}
    problems_by_name = {
        f"{source.name}/{p.name}": p for p in source.problems if p.split is not None
    }
    return tuple(
        f"problem {problem.name} is in {placed[key]}, which would be empty, and not in "
        f"{problem.split} as the source says"
        for key, problem in problems_by_name.items()
        if placed.get(key, problem.split) != problem.split
    )


def _labelled(
    candidates: Candidates, examined: Examined, variants: int, written_variants: WrittenVariants
) -> dict[str, str | None]:
    """Choose as many buggy as right texts of one problem; the kind of a right one is None.

    Written variants have half of the places, more where there are fewer mutants.
    """
    pairs = _pairs(candidates, examined)
    mutated = {mutant.source for _, mutant in pairs}
    buggy = {text: kind for text, kind in written_variants.buggy.items() if text not in mutated}
    right = dict.fromkeys((*candidates.right, *written_variants.right))
    size = min(variants, len(right), len(pairs) + len(buggy))
    places = min(len(buggy), max(size // 2, size - len(pairs)))
    pairs = pairs[: size - places]
    twins = [text for text, _ in pairs]
    other_texts = [*(t for t in written_variants.right if t not in twins)]
    other_texts += [text for text in candidates.right if text not in (*twins, *other_texts)]
    labelled: dict[str, str | None] = dict.fromkeys((*twins, *other_texts[:places]))
    labelled |= {mutant.source: mutant.kind for _, mutant in pairs}
    labelled |= dict(list(buggy.items())[:places])
    return labelled


def _pairs(candidates: Candidates, examined: Examined) -> list[tuple[str, Mutant]]:
    """Pair right texts with mutants, those first whose mutant passes some tests."""
    pairs = pair_mutants(candidates, examined.reports, is_killed)
    name = candidates.problem.name
    return sorted(pairs, key=lambda pair: not is_buggy(examined.reports[name, pair[1].source]))
