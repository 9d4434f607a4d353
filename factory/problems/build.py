"""Builds the bundled set `problems` from its sources: solutions labelled by their tests.

    python -m factory.problems.build --out DIR

    rows_of          the rows of one problem: as many correct as buggy, two to four of each
    build            the rows of all problems, by split
    write_split      one split as a Parquet file
    survivors        mutants that no test notices: where the tests of a problem are weak

A correct row is a solution of the author, or a rewrite of one that passes every test. A buggy row
is a mutant of one of the chosen correct rows that fails at least one assertion and passes at least
one test, all without running out of steps. So each buggy row has a correct twin that differs from
it by one change, and no style of writing tells the labels apart. Which rewrites and mutants are
taken, their order, and the split of a problem follow from stable hashes; time and chance play no
part, so equal sources give equal rows, and with the same pyarrow equal bytes.
"""

import argparse
import ast
import os
from collections.abc import Sequence
from pathlib import Path

from factory.problems.sources import SOURCES
from factory.problems.sources.source import Source
from nip_core.errors import DatasetError
from nip_core.hashing import derive_key
from nip_core.scenarios.rows import SCHEMA, SPLITS, Row, choose_split, write_split
from nip_problems import Mutant, mutants, normalise
from nip_problems.tested import Reports, Tested, TestRunner, describe_first_failure
from nip_problems.variants import (
    Candidates,
    find_candidates,
    find_passing_rewrites,
    is_buggy,
    pair_mutants,
    sort_by_hash,
    try_mutants,
)

__all__ = [
    "SCHEMA",
    "SPLITS",
    "Row",
    "build",
    "choose_split",
    "is_buggy",
    "survivors",
    "write_split",
]

MIN_PAIRS, MAX_PAIRS = 2, 4
MAX_STEPS = 20_000
"""Lines that one test may execute; the longest of a correct solution needs a tenth of it."""
MUTANTS_TRIED, MUTANTS_AT_ONCE = 12, 4
REWRITES_TRIED = 8


def build(
    sources: Sequence[Source] = SOURCES,
    *,
    workers: int | None = None,
    allow_without_namespaces: bool = False,
) -> dict[str, list[Row]]:
    """Make the rows of all problems by split; each problem's rows are together, their order is
    random.

    Args:
        sources: the problems.
        workers: processes that run tests at the same time; by default one for each core.
        allow_without_namespaces: see `sandbox.run_python`.

    Raises:
        DatasetError: a solution fails its own tests, a problem has too few variants, or two
            problems share a name or a function.
        SandboxError: code can't be run here.
    """
    runner = TestRunner(workers or os.cpu_count() or 1, MAX_STEPS, allow_without_namespaces)
    _check_names(sources)
    problems = [_tested(source) for source in sources]
    right = _right_of(problems, runner)
    candidates = [
        find_candidates(problem, texts, MUTANTS_TRIED)
        for problem, texts in zip(problems, right, strict=True)
    ]
    reports = try_mutants(candidates, runner, at_once=MUTANTS_AT_ONCE)
    rows: dict[str, list[Row]] = {split: [] for split in SPLITS}
    for candidate in sorted(
        candidates, key=lambda c: derive_key("problems: order", c.problem.name)
    ):
        rows[choose_split(candidate.problem.name)].extend(rows_of(candidate, reports))
    return rows


def _tested(source: Source) -> Tested:
    solutions = tuple(normalise(solution) for solution in source.solutions)
    return Tested(
        source.slug, source.question, solutions, source.tests, difficulty=source.difficulty
    )


def _check_names(sources: Sequence[Source]) -> None:
    owners: dict[str, str] = {}
    for source in sources:
        functions = {main_function(solution) for solution in source.solutions}
        if len(functions) != 1:
            raise DatasetError(f"problem {source.slug}: its solutions define {sorted(functions)}")
        for name in (source.slug, *functions):
            if name in owners:
                raise DatasetError(
                    f"problems {owners[name]} and {source.slug} are both called {name}; rename one"
                )
            owners[name] = source.slug


def main_function(solution: str) -> str:
    """Name the last function in a solution."""
    tree = ast.parse(solution)
    for node in ast.walk(tree):
        # How these are written out depends on the version of Python.
        if isinstance(node, ast.JoinedStr):
            raise DatasetError(f"write this without f-strings:\n{solution}")
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if not names:
        raise DatasetError(f"no function in this solution:\n{solution}")
    return names[-1]


def _right_of(problems: Sequence[Tested], runner: TestRunner) -> list[tuple[str, ...]]:
    """Find up to MAX_PAIRS right texts for each problem, the author's own first."""
    reports = runner.run((problem, text) for problem in problems for text in problem.solutions)
    for problem in problems:
        for text in problem.solutions:
            if not (report := reports[problem.name, text]).all_passed:
                raise DatasetError(
                    f"problem {problem.name}: this solution fails its tests, "
                    f"{describe_first_failure(problem.tests, report)}; correct one of them:\n{text}"
                )
    right = [(problem, problem.solutions) for problem in problems]
    return find_passing_rewrites(right, runner, at_most=MAX_PAIRS, tried=REWRITES_TRIED)


def rows_of(candidates: Candidates, reports: Reports) -> list[Row]:
    """The rows of one problem, in the order of a hash.

    Raises:
        DatasetError: fewer than MIN_PAIRS correct variants have a buggy twin.
    """
    problem = candidates.problem
    pairs = pair_mutants(candidates, reports, is_buggy)
    if len(pairs) < MIN_PAIRS:
        raise DatasetError(
            f"problem {problem.name}: only {len(pairs)} of {len(candidates.right)} correct "
            f"variants have a usable mutant; {MIN_PAIRS} are needed: add a solution or tests"
        )
    labelled: dict[str, str | None] = {text: None for text, _ in pairs}
    labelled.update({mutant.source: mutant.kind for _, mutant in pairs})
    return [
        Row(
            id=f"problems/{problem.name}/{number}",
            question_id=f"problems/{problem.name}",
            question=problem.question,
            solution=text,
            y=int(labelled[text] is None),
            difficulty=problem.difficulty,
            mutation=labelled[text],
        )
        for number, text in enumerate(sort_by_hash(labelled, "problems: order of variants"))
    ]


def survivors(
    sources: Sequence[Source] = SOURCES,
    *,
    kinds: Sequence[str] = ("boundary", "comparison"),
    workers: int | None = None,
    allow_without_namespaces: bool = False,
) -> tuple[list[tuple[Source, Mutant]], int]:
    """Find the mutants of the authors' solutions passing every test, and count all tried ones."""
    pairs = [
        (source, mutant)
        for source in sources
        for solution in source.solutions
        for mutant in mutants(solution)
        if mutant.kind in kinds
    ]
    runner = TestRunner(workers or os.cpu_count() or 1, MAX_STEPS, allow_without_namespaces)
    reports = runner.run((_tested(s), m.source) for s, m in pairs)
    return [(s, m) for s, m in pairs if reports[s.slug, m.source].all_passed], len(pairs)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Build the bundled set of problems.")
    parser.add_argument("--out", type=Path, help="directory for the Parquet files")
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument(
        "--allow-without-namespaces",
        action="store_true",
        help="run the code although this system gives its sandbox no namespaces",
    )
    parser.add_argument("--survivors", nargs="*", metavar="KIND", help="list unnoticed mutants")
    options = parser.parse_args(arguments)
    if options.survivors is not None:
        kinds = options.survivors or ("boundary", "comparison")
        surviving, tried = survivors(
            kinds=kinds,
            workers=options.workers,
            allow_without_namespaces=options.allow_without_namespaces,
        )
        for source, mutant in surviving:
            print(f"{source.slug}: {mutant.kind}, line {mutant.line}: {mutant.description}")
        print(f"{len(surviving)} of {tried} mutants pass all tests")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        rows_by_split = build(
            workers=options.workers, allow_without_namespaces=options.allow_without_namespaces
        )
        for split, rows in rows_by_split.items():
            write_split(rows, options.out / f"{split}.parquet")
            questions = len({row.question_id for row in rows})
            print(f"{split}: {questions} problems, {len(rows)} rows")


if __name__ == "__main__":
    main()
