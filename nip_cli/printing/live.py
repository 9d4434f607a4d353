"""A view of a run while it goes: live in a terminal, plain lines or JSON otherwise."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nip_cli.printing.options import Shown
from nip_cli.printing.terminal import say
from nip_core.parameters import HyperParameters
from nip_core.progress.board import Progress
from nip_core.progress.outlook import EPISODES, Doing, State, Whole, observe_run
from nip_core.progress.view_lines import JsonLines, PlainLines
from nip_core.progress.words import (
    between_words,
    count_words,
    format_clock,
    format_pace,
    format_share,
    guess_words,
    left_words,
    share_words,
    stage_words,
    status_words,
    whole_words,
)

_REFRESH_S = 0.25
_NARROW = 60  # columns, below which there are no bars and fewer figures
_LABEL = 12  # columns
_WIDEST_BAR = 50


class _Lines(Protocol):
    def lines_due(self) -> list[str]:
        """Give the lines to print now."""


@contextmanager
def watch(
    parameters: HyperParameters,
    progress: Progress,
    console: Console,
    display: Shown = Shown.auto,
) -> Iterator[Callable[[], None]]:
    """Show the progress until the block is left, or the yielded function is called.

    Writes to `console` from a thread of its own, a first line at once.
    """
    progress.tell(
        "begin",
        f"getting ready for run {parameters.run_name}",
        run=parameters.run_name,
        run_store=parameters.run_store,
        iterations=parameters.rl.num_iterations,
        rollouts=parameters.rollouts_per_iteration,
    )
    stop = threading.Event()
    thread = threading.Thread(
        target=_show, args=(parameters, progress, console, display, stop), daemon=True, name="view"
    )
    thread.start()

    def end() -> None:
        stop.set()
        thread.join(timeout=5.0)

    try:
        yield end
    finally:
        end()


def _show(
    parameters: HyperParameters,
    progress: Progress,
    console: Console,
    display: Shown,
    stop: threading.Event,
) -> None:
    # Who has closed the pipe does not want to see any more; the run goes on.
    with contextlib.suppress(OSError):
        if display is Shown.auto:
            # A terminal that can't move its cursor gets lines.
            is_live = console.is_terminal and not console.is_dumb_terminal
            display = Shown.live if is_live else Shown.lines
        if display is Shown.live:
            _live(parameters, progress, console, stop)
        elif display is Shown.json:
            _write(JsonLines(progress, parameters), console, stop)
        elif display is Shown.lines:
            _write(PlainLines(progress, parameters), console, stop)


def _write(lines: _Lines, console: Console, stop: threading.Event) -> None:
    """Write lines as they are due; each is one, however narrow a terminal says it is."""
    while True:
        is_last = stop.wait(_REFRESH_S)
        for line in lines.lines_due():
            say(line, file=console.file, flush=True)
        if is_last:
            return


def _live(
    parameters: HyperParameters, progress: Progress, console: Console, stop: threading.Event
) -> None:
    """Lines of past events, and below them the work that goes on, drawn anew all the time."""
    lines = PlainLines(progress, parameters, only_events=True)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            is_last = stop.wait(_REFRESH_S)
            for line in lines.lines_due():
                live.console.print(_break_line(line))
            if is_last:
                return
            live.update(frame(observe_run(progress, parameters), console.width), refresh=True)


def _break_line(line: str) -> RenderableType:
    """Break a long line between words, to go on below its text."""
    stamp, _, text = line.partition(" ")
    row = Table.grid(padding=(0, 1))
    row.add_row(stamp, Text(text, style="yellow" if text.startswith("warning: ") else ""))
    return row


def frame(state: State, width: int) -> RenderableType:
    """The stage, its episodes and jobs, and the whole run, within `width` columns."""
    bar = 0 if width < _NARROW else min(width // 4, _WIDEST_BAR)
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=_LABEL, min_width=_LABEL)
    # 1. Where the run is, and since when.
    head = Text.assemble(
        (stage_words(state) or between_words(state), "bold"),
        f"  {format_clock(state.stage_s)}",
        no_wrap=True,
    )
    # 2. The work that goes on.
    for doing in state.doing:
        _add(table, doing, bar)
    # 3. Failures, and their cost.
    if words := count_words(state.counts):
        table.add_row("so far", Text(words, style="yellow" if state.counts.retries else ""))
    # 4. The slow part, and a remedy.
    if state.slow:
        table.add_row("slow", Text(state.slow, style="yellow", no_wrap=False, overflow="fold"))
    # 5. The whole run.
    if state.whole is not None:
        table.add_row("whole run", _whole(state.whole, bar))
    page = Table.grid()
    page.add_column(no_wrap=True, overflow="ellipsis", max_width=width)
    page.add_row(head)
    page.add_row(table)
    return page


def _add(table: Table, doing: Doing, bar: int) -> None:
    if not doing.total and doing.job is None:
        words = doing.what if not doing.status else f"{doing.what}, {doing.status}"
        table.add_row("", Text(f"{words}, {left_words(doing)}"))
        return
    # 1. How far it is.
    unit = "" if doing.unit == EPISODES else "step "
    parts = [f"{unit}{doing.done:,}/{doing.total:,}"] if doing.total and bar else []
    parts += [format_share(doing)] if doing.total and not bar else []
    parts += [status] if (status := status_words(doing)) else []
    parts.append(left_words(doing))
    table.add_row(
        doing.group or doing.unit, _with_bar(doing.done, doing.total, bar, ", ".join(parts))
    )
    # 2. Its figures.
    figures = [] if doing.loss is None else [f"loss {doing.loss:.3g}"]
    figures += [f"{format_pace(doing.per_s)} episodes/s"] if doing.per_s else []
    figures += [f"{format_pace(doing.tokens_per_s)} tokens/s"] if doing.tokens_per_s else []
    figures += [doing.job] if doing.job else []
    if figures:
        table.add_row("", Text(", ".join(figures), style="dim"))


def _whole(whole: Whole, bar: int) -> RenderableType:
    if whole.share is None or whole.left_s is None:
        return Text(whole_words(whole))
    words = share_words(whole.share, whole.left_s, whole.stages_done == whole.stages)
    words += guess_words(whole)
    return _with_bar(round(1000 * whole.share), 1000, bar, words)


def _with_bar(count: int, total: int, bar: int, words: str) -> RenderableType:
    if not bar:
        return Text(words)
    row = Table.grid(padding=(0, 1))
    row.add_column(width=bar)
    row.add_column(no_wrap=True, overflow="ellipsis")
    row.add_row(ProgressBar(total=max(total, 1), completed=count, width=bar), Text(words))
    return row
