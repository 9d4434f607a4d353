"""The processes of one `nip up`: started, started again when they end, and ended together.

A part that ends is started again after 1, 2, 4, ... seconds, once what it needs is there. One that
ends `_TRIES` times, each time within `_STEADY_S` of its start, is not mended by another start: then
all is ended, and its log is named.
"""

import ctypes  # noqa: F401 - a child that has become another user may not be able to read it
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from nip_base.machine.processes import die_with_parent_process, read_tail, signal_group
from nip_cli.printing.terminal import say
from nip_core.errors import ServerError, SettingsError

_GRACE_S = 40.0
_LOOK_S = 0.5
_STEADY_S = 60.0
_TRIES = 5


@dataclass
class _Part:
    name: str
    command: list[str]
    environment: Mapping[str, str]
    may_start: Callable[[], bool]
    options: dict[str, Any]  # of Popen
    log: Path
    process: subprocess.Popen[bytes] = field(init=False)
    started_s: float = 0.0
    quick_ends: int = 0
    start_again_s: float | None = None  # when, if it has ended


def open_private(path: Path, mode: str) -> IO[bytes]:
    """Open a file for its owner alone, and make one that is there already so."""

    def only_owners(name: str, flags: int) -> int:
        descriptor = os.open(name, flags, 0o600)
        os.fchmod(descriptor, 0o600)
        return descriptor

    return cast("IO[bytes]", open(path, mode, opener=only_owners))


def keep_secret(path: Path, draw: Callable[[], str]) -> str:
    """Read the secret from a file open to its owner alone; draw it if there is none."""
    if not path.exists():
        part = path.with_name(f"{path.name}.part")
        part.unlink(missing_ok=True)
        with open_private(part, "xb") as file:
            file.write(draw().encode())
        part.rename(path)
    secret = path.read_text().strip()
    if not secret:
        raise SettingsError(f"{path}: empty; delete it, and another secret is drawn")
    return secret


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
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            if self._parts:
                self._stop_all()
        finally:
            # Else this process, and each that it starts later, could not be interrupted any more.
            signal.signal(signal.SIGINT, handler)

    def _stop_all(self) -> None:
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
            signal_group(process.pid, signal.SIGKILL)
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
        log = self._logs / f"{name}.log"
        part = _Part(name, command, environment, may_start, options, log)
        self._launch(part)
        self._parts.append(part)
        self._write_pids()
        return part.process

    def until(self, condition: Callable[[], bool], purpose: str, deadline_s: float) -> None:
        """Wait for `condition`. Raises ServerError if a part ends or the time is over."""
        end_s = self._clock() + deadline_s
        while not condition():
            for part in self._parts:
                if part.process.poll() is not None:
                    raise ServerError(
                        f"{part.name} ended with {part.process.returncode}, so all is ended: "
                        f"{read_tail(part.log)}"
                    )
            if self._clock() > end_s:
                raise ServerError(f"not within {deadline_s:g} s: {purpose}; see {self._logs}")
            time.sleep(_LOOK_S)

    def watch(self) -> None:
        """Restart parts that end. Returns never. Raises ServerError if one ends at each start."""
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
                self._launch(part)
                self._write_pids()

    def _note_end(self, part: _Part) -> None:
        # No process watches the flow runs that a worker leaves behind.
        signal_group(part.process.pid, signal.SIGKILL)
        steady = self._clock() - part.started_s >= _STEADY_S
        part.quick_ends = 1 if steady else part.quick_ends + 1
        status = part.process.returncode
        if part.quick_ends >= _TRIES:
            raise ServerError(
                f"{part.name} ended {_TRIES} times, the last time with {status}, each time within "
                f"{_STEADY_S:g} s of its start, so all is ended; its log {part.log} ends: "
                f"{read_tail(part.log)}"
            )
        wait_s = 2.0 ** (part.quick_ends - 1)
        part.start_again_s = self._clock() + wait_s
        _tell(
            f"{part.name} ended with {status}; started again in {wait_s:g} s; its log is {part.log}"
        )

    def _launch(self, part: _Part) -> None:
        parent = os.getpid()
        with open_private(part.log, "ab") as log:
            part.process = subprocess.Popen(
                part.command,
                env=dict(part.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Safe: this process has one thread.
                preexec_fn=lambda: _prepare(parent),  # noqa: PLW1509
                **part.options,
            )
        part.started_s, part.start_again_s = self._clock(), None

    def _write_pids(self) -> None:
        pids = {one.name: one.process.pid for one in self._parts}
        with open_private(self._state / "processes.json", "wb") as file:
            file.write(json.dumps(pids, indent=1).encode())


def _tell(text: str) -> None:
    say(f"nip: {text}", file=sys.stderr, flush=True)


def _prepare(parent: int) -> None:
    """In a new process: end with the parent, and heed signals even where this runs behind a `&`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    die_with_parent_process(parent)
