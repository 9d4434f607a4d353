"""A real HTTP proxy in front of a real server that does what networks and servers do wrong.

FAULTS      the kinds of faults, and what each does
Lasting     a plan of one fault that does not go away
FaultPlan   which request meets which fault: a function of the seed and of what the request asks
FaultyProxy the proxy
FullDisk    the same for writes: some find the disk full

What is injected never depends on timing. No more than `MOST_IN_A_ROW` faults befall one request in
a row, so whoever tries again gets through. Creates are counted behind the proxy, so that a second
one is seen although the server would answer it with the first job.
"""

import asyncio
import errno
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from job_server import FakeTime

FAULTS = {
    "dropped before": "the connection breaks before the request has had an effect",
    "dropped after": "the connection breaks after the effect, before the answer",
    "429": "too many requests, with Retry-After",
    "500": "an error, after the effect every other time",
    "503": "unavailable, before the effect",
    "slow answer": "the answer comes after the client's patience, or late",
    "truncated body": "half of the answer, then the connection breaks",
    "malformed JSON": "an answer that is no JSON",
    "wrong model": "the answer names another model",
    "empty answer": "an answer without a body, or without choices",
    "list lags": "a job or file that was made is not in the list yet, and the answer got lost",
    "disk full": "a write finds no space",
    "clock jump": "the time of day jumps by up to a day",
}
MOST_IN_A_ROW = 2
SETTLE_S = 10.0
RETRY_AFTER_S = 7
LATE_S = 0.1
CHAT_SHARE = 0.7

_HTTP = [kind for kind in FAULTS if kind not in ("list lags", "disk full")]


@dataclass
class FaultPlan:
    """Draws faults; `met` counts them."""

    seed: int
    rate: float
    met: Counter[str] = field(default_factory=Counter)
    places: Counter[tuple[str, str]] = field(default_factory=Counter)
    _asked: Counter[str] = field(default_factory=Counter)
    _in_a_row: Counter[str] = field(default_factory=Counter)

    def draw(self, identity: str, kinds: list[str], rate: float | None = None) -> str | None:
        """What befalls this request, or None."""
        self._asked[identity] += 1
        drawn = random.Random(f"{self.seed} {identity} {self._asked[identity]}")
        hit = drawn.random() < (self.rate if rate is None else rate)
        if not hit or self._in_a_row[identity] >= MOST_IN_A_ROW:
            self._in_a_row[identity] = 0
            return None
        self._in_a_row[identity] += 1
        return drawn.choice(kinds)

    def note(self, kind: str, place: str) -> None:
        """The fault has been done."""
        self.met[kind] += 1
        self.places[kind, place] += 1

    @property
    def total(self) -> int:
        return sum(self.met.values())


@dataclass
class Lasting(FaultPlan):
    """The same fault for every request of one place, until `kind` is None."""

    kind: str | None = None
    place: str = ""

    def draw(self, identity: str, kinds: list[str], rate: float | None = None) -> str | None:
        return self.kind if self.kind in kinds and identity.startswith(f"{self.place} ") else None


class FaultyProxy:
    """Passes everything on to `upstream`, but for the faults. Use as a context manager."""

    def __init__(self, upstream: str, plan: FaultPlan, time: FakeTime, enough: int, port: int):
        """`enough`: after so many faults nothing goes wrong any more."""
        self.upstream, self.plan, self.time, self.enough = upstream, plan, time, enough
        self.url, self._port = "", port
        self.created: Counter[str] = Counter()  # by key
        self._hidden: dict[str, float] = {}  # id -> when it shows, in injected seconds

    async def __aenter__(self) -> "FaultyProxy":
        self._session = aiohttp.ClientSession()
        app = web.Application(client_max_size=1 << 28)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # What a client gave up is not given up at the server: that is what a slow answer is.
        self._runner = web.AppRunner(app, handler_cancellation=False, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        place, identity = _place(request), _identity(request, body)
        fault = self._fault(request, place, identity)
        if fault is not None:
            self.plan.note(fault, place)
        if fault == "clock jump":
            self.time.jump_s = random.Random(identity).uniform(-86_400, 86_400)
            fault = None
        if fault in ("dropped before", "429", "503") or (fault == "500" and self._early()):
            return self._refuse(request, fault)
        status, content = await self._pass_on(request, body)
        if fault == "list lags":
            seconds = random.Random(identity).uniform(0.1, 0.9) * SETTLE_S
            self._hidden[json.loads(content)["id"]] = self.time.seconds + seconds
            return _drop(request)
        content = self._without_hidden(request, content)
        return await self._answer(request, fault, status, content)

    def _fault(self, request: web.Request, place: str, identity: str) -> str | None:
        # Playing asks most; some of the faults are kept for what comes after it.
        share = CHAT_SHARE if place == "POST /v1/chat/completions" else 1.0
        if not request.path.startswith("/v1/") or self.plan.total >= share * self.enough:
            return None
        kinds = _HTTP
        if place in ("POST /v1/files", "POST /v1/fine_tuning/jobs"):
            # Rare, and what it is all about: they fail more often.
            return self.plan.draw(identity, [*_not_of_chat(), *["list lags"] * 24], rate=0.95)
        if place != "POST /v1/chat/completions":
            kinds = _not_of_chat()
        return self.plan.draw(identity, kinds)

    def _early(self) -> bool:
        return self.plan.met["500"] % 2 == 0

    async def _pass_on(self, request: web.Request, body: bytes) -> tuple[int, bytes]:
        kept = ("Authorization", "Content-Type", "Idempotency-Key")
        headers = {name: request.headers[name] for name in kept if name in request.headers}
        async with self._session.request(
            request.method, self.upstream + request.path_qs, data=body, headers=headers
        ) as answer:
            content = await answer.read()
        if _place(request) == "POST /v1/fine_tuning/jobs" and answer.status == 200:
            self.created[json.loads(body)["metadata"]["nip_key"]] += 1
        return answer.status, content

    def _without_hidden(self, request: web.Request, content: bytes) -> bytes:
        lists = request.path in ("/v1/files", "/v1/fine_tuning/jobs")
        if request.method != "GET" or not lists or not self._hidden:
            return content
        answer = json.loads(content)
        now = self.time.seconds
        answer["data"] = [o for o in answer["data"] if self._hidden.get(o["id"], 0) <= now]
        return json.dumps(answer).encode()

    def _refuse(self, request: web.Request, fault: str) -> web.StreamResponse:
        if fault == "dropped before":
            return _drop(request)
        headers = {"Retry-After": str(RETRY_AFTER_S)} if fault == "429" else None
        error = {"message": "injected", "type": "injected", "code": None, "param": None}
        return web.json_response({"error": error}, status=int(fault), headers=headers)

    async def _answer(
        self, request: web.Request, fault: str | None, status: int, content: bytes
    ) -> web.StreamResponse:
        if fault == "dropped after":
            return _drop(request)
        if fault == "500":
            return self._refuse(request, fault)
        if fault == "slow answer":
            await asyncio.sleep(LATE_S if _place(request) != "POST /v1/chat/completions" else 1.5)
        elif fault == "truncated body":
            return await _cut(request, content)
        elif fault == "malformed JSON":
            content = b'{"object": nonsense' + content[:10]
        elif fault == "wrong model":
            content = json.dumps({**json.loads(content), "model": "another-model"}).encode()
        elif fault == "empty answer":
            content = b"" if len(content) % 2 else json.dumps({"choices": []}).encode()
        return web.Response(status=status, body=content, content_type="application/json")


def _not_of_chat() -> list[str]:
    return [kind for kind in _HTTP if kind != "wrong model"]


def _place(request: web.Request) -> str:
    parts = request.path.split("/")
    known = [part if "-" not in part and ":" not in part else "*" for part in parts]
    return f"{request.method} {'/'.join(known)}"


def _identity(request: web.Request, body: bytes) -> str:
    seed = ""
    if request.path == "/v1/chat/completions":
        asked = json.loads(body)
        seed = f"{asked['model']} {asked.get('seed')}"
    elif request.path == "/v1/fine_tuning/jobs" and body:
        seed = json.loads(body)["suffix"]
    return f"{_place(request)} {seed}"


def _drop(request: web.Request) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


async def _cut(request: web.Request, content: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = len(content)
    with suppress(ConnectionError):  # it may have lost patience by itself
        await response.prepare(request)
        await response.write(content[: len(content) // 2])
    if request.transport is not None:
        request.transport.close()
    return response


class FullDisk:
    """Lets some of the writes below a directory find the disk full."""

    def __init__(self, root: Path, plan: FaultPlan, rate: float, enough: int):
        self._root, self._plan, self._rate, self._enough = str(root), plan, rate, enough

    @contextmanager
    def filling(self) -> Iterator[None]:
        fsync = os.fsync

        def maybe(file: Any) -> None:
            descriptor = file if isinstance(file, int) else file.fileno()
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            if name.startswith(self._root) and not os.path.isdir(name):
                self._meet("a file of the run store" if "journal" not in name else "a journal")
            fsync(descriptor)

        os.fsync = maybe
        try:
            yield
        finally:
            os.fsync = fsync

    def _meet(self, place: str) -> None:
        if self._plan.total >= self._enough:
            return
        if self._plan.draw(place, ["disk full"], self._rate) is not None:
            self._plan.note("disk full", place)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
