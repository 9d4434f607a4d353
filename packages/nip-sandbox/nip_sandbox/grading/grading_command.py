"""The command `nip grade`, which is `nip-grade` where nip-sandbox is installed alone.

Exit codes: 0 all rows are graded, those whose code fails, too; 1 this system can't keep code in, or
the sandbox failed; 2 wrong rows or arguments, with the file and the line.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import IO, Annotated

import typer

from nip_base.errors import NipError
from nip_sandbox.grading.grade import Grade
from nip_sandbox.grading.grade import grade as grade_rows
from nip_sandbox.grading.graded_file import GradedFile
from nip_sandbox.grading.rows import Row, RowError, read_rows

_STREAM = "-"


@dataclass
class _Counts:
    """How many rows came to which end."""

    graded: int = 0
    skipped: int = 0
    """Their grades were in the file."""
    passed: int = 0
    failed: int = 0
    ungraded: int = 0
    """Their tests judge nothing."""
    seconds: float = 0.0


def grade(
    rows: Annotated[
        str,
        typer.Argument(metavar="ROWS", help="A file of rows, one JSON object a line; - for stdin."),
    ],
    out: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="The file that grades are appended to; - for stdout. Rows whose id is in it are "
            "skipped.",
        ),
    ],
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Rows at a time; without it one for each processor."),
    ] = None,
    stop_at_first_failure: Annotated[
        bool,
        typer.Option("--stop-at-first-failure", help="Run no test of a row after one that fails."),
    ] = False,
    allow_without_namespaces: Annotated[
        bool,
        typer.Option(
            "--allow-without-namespaces",
            help="Also where this system lacks namespaces or Landlock.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Grade untrusted code: run its tests in a sandbox.

    ROWS has code with its tests, OUT gets for each row whether they passed:

    {"id": "a", "code": "print(2 * int(input()))", "tests": [{"stdin": "2", "stdout": "4"}]}

    {"id": "a", "passed": true, "tests": [{"passed": true, "reason": "", "seconds": 0.01}], ...}

    A test may also be a call, {"call": "f", "args": [2], "expected": 4}, or assertions,
    {"assert": "assert f(2) == 4", "call": "f"}.

    Exit code 0 also where code fails; 2 for a wrong row, with its file and line.
    """
    run = partial(
        grade_rows,
        jobs=jobs or _count_processors(),
        stop_at_first_failure=stop_at_first_failure,
        allow_without_namespaces=allow_without_namespaces,
    )
    try:
        _grade_file(rows, out, run, as_json)
    except NipError as error:
        sys.stdout.flush()
        sys.stderr.write(f"nip grade: {error}\n")
        raise typer.Exit(2 if isinstance(error, RowError) else 1) from None


def _count_processors() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on every system, all of which show the help
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _grade_file(
    rows: str, out: str, run: Callable[[Iterable[Row]], Iterator[Grade]], as_json: bool
) -> None:
    """Grade the rows of a file into another, and print how many came to which end."""
    counts, start = _Counts(), time.monotonic()
    first_ungraded = ""
    with ExitStack() as stack:
        file = None if out == _STREAM else stack.enter_context(GradedFile(out))
        for result in run(_find_new(rows, file, counts)):
            if result.passed is None:
                counts.ungraded += 1
                first_ungraded = first_ungraded or _explain_ungraded(result)
                continue
            counts.graded += 1
            counts.passed += result.passed
            counts.failed += not result.passed
            if file is None:
                sys.stdout.write(result.as_line())
                sys.stdout.flush()
            else:
                file.append(result)
    counts.seconds = round(time.monotonic() - start, 3)
    _print_counts(counts, out, as_json)
    if first_ungraded:
        raise RowError(
            f"{first_ungraded} (rows with such tests: {counts.ungraded}; they have no grade)"
        )


def _find_new(rows: str, file: GradedFile | None, counts: _Counts) -> Iterator[Row]:
    """Read the rows that are not graded yet; those of a file are all checked before the first."""
    if rows != _STREAM and os.path.isfile(rows):  # a pipe is read once
        for row in _read(rows):
            if file is not None:
                file.has(row)
    return _skip(_read(rows), file, counts)


def _read(path: str) -> Iterator[Row]:
    # Nothing else holds what is read: to close it, as is done with sys.stdin, is to wait for data.
    with _open(path) as lines:
        yield from read_rows(lines, "stdin" if path == _STREAM else path)


def _open(path: str) -> IO[bytes]:
    try:
        return open(0, "rb", closefd=False) if path == _STREAM else open(path, "rb")
    except OSError as error:
        raise RowError(f"{path}: can't be read ({error.strerror})") from None


def _skip(rows: Iterable[Row], file: GradedFile | None, counts: _Counts) -> Iterator[Row]:
    for row in rows:
        if file is not None and file.has(row):
            counts.skipped += 1
        else:
            yield row


def _explain_ungraded(grade: Grade) -> str:
    number, test = next((k, test) for k, test in enumerate(grade.tests) if test.passed is None)
    return f"{grade.place}: tests[{number}]: {test.reason}"


def _print_counts(counts: _Counts, out: str, as_json: bool) -> None:
    stream = sys.stderr if out == _STREAM else sys.stdout
    if as_json:
        stream.write(json.dumps(asdict(counts)) + "\n")
        return
    skipped = f", {counts.skipped} skipped, as their grades are there" if counts.skipped else ""
    stream.write(
        f"graded {counts.graded} rows: {counts.passed} passed, {counts.failed} failed, "
        f"{counts.seconds:.1f} s{skipped}\n"
    )


def main() -> None:
    """Run the command by itself."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.command("nip-grade")(grade)
    app(prog_name="nip-grade")


if __name__ == "__main__":
    main()
