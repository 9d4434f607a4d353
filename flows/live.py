"""What a run shows while it goes: a live view in a terminal, plain lines otherwise."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nip_core.parameters import HyperParameters
from nip_core.parameters.prices import calls_usd
from nip_core.rollouts.progress import Progress

_REFRESH_S = 0.25
_LINE_EVERY_S = 10.0


@contextmanager
def watch(
    parameters: HyperParameters, progress_of: Callable[[], Progress | None], console: Console
) -> Iterator[None]:
    """Show the progress until the block is left. Writes to `console` from a thread of its own."""
    stop = threading.Event()
    show = _live if console.is_terminal else _lines
    thread = threading.Thread(
        target=show, args=(parameters, progress_of, console, stop), daemon=True, name="live-view"
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=5.0)


class _Rates:
    """Calls and tokens per second over the last few seconds."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int, int]] = []

    def add(self, now_s: float, calls: int, tokens: int) -> tuple[float, float]:
        self._seen = [s for s in self._seen if s[0] > now_s - 5.0] + [(now_s, calls, tokens)]
        first = self._seen[0]
        span = now_s - first[0]
        if span <= 0:
            return 0.0, 0.0
        return (calls - first[1]) / span, (tokens - first[2]) / span


class _Clock:
    """Time left in the stage, from how fast its episodes end."""

    def __init__(self) -> None:
        self._stage = ""
        self._started_s = 0.0
        self._done_before = 0  # found committed

    def left_s(self, progress: Progress, now_s: float) -> float | None:
        if progress.stage != self._stage:
            self._stage, self._started_s = progress.stage, now_s
            self._done_before = progress.episodes_done
        done = progress.episodes_done - self._done_before
        if done <= 0:
            return None
        return (
            (now_s - self._started_s)
            / done
            * max(progress.episodes_total - progress.episodes_done, 0)
        )


def cost_usd(parameters: HyperParameters, progress: Progress) -> float | None:
    """What the answers so far cost; None where the settings lack a price of a model that plays."""
    return calls_usd(parameters, progress.tokens_by_agent) if parameters.prices else None


def _live(
    parameters: HyperParameters,
    progress_of: Callable[[], Progress | None],
    console: Console,
    stop: threading.Event,
) -> None:
    rates, clock = _Rates(), _Clock()
    started_s = time.monotonic()
    with Live(console=console, refresh_per_second=1 / _REFRESH_S, transient=True) as live:
        while not stop.wait(_REFRESH_S):
            progress = progress_of()
            now_s = time.monotonic()
            if progress is None or not progress.stage:
                live.update(Text(f"starting … {now_s - started_s:.0f} s", style="dim"))
                continue
            calls, tokens = rates.add(now_s, progress.calls, progress.completion_tokens)
            left = clock.left_s(progress, now_s)
            table = Table.grid(padding=(0, 2))
            if progress.episodes_total:
                done = ProgressBar(
                    total=progress.episodes_total, completed=progress.episodes_done, width=50
                )
                table.add_row("done", done)
                table.add_row(
                    "episodes",
                    f"{progress.episodes_done}/{progress.episodes_total} done, "
                    f"{progress.episodes_in_flight} in flight, {progress.episodes_failed} failed",
                )
            table.add_row("calls", f"{progress.calls}, {calls:.0f}/s, {progress.retries} retried")
            table.add_row("tokens", f"{progress.completion_tokens} generated, {tokens:.0f}/s")
            cost = cost_usd(parameters, progress)
            if cost is not None:
                table.add_row("cost", f"${cost:.4f}")
            table.add_row(
                "time",
                f"{now_s - started_s:.0f} s"
                + (f", about {left:.0f} s left in this stage" if left else ""),
            )
            live.update(Group(Text(progress.stage, style="bold"), table))


def _lines(
    parameters: HyperParameters,
    progress_of: Callable[[], Progress | None],
    console: Console,
    stop: threading.Event,
) -> None:
    stage, said_s, started_s = "", 0.0, time.monotonic()
    while not stop.wait(_REFRESH_S):
        progress = progress_of()
        now_s = time.monotonic()
        if progress is None or not progress.stage:
            continue
        if progress.stage == stage and now_s - said_s < _LINE_EVERY_S:
            continue
        stage, said_s = progress.stage, now_s
        cost = cost_usd(parameters, progress)
        money = "" if cost is None else f", ${cost:.4f}"
        episodes = f"{progress.episodes_done}/{progress.episodes_total} episodes, "
        # One line each, however narrow what it is piped into says it is.
        print(
            f"[{now_s - started_s:6.1f} s] {stage}: {episodes if progress.episodes_total else ''}"
            f"{progress.calls} calls, {progress.completion_tokens} tokens{money}",
            file=console.file,
            flush=True,
        )
