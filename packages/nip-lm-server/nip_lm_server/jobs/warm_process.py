"""The server's side of `training.warm`: trainings that are forked instead of started.

WarmProcess    starts the warm process, has it fork, ends it after a while without a training
ForkedChild    a forked training, like a process that asyncio starts

It runs one training at a time, as on one device. If a signal ends a training, the warm process is
ended, too: the next attempt has a fresh one.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from nip_base.machine.processes import signal_group

IDLE_S = 600.0
"""Time that the process waits for another training. The iterations of a small run are minutes
apart, and the process holds only modules: some hundreds of megabytes."""


class ForkedChild:
    """A training. `pid` is the warm process's own until it has forked."""

    def __init__(self, warm: "WarmProcess", pipe: int, started: Callable[[int], None]):
        self._warm, self._pipe, self._started = warm, pipe, started
        self.pid = warm.pid
        self._is_over = False
        started(self.pid)

    async def wait(self) -> int:
        """Wait for its end and return its status, as subprocess.Popen does."""
        while True:
            line = await self._warm.read_line()
            if line is None:
                self._is_over = True
                return await self._warm.wait()
            answer = json.loads(line)
            if "status" in answer:
                self._is_over = True
                status = int(answer["status"])
                self._warm.note_end(status)
                return status
            self.pid = int(answer["pid"])
            self._started(self.pid)

    def close(self) -> None:
        """Let go of it. An unfinished training ends with the warm process."""
        os.close(self._pipe)
        if not self._is_over:
            self._warm.end()


class WarmProcess:
    """A process of `training.warm`, started when it is first needed. One event loop uses it."""

    def __init__(self, environment: Mapping[str, str], *, idle_s: float = IDLE_S):
        self._environment, self._idle_s = dict(environment), idle_s
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._rest = b""
        self._idle: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        """The pid of the running process. Raises RuntimeError if none runs."""
        if self._process is None:
            raise RuntimeError("the warm process does not run")
        return self._process.pid

    def fork(self, job_dir: Path, log: BinaryIO, started: Callable[[int], None]) -> ForkedChild:
        """Have a training forked. `started` is called at once with the warm process's pid, and then
        with the fork's.
        """
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._process is None or self._process.poll() is not None:
            self.end()
            self._start(log)
        read_end, write_end = os.pipe()
        message = json.dumps({"job_dir": str(job_dir)}).encode()
        child = ForkedChild(self, write_end, started)
        try:
            if self._socket is not None:
                socket.send_fds(self._socket, [message], [read_end, log.fileno()])
        except OSError:  # it has just died, which `wait` tells
            pass
        finally:
            os.close(read_end)
        return child

    async def read_line(self) -> bytes | None:
        """Read the process's next answer; None once it has ended."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self._rest:
            if self._socket is None:
                return None
            try:
                data = await loop.sock_recv(self._socket, 4096)
            except OSError:
                return None
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    async def wait(self) -> int:
        """Wait for the end of the process after its socket has closed."""
        process = self._process
        if process is None:
            return -signal.SIGKILL
        status = await asyncio.to_thread(process.wait)
        self.end()
        return status

    def note_end(self, status: int) -> None:
        """Keep the process for the next training, unless a signal has ended this one."""
        if status < 0:
            self.end()
        else:
            self._idle = asyncio.get_running_loop().call_later(self._idle_s, self.end)

    def end(self) -> None:
        """End the process and its fork."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            if self._process.poll() is None:
                signal_group(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
        self._process = self._socket = None
        self._rest = b""

    def _start(self, log: BinaryIO) -> None:
        own_end, child_end = socket.socketpair()
        with child_end:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "nip_lm_server.training.warm"),
                    *(str(os.getpid()), str(child_end.fileno())),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(child_end.fileno(),),
                env=self._environment,
                start_new_session=True,
            )
        own_end.setblocking(False)
        self._socket = own_end
