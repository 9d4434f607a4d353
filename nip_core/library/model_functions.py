"""The caller's own models: an async function for each agent, asked as a server would be."""

import asyncio
import inspect
import json
import time
from collections.abc import AsyncIterator, Awaitable, Container, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from nip_core.errors import StageError
from nip_core.game.answer_rows import RecordedToken
from nip_core.rollouts.client.answer_parts import make_storable, read_answers
from nip_core.rollouts.client.completions import ChatAnswer, ChatBody, Endpoint
from nip_core.rollouts.client.thoughts import MalformedAnswer

FINISH_REASONS = ("stop", "length", "content_filter", "tool_calls", "function_call")
"""Those of a chat completion. After "stop" and "length" an answer may be valid."""
_FORMS = (
    "a text, a ModelAnswer, a chat completion (OpenAI's object, or its JSON as a dictionary), or a "
    "list of texts or ModelAnswers where n of them are asked for"
)


class ModelFunction(Protocol):
    """A model of the caller's: ``await function(messages=..., **sampling)``.

    Messages have `role`, `content` and perhaps `name`. Sampling has the fields of a chat completion
    that the settings give: `seed` and `max_tokens` always, `temperature`, `top_p` and others where
    they are set, `n` where several answers are asked for at once; fewer may come, and the others
    are asked for singly. It returns a text, a `ModelAnswer` or a chat completion. It may raise
    `RequestRefusedError` or `ContextLengthError`, which fail this episode alone; any other
    exception ends the play.
    """

    def __call__(self, *, messages: list[Mapping[str, str]], **sampling: Any) -> Awaitable[Any]:
        """Answer."""


@dataclass(frozen=True)
class ModelAnswer:
    """An answer of a caller's model. A text alone is a `ModelAnswer` with the defaults."""

    text: str | None
    finish_reason: str = "stop"
    """"length" where it was cut off; others of `FINISH_REASONS` make it invalid."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    """Token ids of the answer, stop token included; kept where `play` records tokens."""
    tokens: list[RecordedToken] | None = None
    """Each token with its log-probability, and the likeliest ones in its place under `top`."""


class FunctionCalls:
    """The caller's functions by agent; the addresses of `Endpoint`s are agents' names here."""

    def __init__(
        self,
        functions: Mapping[str, ModelFunction],
        places: asyncio.Semaphore,
        seats: Container[str] = (),
    ) -> None:
        """A call holds one of `places`; one of `seats`, which waits for a loop, holds none."""
        self._functions, self._places, self._seats = functions, places, seats

    @asynccontextmanager
    async def answers(self, endpoint: Endpoint, body: ChatBody) -> AsyncIterator[list[ChatAnswer]]:
        """Ask the function of an agent. Raises StageError for a wrong function or answer."""
        agent = endpoint.base_url
        sampling = {name: body[name] for name in body if name not in ("model", "messages")}
        place: AbstractAsyncContextManager[None] = (
            nullcontext() if agent in self._seats else self._places
        )
        async with place:
            began_s = time.monotonic()
            function = self._functions[agent]
            request = {"messages": [*body["messages"]], **sampling}
            try:
                answering = function(**request)
            except TypeError:
                if (why := _find_misfit(function, request)) is None:
                    raise  # of its own code
                raise StageError(
                    f"the model function of {agent} can't be called: {why}; functions are called "
                    "by name, function(messages=..., seed=..., max_tokens=..., ...), so write "
                    "`async def function(messages, **sampling)`"
                ) from None
            if not inspect.isawaitable(answering):
                raise StageError(
                    f"the model function of {agent} is not async: it returned a value of type "
                    f"{type(answering).__name__}; write `async def`, or use openai.AsyncOpenAI"
                )
            value = await answering
            took_s = time.monotonic() - began_s
        try:
            answers = _read(value, str(body["model"]), took_s)
        except MalformedAnswer as error:
            raise StageError(
                f"the model function of {agent} returned a value of type {type(value).__name__} "
                f"that is no answer ({error}); return {_FORMS}"
            ) from None
        if body.get("return_token_ids") and any(
            answer.prompt_token_ids is None or answer.token_ids is None for answer in answers
        ):
            raise StageError(
                f"records_tokens: the answer of {agent} has no token ids; give a ModelAnswer with "
                "prompt_token_ids and token_ids, or leave records_tokens out"
            )
        yield answers


def _find_misfit(function: ModelFunction, request: Mapping[str, Any]) -> str | None:
    """Find why a function does not take the arguments of a request; None: it does."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin may have none
        return None
    try:
        signature.bind(**request)
    except TypeError as error:
        return str(error)
    return None


def _read(value: Any, model: str, took_s: float) -> list[ChatAnswer]:
    """Read a function's return value. Raises MalformedAnswer."""
    if isinstance(value, list | tuple) and value:
        return [answer for one in value for answer in _read(one, model, took_s)]
    if isinstance(value, str):
        value = ModelAnswer(value)
    if isinstance(value, ModelAnswer):
        if value.finish_reason not in FINISH_REASONS:  # a server's own may be odd
            raise MalformedAnswer(
                f"finish_reason {value.finish_reason!r}; use one of {', '.join(FINISH_REASONS)}"
            )
        return [
            ChatAnswer(
                text=None if value.text is None else make_storable(value.text),
                finish_reason=value.finish_reason,
                model=model,
                prompt_tokens=value.prompt_tokens,
                completion_tokens=value.completion_tokens,
                transport_retries=0,
                latency_s=took_s,
                tokens=value.tokens,
                prompt_token_ids=value.prompt_token_ids,
                token_ids=value.token_ids,
            )
        ]
    if isinstance(value, Mapping):
        return read_answers(json.dumps(value, default=str).encode(), None, 0, took_s)
    if hasattr(value, "model_dump_json"):  # of the openai package, or a model like its
        return read_answers(value.model_dump_json().encode(), None, 0, took_s)
    raise MalformedAnswer(f"got {value!r:.80}")
