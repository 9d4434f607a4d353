"""One pooled HTTP client for chat completions of any provider that speaks the OpenAI protocol.

It takes the thin path: aiohttp and the few fields that a rollout needs, because the `openai`
client spends several times the processor time per call (docs/results/README.md has the
figures). Files and jobs go through the `openai` client.

Covered: one connection pool, a bound on calls in flight that follows each server's answers
(`call_limit`), retries with growing pauses on connection errors, time-outs, answers of another
model, 408, 409, 425, 429 (Retry-After honoured) and 5xx. A server of ours has no time-out while
its engine advances, and a call that is sent again joins its generation (`joined_calls`). Not
covered: streaming, and the decision whether an answer has a valid form.
"""

import asyncio
import contextlib
import json
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp

from nip_base.formats.bounds import parse_json
from nip_base.machine.open_files import raise_open_files
from nip_base.wire import JOIN_HEADER
from nip_core.errors import ServerError, StageError
from nip_core.progress.traffic import Traffic
from nip_core.proxies import proxy_for
from nip_core.redaction import redact
from nip_core.rollouts.client.answer_parts import make_storable, read_answers
from nip_core.rollouts.client.call_limit import CallLimit, Places
from nip_core.rollouts.client.completions import (
    ChatAnswer,
    ChatBody,
    ContextLengthError,
    Endpoint,
    RequestRefusedError,
)
from nip_core.rollouts.client.joined_calls import JoinedCall
from nip_core.rollouts.client.thoughts import MalformedAnswer, says_thoughts_took_all

_RETRIED = frozenset({408, 409, 425, 429})
_FATAL = frozenset({401, 402, 403, 404})
_LONGEST_PAUSE_S = 60.0
_KEPT_FILES = 128
"""Open files for all but calls: the lease, tables, other connections."""


class TransportError(ServerError):
    """No answer after all retries."""


class _TryAgain(Exception):
    """A try has failed, and the next one may succeed; the server asks for a pause of `pause_s`."""

    def __init__(self, reason: str, pause_s: float | None = None, is_refusal: bool = False):
        super().__init__(reason)
        self.reason, self.pause_s = reason, pause_s
        self.is_refusal = is_refusal  # the server has said so, and no connection broke


@dataclass(frozen=True)
class _Route:
    """How all calls of an endpoint are sent."""

    url: str
    headers: Mapping[str, str] = field(repr=False)  # with the key
    proxy: str | None

    @classmethod
    def to(cls, endpoint: Endpoint) -> Self:
        """Find it. Raises SettingsError for a proxy that can't be used."""
        url = f"{endpoint.base_url}/chat/completions"
        headers = {
            "Authorization": f"Bearer {endpoint.api_key}",
            "Content-Type": "application/json",
            **dict(endpoint.headers),
        }
        return cls(url, headers, proxy_for(url))


class ChatClient:
    """Chat completions with at most `concurrency` calls in flight. Use as a context manager.

    A call is in flight until its caller has done with its answers, see `answers`.
    """

    def __init__(
        self,
        *,
        concurrency: int,
        timeout_s: float,
        retries: int,
        on_retry: Callable[[str], None] = lambda reason: None,
        on_fewer: Callable[[str], None] = lambda words: None,
        traffic: Traffic | None = None,
        follows: bool = False,
        admit: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ):
        """Make a client without a connection.

        `timeout_s` is the longest wait for an answer; at a server of ours it is half of the longest
        time without progress. With `follows` the calls in flight follow the answers of each server,
        else there are always `concurrency`. `on_fewer` is given the reason why there are fewer.
        `traffic` counts calls. `admit` is entered while a call is in flight, and may raise; `sleep`
        makes pauses.
        """
        self._most = concurrency
        self._timeout_s = timeout_s
        self._retries = retries
        self._on_retry, self._on_fewer = on_retry, on_fewer
        self._traffic, self._admit, self._sleep = traffic or Traffic(), admit, sleep
        self._follows = follows
        self._slots = asyncio.Semaphore(concurrency)
        self._limits: dict[str, CallLimit] = {}
        self._places: list[Places] = []
        self._routes: dict[Endpoint, _Route] = {}
        self._joining: set[str] = set()  # addresses of servers that are ours by their answers
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        allowed = raise_open_files()
        possible = max(allowed - _KEPT_FILES, allowed // 2)
        if possible < self._most:
            self._on_fewer(
                f"rollouts.concurrency is {self._most}, but this process may open {allowed} files "
                f"(ulimit -Hn): at most {possible} calls are in flight; raise that limit"
            )
            self._most, self._slots = possible, asyncio.Semaphore(possible)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._most, keepalive_timeout=60),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    def limit_at(self, endpoint: Endpoint) -> CallLimit:
        """Return the limit of calls in flight at a server."""
        url = endpoint.base_url
        if url not in self._limits:
            self._limits[url] = CallLimit(
                self._most,
                deadline_s=self._timeout_s,
                tell=lambda words: self._on_fewer(f"{url}: {words}"),
                on_change=self._give_places,
            )
        return self._limits[url]

    @property
    def in_flight_limit(self) -> int:
        """Return the most calls in flight at all servers together that had a call so far."""
        limits = sum(limit.limit for limit in self._limits.values())
        return min(self._most, limits or self._most)

    def make_places(self, per_call: int) -> Places:
        """Make places for episodes: `per_call` for each call that may be in flight."""
        places = Places(lambda: per_call * (self.in_flight_limit if self._follows else self._most))
        self._places.append(places)
        return places

    def _give_places(self) -> None:
        for places in self._places:
            places.give()

    async def complete(self, endpoint: Endpoint, body: ChatBody) -> ChatAnswer:
        """Post `body` and give the first choice of `answers`."""
        async with self.answers(endpoint, body) as answers:
            return answers[0]

    @contextlib.asynccontextmanager
    async def answers(self, endpoint: Endpoint, body: ChatBody) -> AsyncIterator[list[ChatAnswer]]:
        """Post `body` to /chat/completions and give its choices by index; there is at least one.

        The call counts as in flight until the block is left. Make the answers durable within it:
        then no more of them can be lost, and paid again, than there are calls in flight.

        A server that doesn't know ``n`` gives fewer answers than the request asks for. Each answer
        has the whole prompt's tokens; the completions' tokens sum up to the server's count.

        Raises RequestRefusedError or ContextLengthError when this request is at fault,
        StageError when no request can succeed (wrong key, unknown model, a server that never
        answered), and TransportError when the retries are used up.
        """
        assert self._session is not None, "use `async with ChatClient(...)`"
        payload = json.dumps(body, ensure_ascii=False).encode()
        call = JoinedCall(endpoint.base_url, body, payload, self._timeout_s)
        limit, tries, spoiled, retries = self.limit_at(endpoint), 0, 0, 0
        while True:
            words, answers = call.words, list[ChatAnswer]()
            # The server's own places first: a call that waits for one takes no slot.
            places = limit.places if self._follows else contextlib.nullcontext()
            async with places, self._slots, self._admit():
                if self._follows:
                    limit.refuse_silent(endpoint.base_url, endpoint.joins)
                try:
                    answers = await self._try(endpoint, call, limit, retries)
                except _TryAgain as error:
                    failure = error
                # Outside of the `except`: an error that the caller raises in the block is none of
                # the call. Inside of the slot: an answer that is not durable yet may be lost and
                # paid again.
                if answers:
                    yield answers
                    return
            # A server that has said how far it is was there: only failures in a row count. A
            # generation that comes to nothing each time it has begun counts as `spoiled`.
            spoiled += call.words > words and failure.is_refusal
            tries = 1 if call.words > words else tries + 1
            if max(tries, spoiled) > self._retries:
                break
            retries += 1
            self._on_retry(failure.reason)
            pause_s = failure.pause_s
            if pause_s is None:
                # Jitter only spreads the load; it decides nothing about the data.
                pause_s = min(0.1 * 2 ** (tries - 1), _LONGEST_PAUSE_S) * (0.5 + random.random())
            await self._sleep(min(pause_s, _LONGEST_PAUSE_S))
        raise TransportError(
            f"{endpoint.base_url}: no answer after {self._retries + 1} tries; the last was: "
            f"{failure.reason}"
        )

    async def _try(
        self, endpoint: Endpoint, call: JoinedCall, limit: CallLimit, retries: int
    ) -> list[ChatAnswer]:
        """Ask once, for as long as the server says that it goes on. Raises _TryAgain."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        self._traffic.note_flight(1, limit.limit)
        try:
            # 1. Get the answer; until then the server says how far it is.
            status, raw, retry_after = await self._post(endpoint, call)
            while status == 202 and endpoint.base_url in self._joining:
                word = call.read(raw)
                counts = word.prompt_tokens, word.generated_tokens
                if counts[0] is not None and counts[1] is not None:
                    self._traffic.note_work(endpoint.base_url, word.engine, counts[0], counts[1])
                    limit.advanced(counts[0], counts[1])
                status, raw, retry_after = await self._post(endpoint, call)
            took_s = loop.time() - began_s
            # 2. Read the answer, or find out whether another try may succeed.
            if status == 200:
                names = endpoint.accepted_names(call.body["model"])
                answers = read_answers(raw, names, retries, took_s)
            elif status == 400 and says_thoughts_took_all(raw):
                # It was paid for, and the request is not at fault: the answer was cut off.
                answers = [_answer_without_text(call.body, retries, took_s)]
            else:
                reason = f"HTTP {status}: {_describe_error(raw, endpoint.api_key)}"
                if status not in _RETRIED and status < 500:
                    _refuse(status, raw, endpoint.base_url, reason)
                if status == 429:
                    limit.refused()
                raise _TryAgain(reason, _read_retry_after(retry_after), is_refusal=True)
            limit.answered(took_s)
            self._traffic.note_answer()
            return answers
        except (aiohttp.ClientError, TimeoutError, ConnectionError, OSError) as error:
            if isinstance(error, TimeoutError):
                limit.timed_out()
                if endpoint.base_url in self._joining:
                    call.check_silence()
            message = str(error)
            if isinstance(error, TimeoutError) and not message:
                message = f"no answer within {self._longest_s(endpoint, call):g} s"
            reason = redact(f"{type(error).__name__}: {message}", endpoint.api_key)
            raise _TryAgain(reason) from None
        except MalformedAnswer as error:
            call.begin_anew()
            raise _TryAgain(redact(str(error), endpoint.api_key)) from None
        finally:
            self._traffic.note_flight(-1, limit.limit)

    def _longest_s(self, endpoint: Endpoint, call: JoinedCall) -> float:
        """Return the longest time of one request."""
        is_ours = endpoint.base_url in self._joining
        return call.request_timeout_s if is_ours else self._timeout_s

    async def _post(self, endpoint: Endpoint, call: JoinedCall) -> tuple[int, bytes, str | None]:
        """Send a request; return status, body, and the header Retry-After."""
        assert self._session is not None, "use `async with ChatClient(...)`"
        route = self._routes.get(endpoint)
        if route is None:
            route = self._routes[endpoint] = _Route.to(endpoint)
        is_known = endpoint.base_url in self._joining
        call.ask()
        async with self._session.post(
            route.url,
            data=call.payload,
            headers={**route.headers, **call.headers} if endpoint.joins else route.headers,
            proxy=route.proxy,
            timeout=aiohttp.ClientTimeout(total=self._longest_s(endpoint, call)),
        ) as response:
            raw = await response.read()
            call.hear()
            if endpoint.joins and JOIN_HEADER in response.headers and not is_known:
                self._joining.add(endpoint.base_url)
                self.limit_at(endpoint).has_no_deadline()
            return response.status, raw, response.headers.get("Retry-After")


def _answer_without_text(body: ChatBody, attempt: int, latency_s: float) -> ChatAnswer:
    """Make an answer without a text: its thoughts took all the tokens that it might have.

    OpenAI refuses such a request and counts nothing, but the thoughts are paid. So they count as
    the request's limit. The prompt's tokens are unknown and count as 0.
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


def read_error(raw: bytes) -> Mapping[str, Any]:
    """Read the error of an answer; in an unknown form the whole answer is the message."""
    try:
        body = parse_json(raw)
        error = (body[0] if isinstance(body, list) else body)["error"]  # Gemini's is in a list
    except (ValueError, KeyError, IndexError, TypeError):
        return {"message": raw.decode(errors="replace"), "is_page": True}
    return error if isinstance(error, dict) else {"message": str(error)}


def _describe_error(raw: bytes, api_key: str) -> str:
    """Give the server's words without the key.

    They are cut after the key is taken out: half a key would not be found.
    """
    error = read_error(raw)
    message, param = str(error.get("message")), error.get("param")
    if isinstance(param, str) and param not in message:
        message = f"{param}: {message}"
    return redact(make_storable(message), api_key)[: 200 if "is_page" in error else 1000]


def _refuse(status: int, raw: bytes, base_url: str, reason: str) -> None:
    if status in _FATAL:
        raise StageError(f"{base_url} refuses every call ({reason})")
    if read_error(raw).get("code") == "context_length_exceeded":
        raise ContextLengthError(reason)
    raise RequestRefusedError(reason)


def _read_retry_after(retry_after: str | None) -> float | None:
    try:
        seconds = float(retry_after or "")
    except ValueError:
        return None
    return None if math.isnan(seconds) else max(seconds, 0.0)
