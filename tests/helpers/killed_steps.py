"""Numbers the durable steps of a process, and kills it with SIGKILL before a chosen one.

A step is, inside one directory: a file opened for writing, written, cut, renamed, linked or removed,
a directory made or removed, a statement that writes to a database; anywhere: a process started, a
request to be sent, and an answer that has arrived but was not looked at yet. A sync is no step: a
killed process leaves the same files before it and after it, unlike a machine that loses power.

Each step has a label without anything that is drawn at random, so (label, how often it occurred)
names the same moment in every run; what can be named is in it: the file that a temporary one is
for, the seed of the generation that is asked for or written down. A step is written to a file
before it is done.

Nothing in the process knows of this: Python's audit events, SQLite's trace and wrapped functions of
other libraries tell. What a thread of the lease does is left out: it beats by the clock.
"""

import json
import os
import re
import signal
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Point = tuple[str, int]
"""A label, and the how manieth step of that label in its process it is, from 1 on."""

TORN = "torn "
"""Begins the label of a point at which half of what was to be written has been written."""

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_STATEMENTS = ("INSERT", "UPDATE", "DELETE", "COMMIT")
_DRAWN = (
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16,}"), "*"),
    (re.compile(r"\.[0-9a-f]{8}\.parquet"), ".*.parquet"),
    (re.compile(r"/fences/\d+"), "/fences/*"),
    (re.compile(r"\b(ftjob|file|ftevent)-[A-Za-z0-9*]+"), r"\1-*"),
)
_NOT_DURABLE = ("/.lock", "/lock", "/owner.lock", ".log", "-shm")
_OURS = ("/calls", "/modules", "/modules-flow", "/modules-server")  # of the test itself
_NOT_STEADY = ("/logs/", "/events/in", "/csrf-token", "/admin/version", "/health")


def label_of(text: str, root: str) -> str:
    """`text` without what differs between two runs of the same."""
    text = text.replace(root, "RUN")
    for pattern, word in _DRAWN:
        text = pattern.sub(word, text)
    return text


class Steps:
    """The steps of this process. There is one."""

    def __init__(self, root: Path, log: Path, point: Point | None):
        self._root, self._point = str(root), point
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock = threading.Lock()
        self._seen: Counter[str] = Counter()

    def step(self, what: str, torn: Callable[[], None] | None = None) -> None:
        """Note the step, and die if its time has come; `torn` first does half of it."""
        if threading.current_thread().name == "lease":
            return
        with self._lock:
            label = label_of(what, self._root)
            self._seen[label] += 1
            os.write(self._log, f"{label}\n".encode())
            if self._point == (label, self._seen[label]):
                self._die()
            if torn is not None and self._point == (TORN + label, self._seen[label]):
                torn()
                self._die()

    def _die(self) -> None:
        os.write(self._log, b"killed\n")
        os.kill(os.getpid(), signal.SIGKILL)

    def inside(self, path: Any) -> bool:
        """Whether a file's name, or what an open descriptor leads to, is in the directory."""
        if isinstance(path, int):
            path = self.name_of(path)
        if isinstance(path, bytes):
            path = path.decode(errors="replace")
        if not isinstance(path, (str, os.PathLike)):
            return False
        name = str(os.fspath(path))
        return name.startswith(self._root) and not name.endswith((*_NOT_DURABLE, *_OURS))

    @staticmethod
    def about() -> str:
        """For which file of the run store the caller writes or removes another one."""
        frame = sys._getframe(2)
        for _ in range(8):
            if frame is None:
                break
            target = frame.f_locals.get("target")
            if isinstance(target, Path):
                return f" for {target.name}"
            frame = frame.f_back  # type: ignore[assignment]
        return ""

    @staticmethod
    def name_of(descriptor: int) -> str:
        """What an open descriptor leads to."""
        try:
            return os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            return ""

    def hook(self, event: str, values: tuple[Any, ...]) -> None:
        """For `sys.addaudithook`."""
        if event == "open" and not isinstance(values[0], int):
            if values[2] & _WRITES and self.inside(values[0]):
                self.step(f"open {os.fspath(values[0])}{self.about()}")
        elif event in ("os.rename", "os.link") and self.inside(values[1]):
            self.step(f"{event[3:]} {os.fspath(values[1])}")
        elif event in ("os.remove", "os.mkdir", "os.rmdir") and self.inside(values[0]):
            self.step(f"{event[3:]} {os.fspath(values[0])}{self.about()}")
        elif event == "subprocess.Popen":
            self.step("start a process")


def install(root: Path, log: Path, point: Point | None) -> Steps:
    """Watch this process from now on."""
    steps = Steps(root, log, point)
    sys.addaudithook(steps.hook)
    _watch_files(steps)
    _watch_databases(steps)
    return steps


def _watch_files(steps: Steps) -> None:
    pwrite, cut = os.pwrite, os.ftruncate

    def told_pwrite(descriptor: int, data: Any, offset: int) -> int:
        if steps.inside(descriptor):
            half = data[: len(data) // 2]
            steps.step(
                f"write {steps.name_of(descriptor)}{_record_in(bytes(data))}",
                lambda: (pwrite(descriptor, half, offset), None)[1],
            )
        return pwrite(descriptor, data, offset)

    def told_cut(descriptor: int, length: int) -> None:
        if steps.inside(descriptor) and os.fstat(descriptor).st_size != length:
            steps.step(f"cut {steps.name_of(descriptor)}")
        cut(descriptor, length)

    os.pwrite, os.ftruncate = told_pwrite, told_cut


def _record_in(frame: bytes) -> str:
    """Which generation a frame of a journal begins with."""
    found = re.search(rb'"key":"([^"]{6})', frame)
    return f" record {found[1].decode()}" if found else ""


def _watch_databases(steps: Steps) -> None:
    connect = sqlite3.connect

    def statement(sql: str) -> None:
        if sql.lstrip().startswith(_STATEMENTS):
            steps.step("sql " + " ".join(sql.split()[:4]))

    def traced(*values: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*values, **options)
        connection.set_trace_callback(statement)
        return connection

    sqlite3.connect = traced  # type: ignore[assignment]


def watch_requests(steps: Steps, names: dict[str, str]) -> None:
    """Make steps of what aiohttp and httpx send. `names`: what to call a host and port."""
    import aiohttp
    import httpx
    import httpx2  # what newer versions of `openai` bring

    request = aiohttp.ClientSession._request

    def label(method: str, url: str) -> str | None:
        parts = urlsplit(url)
        name = names.get(parts.netloc)
        if name is None or any(part in parts.path for part in _NOT_STEADY):
            return None
        return f"{method} {name}{parts.path}"

    async def told_request(self: Any, method: str, url: Any, **options: Any) -> Any:
        what = label(method, str(url))
        if what is None:
            return await request(self, method, url, **options)
        seed = json.loads(options["data"]).get("seed") if options.get("data") else None
        what += "" if seed is None else f" seed {seed}"
        steps.step(f"send {what}")
        answer = await request(self, method, url, **options)
        steps.step(f"answered {what}")
        return answer

    def told(send: Callable[..., Any]) -> Callable[..., Any]:
        async def told_send(self: Any, request: Any, **options: Any) -> Any:
            what = label(request.method, str(request.url))
            if what is None:
                return await send(self, request, **options)
            steps.step(f"send {what}")
            answer = await send(self, request, **options)
            steps.step(f"answered {what}")
            return answer

        return told_send

    aiohttp.ClientSession._request = told_request  # type: ignore[method-assign,assignment]
    for library in (httpx, httpx2):
        library.AsyncClient.send = told(library.AsyncClient.send)  # type: ignore[method-assign]


def note_calls(log: Path) -> None:
    """Write down every chat completion that arrives at this process's server: model and seed."""
    from nip_lm_server.api import generation

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    read_object = generation.read_object

    async def noting(request: Any) -> tuple[bytes, dict[str, Any]]:
        raw, asked = await read_object(request)
        if request.path == "/v1/chat/completions":
            os.write(descriptor, f"{asked['model']} {asked.get('seed')}\n".encode())
        return raw, asked

    generation.read_object = noting  # type: ignore[assignment]
