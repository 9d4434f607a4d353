"""A command in a terminal of its own: what it prints, its process group, and what it leaves behind.

What is not shown: the screen as a person sees it; output is kept as it was written.
"""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import psutil


class Terminal:
    """Use as a context manager; at its end the command and all it has started are killed."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        rows: int = 24,
        columns: int = 80,
    ):
        inner, outer = pty.openpty()
        termios.tcsetwinsize(outer, (rows, columns))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nip_cli", *arguments],
            env={**environment, "TERM": "xterm"},
            stdin=outer,
            stdout=outer,
            stderr=outer,
            start_new_session=True,
            # Tests that run in the background of a shell inherit an ignored SIGINT.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        os.close(outer)
        self._written = bytearray()
        self._reader = threading.Thread(target=self._read, args=(inner,), daemon=True)
        self._reader.start()
        self._seen: dict[int, psutil.Process] = {}

    def _read(self, inner: int) -> None:
        try:
            while written := os.read(inner, 65536):
                self._written += written
        except OSError:  # nobody has the other side any longer
            pass
        os.close(inner)

    @property
    def text(self) -> str:
        """Everything that was written so far."""
        return self._written.decode(errors="replace").replace("\r\n", "\n")

    def wait_for(self, what: Callable[[], object], timeout_s: float = 120.0) -> None:
        """Wait until `what` is true, noting the processes that the command starts."""
        deadline = time.monotonic() + timeout_s
        while not what():
            assert self.process.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            self.note_children()
            time.sleep(0.05)
        self.note_children()

    def note_children(self) -> list[psutil.Process]:
        """The processes below the command, now."""
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            children = []
        self._seen |= {child.pid: child for child in children}
        return children

    def signal_group(self, sent: signal.Signals) -> None:
        """Signal the terminal's foreground process group, as its keys do."""
        os.killpg(self.process.pid, sent)

    def wait(self, timeout_s: float = 120.0) -> int:
        """The exit status; what was written is complete then."""
        status = self.process.wait(timeout_s)
        self._reader.join(10.0)
        return status

    def left_behind(self) -> list[psutil.Process]:
        """Processes that the command has started and that still run."""
        return [
            child
            for child in self._seen.values()
            if child.is_running() and child.status() != psutil.STATUS_ZOMBIE
        ]

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.left_behind(), self.process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
