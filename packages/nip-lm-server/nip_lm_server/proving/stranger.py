"""A server that speaks OpenAI's protocol, and is unknown otherwise.

Stranger     asks it, over a new connection each time
ServedName   a model that it lists
without_key  the server's words without the key, to be shown

A load balancer may choose a replica by connection or by cookie: if either were kept, every request
would go to the same one. No redirect is followed, because it would take the key elsewhere. The key
is taken out of the server's words before these are cut: half a key would not be found.
"""

import asyncio
import re
import ssl
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp

from nip_base.formats.bounds import ReadError, parse_json

RANK_HEADER = "X-data-parallel-rank"
"""A client of vLLM chooses one of the replicas behind an address by this header."""
_MOST_BYTES = 64 * 1024 * 1024
_MOST_WORDS = 240
_AT_ONCE = 8
_SHORT = 8


class ProvingError(Exception):
    """Nothing can be proved; the message is one line."""


class NoAnswerError(ProvingError):
    """No server answers at the address, or it fails: a later try may succeed."""


class InputError(ProvingError):
    """An address, a key, a name or a directory is wrong: a later try would fail, too."""


class KeyRefusedError(InputError):
    """The server does not let the key ask for a model."""


class RefusedError(Exception):
    """The server refuses a request, as it may; the message has the server's words."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


def without_key(words: str, key: str) -> str:
    """Replace a key in a text by ``***``."""
    if not key:
        return words
    # A short key may be part of a harmless word, so it is replaced as a whole word only.
    ends = ("", "") if len(key) >= _SHORT else (r"(?<![\w-])", r"(?![\w-])")
    return re.sub(re.escape(key).join(ends), "***", words)


@dataclass(frozen=True)
class ServedName:
    """A model in the list of ``/v1/models``; None: the server doesn't say."""

    name: str
    parent: str | None = None
    """The name of its base model. vLLM has one for adapters only."""
    root: str | None = None
    """The directory from which it was loaded, on the server's machine."""
    max_model_len: int | None = None
    is_adapter: bool = False


class Stranger:
    """Asks the server at `address`, with or without ``/v1`` at its end."""

    def __init__(
        self, address: str, key: str = "", *, proxy: str | None = None, timeout_s: float = 120.0
    ):
        self.url = address.rstrip("/").removesuffix("/v1")
        self._key = key
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._proxy, self._timeout_s = proxy, timeout_s
        self._session: aiohttp.ClientSession | None = None
        # Requests wait for it before their time begins: the wait is not the server's.
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self.is_vllm = False
        """Whether its list of models says so."""

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(self._timeout_s),
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

    async def list_models(self) -> dict[str, ServedName]:
        """List the served models by name. Raises ProvingError if this is no such server."""
        try:
            answer = await self.ask("/v1/models")
        except RefusedError as error:
            if error.status in (401, 403):
                had = "refuses the key" if self._headers else "asks for a key"
                raise InputError(f"the server {had}: {error.status}, {error}") from None
            raise InputError(
                f"no server of OpenAI's protocol: GET /v1/models gave {error.status}, {error}; "
                "give the address of one, like http://host:8000"
            ) from None
        rows = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(rows, list):
            raise InputError(
                "no server of OpenAI's protocol: the answer to GET /v1/models has no list `data`"
            )
        self.is_vllm = any(isinstance(row, dict) and row.get("owned_by") == "vllm" for row in rows)
        listed = [_read_name(row) for row in rows if isinstance(row, dict)]
        return {model.name: model for model in listed if model.name}

    async def complete(self, body: dict[str, Any], rank: int | None = None) -> Any:
        """Ask for a completion; with a `rank`, ask that replica.

        Raises the errors of `ask`, and KeyRefusedError.
        """
        try:
            return await self.ask("/v1/completions", body, rank)
        except RefusedError as error:
            if error.status not in (401, 403):
                raise
            had = "refuses the key" if self._headers else "asks for a key"
            raise KeyRefusedError(
                f"the server {had} for {body['model']!r}: {error.status}, {error}"
            ) from None

    def shorten(self, words: str) -> str:
        """Take the key out of the server's words, then cut them."""
        return " ".join(without_key(words, self._key).split())[:_MOST_WORDS]

    async def ask(self, path: str, body: Any = None, rank: int | None = None) -> Any:
        """Ask, and read the JSON of the answer.

        Raises RefusedError for a status of 4xx or an answer that is no JSON, NoAnswerError for
        every other failure.
        """
        assert self._session is not None  # it is entered
        method = "GET" if body is None else "POST"
        headers = {} if rank is None else {RANK_HEADER: str(rank)}
        try:
            async with (
                self._turns,
                self._session.request(
                    method,
                    self.url + path,
                    json=body,
                    headers=headers,
                    proxy=self._proxy,
                    allow_redirects=False,
                ) as answer,
            ):
                raw = await _read_most(answer)
                status = answer.status
        except TimeoutError:
            raise NoAnswerError(f"no answer to {path} within {self._timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ssl.SSLError) as error:
            reason = self.shorten(str(error)) or type(error).__name__
            raise NoAnswerError(f"nobody answers {path}: {reason}") from None
        value = await asyncio.to_thread(_read_json, raw)
        if status == 200 and value is not None:
            return value
        reason_given = self.shorten(_find_words(raw, value)) or "no reason given"
        message = f"{status}: {reason_given}" if status >= 300 else "the answer is no JSON"
        if status == 429:
            raise NoAnswerError(f"the server takes no more for now at {path}: {message}")
        # With a `rank`, a 500 often means something that the replica doesn't know: the caller
        # decides.
        if status >= 500 and rank is None:
            raise NoAnswerError(f"the server fails at {path}: {message}")
        raise RefusedError(status, reason_given if status >= 300 else message)


async def _read_most(answer: aiohttp.ClientResponse) -> bytes:
    """Read an answer of at most _MOST_BYTES."""
    raw = bytearray()
    async for part in answer.content.iter_any():
        raw += part
        if len(raw) > _MOST_BYTES:
            raise aiohttp.ClientPayloadError(f"the answer has more than {_MOST_BYTES} bytes")
    return bytes(raw)


def _read_json(raw: bytes) -> Any:
    """Read JSON; None: the bytes are no JSON."""
    try:
        return parse_json(raw.decode())
    except (ReadError, ValueError):
        return None


def _find_words(raw: bytes, value: Any) -> str:
    """Find the words of a refusal: the message of OpenAI's protocol, or else the whole answer."""
    error = value.get("error", value) if isinstance(value, dict) else value
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message) if message is not None else raw.decode(errors="replace")


def _read_name(row: dict[str, Any]) -> ServedName:
    ours = row.get("nip") if isinstance(row.get("nip"), dict) else {}
    assert isinstance(ours, dict)
    parent = row.get("parent") or ours.get("base_model")
    length = row.get("max_model_len") or ours.get("max_model_len")
    return ServedName(
        name=str(row.get("id") or ""),
        parent=parent if isinstance(parent, str) else None,
        root=row.get("root") if isinstance(row.get("root"), str) else None,
        max_model_len=length if isinstance(length, int) and length > 1 else None,
        is_adapter=isinstance(parent, str),
    )
