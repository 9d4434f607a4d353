"""The whole HTTP server in the test's own process, over real sockets, with an engine of the test.

ChosenEngine   answers by rule like the deterministic engine, and as a test wants beyond that
serve          state directory, engine -> a running server
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from nip_base.spec import ServerSpec
from nip_lm_server.api.app import close_server, make_app, open_server
from nip_lm_server.api.connections import make_runner
from nip_lm_server.api.plumbing import Services
from nip_lm_server.auth import KeyRing
from nip_lm_server.engines.base import Capabilities, Delta, GenerationRequest, Upstream
from nip_lm_server.engines.scripted.deterministic_engine import DeterministicEngine
from nip_lm_server.engines.scripted.reply_rules import load_replies
from nip_lm_server.placement import make_slots
from nip_lm_server.serving.pool import EnginePool

KEY = "k"
CHAT = {"model": "sim", "messages": [{"role": "user", "content": "hello"}]}


class ChosenEngine(DeterministicEngine):
    """`upstream` passes requests on; `deltas` are streamed instead of a reply.

    An exception among the deltas is raised in its turn; an asyncio.Event is waited for. `abandoned`
    counts requests that were given up before their end.
    """

    def __init__(
        self,
        upstream: Upstream | None = None,
        deltas: tuple[Delta | Exception | asyncio.Event, ...] = (),
        capabilities: Capabilities | None = None,
    ):
        super().__init__("sim", load_replies(None))
        self.chosen_upstream, self.deltas, self.chosen = upstream, deltas, capabilities
        self.started = asyncio.Event()
        self.abandoned = 0
        self.asked: list[GenerationRequest] = []

    @property
    def upstream(self) -> Upstream | None:  # type: ignore[override]
        return self.chosen_upstream

    @property
    def capabilities(self) -> Capabilities:
        return self.chosen or super().capabilities

    async def generate(self, request: GenerationRequest) -> Any:
        self.asked.append(request)
        for event in [d for d in self.deltas if isinstance(d, asyncio.Event)]:
            self.started.set()
            try:
                await event.wait()
            except asyncio.CancelledError:
                self.abandoned += 1
                raise
        return await super().generate(replace(request, logprobs=False, top_logprobs=0))

    async def stream(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        self.asked.append(request)
        if not self.deltas:
            async for delta in super().stream(request):
                yield delta
            return
        ended = False
        try:
            for delta in self.deltas:
                self.started.set()
                if isinstance(delta, Exception):
                    ended = True
                    raise delta
                if isinstance(delta, asyncio.Event):
                    await delta.wait()
                else:
                    yield delta
            ended = True
        finally:
            self.abandoned += not ended


@dataclass
class Here:
    """A running server: its address, its parts, and a client with the right key."""

    url: str
    services: Services
    http: aiohttp.ClientSession

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, bytes, Any]:
        """(status, body, headers) of a POST."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self.http.post(path, headers=named, **data) as answer:
            return answer.status, await answer.read(), answer.headers


@asynccontextmanager
async def serve(
    state: Path,
    engine: DeterministicEngine | None = None,
    spec: ServerSpec | None = None,
    keys: KeyRing | None = None,
) -> AsyncIterator[Here]:
    """A server on a free port, with `engine`, or else with the one of `spec`."""
    if spec is None:
        spec = ServerSpec("deterministic", "sim")
    state.mkdir(exist_ok=True)
    services = await open_server(state, spec, keys or KeyRing([KEY]), {})
    if engine is not None:
        await services.pool.stop()
        (slot,) = make_slots(spec, {}, state)
        slot = replace(slot, make_engine=lambda path, name: engine)
        pool = EnginePool([slot], services.database, services.models)
        await pool.start()
        services = replace(services, pool=pool)
    runner = make_runner(make_app(services), drain_s=0.5)
    try:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        headers = {"Authorization": f"Bearer {KEY}"}
        async with aiohttp.ClientSession(
            url, headers=headers, timeout=aiohttp.ClientTimeout(30)
        ) as http:
            yield Here(url, services, http)
    finally:
        await runner.cleanup()
        await close_server(services)


async def until(holds: Any, timeout_s: float = 10.0) -> None:
    """Wait for `holds()`, or fail."""
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.005)
