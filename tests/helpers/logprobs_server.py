"""A small server of OpenAI's completions over real weights, as others than nip have one.

serve_logprobs   names of models, each by its base and adapter -> an address

It gives log-probabilities of named tokens, as vLLM does, of a prompt by `echo`, or none at all,
computed by transformers and PEFT.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from aiohttp import web

Served = tuple[Path, Path | None]


@cache
def load(base: Path, adapter: Path | None) -> Any:
    """Load a model, with an adapter or without."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base)
    return (PeftModel.from_pretrained(model, adapter) if adapter else model).eval()


def measure(served: Served, tokens: list[int]) -> Any:
    """Log-probabilities of every token after each place of `tokens`."""
    import torch

    with torch.inference_mode():
        return load(*served)(torch.tensor([tokens])).logits[0].log_softmax(-1)


def answer(served: Served, body: dict[str, Any], way: str | None) -> list[dict[str, Any]] | None:
    """The choices of a completion; None: this server takes one list of ids as a prompt."""
    prompt, choices = body["prompt"], []
    is_one = all(isinstance(token, int) for token in prompt)
    if not is_one and way != "token_ids":
        return None
    for number, tokens in enumerate([prompt] if is_one else prompt):
        scores, logprobs = measure(served, tokens), None
        best = int(scores[-1].argmax())
        if way == "token_ids" and "logprobs" in body:
            ids = {best, *body.get("logprob_token_ids", ())}
            top = {f"token_id:{i}": float(scores[-1][i]) for i in ids}
            value = float(scores[-1][best])
            logprobs = {"tokens": [f"token_id:{best}"], "token_logprobs": [value]}
            logprobs["top_logprobs"] = [top]
        elif way == "echo" and body.get("echo"):
            values = [float(row[token]) for row, token in zip(scores[:-1], tokens[1:], strict=True)]
            logprobs = {"token_logprobs": [None, *values, float(scores[-1][best])]}
        choices.append({"index": number, "text": "", "logprobs": logprobs})
    return choices


@asynccontextmanager
async def serve_logprobs(
    models: dict[str, Sequence[Served]],
    *,
    way: str | None = "token_ids",
    key: str | None = None,
    unlisted: Sequence[str] = (),
) -> AsyncIterator[str]:
    """Serve each name by what it has: of several they take turns, as replicas do.

    Names that are `unlisted` answer, and stand in no list.
    """
    asked = dict.fromkeys(models, 0)

    @web.middleware
    async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
        if key is not None and request.headers.get("Authorization") != f"Bearer {key}":
            said = f"Incorrect API key provided: {request.headers.get('Authorization')}"
            return web.json_response({"error": {"message": said}}, status=401)
        return await handler(request)

    async def list_models(request: web.Request) -> web.Response:
        cards = [{"id": name, "object": "model"} for name in models if name not in unlisted]
        return web.json_response({"object": "list", "data": cards})

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        name = body["model"]
        if name not in models:
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        served = models[name][asked[name] % len(models[name])]
        asked[name] += 1
        choices = answer(served, body, way)
        if choices is None:
            error = {"message": "prompt: one list of token ids is needed"}
            return web.json_response({"error": error}, status=400)
        return web.json_response({"model": name, "choices": choices})

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
