"""A view of a run while it goes: live in a terminal, plain lines otherwise."""

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
    parameters: HyperParameters, progress: Progress, console: Console
) -> Iterator[Callable[[], None]]:
    """Show the progress until the block is left, or what is yielded is called.

    Writes to `console` from a thread of its own, a first line at once.
    """
    rl = parameters.rl
    console.print(
        f"run {parameters.run_name}: {rl.num_iterations} iterations of "
        f"{rl.rollouts_per_iteration} rollouts, kept in {parameters.run_store}",
        highlight=False,
        soft_wrap=True,
    )
    stop = threading.Event()
    show = _live if console.is_terminal else _lines
    thread = threading.Thread(
        target=show, args=(parameters, progress, console, stop), daemon=True, name="live-view"
    )
    thread.start()

    def end() -> None:
        stop.set()
        thread.join(timeout=5.0)

    try:
        yield end
    finally:
        end()


class _Rates:
    """Calls and tokens per second over the last few seconds."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int, int]] = []

    def add(self, now_s: float, calls: int, tokens: int) -> tuple[float, float]:
        self._seen = [s for s in self._seen if s[0] > now_s - 5.0] + [(now_s, calls, tokens)]
        # Over what was seen in the last seconds, as a mean since the start would lag behind.
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
        # Episodes that were committed before the stage began say nothing of its speed.
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
    """Return what the answers so far cost; None where a model that plays has no price."""
    return calls_usd(parameters, progress.tokens_by_agent) if parameters.prices else None


def _live(
    parameters: HyperParameters,
    progress: Progress,
    console: Console,
    stop: threading.Event,
) -> None:
    rates, clock = _Rates(), _Clock()
    started_s, warned = time.monotonic(), False
    with Live(console=console, refresh_per_second=1 / _REFRESH_S, transient=True) as live:
        live.update(Text(progress.stage, style="bold"))
        while not stop.wait(_REFRESH_S):
            if progress.warning and not warned:
                warned = True
                live.console.print(f"warning: {progress.warning}", style="yellow", soft_wrap=True)
            now_s = time.monotonic()
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
            if progress.calls:
                table.add_row("calls", f"{progress.calls}, {calls:.0f}/s")
                table.add_row("tokens", f"{progress.completion_tokens} generated, {tokens:.0f}/s")
            if progress.retries:
                table.add_row("retries", _retries(progress))
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
    progress: Progress,
    console: Console,
    stop: threading.Event,
) -> None:
    stage, said_s, started_s, warned = "", 0.0, time.monotonic(), False
    while not stop.wait(_REFRESH_S if stage else 0.0):
        now_s = time.monotonic()
        if progress.warning and not warned:
            warned = True
            print(f"warning: {progress.warning}", file=console.file, flush=True)
        if progress.stage == stage and now_s - said_s < _LINE_EVERY_S:
            continue
        stage, said_s = progress.stage, now_s
        cost = cost_usd(parameters, progress)
        money = "" if cost is None else f", ${cost:.4f}"
        counts = []
        if progress.episodes_total:
            counts.append(f"{progress.episodes_done}/{progress.episodes_total} episodes")
        if progress.calls:
            counts.append(f"{progress.calls} calls, {progress.completion_tokens} tokens{money}")
        if progress.retries:
            counts.append(f"retries {_retries(progress)}")
        # One line each, however narrow what it is piped into says it is.
        print(
            f"[{now_s - started_s:6.1f} s] {stage}{': ' if counts else ''}{', '.join(counts)}",
            file=console.file,
            flush=True,
        )


def _retries(progress: Progress) -> str:
    return f"{progress.retries}, the last after {progress.last_trouble}"
