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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from factory.problems.sources import SOURCES
from factory.problems.sources.source import Source
from nip_core.errors import DatasetError
from nip_core.hashing import derive_key, derive_seed
from nip_core.problems import (
    Limits,
    Mutant,
    Suite,
    TestReport,
    mutants,
    normalise,
    rewrites,
    run_tests_batch,
)

SPLITS = ("train", "validation", "test")
MIN_PAIRS, MAX_PAIRS = 2, 4
MAX_STEPS = 20_000
"""Lines that one test may execute; the longest of a correct solution needs a tenth of it."""
MUTANTS_TRIED, MUTANTS_AT_ONCE = 12, 4
REWRITES_TRIED = 8
LIMITS = Limits(wall_s=60.0, cpu_s=60.0, test_cpu_s=20.0, memory_mb=512, processes=1)
"""Generous in seconds, so that a busy machine changes nothing: MAX_STEPS ends what loops."""

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("question_id", pa.string(), nullable=False),
        pa.field("question", pa.string(), nullable=False),
        pa.field("solution", pa.string(), nullable=False),
        pa.field("y", pa.int8(), nullable=False),
        pa.field("difficulty", pa.string()),
        pa.field("mutation", pa.string()),
    ]
)


@dataclass(frozen=True)
class Row:
    """One row of the set."""

    id: str
    question_id: str
    question: str
    solution: str
    y: int
    difficulty: str
    mutation: str | None


@dataclass(frozen=True)
class _Candidates:
    """What may become rows of one problem: correct variants, each with mutants of it."""

    source: Source
    correct: tuple[str, ...]
    mutants: tuple[tuple[Mutant, ...], ...]


def split_of(slug: str) -> str:
    """The split of a problem: about 70 in 100 train, 10 validation, 20 test, by its name alone."""
    place = derive_seed("problems: split", slug) % 100
    return "train" if place < 70 else "validation" if place < 80 else "test"


def build(
    sources: Sequence[Source] = SOURCES,
    *,
    workers: int | None = None,
    allow_without_namespaces: bool = False,
) -> dict[str, list[Row]]:
    """The rows of all problems by split, each problem's together, in an order that says nothing.

    Args:
        sources: the problems.
        workers: processes that run tests at the same time; by default one for each core.
        allow_without_namespaces: see `sandbox.run_python`.

    Raises:
        DatasetError: a solution fails its own tests, a problem has too few variants, or two
            problems share a name or a function.
        SandboxError: code can't be run here.
    """
    runner = _Runner(workers or os.cpu_count() or 1, allow_without_namespaces)
    _check_names(sources)
    candidates = _mutants_of(sources, _correct_of(sources, runner))
    reports = _try_mutants(candidates, runner)
    found: dict[str, list[Row]] = {split: [] for split in SPLITS}
    for candidate in sorted(candidates, key=lambda c: derive_key("problems: order", c.source.slug)):
        found[split_of(candidate.source.slug)].extend(rows_of(candidate, reports))
    return found


def _check_names(sources: Sequence[Source]) -> None:
    seen: dict[str, str] = {}
    for source in sources:
        functions = {_main_function(solution) for solution in source.solutions}
        if len(functions) != 1:
            raise DatasetError(f"problem {source.slug}: its solutions define {sorted(functions)}")
        for name in (source.slug, *functions):
            if name in seen:
                raise DatasetError(
                    f"problems {seen[name]} and {source.slug} are both called {name}; rename one"
                )
            seen[name] = source.slug


def _main_function(solution: str) -> str:
    tree = ast.parse(solution)
    for node in ast.walk(tree):
        # How these are written out depends on the version of Python.
        if isinstance(node, ast.JoinedStr):
            raise DatasetError(f"write this without f-strings:\n{solution}")
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if not names:
        raise DatasetError(f"no function in this solution:\n{solution}")
    return names[-1]


@dataclass(frozen=True)
class _Runner:
    workers: int
    allow_without_namespaces: bool

    def run(self, pairs: Iterable[tuple[Source, str]]) -> dict[str, TestReport]:
        """The reports of solutions against the tests of their problems, by the solution's text."""
        suites = {solution: Suite(solution, source.tests) for source, solution in pairs}
        reports = run_tests_batch(
            list(suites.values()),
            limits=LIMITS,
            max_steps=MAX_STEPS,
            workers=self.workers,
            allow_without_namespaces=self.allow_without_namespaces,
        )
        return dict(zip(suites, reports, strict=True))


def _by_hash(texts: Iterable[str], purpose: str) -> list[str]:
    return sorted(texts, key=lambda text: derive_key(purpose, text))


def _correct_of(sources: Sequence[Source], runner: _Runner) -> list[tuple[str, ...]]:
    """For each problem up to MAX_PAIRS texts that pass all tests, the author's own first."""
    originals = [[normalise(solution) for solution in source.solutions] for source in sources]
    rewritten = []
    for texts in originals:
        variants = {r.source for text in texts for r in rewrites(text)} - set(texts)
        rewritten.append(_by_hash(variants, "problems: rewrites")[:REWRITES_TRIED])
    reports = runner.run(
        (source, text)
        for source, texts, more in zip(sources, originals, rewritten, strict=True)
        for text in (*texts, *more)
    )
    chosen = []
    for source, texts, more in zip(sources, originals, rewritten, strict=True):
        for text in texts:
            if not reports[text].all_passed:
                raise DatasetError(
                    f"problem {source.slug}: this solution fails its tests, "
                    f"{_first_failure(source, reports[text])}; correct one of them:\n{text}"
                )
        passing = [text for text in more if reports[text].all_passed]
        chosen.append((*texts, *passing)[:MAX_PAIRS])
    return chosen


def _first_failure(source: Source, report: TestReport) -> str:
    if report.load_error:
        return report.load_error
    for test, outcome, detail in zip(source.tests, report.outcomes, report.details, strict=True):
        if outcome != "passed":
            return f"{test} -> {outcome} {detail}"
    return report.status


def _mutants_of(sources: Sequence[Source], correct: Sequence[tuple[str, ...]]) -> list[_Candidates]:
    candidates = []
    for source, texts in zip(sources, correct, strict=True):
        groups = []
        for text in texts:
            tried = mutants(text, at_most=MUTANTS_TRIED)
            groups.append(tuple(m for m in tried if m.source not in texts))
        candidates.append(_Candidates(source, texts, tuple(groups)))
    return candidates


def _try_mutants(candidates: Sequence[_Candidates], runner: _Runner) -> dict[str, TestReport]:
    """Run mutants, a few of each correct variant at a time, until each variant has a buggy one."""
    reports: dict[str, TestReport] = {}
    for first in range(0, MUTANTS_TRIED, MUTANTS_AT_ONCE):
        pairs = [
            (candidate.source, mutant.source)
            for candidate in candidates
            for group in candidate.mutants
            if not any(m.source in reports and is_buggy(reports[m.source]) for m in group)
            for mutant in group[first : first + MUTANTS_AT_ONCE]
        ]
        reports.update(runner.run(pairs))
    return reports


def is_buggy(report: TestReport) -> bool:
    """Return whether the tests found a fault in part of it, neither a crash nor a loop."""
    return (
        report.status == "ok"
        and report.load_error is None
        and report.failed >= 1
        and report.passed >= 1
        and "timeout" not in report.outcomes
    )


def rows_of(candidates: _Candidates, reports: dict[str, TestReport]) -> list[Row]:
    """The rows of one problem, in the order of a hash.

    Raises:
        DatasetError: fewer than MIN_PAIRS correct variants have a buggy twin.
    """
    source = candidates.source
    kinds: set[str] = set()
    used: set[str] = set()
    pairs: list[tuple[str, Mutant]] = []
    for text, group in zip(candidates.correct, candidates.mutants, strict=True):
        tried = [m for m in group if m.source in reports and m.source not in used]
        usable = [m for m in tried if is_buggy(reports[m.source])]
        if usable:
            # A kind that this problem doesn't have yet; boundaries, which are few, before others,
            # exchanged variables, of which there are most, after them.
            rank = {"boundary": 0, "variable": 2}
            mutant = min(usable, key=lambda m: (m.kind in kinds, rank.get(m.kind, 1)))
            kinds.add(mutant.kind)
            used.add(mutant.source)
            pairs.append((text, mutant))
    if len(pairs) < MIN_PAIRS:
        raise DatasetError(
            f"problem {source.slug}: only {len(pairs)} of {len(candidates.correct)} correct "
            f"variants have a usable mutant; {MIN_PAIRS} are needed: add a solution or tests"
        )
    labelled: dict[str, str | None] = {text: None for text, _ in pairs}
    labelled.update({mutant.source: mutant.kind for _, mutant in pairs})
    return [
        Row(
            id=f"problems/{source.slug}/{number}",
            question_id=f"problems/{source.slug}",
            question=source.question,
            solution=text,
            y=int(labelled[text] is None),
            difficulty=source.difficulty,
            mutation=labelled[text],
        )
        for number, text in enumerate(_by_hash(labelled, "problems: order of variants"))
    ]


def table_of(rows: Sequence[Row]) -> pa.Table:
    """The rows as an Arrow table with SCHEMA."""
    return pa.Table.from_pylist([vars(row) for row in rows], schema=SCHEMA)


def write_split(rows: Sequence[Row], path: Path) -> None:
    """Write one split as a Parquet file: no times in it, every option given."""
    pq.write_table(
        table_of(rows),
        path,
        row_group_size=1_000_000,
        version="2.6",
        use_dictionary=True,
        compression="zstd",
        compression_level=9,
        write_statistics=False,
        data_page_version="1.0",
        store_schema=False,
    )


def survivors(
    sources: Sequence[Source] = SOURCES,
    *,
    kinds: Sequence[str] = ("boundary", "comparison"),
    workers: int | None = None,
    allow_without_namespaces: bool = False,
) -> tuple[list[tuple[Source, Mutant]], int]:
    """Mutants of the authors' solutions that pass every test, and how many were tried."""
    pairs = [
        (source, mutant)
        for source in sources
        for solution in source.solutions
        for mutant in mutants(solution)
        if mutant.kind in kinds
    ]
    runner = _Runner(workers or os.cpu_count() or 1, allow_without_namespaces)
    reports = runner.run((s, m.source) for s, m in pairs)
    return [(s, m) for s, m in pairs if reports[m.source].all_passed], len(pairs)


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
