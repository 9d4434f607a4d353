"""The processes of one `nip up`: started, started again when they end, and ended together.

A part that ends is started again after 1, 2, 4, ... seconds, once what it needs is there. One that
ends `_TRIES` times, each time within `_STEADY_S` of its start, is not mended by another start: then
all is ended, and its log is named.
"""

import contextlib
import ctypes  # noqa: F401 - a child that has become another user may not be able to read it
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from nip_base.machine.processes import die_with_parent_process, read_tail
from nip_cli.printing.terminal import say
from nip_core.errors import ServerError

_GRACE_S = 40.0
_LOOK_S = 0.5
_STEADY_S = 60.0
_TRIES = 5


@dataclass
class _Part:
    name: str
    command: list[str]
    environment: Mapping[str, str]
    options: dict[str, Any]  # of Popen
    may_start: Callable[[], bool]
    process: subprocess.Popen[bytes]
    started_s: float
    quick_ends: int = 0
    start_again_s: float | None = None  # when, if it has ended


def open_private(path: Path, mode: str) -> IO[bytes]:
    """Open a file for its owner alone, and make one that is there already so."""

    def only_owners(name: str, flags: int) -> int:
        descriptor = os.open(name, flags, 0o600)
        os.fchmod(descriptor, 0o600)
        return descriptor

    return cast("IO[bytes]", open(path, mode, opener=only_owners))


class Parts:
    """The processes, their output in logs/<name>.log. Leaving the block ends them, the last
    started first."""

    def __init__(self, state: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._logs = state / "logs"
        self._clock = clock
        self._parts: list[_Part] = []

    def __enter__(self) -> "Parts":
        self._logs.mkdir(exist_ok=True)
        self._logs.chmod(0o700)  # of one that is there already, too
        return self

    def __exit__(self, *_: object) -> None:
        # A second Ctrl-C must not leave half of them behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if not self._parts:
            return
        names = ", ".join(part.name for part in reversed(self._parts))
        _tell(f"stopping {names}")
        for part in reversed(self._parts):
            process = part.process
            # PostgreSQL waits for its clients at SIGTERM, and ends them at SIGINT.
            process.send_signal(signal.SIGINT if part.name == "postgresql" else signal.SIGTERM)
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                _tell(f"{part.name} did not end, killed")
            _kill_group(process)
            process.wait()
        _tell(
            f"stopped {names}; what stays is {self._state} (Prefect's database, keys, logs) and "
            "all runs"
        )

    def start(
        self,
        name: str,
        command: list[str],
        environment: Mapping[str, str],
        may_start: Callable[[], bool] = lambda: True,
        **options: Any,
    ) -> subprocess.Popen[bytes]:
        """Start a part in a process group of its own.

        `may_start`: whether what it needs is there, asked before it is started again.
        """
        process = self._launch(name, command, environment, options)
        now_s = self._clock()
        self._parts.append(
            _Part(name, command, environment, options, may_start, process, started_s=now_s)
        )
        self._write_pids()
        return process

    def until(self, condition: Callable[[], bool], what: str, deadline_s: float) -> None:
        """Wait for `condition`. Raises ServerError if a part ends or the time is over."""
        end_s = self._clock() + deadline_s
        while not condition():
            for part in self._parts:
                if part.process.poll() is not None:
                    raise ServerError(
                        f"{part.name} ended with {part.process.returncode}, so all is ended: "
                        f"{self._tail(part)}"
                    )
            if self._clock() > end_s:
                raise ServerError(f"not within {deadline_s:g} s: {what}; see {self._logs}")
            time.sleep(_LOOK_S)

    def watch(self) -> None:
        """Start again what ends. Returns never. Raises ServerError for what ends at each start."""
        while True:
            self.tend()
            time.sleep(_LOOK_S)

    def tend(self) -> None:
        """Look once at each part."""
        for part in self._parts:
            if part.start_again_s is None:
                if part.process.poll() is not None:
                    self._note_end(part)
            elif self._clock() >= part.start_again_s and part.may_start():
                part.process = self._launch(part.name, part.command, part.environment, part.options)
                part.started_s, part.start_again_s = self._clock(), None
                self._write_pids()

    def _note_end(self, part: _Part) -> None:
        _kill_group(part.process)  # what a worker leaves behind is no longer watched by anybody
        steady = self._clock() - part.started_s >= _STEADY_S
        part.quick_ends = 1 if steady else part.quick_ends + 1
        status = part.process.returncode
        if part.quick_ends >= _TRIES:
            raise ServerError(
                f"{part.name} ended {_TRIES} times, the last time with {status}, each time within "
                f"{_STEADY_S:g} s of its start, so all is ended; its log "
                f"{self._log_of(part.name)} ends: {self._tail(part)}"
            )
        wait_s = 2.0 ** (part.quick_ends - 1)
        part.start_again_s = self._clock() + wait_s
        _tell(
            f"{part.name} ended with {status}; started again in {wait_s:g} s; its log is "
            f"{self._log_of(part.name)}"
        )

    def _launch(
        self,
        name: str,
        command: list[str],
        environment: Mapping[str, str],
        options: dict[str, Any],
    ) -> subprocess.Popen[bytes]:
        parent = os.getpid()
        with open_private(self._log_of(name), "ab") as log:
            return subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Safe: this process has one thread.
                preexec_fn=lambda: _prepare(parent),  # noqa: PLW1509
                **options,
            )

    def _write_pids(self) -> None:
        pids = {part.name: part.process.pid for part in self._parts}
        with open_private(self._state / "processes.json", "wb") as file:
            file.write(json.dumps(pids, indent=1).encode())

    def _log_of(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def _tail(self, part: _Part) -> str:
        return read_tail(self._log_of(part.name))


def _tell(text: str) -> None:
    say(f"nip: {text}", file=sys.stderr, flush=True)


def _prepare(parent: int) -> None:
    """In a new process: end with the parent, and heed signals even where this runs behind a `&`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    die_with_parent_process(parent)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
