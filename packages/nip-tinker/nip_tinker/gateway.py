"""A gateway for playing by tokens: OpenAI's chat completions over samples of Tinker's API.

For services whose own endpoint gives no token ids, which policy gradient trains on. Chats become
prompts here, by the model's chat template; a model is asked through `asample`, and the answer has
its ids and log-probabilities. All else is passed on, so a run needs this address alone.

Gateway    answers chats
make_app   serves it
ApiError   an answer without success, as OpenAI's error object

A field of a request is carried, or asks for nothing, or is refused by name.

Not covered: thoughts apart from the text, grammars, tools, streams, stops as texts.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import math
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import aiohttp
import numpy as np
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from nip_core.errors import SettingsError
from nip_core.jobs.job import BackendTrouble, Busy, NoAnswer, Refused
from nip_core.proxies import proxy_for
from nip_core.redaction import redact, show_address
from nip_lm_server.client import parse, training_text
from nip_tinker.datums import load_text
from nip_tinker.wire import Json, RequestFailed, Sampled, TinkerClient, json_send

PLAY_PATH = "/oai/api/v1"
_LARGEST_BODY = 64 * 1024 * 1024
_LARGEST_CHAT = 8 * 1024 * 1024
"""As `nip serve` has it: larger ones have more tokens than any context, and to count them takes a
minute."""
_PASSED_ON = ("X-API-Key", "Authorization", "Accept", "Content-Type", "X-Idempotency-Key")
_PASSED_BACK = ("Retry-After",)
_TRIES = 3
_GONE = (404, 410)
_MOST_TOP = 20
_NO_TOKEN = -99999.0
"""The log-probability of a cell without a token, in tables of the likeliest."""
_log = logging.getLogger("nip.tinker.gateway")

_LABELS = {
    *("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("request_id", "cache_salt"),
}
"""Fields that no answer depends on."""
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    # OpenAI's.
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "stream": (False,),
    "store": (False,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "service_tier": ("auto", "default"),
    "verbosity": ("medium",),
    # vLLM's. nip sends the first, where it records tokens.
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "best_of": (1,),
    "priority": (0,),
    "use_beam_search": (False,),
    "ignore_eos": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "echo": (False,),
    "return_tokens_as_token_ids": (False,),
    "include_reasoning": (True,),
}
"""Values that ask for nothing, of fields that samples can't carry; null, "", [] and {} are more."""


class ApiError(Exception):
    """An answer without success, as OpenAI's clients read it."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        retry_after: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after = retry_after


class _Part(BaseModel):
    """A part of a message's content."""

    model_config = ConfigDict(strict=True, frozen=True)

    type: Literal["text"]
    text: str


class _Message(BaseModel):
    """A message, with a text or parts of one."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[_Part], Field(min_length=1)]
    name: str | None = None

    def to_dict(self) -> dict[str, str]:
        """Make the message of a chat template, which knows no developer."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        name = {} if self.name is None else {"name": self.name}
        return {
            "role": "system" if self.role == "developer" else self.role,
            "content": text,
            **name,
        }


class _Chat(BaseModel):
    """The body of a chat completion, as far as samples carry it."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    model: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[_Message], Field(min_length=1)]
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    seed: int | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    # Every answer has ids and log-probabilities.
    return_token_ids: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=_MOST_TOP)] | None = None

    @property
    def limit(self) -> int | None:
        """The most tokens of an answer."""
        return self.max_tokens or self.max_completion_tokens


def _read_chat(raw: bytes) -> _Chat:
    """Read a body. Raises ApiError 400 that names the first wrong field."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON ({str(error)[:200]})", "invalid_body") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the body is no JSON object", "invalid_body")
    try:
        chat = _Chat.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        names, words = [*map(str, first["loc"])], first["msg"][:300]
        if first["loc"][2:3] == ("content",):  # a text or parts: the union names one of both
            names, words = names[:3], "it should be a text, or a list of parts of type text"
        place = ".".join(names)[:200]
        raise ApiError(400, f"{place}: {words}", "invalid_value", place) from None
    _refuse_ignored("", chat.model_extra or {})
    for index, message in enumerate(chat.messages):
        _refuse_ignored(f"messages.{index}.", message.model_extra or {})
        for text in message.to_dict().values():
            if re.search("[\ud800-\udfff]", text):
                place = f"messages.{index}"
                words = f"{place}: it has half of a surrogate pair, which is no text"
                raise ApiError(400, words, "invalid_value", place)
    if chat.top_logprobs and chat.logprobs is None:
        raise ApiError(400, "top_logprobs needs logprobs: true", "invalid_value", "top_logprobs")
    if chat.max_completion_tokens not in (None, chat.limit):
        words = "max_completion_tokens: max_tokens is another; give one of them"
        raise ApiError(400, words, "invalid_value", "max_completion_tokens")
    return chat


def _refuse_ignored(place: str, fields: Mapping[str, JsonValue]) -> None:
    """Raise ApiError 400 for fields that would have to be ignored."""
    ignored = sorted(name for name, value in fields.items() if not _asks_nothing(name, value))
    if ignored:
        listed = ", ".join(f"{place}{name} (got {str(fields[name])[:80]})" for name in ignored[:8])
        raise ApiError(
            400,
            f"samples can't carry {listed}: leave these settings out",
            "unsupported_value",
            f"{place}{ignored[0]}"[:200],
        )


def _asks_nothing(name: str, value: JsonValue) -> bool:
    if value is None or value in ("", [], {}) or name in _LABELS:
        return True
    # 0 and 0.0 are one number, 0 and False are not one value.
    return any(
        value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
        for neutral in _NEUTRAL.get(name, ())
    )


# Samples


@dataclass(frozen=True)
class _Choice(Sampled):
    """A sampled sequence with the likeliest tokens at each place, the first one first."""

    likeliest: list[list[tuple[int, float]]] | None
    """None: the service has not given them."""


class _SampleClient(TinkerClient):
    """Calls to a service, which say so where something else answers."""

    async def fetch_choices(self, request_id: str) -> list[_Choice]:
        """Wait for a sample, and return its sequences. Raises Refused for one that is broken."""
        answer = await self._fetch(request_id)
        if not isinstance(answer, bytes):
            raise Refused(f"{self.address}: the sample {request_id} is JSON, not protobuf", 502)
        try:
            choices = [_read_choice(one) for one in parse("SampleResponse", answer).sequences]
        except ValueError as error:
            words = f"{self.address}: the sample {request_id} can't be read: {error}"
            raise Refused(words, 502) from None
        if not choices:
            raise Refused(f"{self.address}: the sample {request_id} has no sequence", 502)
        return choices

    async def _ask(
        self, verb: str, route: str, *rest: Any, **settings: Any
    ) -> tuple[int, str, bytes]:
        status, kind, raw = await super()._ask(verb, route, *rest, **settings)
        if 300 <= status < 400:
            raise Refused(_describe_redirect(self.address, route, status, None), 502)
        if kind == "text/html":
            words = _describe_page(self.address, route, status, raw)
            raise Refused(redact(words, self._key), status if status >= 400 else 502)
        return status, kind, raw


def _read_choice(sequence: Any) -> _Choice:
    """Read a sequence. Raises ValueError for one whose parts don't fit together."""
    tokens = np.frombuffer(sequence.tokens, "<i4").tolist()
    logprobs = np.frombuffer(sequence.logprobs, "<f4").astype(float).tolist()
    if len(tokens) != len(logprobs) or not all(map(math.isfinite, logprobs)):
        raise ValueError(f"{len(tokens)} tokens have no log-probability each, as playing needs it")
    likeliest = None
    if sequence.HasField("topk_sampled_logprobs"):
        table = sequence.topk_sampled_logprobs
        shape = (len(tokens), table.k)
        ids = np.frombuffer(table.token_ids, "<i4").reshape(shape).tolist()
        values = np.frombuffer(table.logprobs, "<f4").astype(float).reshape(shape).tolist()
        likeliest = [
            [cell for cell in zip(*row, strict=True) if cell[1] > _NO_TOKEN]
            for row in zip(ids, values, strict=True)
        ]
    return _Choice(tokens, logprobs, sequence.stop_reason == 0, likeliest)


@dataclass
class _Sampler:
    """A sampler of a model, and the number of its next sample."""

    id: str
    text: training_text.Text
    seq: int = 0
    words: dict[int, str] = field(default_factory=dict)

    def show(self, token: int) -> str:
        """Write a token as text; a vocabulary is small beside the tokens of a run."""
        if token not in self.words:
            self.words[token] = str(self.text.tokenizer.decode([token]))
        return self.words[token]


@dataclass
class Gateway:
    """Answers chats by the samples of a service; `make_app` serves it."""

    address: str
    key: str
    tokenizer: str | None = None
    """The folder with the tokenizer of all models; None: it is found by the base's name."""
    _client: _SampleClient = field(init=False)
    _samplers: dict[str, _Sampler] = field(default_factory=dict)
    _session: str | None = None
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    """Of the session's samplers: one that failed has used its number, too."""
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _lacks_top: bool = False
    """The service has given a sample without the likeliest tokens."""

    def __post_init__(self) -> None:
        self._client = _SampleClient(self.address, self.key)

    async def aclose(self) -> None:
        """Finish the session."""
        if self._session is not None:
            with contextlib.suppress(BackendTrouble):  # then it ends by itself
                await self._client.finish_session(self._session, "success")
        await self._client.aclose()

    async def complete(self, raw: bytes) -> Json:
        """Answer a chat completion's body. Raises ApiError."""
        chat = _read_chat(raw)
        if chat.top_logprobs and self._lacks_top:
            raise self._no_top()
        try:
            return await self._complete(chat)
        except BackendTrouble as error:
            raise _find_answer(error) from None
        except SettingsError as error:
            raise ApiError(400, str(error)) from None

    async def list_models(self) -> Json:
        """List the base models, as OpenAI's clients read it. Raises ApiError."""
        try:
            bases = await self._client.list_bases()
        except BackendTrouble as error:
            raise _find_answer(error) from None
        rows = [{"id": base, "object": "model", "created": 0, "owned_by": ""} for base in bases]
        return {"object": "list", "data": rows}

    async def _complete(self, chat: _Chat) -> Json:
        messages = [message.to_dict() for message in chat.messages]
        for attempt in range(_TRIES):
            sampler = await self._open(chat.model)
            try:
                prompt = await asyncio.to_thread(
                    training_text.encode_prompt, sampler.text.tokenizer, messages
                )
            except ValueError as error:  # the template refuses it
                raise ApiError(400, str(error), "invalid_value", "messages") from None
            try:
                choices = await self._sample(sampler, prompt, chat)
                break
            except Refused as error:
                # The session is gone, or this sample is: another one is begun.
                if error.status not in _GONE or attempt == _TRIES - 1:
                    raise
                if self._samplers.get(chat.model) is sampler:  # no other request has begun anew
                    del self._samplers[chat.model]
                    self._session = None
        if chat.top_logprobs and any(one.tokens and one.likeliest is None for one in choices):
            self._lacks_top = True
            raise self._no_top()
        return _answer(chat.model, sampler, prompt, choices)

    def _no_top(self) -> ApiError:
        return ApiError(
            400,
            f"top_logprobs: {show_address(self.address)} gives no likeliest tokens with a sample; "
            "leave it out (in nip, rollouts.record_p_accept: false and no record_top_logprobs)",
            "unsupported_value",
            "top_logprobs",
        )

    async def _open(self, model: str) -> _Sampler:
        """Find or begin the sampler of a model. Raises ApiError 404 for an unknown one."""
        async with self._opening:
            if model not in self._samplers:
                is_trained = model.startswith("tinker://")
                try:
                    base = (await self._client.look_up_state(model))[0] if is_trained else model
                    weights = {"model_path" if is_trained else "base_model": model}
                    id = await self._begin(**weights)
                except Refused as error:
                    if error.status not in (400, *_GONE, 422):
                        raise
                    there = "" if is_trained else await self._describe_bases()
                    raise ApiError(
                        404, redact(f"{error}{there}"), "model_not_found", "model"
                    ) from None
                text = await asyncio.to_thread(load_text, base, self.tokenizer, None)
                self._samplers[model] = _Sampler(id, text)
            return self._samplers[model]

    async def _begin(self, **weights: str) -> str:
        """Begin a sampler, in another session where the present one is over."""
        create = self._client.create_sampler
        if self._session is not None:
            try:
                return await create(self._session, next(self._numbers), **weights)
            except Refused as error:
                # Either the model is not there or the session.
                if error.status not in _GONE or await self._is_open(self._session):
                    raise
        try:
            self._session = await self._client.create_session({"nip": "gateway"})
        except Refused as error:
            # No model is at fault: the service is another one, or its wire is.
            raise ApiError(
                error.status if error.status in (401, 402, 403) else 502, redact(str(error))
            ) from None
        self._samplers.clear()
        self._numbers = itertools.count()
        return await create(self._session, next(self._numbers), **weights)

    async def _is_open(self, session: str) -> bool:
        """Tell whether the service still has a session."""
        try:
            await self._client.beat(session)
        except Refused as error:
            if error.status not in _GONE:
                raise
            return False
        return True

    async def _describe_bases(self) -> str:
        with contextlib.suppress(BackendTrouble):
            if bases := await self._client.list_bases():
                more = f" and {len(bases) - 20} more" if len(bases) > 20 else ""
                return f"; base models there: {', '.join(bases[:20])}{more}"
        return ""

    async def _sample(self, sampler: _Sampler, prompt: Sequence[int], chat: _Chat) -> list[_Choice]:
        parameters: Json = {
            "temperature": 1.0 if chat.temperature is None else chat.temperature,
            "top_p": 1.0 if chat.top_p is None else chat.top_p,
        }
        parameters |= {"top_k": chat.top_k} if chat.top_k and chat.top_k > 0 else {}
        parameters |= {"max_tokens": chat.limit} if chat.limit else {}
        parameters |= {} if chat.seed is None else {"seed": chat.seed}
        parameters |= {"stop": sorted(sampler.text.stop_tokens)} if sampler.text.stop_tokens else {}
        seq, sampler.seq = sampler.seq, sampler.seq + 1
        request = {
            "sampling_session_id": sampler.id,
            "seq_id": seq,
            "num_samples": chat.n or 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": list(prompt)}]},
            "sampling_params": parameters,
            "type": "sample",
            # Left out where they aren't asked for: an older service may not know the field.
            **({"topk_sample_logprobs": chat.top_logprobs} if chat.top_logprobs else {}),
        }
        return await self._client.fetch_choices(
            await self._client.submit(json_send("asample", request))
        )


def _answer(
    model: str, sampler: _Sampler, prompt: Sequence[int], sequences: Sequence[_Choice]
) -> Json:
    """Make the answer in OpenAI's words, and vLLM's for token ids."""
    decode, count = sampler.text.tokenizer.decode, sum(len(one.tokens) for one in sequences)

    def show(token: int, logprob: float) -> Json:
        word = sampler.show(token)
        return {"token": word, "logprob": logprob, "bytes": list(word.encode())}

    choices = [
        {
            "index": index,
            "message": {
                "role": "assistant",
                "content": str(decode(sequence.tokens, skip_special_tokens=True)),
                "refusal": None,
            },
            "finish_reason": "stop" if sequence.stopped else "length",
            "token_ids": sequence.tokens,
            "logprobs": {
                "content": [
                    {**show(token, logprob), "top_logprobs": [show(*cell) for cell in top]}
                    for token, logprob, top in zip(
                        sequence.tokens,
                        sequence.logprobs,
                        sequence.likeliest or [[]] * len(sequence.tokens),
                        strict=True,
                    )
                ],
                "refusal": None,
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


# The server


def make_app(gateway: Gateway) -> web.Application:
    """Make the server of a gateway."""

    @web.middleware
    async def answer_errors(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            answer: web.StreamResponse = await handler(request)
            return answer
        except ApiError as error:
            return _error(error)
        except web.HTTPException as error:
            code = "request_too_large" if error.status == 413 else None
            return _error(ApiError(error.status, error.text or error.reason, code))
        except Exception as error:
            _log.exception("%s %s", request.method, request.path)
            return _error(ApiError(500, f"the gateway broke: {type(error).__name__}"))

    def check_key(request: web.Request) -> None:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        keys = (given, request.headers.get("X-API-Key", ""))
        if not any(secrets.compare_digest(key.encode(), gateway.key.encode()) for key in keys):
            raise ApiError(401, "the key is not the gateway's", "invalid_api_key")

    async def chat(request: web.Request) -> web.StreamResponse:
        check_key(request)
        body = await request.read()
        if len(body) > _LARGEST_CHAT:
            raise web.HTTPRequestEntityTooLarge(_LARGEST_CHAT, len(body))
        return web.json_response(await gateway.complete(body))

    async def models(request: web.Request) -> web.StreamResponse:
        check_key(request)
        return web.json_response(await gateway.list_models())

    async def pass_on(request: web.Request) -> web.StreamResponse:
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        url, data = gateway.address.rstrip("/") + request.path_qs, await request.read()
        try:
            async with request.app[_HTTP].request(
                request.method,
                url,
                data=data,
                headers=headers,
                proxy=proxy_for(url),
                allow_redirects=False,  # the key would go along
            ) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = redact(f"{type(error).__name__}: {error}", gateway.key)
            raise ApiError(503, f"{show_address(gateway.address)}: no answer ({reason})") from None
        retry_after = answer.headers.get("Retry-After")
        if 300 <= answer.status < 400 and answer.status != 304:
            location = answer.headers.get("Location")
            words = _describe_redirect(gateway.address, request.path, answer.status, location)
            raise ApiError(502, words)
        if answer.content_type == "text/html":
            words = _describe_page(gateway.address, request.path, answer.status, body)
            status = answer.status if answer.status >= 400 else 502
            raise ApiError(status, redact(words, gateway.key), retry_after=retry_after)
        back = {name: answer.headers[name] for name in _PASSED_BACK if name in answer.headers}
        kind = answer.content_type
        return web.Response(body=body, status=answer.status, content_type=kind, headers=back)

    async def hold(app: web.Application) -> Any:
        app[_HTTP] = aiohttp.ClientSession()
        yield
        await app[_HTTP].close()
        await gateway.aclose()

    app = web.Application(client_max_size=_LARGEST_BODY, middlewares=[answer_errors])
    app.cleanup_ctx.append(hold)
    app.router.add_post(f"{PLAY_PATH}/chat/completions", chat)
    app.router.add_get(f"{PLAY_PATH}/models", models)
    app.router.add_route("*", "/{path:.*}", pass_on)
    return app


_HTTP = web.AppKey("http", aiohttp.ClientSession)


def _find_answer(error: BackendTrouble) -> ApiError:
    """Find the answer to a client for a call that went wrong at the service."""
    words = redact(str(error))
    if isinstance(error, Busy | NoAnswer):
        pause_s = error.retry_after_s
        status = 429 if isinstance(error, Busy) else 503
        return ApiError(status, words, retry_after=None if pause_s is None else f"{pause_s:g}")
    status = error.status if isinstance(error, Refused) else 502
    if isinstance(error, RequestFailed):
        status = 500 if error.category == "server" else 400
    if status == 400 and "context" in words:  # no service has a code for it
        return ApiError(400, words, "context_length_exceeded", "messages")
    return ApiError(status, words)


def _describe_redirect(address: str, route: str, status: int, location: str | None) -> str:
    place = f" to {show_address(location)}" if location else ""
    return (
        f"{show_address(address)}: {route}: HTTP {status}, a redirect{place}, which is not "
        "followed, as the key would go along; name the service's own address by --address"
    )


def _describe_page(address: str, route: str, status: int, raw: bytes) -> str:
    text = re.sub(r"<[^>]*>", " ", raw[:4000].decode("utf-8", "replace"))
    return (
        f"{show_address(address)}: {route}: HTTP {status}, a page in the place of an answer (is a "
        f"proxy between, or is --address another server's?): {' '.join(text.split())[:200]}"
    )


def _error(error: ApiError) -> web.Response:
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(
        error.status, "server_error" if error.status >= 500 else "invalid_request_error"
    )
    # Broken text of a client is escaped.
    words = error.message.encode("utf-8", "backslashreplace").decode()[:4000]
    body = {"message": words, "type": kind, "param": error.param, "code": error.code}
    headers = {"Retry-After": error.retry_after} if error.retry_after else {}
    # Clients of Tinker's API read whose fault it is.
    category = "server" if error.status >= 500 else "user"
    return web.json_response(
        {"error": body, "category": category}, status=error.status, headers=headers
    )
