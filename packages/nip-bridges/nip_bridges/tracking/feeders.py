"""The processes that show a run in its trackers, started and ended with its session.

Feeders   one process for each tracker: told when something was committed, waited for at the end
Feeding   how far one of them came

The run waits for none of them while it runs. At its end it waits for trackers of this machine, and
for those that answer; not for one that does not: see `Feeders.close`. The rest is
sent when the run goes on, or by ``nip track``. The work is done by `nip_bridges.tracking`.
"""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from nip_base.machine.processes import signal_group
from nip_bridges.tracking.messages import END, LOOK, FeederTask, Report, State
from nip_bridges.tracking.places import address, is_remote, tracker_directory
from nip_core.parameters.blocks.tracking import TrackerParameters
from nip_core.proxies import restore_proxies, spare_this_machine
from nip_core.run_store.run import RunStore

_log = logging.getLogger(__name__)

ANSWERING_S = 30.0
"""Longest wait at the end for a tracker that answers, or that is on this machine."""
SILENT_S = 2.0
"""After so long without an answer a tracker is not waited for at the end."""
UNKNOWN_S, LONGEST_UNKNOWN_S = 1.0, 5.0
"""Least and longest wait at the end for one that has never answered; between these, 1 % of the
run's time."""
SILENT_AT_FIRST_S = 10.0
"""As `SILENT_S`, for one that has never answered: the first answer takes longer, and so does a
process that gets the processor last."""
_HURRIED_S = 2.0  # after an error or a signal
_SHARE = 0.01
_PAUSES_S = (30.0, 600.0)  # before it is tried again after trouble: at first, and in the end
_LOOK_S = 0.05


@dataclass(frozen=True)
class Feeding:
    """How far a tracker was fed."""

    tracker: str
    place: str
    received: int | None
    """Batches that it has; None: not known."""
    batches: int | None
    trouble: str | None
    """Why it does not have all; None: it has."""


class _Process:
    """The feeder of one tracker, started again after trouble."""

    def __init__(self, run: RunStore, tracker: TrackerParameters, warn: Callable[[str], None]):
        self.tracker, self.place = tracker, address(tracker)
        self._run, self._warn = run, warn
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._pause_s, self._next_start_s = _PAUSES_S[0], 0.0
        self.is_remote = is_remote(tracker)
        self.state: State = "idle"
        self.since_s = time.monotonic()
        self.has_answered = False
        self.received: int | None = None
        self.batches: int | None = None
        self.trouble: str | None = None
        self._warned: str | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_at_work(self) -> bool:
        """Tell whether it has more to do than to leave."""
        return self.is_running and self.state not in ("done", "trouble")

    @property
    def was_in_trouble(self) -> bool:
        """Tell whether it was in trouble, also before it was started again."""
        return self._warned is not None

    @property
    def in_state_s(self) -> float:
        """The seconds since its last report."""
        return time.monotonic() - self.since_s

    def look(self, in_background: bool = True) -> None:
        """Ask it to look for commits; start it if it is not there and not in trouble.

        `in_background`: it takes the processor only while no other process needs it.
        """
        if not self.is_running:
            if time.monotonic() < self._next_start_s:
                return
            try:
                self._start(in_background)
            except OSError as error:  # no memory for a process, or no place for its log
                self._note(Report(state="trouble", error=f"its process can't be started: {error}"))
        self._tell(f"{LOOK}\n".encode())

    def end(self) -> None:
        """Ask it to send what is left, then to end."""
        self._tell(f"{END}\n".encode())

    def kill(self) -> None:
        """End it, and the processes that it has started, now."""
        process = self._process
        if process is None:
            return
        signal_group(process.pid, signal.SIGKILL)
        process.wait()
        if self._reader is not None:
            self._reader.join(1.0)
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        self._process = None

    def _start(self, in_background: bool) -> None:
        self.kill()  # the rest of one that has ended
        self.state, self.since_s, self.trouble = "starting", time.monotonic(), None
        log = self._run.store.local_path(f"{tracker_directory(self._run, self.tracker)}/feeder.log")
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
        environment = restore_proxies(os.environ)
        spare_this_machine(environment)
        with open(log or os.devnull, "wb") as errors:
            # Its own group: no signal of the terminal, and it is ended with its children.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "nip_bridges.tracking"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env=environment,
            )
        task = FeederTask(
            run_store=self._run.store.url,
            run=self._run.name,
            tracker=self.tracker,
            in_background=in_background,
        )
        assert self._process.stdin is not None
        self._tell(task.model_dump_json().encode() + b"\n")
        os.set_blocking(
            self._process.stdin.fileno(), False
        )  # no wait for a feeder that does not read
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def _tell(self, line: bytes) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended, or has looks enough to do
                os.write(self._process.stdin.fileno(), line)

    def _read(self, process: "subprocess.Popen[bytes]") -> None:
        """Note its reports, until it ends."""
        assert process.stdout is not None
        with contextlib.suppress(ValueError):  # closed by `kill`
            for line in process.stdout:
                self._note(Report.model_validate_json(line))
        if self.state not in ("done", "trouble"):
            self._note(Report(state="trouble", error="its process was ended"))

    def _note(self, report: Report) -> None:
        self.state, self.since_s = report.state, time.monotonic()
        if self.state == "answered":
            self.has_answered = True
            self._pause_s = _PAUSES_S[0]
        if self.state == "trouble":
            error = str(report.error)
            if error != self._warned:
                later = f"the run goes on, and nip track {self._run.name} sends later what it lacks"
                self._warn(f"{self.tracker.kind}: {error}; {later}")
            self.trouble = self._warned = error
            self._next_start_s = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _PAUSES_S[1])
        if report.received is not None:
            self.received = report.received
        if report.batches is not None:
            self.batches = report.batches


class Feeders:
    """The feeders of a run. Nothing is started before the first `look`."""

    def __init__(
        self,
        run: RunStore,
        trackers: Sequence[TrackerParameters],
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """`warn` hears of trouble, from a thread; None: the log does."""
        self._run, self._began_s = run, time.monotonic()
        tell = warn or (lambda text: _log.warning("run %r: %s", run.name, text))
        self._processes = [_Process(run, tracker, tell) for tracker in trackers]
        self._warn = tell

    def look(self) -> None:
        """Tell all feeders of a commit. Takes no longer than starting a process."""
        for process in self._processes:
            process.look()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(hurried=kind is not None)

    async def close(self, hurried: bool = False) -> None:
        """Let the feeders send the rest, each as long as its tracker may answer; then end them.

        A tracker of this machine, or one that answers, has `ANSWERING_S` seconds. One that has
        been asked for `SILENT_S` and does not answer has none. One that has never answered has
        `UNKNOWN_S` or a hundredth of the run's time, but none if it has been asked for
        `SILENT_AT_FIRST_S` or was in trouble before. `hurried`: after an error or a signal.
        """
        began_s = time.monotonic()
        waiting = [process for process in self._processes if process.is_at_work]
        for process in waiting:
            process.end()
        try:
            while waiting:
                waited_s = time.monotonic() - began_s
                limits = {id(p): _HURRIED_S if hurried else self._limit_s(p) for p in waiting}
                waiting = [p for p in waiting if p.is_at_work and waited_s < limits[id(p)]]
                await asyncio.sleep(_LOOK_S if waiting else 0)
        finally:
            for process in self._processes:
                self._end(process)

    def _limit_s(self, process: _Process) -> float:
        """Choose how long to wait for a feeder, in seconds since the end of the run."""
        if not process.is_remote:
            return ANSWERING_S
        silent_s = SILENT_S if process.has_answered else SILENT_AT_FIRST_S
        if process.state == "asking" and process.in_state_s > silent_s:
            return 0.0
        if process.has_answered:
            return ANSWERING_S
        if process.was_in_trouble:
            return 0.0
        share_s = _SHARE * (time.monotonic() - self._began_s)
        return min(max(UNKNOWN_S, share_s), LONGEST_UNKNOWN_S)

    def _end(self, process: _Process) -> None:
        was_at_work, was_asked = process.is_at_work, process.state == "asking"
        process.kill()
        if was_at_work and process.state != "done":
            reason = "no answer" if was_asked else "there was no time"
            self._warn(
                f"{process.tracker.kind}: not everything was sent ({reason}); nip track "
                f"{self._run.name} sends it"
            )

    def finish(self, patience_s: float) -> list[Feeding]:
        """Send everything, and say how far each came. One silent for `patience_s` is ended."""
        for process in self._processes:
            process.look(in_background=False)
            process.end()
        try:
            while any(p.is_at_work and p.in_state_s < patience_s for p in self._processes):
                time.sleep(_LOOK_S)
        finally:
            for process in self._processes:
                was_at_work = process.is_at_work
                process.kill()
                if was_at_work and process.state != "done":
                    process.trouble = f"no answer for {patience_s:g} s"
        return [
            Feeding(
                p.tracker.kind,
                p.place,
                p.received,
                p.batches,
                p.trouble,
            )
            for p in self._processes
        ]
