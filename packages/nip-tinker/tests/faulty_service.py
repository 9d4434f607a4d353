"""A proxy in front of a real service of Tinker's API, which does wrong what networks and services do.

loses      the first answer to each request, after its effect
doubles    each POST is sent twice; the second answer is given
refuses    so many requests with 402, or 429
forgets    sessions on demand: their models and requests are not there any more
lags       lists have no state that is younger
410        the first result of each sample
"""

import json
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import aiohttp
from aiohttp import web

from nip_lm_server.client import parse


@dataclass
class Faults:
    """The faults of a proxy; tests change them while it runs."""

    loses: bool = False
    doubles: bool = False
    loses_samples: bool = False
    lag_s: float = 0.0
    refusals: list[int] = field(default_factory=list)
    """HTTP statuses, each for one POST."""
    forgets_after: int | None = None
    """So many optimizer steps later the sessions that there are are forgotten, once."""
    forgets_each: int = 0
    """After so many more optimizer steps all sessions are forgotten, each time."""
    pages: list[tuple[str, int]] = field(default_factory=list)
    """Routes and statuses: the next request of each is answered by a page of a network's device."""
    loses_once: str | None = None
    """The route of a request whose first answer is lost."""
    has_short_paths: bool = False
    """Paths of samplers' weights have no kind, where they are saved."""
    has_no_lifetimes: bool = False
    has_no_lists: bool = False
    is_unnumbered: bool = False
    """A gradient that comes twice is two, as at a service that knows no numbers."""
    is_old: bool = False
    """It takes gradients in JSON alone, as the wire before 0.25."""
    tokens: Counter[str] = field(default_factory=Counter)
    """Of gradients and of scores that are asked for, by their bodies; a request counts once."""
    met: Counter[str] = field(default_factory=Counter)


class FaultyService:
    """Passes everything on to `upstream`, but for the faults. Use as a context manager."""

    def __init__(self, upstream: str, faults: Faults) -> None:
        self.upstream, self.faults, self.url = upstream, faults, ""
        self._lost: set[str] = set()
        self._forgotten: set[str] = set()
        self._sessions: set[str] = set()
        self._steps = 0
        self._aliases: dict[str, str] = {}

    async def __aenter__(self) -> "FaultyService":
        self._http = aiohttp.ClientSession(auto_decompress=False)
        app = web.Application(client_max_size=1 << 28)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=False, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._http.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        faults, route = self.faults, request.path.removeprefix("/api/v1/")
        body = await request.read()
        if route == "forward_backward" and self._is_first(b"tokens" + body):
            self._count(body)
        is_change = request.method in ("POST", "DELETE", "PUT")
        # 1. Faults before the effect.
        if is_change and route != "session_heartbeat" and faults.refusals:
            status = faults.refusals.pop(0)
            faults.met[str(status)] += 1
            headers = {"Retry-After": "0.05"} if status == 429 else {}
            return web.json_response({"error": "refused"}, status=status, headers=headers)
        if is_change and (page := next((p for p in faults.pages if p[0] == route), None)):
            faults.pages.remove(page)
            faults.met["page"] += 1
            return web.Response(text="<html>", status=page[1], content_type="text/html")
        if faults.has_no_lifetimes and route.endswith("/ttl"):
            faults.met["ttl"] += 1
            return web.json_response({"detail": "Not Found"}, status=404)
        named = re.sub(rb"tinker://[^\"]+", b"", body)  # states stay
        if any(session.encode() in named for session in self._forgotten):
            faults.met["forgotten"] += 1
            return web.json_response({"error": {"message": "it is over"}}, status=410)
        if faults.is_old and route == "forward_backward":
            return web.json_response({"detail": "Input should be a valid JSON"}, status=422)
        if faults.has_no_lists and route.startswith("checkpoints"):
            return web.json_response({"detail": "Not Found"}, status=404)
        sampler = re.search(rb"[\w-]+:sample:\d+", body) if route == "retrieve_future" else None
        if faults.loses_samples and sampler is not None and self._is_first(sampler[0]):
            faults.met["410"] += 1
            return web.json_response({"error": {"message": "expired"}}, status=410)
        # 2. The effect, once or twice.
        answer = await self._send(request, body)
        if faults.doubles and request.method == "POST" and route != "retrieve_future":
            faults.met["doubled"] += 1
            answer = await self._send(request, body)
        status, headers, content = answer
        if route == "create_session" and status == 200:
            self._sessions.add(json.loads(content)["session_id"])
        if route == "optim_step":
            self._steps += 1
            is_due = faults.forgets_after is not None and self._steps >= faults.forgets_after
            if is_due or faults.forgets_each:
                faults.forgets_after = None
                faults.forgets_each = max(0, faults.forgets_each - 1)
                self._forgotten |= self._sessions
        # 3. Faults after the effect.
        is_lost = faults.loses and self._is_first(request.method.encode() + route.encode() + body)
        if is_lost or faults.loses_once == route:
            faults.loses_once = None
            faults.met["lost"] += 1
            assert request.transport is not None
            request.transport.abort()
        if faults.lag_s and status == 200 and "checkpoints" in route and request.method == "GET":
            content = self._hide_young(json.loads(content))
        if (
            faults.has_short_paths
            and route == "retrieve_future"
            and b"/sampler_weights/" in content
        ):
            faults.met["short"] += 1
            content = content.replace(b"/sampler_weights/", b"/")
        if faults.is_unnumbered and route == "forward_backward" and status == 200:
            faults.met["unnumbered"] += 1
            promised = json.loads(content)
            alias = f"{promised['request_id']}#{faults.met['unnumbered']}"
            self._aliases[alias] = promised["request_id"]
            content = json.dumps({**promised, "request_id": alias}).encode()
        return web.Response(body=content, status=status, content_type=headers)

    def _count(self, body: bytes) -> None:
        message = parse("ForwardBackwardRequest", body)
        kind = "scored" if message.forward_only else "trained"
        for datum in message.data:
            self.faults.tokens[kind] += (
                sum(len(c.encoded_text.tokens) for c in datum.model_input) // 4
            )

    def _is_first(self, content: bytes) -> bool:
        mark = str(hash(content))
        is_first = mark not in self._lost
        self._lost.add(mark)
        return is_first

    async def _send(self, request: web.Request, body: bytes) -> tuple[int, str, bytes]:
        if self.faults.is_unnumbered and request.path.endswith("retrieve_future"):
            asked = json.loads(body)
            asked["request_id"] = self._aliases.get(asked["request_id"], asked["request_id"])
            body = json.dumps(asked).encode()
        kept = ("X-API-Key", "Accept", "Content-Type", "Authorization")
        headers = {name: request.headers[name] for name in kept if name in request.headers}
        async with self._http.request(
            request.method, self.upstream + request.path_qs, data=body, headers=headers
        ) as response:
            return response.status, response.content_type, await response.read()

    def _hide_young(self, listed: dict[str, Any]) -> bytes:
        oldest = time.time() - self.faults.lag_s
        rows = listed["checkpoints"]
        old = [row for row in rows if datetime.fromisoformat(row["time"]).timestamp() < oldest]
        self.faults.met["hidden"] += len(rows) - len(old)
        return json.dumps({**listed, "checkpoints": old}).encode()
