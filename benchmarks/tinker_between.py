"""A proxy between Tinker's SDK and a server, which does what networks and kills do.

Between   doubles what is sent, loses answers, says at which request it is; on a thread of its own

Nothing depends on timing: a request is known by its path and its body.
"""

import asyncio
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import aiohttp
from aiohttp import web

Way = Literal["plain", "doubled", "lost"]
Moment = Literal["before", "during", "later"]
LORA_SEED = 7
START_S = 60.0
NUMBERED = (
    "create_model", "forward_backward", "optim_step", "save_weights", "save_weights_for_sampler",
    "load_weights", "create_sampling_session", "asample", "forward",
)  # fmt: skip
"""What changes something or is drawn: the requests that are counted. The others only ask."""


class Between:
    """Passes everything on to the server at `upstream`.

    `doubled`: every POST is sent twice at the same time. `lost`: of every request the first answer
    is not passed on, the connection breaks. `at(number, moment)` is called before a new numbered
    request is passed on, which waits for it; while it is passed on; and, `later`, when its answer
    has been passed on, that is while it is executed.

    A model is given a seed where its client gives none: with one, two runs can be compared.
    """

    def __init__(self, upstream: str, way: Way, at: Callable[[int, Moment], None] | None = None):
        self.upstream, self.way, self._at = upstream, way, at
        self.url = ""
        self.numbers: dict[str, int] = {}  # of a numbered request, by what it is known by
        self.counts: Counter[str] = Counter()
        self._lost: set[str] = set()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(64))
        self._later: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "Between":
        self._thread.start()
        if not self._ready.wait(START_S):
            raise TimeoutError(f"the proxy did not begin within {START_S:g} s")
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def _serve(self) -> None:
        self._loop.run_until_complete(self._run())

    async def _run(self) -> None:
        self._over = asyncio.Event()
        # A server that is started again may need a minute until it answers.
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
            self._session = session
            app = web.Application(client_max_size=1 << 28)
            app.router.add_route("*", "/{path:.*}", self._handle)
            runner = web.AppRunner(app, handler_cancellation=False, shutdown_timeout=1.0)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            self._ready.set()
            await self._over.wait()
            await asyncio.gather(*self._later)
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = _give_seed(request.path, await request.read())
        name = request.path.rpartition("/")[2]
        known = f"{request.method} {request.path_qs} {hashlib.sha256(body).hexdigest()}"
        number, new = None, False
        if name in NUMBERED:
            new = known not in self.numbers
            number = self.numbers.setdefault(known, len(self.numbers))
        self.counts[request.method] += 1
        try:
            if self._at is not None and new and number is not None:
                answer = await self._disturb(request, body, number)
            elif self.way == "doubled" and request.method == "POST":
                answer = await self._send_twice(request, body, name)
            else:
                answer = await self._pass_on(request, body)
        except (aiohttp.ClientError, TimeoutError, OSError):
            self.counts["broken by a kill"] += 1
            return _drop(request)
        if self.way == "lost" and answer.status != 408 and known not in self._lost:
            self._lost.add(known)
            self.counts["answers lost"] += 1
            return _drop(request)
        return answer

    async def _disturb(self, request: web.Request, body: bytes, number: int) -> web.Response:
        assert self._at is not None
        await asyncio.to_thread(self._at, number, "before")
        passed = asyncio.create_task(self._pass_on(request, body))
        during = asyncio.to_thread(self._at, number, "during")
        answer, _ = await asyncio.gather(passed, during, return_exceptions=True)
        later = asyncio.create_task(asyncio.to_thread(self._at, number, "later"))
        self._later.add(later)
        later.add_done_callback(self._later.discard)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def _send_twice(self, request: web.Request, body: bytes, name: str) -> web.Response:
        first, second = await asyncio.gather(*(self._pass_on(request, body) for _ in range(2)))
        self.counts["sent twice"] += 1
        # A session has no number: each is another one.
        if name in NUMBERED and (first.status, first.body) != (second.status, second.body):
            self.counts["answered differently"] += 1
        return second

    async def _pass_on(self, request: web.Request, body: bytes) -> web.Response:
        left_out = ("host", "content-length", "connection", "accept-encoding")
        headers = {k: v for k, v in request.headers.items() if k.lower() not in left_out}
        async with self._session.request(
            request.method, self.upstream + request.path_qs, data=body, headers=headers
        ) as answer:
            content = await answer.read()
            self.counts[f"answered {answer.status // 100}xx"] += answer.status != 408
            names = ("Content-Type", "Retry-After")
            passed = {name: answer.headers[name] for name in names if name in answer.headers}
            return web.Response(status=answer.status, body=content, headers=passed)


def _give_seed(path: str, body: bytes) -> bytes:
    if not path.endswith("/create_model"):
        return body
    asked: dict[str, Any] = json.loads(body)
    lora = asked.get("lora_config") or {}
    if lora.get("seed") is None:
        asked["lora_config"] = {**lora, "seed": LORA_SEED}
    return json.dumps(asked).encode()


def _drop(request: web.Request) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
