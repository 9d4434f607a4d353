"""A gateway for playing by tokens: OpenAI's chat completions over samples of Tinker's API.

For services whose own endpoint gives no token ids, which policy gradient trains on. Chats become
prompts here, by the model's chat template; a model is asked through `asample`, and the answer has
its ids and log-probabilities. All else is passed on, so a run needs this address alone.

Not covered: thoughts apart from the text, grammars, tools, streams, likeliest tokens.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from nip_core.errors import SettingsError
from nip_core.jobs.job import BackendTrouble, Busy, Refused
from nip_lm_server.client import training_text
from nip_tinker.datums import load_text
from nip_tinker.wire import Json, Sampled, TinkerClient, json_send

PLAY_PATH = "/oai/api/v1"
_LARGEST_BODY = 64 * 1024 * 1024
_PASSED_ON = ("X-API-Key", "Authorization", "Accept", "Content-Type", "X-Idempotency-Key")
_TRIES = 3
_TAKEN = {
    *("model", "messages", "temperature", "top_p", "seed", "n"),
    *("max_tokens", "max_completion_tokens"),
    # Every answer has ids and log-probabilities; the likeliest tokens are left empty.
    *("return_token_ids", "logprobs", "top_logprobs"),
}


@dataclass
class _Sampler:
    """A sampler of a model, and the number of its next sample."""

    id: str
    text: training_text.Text
    seq: int = 0


@dataclass
class Gateway:
    """Answers chats by the samples of a service; `make_app` serves it."""

    address: str
    key: str
    tokenizer: str | None = None
    """The folder with the tokenizer of all models; None: it is found by the base's name."""
    _client: TinkerClient = field(init=False)
    _samplers: dict[str, _Sampler] = field(default_factory=dict)
    _session: str | None = None
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._client = TinkerClient(self.address, self.key)

    async def aclose(self) -> None:
        """Finish the session."""
        if self._session is not None:
            with contextlib.suppress(BackendTrouble):  # then it ends by itself
                await self._client.finish_session(self._session, "success")
        await self._client.aclose()

    async def complete(self, body: Mapping[str, Any]) -> Json:
        """Answer a chat completion. Raises BackendTrouble, or ValueError for a wrong body."""
        ignored = sorted(name for name in body if name not in _TAKEN and body[name])
        if ignored:
            raise ValueError(f"samples can't carry {', '.join(ignored)}: leave these settings out")
        model, messages = str(body["model"]), body["messages"]
        for attempt in range(_TRIES):
            sampler = await self._open(model)
            prompt = await asyncio.to_thread(
                training_text.encode_prompt, sampler.text.tokenizer, messages
            )
            try:
                sequences = await self._sample(sampler, prompt, body)
                break
            except Refused as error:
                # The session is gone, or this sample is: another one is begun.
                if error.status not in (404, 410) or attempt == _TRIES - 1:
                    raise
                if self._samplers.get(model) is sampler:  # no other request has begun anew
                    del self._samplers[model]
                    self._session = None
        return _answer(model, sampler.text, prompt, sequences)

    async def _open(self, model: str) -> _Sampler:
        """Find or begin the sampler of a model."""
        async with self._opening:
            if model not in self._samplers:
                if self._session is None:
                    self._session = await self._client.create_session({"nip": "gateway"})
                    self._samplers.clear()
                is_trained = model.startswith("tinker://")
                base = (await self._client.look_up_state(model))[0] if is_trained else model
                text = await asyncio.to_thread(load_text, base, self.tokenizer, None)
                weights = {"model_path" if is_trained else "base_model": model}
                number = len(self._samplers)
                id = await self._client.create_sampler(self._session, number, **weights)
                self._samplers[model] = _Sampler(id, text)
            return self._samplers[model]

    async def _sample(
        self, sampler: _Sampler, prompt: Sequence[int], body: Mapping[str, Any]
    ) -> list[Sampled]:
        numbers = {name: body.get(name) for name in ("temperature", "top_p")}
        parameters: Json = {
            name: 1.0 if value is None else float(value) for name, value in numbers.items()
        }
        limit = body.get("max_tokens") or body.get("max_completion_tokens")
        parameters |= {"max_tokens": limit} if limit else {}
        parameters |= {"seed": body["seed"]} if body.get("seed") is not None else {}
        parameters |= {"stop": sorted(sampler.text.stop_tokens)} if sampler.text.stop_tokens else {}
        seq, sampler.seq = sampler.seq, sampler.seq + 1
        request = {
            "sampling_session_id": sampler.id,
            "seq_id": seq,
            "num_samples": int(body.get("n") or 1),
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": list(prompt)}]},
            "sampling_params": parameters,
            "type": "sample",
        }
        return await self._client.fetch_samples(
            await self._client.submit(json_send("asample", request))
        )


def _answer(
    model: str, text: training_text.Text, prompt: Sequence[int], sequences: Sequence[Sampled]
) -> Json:
    """Make the answer in OpenAI's words, and vLLM's for token ids."""
    decode, count = text.tokenizer.decode, sum(len(sequence.tokens) for sequence in sequences)
    choices = [
        {
            "index": index,
            "message": {
                "role": "assistant",
                "content": str(decode(sequence.tokens, skip_special_tokens=True)),
            },
            "finish_reason": "stop" if sequence.stopped else "length",
            "token_ids": sequence.tokens,
            "logprobs": {
                "content": [
                    {"token": str(decode([token])), "logprob": logprob, "top_logprobs": []}
                    for token, logprob in zip(sequence.tokens, sequence.logprobs, strict=True)
                ]
            },
        }
        for index, sequence in enumerate(sequences)
    ]
    return {
        "id": f"chatcmpl-{secrets.token_hex(8)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "prompt_token_ids": list(prompt),
        "usage": {
            "prompt_tokens": len(prompt),
            "completion_tokens": count,
            "total_tokens": len(prompt) + count,
        },
    }


def make_app(gateway: Gateway) -> web.Application:
    """Make the server of a gateway."""

    async def chat(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {gateway.key}":
            return _error(401, "the key is not the gateway's")
        try:
            return web.json_response(await gateway.complete(await request.json()))
        except (KeyError, TypeError, ValueError) as error:
            return _error(400, f"no chat completion: {type(error).__name__}: {error}")
        except SettingsError as error:
            return _error(400, str(error))
        except Refused as error:
            return _error(error.status, str(error))
        except BackendTrouble as error:
            return _error(429 if isinstance(error, Busy) else 503, str(error))

    async def pass_on(request: web.Request) -> web.StreamResponse:
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        async with request.app[_HTTP].request(
            request.method,
            gateway.address.rstrip("/") + request.path_qs,
            data=await request.read(),
            headers=headers,
        ) as answer:
            body = await answer.read()
            return web.Response(body=body, status=answer.status, content_type=answer.content_type)

    async def hold(app: web.Application) -> Any:
        app[_HTTP] = aiohttp.ClientSession()
        yield
        await app[_HTTP].close()
        await gateway.aclose()

    app = web.Application(client_max_size=_LARGEST_BODY)
    app.cleanup_ctx.append(hold)
    app.router.add_post(f"{PLAY_PATH}/chat/completions", chat)
    app.router.add_route("*", "/{path:.*}", pass_on)
    return app


_HTTP = web.AppKey("http", aiohttp.ClientSession)


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)
