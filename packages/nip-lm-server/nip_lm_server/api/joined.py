"""Generations that go on without their request, so that a repeated request joins the running one.

Generations        the generations of a server, by name
wait_for           a request's answer, or after a while the running generation
describe_running   its progress

A request with the header begins the generation of its name, or joins it. `Prefer: wait=N` (RFC
7240) has it answered after N seconds at most: with the answer, or with 202 and the engine's
progress, after which the client sends the same request again. So no proxy sees an idle connection,
a broken one costs no computed token, and a client can tell a slow engine from one that hangs.

The memory is bounded. A generation without a request is abandoned after UNASKED_S. An answer leaves
after KEPT_S, and earlier when the answers take more than KEPT_BYTES. Nothing of it is on disk: it
is lost with the server, and then generated again.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TypedDict

from aiohttp import web

from nip_base.api_errors import ApiError
from nip_base.wire import JOIN_HEADER as JOIN
from nip_lm_server.serving.advance import Advance

UNASKED_S = 300.0
"""Time for which a generation goes on without a request: a killed client has been started again by
then, or is not about to be. With much less such a client finds nothing; with much more, a useless
generation keeps its place in the batch."""
KEPT_S = 600.0
"""Time for which a request can still get an answer that has ended. A client that has it on disk
asks no more, so this only has to outlast the restart of a client."""
KEPT_BYTES = 64 << 20
MOST_RUNNING = 4096
_SWEEP_S = 5.0
_LONGEST_WAIT_S = 600.0
_NAME = re.compile(r"[A-Za-z0-9._-]{8,128}")
_WAIT = re.compile(r"\bwait=([0-9]{1,6}(?:\.[0-9]{1,3})?)")


@dataclass(frozen=True)
class WholeAnswer:
    """An answer in one piece, as it is sent."""

    body: bytes
    content_type: str
    model_kind: str
    """base, adapter; for the metrics."""


@dataclass(eq=False)
class Generation:
    """A generation that runs, or has ended."""

    digest: bytes
    """Of the request: another request of the same name is refused."""
    task: asyncio.Task[WholeAnswer]
    began_s: float
    last_request_s: float
    """The time at which the last request for it left, or came."""
    waiting: int = 0
    """Requests that wait for it now."""
    ended_s: float | None = None

    @property
    def size(self) -> int:
        """Bytes of its answer; 0 before its end."""
        return len(self.task.result().body) if self.ended_s is not None else 0


@dataclass
class Generations:
    """The generations of one server that can be joined."""

    clock: Callable[[], float] = time.monotonic
    _held: dict[str, Generation] = field(default_factory=dict)
    _ended: deque[tuple[str, Generation]] = field(default_factory=deque)
    """Those that have ended, the oldest first."""
    _kept_bytes: int = 0
    _sweep: asyncio.TimerHandle | None = None

    def find_or_begin(
        self, name: str, digest: bytes, begin: Callable[[], Coroutine[None, None, WholeAnswer]]
    ) -> Generation:
        """Return the generation of this name; without one, begin it.

        Raises ApiError 422 for one of another request, 503 where too many run.
        """
        held = self._held.get(name)
        if held is not None:
            if held.digest != digest:
                raise ApiError(
                    422,
                    f"{JOIN} {name!r} names the generation of another request",
                    code="generation_mismatch",
                    param=JOIN,
                )
            return held
        if len(self._held) - len(self._ended) >= MOST_RUNNING:
            raise ApiError(
                503,
                f"{MOST_RUNNING} generations run that can be joined, as many as there may be",
                code="too_many_generations",
                headers={"Retry-After": "5"},
            )
        now_s = self.clock()
        held = Generation(digest, asyncio.create_task(begin()), now_s, now_s)
        self._held[name] = held
        held.task.add_done_callback(lambda task: self._end(name, held))
        self._sweep = self._sweep or asyncio.get_running_loop().call_later(_SWEEP_S, self._look)
        return held

    def _end(self, name: str, held: Generation) -> None:
        # The next request begins a failed one anew: an engine that came back may answer it.
        if held.task.cancelled() or held.task.exception() is not None:
            if self._held.get(name) is held:
                del self._held[name]
            return
        held.ended_s = self.clock()
        self._ended.append((name, held))
        self._kept_bytes += held.size
        self._forget_oldest()

    def _look(self) -> None:
        self.sweep()
        waits = bool(self._held)
        self._sweep = asyncio.get_running_loop().call_later(_SWEEP_S, self._look) if waits else None

    def sweep(self) -> None:
        """Abandon generations without a request, and forget old answers."""
        self._forget_oldest()
        now_s = self.clock()
        for held in self._held.values():
            silent_s = now_s - held.last_request_s
            if held.ended_s is None and not held.waiting and silent_s > UNASKED_S:
                held.task.cancel()  # which takes it out

    def _forget_oldest(self) -> None:
        """Forget answers that are too old, or too many; a request that waits for one has its task.

        Each answer calls it, so it looks at none of those that stay.
        """
        now_s = self.clock()
        while self._ended:
            name, held = self._ended[0]
            assert held.ended_s is not None
            if now_s - held.ended_s <= KEPT_S and self._kept_bytes <= KEPT_BYTES:
                return
            self._kept_bytes -= held.size
            self._ended.popleft()
            del self._held[name]

    async def close(self) -> None:
        """Abandon all of them."""
        if self._sweep is not None:
            self._sweep.cancel()
        tasks = [held.task for held in self._held.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._held.clear()
        self._ended.clear()
        self._kept_bytes = 0


def read_name(request: web.Request) -> str | None:
    """Return the name that a request gives its generation. Raises ApiError 400 for no name."""
    name = request.headers.get(JOIN)
    if name is not None and not _NAME.fullmatch(name):
        expected = "8 to 128 letters, digits, dots, dashes or underscores"
        raise ApiError(400, f"{JOIN}: expected {expected}", code="invalid_value", param=JOIN)
    return name


def read_wait_s(request: web.Request) -> float:
    """Return the seconds that the client waits at most, by its header Prefer."""
    match = _WAIT.search(request.headers.get("Prefer", ""))
    return min(float(match[1]), _LONGEST_WAIT_S) if match else _LONGEST_WAIT_S


async def wait_for(
    generations: Generations,
    name: str,
    raw: bytes,
    path: str,
    wait_s: float,
    begin: Callable[[], Coroutine[None, None, WholeAnswer]],
) -> WholeAnswer | Generation:
    """Wait for the answer to a request, or for `wait_s`; then return the running generation.

    An exception of the generation goes on up.
    """
    held = generations.find_or_begin(name, sha256(path.encode() + b"\n" + raw).digest(), begin)
    held.waiting += 1
    try:
        # `wait` leaves the task running when the client leaves: the next request joins it.
        await asyncio.wait({held.task}, timeout=wait_s)
        if not held.task.done():
            return held
        if held.task.cancelled():
            raise ApiError(503, "The generation was abandoned", code="abandoned")
        return held.task.result()
    finally:
        held.waiting -= 1
        held.last_request_s = generations.clock()


class RunningGeneration(TypedDict):
    """The progress of the engine that has a generation.

    ``silent_s`` is the time for which the engine has computed nothing while this one waited; null
    where no engine has it yet, or where the engine can't tell.
    """

    object: str
    name: str
    status: str
    running_s: float
    engine: str
    silent_s: float | None
    prompt_tokens: int | None
    generated_tokens: int | None


def describe_running(
    generations: Generations, name: str, held: Generation, engine: str, advance: Advance | None
) -> RunningGeneration:
    """Make the body of 202."""
    running_s = generations.clock() - held.began_s
    return {
        "object": "nip.generation",
        "name": name,
        "status": "running",
        "running_s": round(running_s, 3),
        "engine": engine,
        "silent_s": None if advance is None else round(min(advance.silent_s, running_s), 3),
        "prompt_tokens": None if advance is None else advance.work.prompt_tokens,
        "generated_tokens": None if advance is None else advance.work.generated_tokens,
    }
