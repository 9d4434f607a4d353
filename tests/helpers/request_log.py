"""A real HTTP proxy before a real server, which writes down what is asked and changes nothing.

logged_requests   one before a URL; `chats` are the bodies of all chats that were asked for
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

_OF_ONE_CONNECTION = {"host", "connection", "content-length", "transfer-encoding"}


class RequestLog:
    def __init__(self, upstream: str, session: aiohttp.ClientSession):
        self._upstream, self._session, self.url = upstream, session, ""
        self.chats: list[dict[str, Any]] = []

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        if request.path.endswith("/chat/completions"):
            self.chats.append(json.loads(body))
        async with self._session.request(
            request.method,
            self._upstream + request.path_qs,
            data=body,
            headers=_passed_on(request.headers),
        ) as answer:
            content = await answer.read()
            return web.Response(
                status=answer.status, body=content, headers=_passed_on(answer.headers)
            )


def _passed_on(headers: Any) -> list[tuple[str, str]]:
    return [
        (name, value) for name, value in headers.items() if name.lower() not in _OF_ONE_CONNECTION
    ]


@asynccontextmanager
async def logged_requests(upstream: str) -> AsyncIterator[RequestLog]:
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        log = RequestLog(upstream, session)
        app = web.Application(client_max_size=1 << 28)
        app.router.add_route("*", "/{path:.*}", log.handle)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        log.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield log
        finally:
            await runner.cleanup()
