"""Chat completions as playing asks for them, for any client that sends them.

`chat_client` sends them over HTTP. `nip_core.library`, Inspect and verifiers let their own models
answer.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from nip_core.errors import NipError
from nip_core.game.answer_rows import RecordedToken

ChatBody = Mapping[str, Any]
"""The JSON of a chat completion's request. Dialects of OpenAI's protocol have further fields."""


class RequestRefusedError(NipError, ValueError):
    """The server refuses this one request (HTTP 400, 413, 422): other episodes can go on."""


class ContextLengthError(RequestRefusedError):
    """The conversation has outgrown the model's context."""


@dataclass(frozen=True)
class Endpoint:
    """Where a provider answers. The key never appears in `repr`."""

    base_url: str  # with /v1
    api_key: str
    served_as: tuple[str, ...] | None = ()
    """Further names that its answers may have beside the requested one; None: any name."""
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers of every request."""
    joins: bool = False
    """It may be a server of ours, which its answers tell. There a call that is sent again joins its
    generation, and has no deadline while that goes on."""

    def __repr__(self) -> str:
        return f"Endpoint({self.base_url!r})"

    def accepted_names(self, model: str) -> tuple[str, ...] | None:
        """Name the models that an answer of `model` may give as its own; None: any."""
        return None if self.served_as is None else (model, *self.served_as)


@dataclass(frozen=True)
class ChatAnswer:
    """One completion, with its counts of tokens and tries and its time."""

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
    """The thoughts of a model that thinks, where the API gives them beside the text."""
    reasoning_tokens: int | None = None
    """How many of `completion_tokens` are thoughts, where the API counts them."""
    cached_tokens: int | None = None
    """How many of `prompt_tokens` the API had read before, where it counts them; of several answers
    to a request the first has them all."""
    calls: tuple[tuple[str, str], ...] = ()
    """Names and arguments of calls by OpenAI's `tools`; the arguments may be no JSON."""
    fault: str | None = None
    """Why the calls are none that can be made."""


class ChatCompletions(Protocol):
    """The part of a client used by playing: answers to a request."""

    def answers(
        self, endpoint: Endpoint, body: ChatBody
    ) -> AbstractAsyncContextManager[list[ChatAnswer]]:
        """Do as `ChatClient.answers` does."""
