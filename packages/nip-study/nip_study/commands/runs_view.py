"""A view of many runs that are played side by side: as lines, live, as JSON, or none."""

import json
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import IO, Any, Self

from rich.console import RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nip_cli.printing.console import make_console
from nip_cli.printing.options import Shown
from nip_cli.printing.terminal import say
from nip_core.progress.words import format_clock

_WIDEST_BAR = 40  # columns
_MOST_ROWS = 12  # runs at a time that have a row


class RunsView:
    """The lines about runs, as they begin and end. Use as a context manager."""

    def __init__(
        self,
        count: int,
        stream: IO[str],
        display: Shown = Shown.auto,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Expects `count` runs, and writes to `stream`."""
        self._count, self._to, self._clock = count, stream, clock
        self._ended = self._failed = 0
        self._began_s, self._going = clock(), dict[str, float]()
        self._lock = threading.Lock()
        self._console = make_console()
        self._console.file = stream
        if display is Shown.auto:
            # A terminal that can't move its cursor gets lines.
            is_live = self._console.is_terminal and not self._console.is_dumb_terminal
            display = Shown.live if is_live else Shown.lines
        self._shown, self._live = display, None if display is not Shown.live else self._make_live()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def started(self, run: str) -> None:
        """Say that a run has begun."""
        with self._lock:
            self._going[run] = self._clock()
        self._tell("started", run, "started")

    def ended(self, run: str, outcome: str, *, is_failed: bool = False) -> None:
        """Say how a run has ended, in words."""
        with self._lock:
            self._going.pop(run, None)
            self._ended += 1
            self._failed += is_failed
            ended_count = self._ended
        self._tell("ended", run, outcome, is_failed=is_failed, ended=ended_count)

    def frame(self) -> RenderableType:
        """Draw the runs that go on, and below them how many have ended."""
        now_s, table = self._clock(), Table.grid(padding=(0, 1))
        table.add_column(no_wrap=True, overflow="ellipsis")
        table.add_column(justify="right")
        with self._lock:
            going, ended_count, failed = [*self._going.items()], self._ended, self._failed
        for run, since_s in going[:_MOST_ROWS]:
            table.add_row(Text(run), format_clock(now_s - since_s))
        if (more := len(going) - _MOST_ROWS) > 0:
            table.add_row(Text(f"and {more} more"), "")
        words = f"{ended_count} of {self._count} ended" + (f", {failed} failed" if failed else "")
        foot = Table.grid(padding=(0, 1))
        width = min(_WIDEST_BAR, self._console.width // 3)
        bar = ProgressBar(total=max(self._count, 1), completed=ended_count, width=width)
        foot.add_row(bar, Text(words), format_clock(now_s - self._began_s))
        page = Table.grid()
        page.add_row(table)
        page.add_row(foot)
        return page

    def _make_live(self) -> Live:
        return Live(
            console=self._console, get_renderable=self.frame, refresh_per_second=2, transient=True
        )

    def _tell(self, event: str, run: str, text: str, **facts: Any) -> None:
        if self._shown is Shown.none:
            return
        try:
            if self._shown is Shown.json:
                line = _write_json(event, run, text, {**facts, "runs": self._count})
            else:
                of_all = f" ({facts['ended']} of {self._count})" if "ended" in facts else ""
                line = f"[{self._clock() - self._began_s:6.1f} s] {run}: {text}{of_all}"
            if self._live is not None:
                self._console.print(Text(line))
            else:
                say(line, file=self._to, flush=True)
        except OSError:  # its reader has gone; the runs go on
            self._to = open(os.devnull, "w")  # noqa: SIM115


def _write_json(event: str, run: str, text: str, facts: dict[str, Any]) -> str:
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    document = {"at": at, "event": event, "text": text, "facts": {"run": run, **facts}}
    return json.dumps(document, ensure_ascii=False)
