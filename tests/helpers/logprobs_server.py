"""A small server of OpenAI's completions over real weights, as others than nip and vLLM have one.

serve_logprobs   names of models, each by its base and adapter -> an address

It gives log-probabilities of a prompt by `prompt_logprobs`, by `echo`, or not at all, computed by
transformers and PEFT.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from tiny_model import peft_logprobs


@asynccontextmanager
async def serve_logprobs(
    models: dict[str, Sequence[tuple[Path, Path | None]]],
    *,
    ways: Sequence[str] = ("prompt_logprobs", "echo"),
    key: str | None = None,
) -> AsyncIterator[str]:
    """Serve each name by what it has: of several they take turns, as replicas do."""
    asked = dict.fromkeys(models, 0)
    known: dict[Any, list[float]] = {}

    def measure(name: str, tokens: list[int]) -> list[float]:
        served = models[name][asked[name] % len(models[name])]
        asked[name] += 1
        at = (served, tuple(tokens))
        if at not in known:
            known[at] = peft_logprobs(*served, tokens)
        return known[at]

    @web.middleware
    async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
        if key is not None and request.headers.get("Authorization") != f"Bearer {key}":
            said = f"Incorrect API key provided: {request.headers.get('Authorization')}"
            return web.json_response({"error": {"message": said}}, status=401)
        return await handler(request)

    async def list_models(request: web.Request) -> web.Response:
        cards: list[dict[str, Any]] = [{"id": name, "object": "model"} for name in models]
        return web.json_response({"object": "list", "data": cards})

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        prompt, choice = body["prompt"], {"index": 0, "text": "", "logprobs": None}
        if not all(isinstance(token, int) for token in prompt):
            error = {"message": "prompt: one list of token ids is needed"}
            return web.json_response({"error": error}, status=400)
        if "prompt_logprobs" in body and "prompt_logprobs" in ways:
            values = measure(body["model"], prompt)
            pairs = zip(prompt[1:], values, strict=True)
            entries = [{str(token): {"logprob": value}} for token, value in pairs]
            choice["prompt_logprobs"] = [None, *entries]
        if body.get("echo") and "echo" in ways:
            values = measure(body["model"], prompt)
            choice["logprobs"] = {"token_logprobs": [None, *values, -0.5]}
        return web.json_response({"model": body["model"], "choices": [choice]})

    app = web.Application(middlewares=[guard])
    app.router.add_get("/v1/models", list_models)
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
