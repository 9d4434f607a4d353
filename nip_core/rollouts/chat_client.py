"""One pooled HTTP client for chat completions of any provider that speaks the OpenAI protocol.

It takes the thin path: aiohttp and the few fields that a rollout needs, because the `openai`
client spends several times the processor time per call (`benchmarks/chat_client.py` measures
both in one run). Files and jobs go through the `openai` client.

What is covered: one connection pool, a bound on calls in flight, retries with growing pauses on
connection errors, time-outs, answers of another model, 408, 409, 425, 429 (Retry-After honoured)
and 5xx. What is not: streaming, and deciding whether an answer has a valid form.
"""

import asyncio
import contextlib
import json
import math
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import aiohttp

from nip_core.errors import NipError, ServerError, StageError
from nip_core.game.answer_rows import RecordedToken, TokenLogprob
from nip_core.proxies import proxy_for
from nip_core.redaction import redact
from nip_core.rollouts.thoughts import (
    MalformedAnswer,
    read_message,
    read_usage,
    says_thoughts_took_all,
)
from nip_lm_server.client import parse_json

ChatBody = Mapping[str, Any]
"""The JSON of a chat completion's request. Dialects of OpenAI's protocol have further fields."""

_RETRIED = frozenset({408, 409, 425, 429})
_FATAL = frozenset({401, 402, 403, 404})
_LONGEST_PAUSE_S = 60.0


class RequestRefusedError(NipError, ValueError):
    """The server refuses this one request (HTTP 400, 413, 422): other episodes can go on."""


class ContextLengthError(RequestRefusedError):
    """The conversation has outgrown the model's context."""


class TransportError(ServerError):
    """No answer after all retries."""


@dataclass(frozen=True)
class Endpoint:
    """Where a provider answers. The key never appears in `repr`."""

    base_url: str  # with /v1
    api_key: str
    served_as: tuple[str, ...] | None = ()
    """Names beside the one asked for that its answers may have; None: whatever they have."""
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers of every request."""

    def __repr__(self) -> str:
        return f"Endpoint({self.base_url!r})"

    def accepted_names(self, model: str) -> tuple[str, ...] | None:
        """Name what an answer of `model` may call itself; None: anything."""
        return None if self.served_as is None else (model, *self.served_as)


@dataclass(frozen=True)
class ChatAnswer:
    """One completion, with what it took to get it."""

    text: str | None
    finish_reason: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    transport_retries: int
    latency_s: float
    tokens: list[RecordedToken] | None = None
    """Each with the likeliest ones in its place, where asked for."""
    prompt_token_ids: list[int] | None = None
    """The prompt as the model read it, where ``return_token_ids`` asked for it."""
    token_ids: list[int] | None = None
    """The answer as it was generated, stop token included, where asked for."""
    reasoning: str | None = None
    """What a model that thinks thought, where the API gives it beside the text."""
    reasoning_tokens: int | None = None
    """How many of `completion_tokens` are thoughts, where the API counts them."""


class ChatCompletions(Protocol):
    """What playing needs of a client: answers to a request."""

    def answers(
        self, endpoint: Endpoint, body: ChatBody
    ) -> contextlib.AbstractAsyncContextManager[list[ChatAnswer]]:
        """Do as `ChatClient.answers` does."""


class ChatClient:
    """Chat completions with at most `concurrency` calls in flight. Use as a context manager.

    A call is in flight until whoever made it has done with its answers, see `answers`.
    """

    def __init__(
        self,
        *,
        concurrency: int,
        timeout_s: float,
        retries: int,
        on_retry: Callable[[str], None] = lambda reason: None,
        admit: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ):
        """Make a client without a connection.

        `admit` is entered for as long as a call is in flight, and may raise instead of letting it
        begin; `sleep` is how pauses between tries are made.
        """
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._retries = retries
        self._on_retry, self._admit, self._sleep = on_retry, admit, sleep
        self._slots = asyncio.Semaphore(concurrency)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._concurrency, keepalive_timeout=60),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def complete(self, endpoint: Endpoint, body: ChatBody) -> ChatAnswer:
        """Post `body` and give the first choice of `answers`."""
        async with self.answers(endpoint, body) as answers:
            return answers[0]

    @contextlib.asynccontextmanager
    async def answers(self, endpoint: Endpoint, body: ChatBody) -> AsyncIterator[list[ChatAnswer]]:
        """Post `body` to /chat/completions and give its choices by index; there is at least one.

        The call counts as in flight until the block is left. Put into it what makes the answers
        durable: then no more of them can be lost, and paid again, than there are calls in flight.

        A server that doesn't know ``n`` gives fewer than were asked for. Each answer has the
        whole prompt's tokens; those of the completions sum up to what the server counted.

        Raises RequestRefusedError or ContextLengthError when this request is at fault,
        StageError when no request can succeed (wrong key, unknown model), and TransportError
        when the retries are used up.
        """
        assert self._session is not None, "use `async with ChatClient(...)`"
        url = f"{endpoint.base_url}/chat/completions"
        headers = {
            "Authorization": f"Bearer {endpoint.api_key}",
            "Content-Type": "application/json",
            **dict(endpoint.headers),
        }
        payload = json.dumps(body, ensure_ascii=False).encode()
        proxy = proxy_for(url)
        loop = asyncio.get_running_loop()
        reason = ""
        for attempt in range(self._retries + 1):
            pause_s: float | None = None
            async with self._slots, self._admit():
                started = loop.time()
                answers: list[ChatAnswer] = []
                try:
                    async with self._session.post(
                        url, data=payload, headers=headers, proxy=proxy
                    ) as response:
                        raw = await response.read()
                        status = response.status
                        retry_after = response.headers.get("Retry-After")
                    if status == 200:
                        names = endpoint.accepted_names(body["model"])
                        answers = read_answers(raw, names, attempt, loop.time() - started)
                    elif status == 400 and says_thoughts_took_all(raw):
                        # Paid for and no fault of the request: an answer that was cut off.
                        answers = [_answer_without_text(body, attempt, loop.time() - started)]
                    else:
                        reason = f"HTTP {status}: {_describe_error(raw, endpoint.api_key)}"
                        if status not in _RETRIED and status < 500:
                            _refuse(status, raw, endpoint.base_url, reason)
                        pause_s = _read_retry_after(retry_after)
                except (aiohttp.ClientError, TimeoutError, ConnectionError, OSError) as error:
                    reason = redact(f"{type(error).__name__}: {error}", endpoint.api_key)
                except MalformedAnswer as error:
                    reason = redact(str(error), endpoint.api_key)
                # Outside of the `except`s: what the caller raises in the block is no error of the
                # call. Inside of the slot: what is not durable yet may be lost and paid again.
                if answers:
                    yield answers
                    return
            if attempt == self._retries:
                break
            self._on_retry(reason)
            if pause_s is None:
                # Jitter only spreads the load; it decides nothing about the data.
                pause_s = min(0.1 * 2**attempt, _LONGEST_PAUSE_S) * (0.5 + random.random())
            await self._sleep(min(pause_s, _LONGEST_PAUSE_S))
        raise TransportError(
            f"{endpoint.base_url}: no answer after {self._retries + 1} tries; the last was: "
            f"{reason}"
        )


def read_answers(
    raw: bytes, names: Sequence[str] | None, attempt: int, latency_s: float
) -> list[ChatAnswer]:
    """Read the choices of a response, in the order of their indices.

    `names` are the model asked for and its aliases; None: any model may answer.

    Raises MalformedAnswer for what is no answer of that model.
    """
    try:
        answer = parse_json(raw, max_depth=None)
        choices = sorted(answer["choices"], key=lambda choice: int(choice.get("index") or 0))
        served = str(answer["model"])
        if names is not None:
            _refuse_other_model(names, served)
        if not choices:
            raise MalformedAnswer("malformed answer (no choices)")
        usage = read_usage(answer.get("usage") or {})
        # Servers count all choices together, and each is a row: so that rows sum up to the bill.
        completion = _split_count(usage.completion_tokens, len(choices))
        thought = _split_count(usage.reasoning_tokens, len(choices))
        contents = [read_message(choice["message"]) for choice in choices]
        return [
            ChatAnswer(
                text=None if text is None else _make_storable(text),
                finish_reason=_make_storable(choice.get("finish_reason") or "unknown"),
                model=served,
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=completion[number] or 0,
                transport_retries=attempt,
                latency_s=latency_s,
                tokens=_read_tokens(choice.get("logprobs")),
                # OpenAI has no words for these; the names are vLLM's.
                prompt_token_ids=_read_ids(answer.get("prompt_token_ids")),
                token_ids=_read_ids(choice.get("token_ids")),
                reasoning=None if reasoning is None else _make_storable(reasoning),
                reasoning_tokens=thought[number],
            )
            for number, (choice, (text, reasoning)) in enumerate(
                zip(choices, contents, strict=True)
            )
        ]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise MalformedAnswer(f"malformed answer ({type(error).__name__}: {error})") from None


def _answer_without_text(body: ChatBody, attempt: int, latency_s: float) -> ChatAnswer:
    """Make an answer without a text, whose thoughts took all the tokens it might have.

    OpenAI refuses such a request and counts nothing, but the thoughts are paid: they count as many
    as were asked for at most. Of the prompt nothing is known.
    """
    limit = int(body.get("max_completion_tokens") or body.get("max_tokens") or 0)
    return ChatAnswer(
        text=None,
        finish_reason="length",
        model=str(body["model"]),
        prompt_tokens=0,
        completion_tokens=limit,
        transport_retries=attempt,
        latency_s=latency_s,
        reasoning_tokens=limit,
    )


def _split_count(total: int | None, parts: int) -> Sequence[int | None]:
    """Split a count over the choices; the first has the remainder."""
    if total is None:
        return [None] * parts
    share = total // parts
    return [total - share * (parts - 1)] + [share] * (parts - 1)


def _refuse_other_model(names: Sequence[str], served: str) -> None:
    """Raise MalformedAnswer for an answer of another model: the call is sent again.

    A provider may answer an alias with its dated name: gpt-4o-2024-08-06 is gpt-4o, gpt-4o-mini
    is not.
    """
    if not any(
        served == name or re.fullmatch(re.escape(name) + r"-\d[\d-]*", served) for name in names
    ):
        raise MalformedAnswer(
            f"asked for model {names[0]!r} but {served!r} answered; if that is the same model by a "
            "gateway's name, set served_as"
        )


def _make_storable(text: Any) -> str:
    """Replace half a surrogate pair: JSON may carry it, UTF-8 and Parquet can't."""
    storable = str(text)
    # Nearly every text is; there may be thousands of tokens in an answer.
    return storable if storable.isascii() else storable.encode("utf-8", "replace").decode()


def _read_ids(given: Any) -> list[int] | None:
    return None if given is None else [int(token) for token in given]


def _read_tokens(logprobs: Any) -> list[RecordedToken] | None:
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if content is None:
        return None

    def one(entry: Any) -> TokenLogprob:
        logprob = float(entry["logprob"])
        if not logprob < math.inf:  # JSON as Python writes it has NaN, which would reach rewards
            raise ValueError(f"a log-probability of {logprob}")
        return {"token": _make_storable(entry["token"]), "logprob": logprob}

    return [{**one(e), "top": [one(t) for t in e.get("top_logprobs") or ()]} for e in content]


def _read_error(raw: bytes) -> Mapping[str, Any]:
    try:
        body = parse_json(raw)
        error = (body[0] if isinstance(body, list) else body)["error"]  # Gemini's is in a list
    except (ValueError, KeyError, IndexError, TypeError):
        return {"message": raw.decode(errors="replace"), "is_page": True}
    return error if isinstance(error, dict) else {"message": str(error)}


def _describe_error(raw: bytes, api_key: str) -> str:
    """Give the server's words without the key, and cut them only then: half a key is not found."""
    error = _read_error(raw)
    message, param = str(error.get("message")), error.get("param")
    if isinstance(param, str) and param not in message:
        message = f"{param}: {message}"
    return redact(_make_storable(message), api_key)[: 200 if "is_page" in error else 1000]


def _refuse(status: int, raw: bytes, base_url: str, reason: str) -> None:
    if status in _FATAL:
        raise StageError(f"{base_url} refuses every call ({reason})")
    if _read_error(raw).get("code") == "context_length_exceeded":
        raise ContextLengthError(reason)
    raise RequestRefusedError(reason)


def _read_retry_after(retry_after: str | None) -> float | None:
    try:
        seconds = float(retry_after or "")
    except ValueError:
        return None
    return None if math.isnan(seconds) else max(seconds, 0.0)
