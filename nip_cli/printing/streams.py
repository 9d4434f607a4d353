"""Standard streams that lead nowhere any longer: the command goes on without them.

A training is worth more than its log. A descriptor of 0 to 2 that is closed would be that of the
next file or socket, into which every child process then writes.
"""

import contextlib
import io
import os
import sys
from typing import Any

_MODES = {0: "r", 1: "w", 2: "w"}
_NAMES = {0: "stdin", 1: "stdout", 2: "stderr"}
_NULL = os.devnull


def open_closed() -> None:
    """Open /dev/null on whichever of the descriptors 0 to 2 is closed."""
    for number, mode in _MODES.items():
        try:
            os.fstat(number)
        except OSError:
            _lead_nowhere(number)
        if getattr(sys, _NAMES[number]) is None:
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, _NAMES[number], stream)


def _lead_nowhere(number: int) -> None:
    nowhere = os.open(_NULL, os.O_RDWR)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)
    os.set_inheritable(number, True)


class _Lasting(io.FileIO):
    """A descriptor that leads nowhere from the first write on that fails."""

    problem: OSError | None = None

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError as error:
            self.problem = error
            _lead_nowhere(self.fileno())
            return memoryview(data).nbytes


_lasting: dict[int, _Lasting] = {}


def survive() -> None:
    """Make writes to standard output and error succeed from here on, even without a reader."""
    for number in (1, 2):
        name = _NAMES[number]
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper) or stream is not getattr(sys, f"__{name}__"):
            continue  # an importing program's own, like a test's
        with contextlib.suppress(OSError):
            stream.flush()
        raw = _lasting[number] = _Lasting(number, "w", closefd=False)
        is_buffered = isinstance(stream.buffer, io.BufferedWriter)
        lasting = io.TextIOWrapper(
            io.BufferedWriter(raw) if is_buffered else raw,
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, lasting)


def lost_output() -> OSError | None:
    """Return why standard output has lost something; None also where its reader has gone."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    problem = _lasting[1].problem if 1 in _lasting else None
    return None if isinstance(problem, BrokenPipeError) else problem
