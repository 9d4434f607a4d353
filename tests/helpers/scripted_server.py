"""A real HTTP server on loopback that answers chat completions by a script.

`script(body)` gets the request's JSON and returns what to do: a text, an `aiohttp.web.Response`,
`DROP` (close the connection without an answer), or a dict of changes to the usual answer. A list
of texts or dicts is an answer with so many choices; the first may change the `usage`.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiohttp import web

DROP = object()


class ScriptedServer:
    def __init__(self, script: Callable[[dict[str, Any]], Any]):
        self.script = script
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.in_flight = self.most_in_flight = 0
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            said = self.script(body)
            if hasattr(said, "__await__"):
                said = await said
        finally:
            self.in_flight -= 1
        if said is DROP:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        if isinstance(said, web.Response):
            return said
        choices = [
            one if isinstance(one, dict) else {"text": one}
            for one in (said if isinstance(said, list) else [said])
        ]
        tokens = {"prompt_tokens": 7, "completion_tokens": 3 * len(choices)}
        usage = {**tokens, "total_tokens": sum(tokens.values()), **choices[0].get("usage", {})}
        return web.json_response(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 0,
                "model": choices[0].get("model", body["model"]),
                "choices": [
                    {
                        "index": index,
                        "message": {"role": "assistant", "content": choice.get("text", "")},
                        "finish_reason": choice.get("finish_reason", "stop"),
                        "logprobs": choice.get("logprobs"),
                    }
                    for index, choice in enumerate(choices)
                ],
                "usage": usage,
            }
        )


@contextlib.asynccontextmanager
async def scripted_server(script: Callable[[dict[str, Any]], Any]) -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer(script)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield server
    finally:
        await runner.cleanup()
