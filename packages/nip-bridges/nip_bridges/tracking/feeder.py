"""The process that sends one tracker the points that it lacks of one run.

Feeder      the work: look at the run, send, put down the batches that were sent
run_feeder  the process around it: commands on stdin, its acts as JSON lines on the old stdout

A process of its own for each tracker: its packages take seconds to import, and a tracker that does
not answer holds up this process alone, which may be killed at any time. The cursor of a tracker
stands in ``<run>/tracking/<tracker>-<digest of its address>/cursor.json`` beside the lease that
lets one feeder at a time send to it. After trouble the process ends; the next one goes on.

Commands are lines: ``look`` (something was committed) and ``end`` (send it all, then end). If stdin
ends without ``end``, the caller was killed: this process ends at once, and its children with it.
"""

import contextlib
import os
import queue
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TextIO

from nip_bridges.tracking.messages import END, LOOK, FeederTask, Report
from nip_bridges.tracking.places import address, tracker_directory
from nip_bridges.tracking.point_log import PointLog
from nip_bridges.tracking.trackers import Cursor, RunToTrack, Tracker, TrackerError, make_tracker
from nip_core.errors import LeaseError, NipError
from nip_core.redaction import redact
from nip_core.run_store.documents import encode, validate_document
from nip_core.run_store.lease import Lease, acquire
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store

_LEAST_PRIORITY = 19
# Packages of trackers that would tell others, or the terminal, more than asked for.
_QUIET = {
    "DO_NOT_TRACK": "1",
    "GIT_PYTHON_REFRESH": "quiet",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
}

_KEYS = (
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "TRACKIO_WRITE_TOKEN",
    "WANDB_API_KEY",
)
_PASSWORD = re.compile(r"//[^/\s]*@")

Tell = Callable[[Report], None]


class Feeder:
    """Sends the points of a run to a tracker. `tell` hears what is being done."""

    def __init__(
        self,
        run: RunStore,
        tracker: Tracker,
        directory: str,
        place: str,
        lease: Lease,
        tell: Tell,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep the cursor in `directory` of the run store, under `lease`.

        `place`: where the tracker is, for people.
        """
        self._run, self._tracker, self._lease = run, tracker, lease
        self._path, self._place = f"{directory}/cursor.json", place
        self._tell, self._clock = tell, clock
        self._log = PointLog(run)
        self._rewinds: int | None = None
        self._received = 0
        self._sent_at_s = clock()

    def look(self, is_last: bool) -> None:
        """Send all points committed since. `is_last`: also those that may still wait for others."""
        count = self._log.extend()
        if count == 0 or not (is_last or self._is_due()):
            self._tell(Report(state="idle", received=self._received, batches=count))
            return
        if self._rewinds is None:
            self._open()
        elif self._rewinds != self._log.rewinds:
            raise TrackerError("the run is done again from an earlier place, as another one")
        batches = [self._log.read(number) for number in range(self._received, count)]
        # Waiting batches may be sent together; else each batch counts once it is sent.
        lots = [batches] if self._tracker.waits_s else [[batch] for batch in batches]
        for lot in filter(None, lots):
            self._tell(Report(state="asking", received=self._received, batches=count))
            self._tracker.send(lot)
            self._received = lot[-1].number + 1
            self._write(rows=lot[-1].next_row)
        self._sent_at_s = self._clock()
        self._tell(Report(state="answered", received=self._received, batches=count))

    def close(self) -> None:
        """Wait until everything has arrived."""
        self._tell(Report(state="asking"))
        self._tracker.close()
        self._tell(Report(state="answered"))

    def _is_due(self) -> bool:
        return self._clock() - self._sent_at_s >= self._tracker.waits_s

    def _open(self) -> None:
        self._tell(Report(state="starting"))
        self._tracker.load()
        log = self._log
        run = RunToTrack(log.run_id, log.run_name, log.settings, log.facts)
        cursor = validate_document(
            self._run.read_json_or_none(self._path) or {}, Cursor, self._path
        )
        self._tell(Report(state="asking"))
        self._received = self._tracker.open(run, cursor if cursor.run_id == run.id else Cursor())
        self._tell(Report(state="answered"))
        self._rewinds = log.rewinds

    def _write(self, rows: int) -> None:
        cursor = Cursor(
            format_version=1,
            run_id=self._log.run_id,
            place=self._place,
            received=self._received,
            rows=rows,
        ).model_copy(update=self._tracker.cursor())
        document = encode(cursor.model_dump(exclude_unset=True))
        # With the lease's fence: a feeder whose lease another one has taken writes nothing back.
        self._run.store.put(self._path, document, fence=self._lease.fence)


def run_feeder(task: FeederTask) -> int:
    """Do what stdin asks for, and return the exit status: 0, or 3 after trouble.

    Acts and troubles are told on the old stdout, a `Report` a line.
    """
    if task.in_background:
        os.nice(_LEAST_PRIORITY)
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    # A package's prints go to stderr; the old stdout is for the caller alone.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def tell(report: Report) -> None:
        with contextlib.suppress(OSError):  # no reader is left
            answers.write(report.model_dump_json(exclude_none=True) + "\n")

    commands = _read_commands(sys.stdin)
    try:
        _feed(task, commands, tell)
    except Exception as error:
        tell(Report(state="trouble", error=_describe_error(error)))
        if not isinstance(error, NipError):
            # As Python would show it, but for secrets: this text is kept with the run.
            for line in traceback.format_exception(error):
                sys.stderr.write(_remove_secrets(line))
        return 3
    tell(Report(state="done"))
    return 0


def _feed(task: FeederTask, commands: "queue.SimpleQueue[str]", tell: Tell) -> None:
    tracker, run = task.tracker, RunStore(open_store(task.run_store), task.run)
    directory = tracker_directory(run, tracker)
    with acquire(run.store, directory) as lease:
        feeder = Feeder(run, make_tracker(tracker), directory, address(tracker), lease, tell)
        command = LOOK
        while command != END:
            command = commands.get()
            while command == LOOK and not commands.empty():
                command = commands.get()  # one look sees what was committed by then
            feeder.look(is_last=command == END)
        feeder.close()


def _read_commands(stream: TextIO) -> "queue.SimpleQueue[str]":
    """Read the lines of a stream in a thread. The process ends if the stream does without END."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in stream:
            lines.put(line.strip())
            if line.strip() == END:
                return
        if os.getpgrp() == os.getpid():  # the group was made for this process
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _describe_error(error: Exception) -> str:
    if isinstance(error, LeaseError):
        return "another process sends to it"
    first = str(error).strip().partition("\n")[0]
    text = first if isinstance(error, NipError) else f"{type(error).__name__}: {first}"
    return _remove_secrets(text)[:300]


def _remove_secrets(text: str) -> str:
    """Take passwords and keys out of a text.

    An address of the environment may have a password, and a tracker may repeat what it was sent."""
    text = _PASSWORD.sub("//", text)
    return redact(text, *(os.environ.get(name, "").strip() for name in _KEYS))
