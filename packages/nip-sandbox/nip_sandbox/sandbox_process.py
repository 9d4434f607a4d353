"""The process that a sandbox is, seen from its caller; `sandbox` says what it protects from.

Setting       how a sandbox is to be
Child         one child interpreter (`sandbox_child`), from start to end, and its output
join_lines    the lines of such an output, of the pieces in which it comes
check_layers  refuse to go on where untrusted code can't be kept in
"""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nip_base.errors import NipError
from nip_base.temporary_folders import held_folder
from nip_sandbox import sandbox_wire as wire
from nip_sandbox.sandbox_isolation import empty_directory

_CHILD = Path(__file__).with_name("sandbox_child.py")
_START_S = 30.0
_RESULT_BYTES = 64_000_000


class SandboxError(NipError, RuntimeError):
    """The sandbox itself does not work here; nothing is known about the code."""


@dataclass(frozen=True)
class Setting:
    """How a sandbox is to be."""

    limit: wire.Limit
    allow_without_namespaces: bool
    refuse: Collection[str]


def describe_lacking(about: wire.About) -> str:
    """Name what is missing to keep untrusted code in, or return ""."""
    if not about.lacking:
        return ""
    reason = f" ({about.reason})" if about.reason else ""
    return f"this system does not give the sandbox {', '.join(about.lacking)}{reason}"


def check_layers(about: wire.About, setting: Setting) -> None:
    """Refuse what the child of these layers would not run either.

    Raises:
        SandboxError: something is missing, and the setting or the system allow no less.
    """
    lacking = describe_lacking(about)
    if not lacking:
        return
    if not about.separate:
        raise SandboxError(
            f"untrusted code can't be run here: {lacking}, and no Landlock keeps the code from "
            f"other processes of this user; use Linux 5.13 or newer with Landlock, or allow user "
            f"namespaces"
        )
    if not setting.allow_without_namespaces:
        raise SandboxError(
            f"untrusted code is not run here: {lacking}; allow user namespaces, or pass "
            f"allow_without_namespaces=True to do with what is left (`nip doctor` says what)"
        )


class Child:
    """One child interpreter, from start to the death of everything it started."""

    def __init__(self, jobs: Sequence[wire.Job], setting: Setting) -> None:
        self._stack = contextlib.ExitStack()
        pieces = self._read()
        self._stack.callback(pieces.close)
        self._lines = join_lines(pieces)
        self._deadline = time.monotonic() + _START_S + len(jobs) * (setting.limit.wall_s + 5.0)
        try:
            self._start(jobs, setting)
        except BaseException:
            self._stack.close()
            raise

    def _start(self, jobs: Sequence[wire.Job], setting: Setting) -> None:
        cwd = str(self._stack.enter_context(held_folder("nip-sandbox-", _remove)))
        stdin: IO[bytes] = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self._stderr: IO[bytes] = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        header = wire.Header(
            cwd=cwd,
            limit=setting.limit,
            allow_without_namespaces=setting.allow_without_namespaces,
            refuse=sorted(setting.refuse),
            parent=os.getpid(),
        )
        messages: list[wire.Header | wire.Job] = [header, *jobs]
        for message in messages:
            data = wire.encode_message(message)
            stdin.write(len(data).to_bytes(8, "big") + data)
        stdin.seek(0)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-s", "-P", "-B", str(_CHILD)],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                cwd=cwd,
                env={"PYTHONHASHSEED": "0"},
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxError(f"can't start {sys.executable}: {error}") from error
        self._stack.callback(self._stop)

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def about(self) -> wire.About:
        """Read what the child says of itself before it runs anything.

        Raises:
            SandboxError: it says nothing.
        """
        line = next(self._lines, None)
        if line is None:
            raise SandboxError(f"the sandbox's child process does not run here: {self.error()}")
        return wire.decode_about(line)

    def lines(self) -> Iterator[bytes]:
        """The next lines of the child's output, until it ends or the deadline is over."""
        return self._lines

    def _read(self) -> Generator[bytes, None, None]:
        """Read the child's output in pieces."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, self._deadline - time.monotonic())):
                piece = os.read(self._process.stdout.fileno(), 1 << 16)
                if not piece:
                    return
                yield piece

    def error(self) -> str:
        """Return what the child said on stderr, and its exit code, once it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5.0)
        self._stderr.seek(0)
        complaint = self._stderr.read(4000).decode("utf-8", "replace").strip()
        return f"exit code {self._process.poll()}, {complaint or 'nothing on stderr'}"

    def _stop(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=10.0)
        if self._process.stdout is not None:
            self._process.stdout.close()


def join_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join pieces to lines, without their ends, in time that grows as they do.

    A last line without an end is left out, and so is all from a line that is too long.
    """
    parts: list[bytes] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > _RESULT_BYTES:
            return
        rest, *rests = piece.split(b"\n")
        parts.append(rest)
        for rest in rests:
            yield b"".join(parts)
            parts, size = [rest], len(rest)


def _remove(directory: str) -> None:
    with contextlib.suppress(OSError):
        empty_directory(directory)
        os.rmdir(directory)
