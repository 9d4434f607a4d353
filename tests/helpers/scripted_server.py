"""A real HTTP server on loopback that answers chat completions by a script.

`script(body)` gets the request's JSON and returns what to do: a text, an `aiohttp.web.Response`,
`DROP` (close the connection without an answer), or a dict of changes to the usual answer. A list
of texts or dicts is an answer with so many choices; the first may change the `usage`.

`calling` is an answer that calls tools, and `refuse_request` says what OpenAI's API has against the
tools and calls of a request.
"""

import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import jsonschema
from aiohttp import web

DROP = object()


def calling(*calls: tuple[str, str], text: str | None = None, **changes: Any) -> dict[str, Any]:
    """An answer with calls of tools, each a name with its arguments, as OpenAI's API gives it."""
    tool_calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": given}}
        for number, (name, given) in enumerate(calls)
    ]
    return {
        "text": text,
        "message": {"tool_calls": tool_calls},
        "finish_reason": "tool_calls",
        **changes,
    }


def refuse_request(body: dict[str, Any]) -> web.Response | None:
    """HTTP 400 for messages of calls and results that do not belong together; else None."""

    def refuse(message: str) -> web.Response:
        return web.json_response({"error": {"message": message, "param": "messages"}}, status=400)

    for tool in body.get("tools", ()):
        jsonschema.Draft202012Validator.check_schema(tool["function"]["parameters"])
        if not re.fullmatch(r"[\w-]{1,64}", tool["function"]["name"]):
            return refuse("tools[0].function.name")
    waiting: list[str] = []
    seen: set[str] = set()
    for message in body["messages"]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                return refuse("a tool message that answers no call")
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            return refuse(f"calls without a result: {waiting}")
        for call in message.get("tool_calls", ()):
            json.loads(call["function"]["arguments"])
            waiting.append(call["id"])
        if len({*waiting} | seen) != len(waiting) + len(seen):
            return refuse("the id of a call twice")
        seen |= {*waiting}
    return refuse(f"calls without a result: {waiting}") if waiting else None


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
                        "message": {
                            "role": "assistant",
                            "content": choice.get("text", ""),
                            **choice.get("message", {}),
                        },
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
