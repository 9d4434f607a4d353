"""`nip attack --judge judge.yaml`: the command's own part, its words and its exit code."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from nip_cli.printing.console import make_console
from nip_cli.printing.options import Shown
from nip_cli.printing.terminal import say
from nip_core.errors import StoreError
from nip_judges.documents.screen import write_plan, write_screen
from nip_judges.play.attack import (
    JudgeOptions,
    attack_judge,
    prepare_attack,
    publish_run,
)
from nip_judges.play.planning import plan_attack
from nip_judges.play.result import AttackResult

_T = TypeVar("_T")


def run_judge_attack(
    path: Path, options: Mapping[str, Any], *, dry_run: bool, as_json: bool, shown: Shown
) -> int:
    """Attack the judge of a file, print the result, and return the exit code.

    `options` are the fields of `JudgeOptions`, with the kinds in one text, separated by commas.
    0 done, 8 the bar is not met, 9 the rows can't tell. Raises BudgetError (7) or StageError (3),
    after the result so far is printed.
    """
    kinds = options["kinds"]
    listed = None if kinds is None else [kind.strip() for kind in kinds.split(",") if kind.strip()]
    judge_options = JudgeOptions(**{**options, "kinds": listed})
    try:
        return asyncio.run(_run(path, judge_options, dry_run, as_json, shown))
    except OSError as error:  # of the folder of the attack: full, read-only, a file in its place
        place = error.filename or options["run_store"]
        raise StoreError(
            f"{place}: {error.strerror or error}; answers on record are kept, and running again "
            "goes on"
        ) from None


async def _run(path: Path, options: JudgeOptions, dry_run: bool, as_json: bool, view: Shown) -> int:
    async with contextlib.AsyncExitStack() as stack:
        prepared = await _keep_stdout(stack.enter_async_context(prepare_attack(path, options)))
        if dry_run:
            plan = await _keep_stdout(plan_attack(prepared))
            say(json.dumps(plan, indent=2, ensure_ascii=False) if as_json else write_plan(plan))
            return 0
        for note in prepared.notes:
            say(f"nip: {note}", file=sys.stderr)
        with show_progress(view) as progress:
            attack = attack_judge(prepared, progress.begin, progress.advance)
            result = await _keep_stdout(attack)
        _print(result, as_json)
        run = await publish_run(prepared, result)
    if run is not None and not as_json:
        say(f" every text with the judge's words: nip view, run {run}")
    if result.stopped is not None:
        raise result.stopped
    return result.exit_status


async def _keep_stdout(work: Awaitable[_T]) -> _T:
    """Do work while all that a user's code prints goes to standard error: the result stays JSON."""
    with contextlib.redirect_stdout(sys.stderr):
        return await work


def _print(result: AttackResult, as_json: bool) -> None:
    if as_json:
        say(json.dumps(result.document, indent=2, ensure_ascii=False))
        return
    say(write_screen(result.document))
    say(f" {result.folder}: judge.json, cells.parquet, texts.txt")


class Quiet:
    """Shows nothing."""

    def begin(self, name: str, texts: int) -> None:
        """Begin a part of the course."""

    def advance(self) -> None:
        """Count an answer."""


class _Lines(Quiet):
    """Says each part of the course in a line."""

    def begin(self, name: str, texts: int) -> None:
        say(f"nip: {name}: {texts} texts", file=sys.stderr, flush=True)


class _Bars(Quiet):
    """Shows a bar for the part in progress."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("asking", total=None)

    def begin(self, name: str, texts: int) -> None:
        self._progress.update(self._task, description=name, total=texts, completed=0)

    def advance(self) -> None:
        self._progress.advance(self._task)


@contextlib.contextmanager
def show_progress(view: Shown) -> Iterator[Quiet]:
    console = make_console(stderr=True)
    if view is Shown.live or (view is Shown.auto and console.is_terminal):
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
            yield _Bars(progress)
    else:
        yield _Lines() if view in (Shown.auto, Shown.lines) else Quiet()
