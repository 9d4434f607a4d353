"""Model calls over Inspect: requests as nip makes them, sent by any provider that Inspect knows.

RoleModels   answers of models by agent, in the place of `ChatClient`
messages_of  a chat as Inspect's messages
config_of    the other settings of a request as Inspect's

Inspect retries, counts, caches and logs the calls by its own rules. The content of a request is
nip's: Inspect's options fill in only the fields that nip's settings leave to the provider, such as
the temperature.
"""

import contextlib
import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    ContentReasoning,
    GenerateConfig,
    Logprobs,
    Model,
    ModelOutput,
    ModelUsage,
)
from inspect_ai.util import span

from nip_core.game.answer_rows import RecordedToken, TokenLogprob
from nip_core.rollouts.client.completions import (
    ChatAnswer,
    ContextLengthError,
    Endpoint,
    RequestRefusedError,
)

_MESSAGES = {
    "system": ChatMessageSystem,
    "user": ChatMessageUser,
    "assistant": ChatMessageAssistant,
}
_LIMITS = ("max_tokens", "max_completion_tokens")
_SAME_NAME = ("seed", "temperature", "top_p", "logprobs", "top_logprobs")
_FINISH_REASONS = {"max_tokens": "length"}  # of those that Inspect calls otherwise


class RoleModels:
    """Inspect's models by agent, as the `ChatCompletions` that an episode is played with."""

    def __init__(self, models: Mapping[str, Model]) -> None:
        """`models` by agent; the addresses of `Endpoint`s are the agents' names here."""
        self._models = models

    @contextlib.asynccontextmanager
    async def answers(
        self, endpoint: Endpoint, body: Mapping[str, Any]
    ) -> AsyncIterator[list[ChatAnswer]]:
        """Ask the model of an agent, in a span of its name. Work within the block is part of the
        span.

        Raises ContextLengthError or RequestRefusedError where the model refuses this one request,
        and Inspect's own error when its retries are used up.
        """
        agent = endpoint.base_url
        async with span(agent, type="agent"):
            output = await self._models[agent].generate(
                messages_of(body["messages"]), config=config_of(body)
            )
            yield _answers(output)


def messages_of(chat: Iterable[Mapping[str, str]]) -> list[ChatMessage]:
    """Make Inspect's messages of the chat; they have no names, so chats are "alternating"."""
    return [_MESSAGES[message["role"]](content=message["content"]) for message in chat]


def config_of(body: Mapping[str, Any]) -> GenerateConfig:
    """Make the settings of a request; Inspect knows each provider's words for them."""
    values: dict[str, Any] = {name: body[name] for name in _SAME_NAME if name in body}
    values["max_tokens"] = next((body[name] for name in _LIMITS if name in body), None)
    if body.get("n", 1) > 1:
        values["num_choices"] = body["n"]
    if "repetition_penalty" in body:
        values["extra_body"] = {"repetition_penalty": body["repetition_penalty"]}
    return GenerateConfig(**values)


def _answers(output: ModelOutput) -> list[ChatAnswer]:
    """Read an answer as nip does; thoughts kept apart by Inspect are no part of its text."""
    if not output.choices:
        raise RequestRefusedError(f"{output.model}: {output.error or 'an answer without choices'}")
    if output.stop_reason == "model_length":  # how Inspect tells of a prompt that is too long
        raise ContextLengthError(f"{output.model}: {output.completion}")
    usage = output.usage or ModelUsage()
    cached = (usage.input_tokens_cache_read or 0) + (usage.input_tokens_cache_write or 0)
    completion = _shares(usage.output_tokens, len(output.choices))
    thought = _shares(usage.reasoning_tokens or 0, len(output.choices))
    return [
        ChatAnswer(
            text=choice.message.text,
            finish_reason=_FINISH_REASONS.get(choice.stop_reason, choice.stop_reason),
            model=output.model,
            prompt_tokens=usage.input_tokens + cached,
            completion_tokens=completion[number],
            transport_retries=0,
            latency_s=output.time or 0.0,
            tokens=_tokens(choice.logprobs),
            reasoning=_thoughts(choice.message),
            reasoning_tokens=thought[number] or None,
        )
        for number, choice in enumerate(output.choices)
    ]


def _shares(total: int, parts: int) -> list[int]:
    """By choice, its part of the counts for all; an indivisible count is the first's."""
    share = total // parts
    return [total - share * (parts - 1)] + [share] * (parts - 1)


def _thoughts(message: ChatMessageAssistant) -> str | None:
    """Give what the model thought, or a summary where the thoughts themselves are hidden."""
    if isinstance(message.content, str):
        return None
    parts = [part for part in message.content if isinstance(part, ContentReasoning)]
    texts = [part.summary if part.redacted else part.reasoning for part in parts]
    return "\n".join(text for text in texts if text) or None


def _tokens(logprobs: Logprobs | None) -> list[RecordedToken] | None:
    if logprobs is None:
        return None

    def one(entry: Any) -> TokenLogprob:
        if not entry.logprob < math.inf:
            raise RequestRefusedError(f"a log-probability of {entry.logprob}")
        return {"token": entry.token, "logprob": entry.logprob}

    def top(entry: Any) -> Sequence[Any]:
        return entry.top_logprobs or ()

    return [{**one(entry), "top": [one(t) for t in top(entry)]} for entry in logprobs.content]
