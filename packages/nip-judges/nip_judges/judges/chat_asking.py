"""Asking a judge's model: an endpoint, a request, and an answer without a verdict.

find_judge_endpoint  the address and the key of a judge's file; find_endpoint: of a block of it
ModelSeat            a model at an endpoint, with its settings; `say` gives its answer or a reason
list_served_models   the models of a server, for an error
Said                 the answer, or why it is none
find_agent           the settings of the model
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from nip_core.errors import SettingsError
from nip_core.hashing import digest
from nip_core.parameters import PureTextAgentParameters
from nip_core.parameters.basis.addresses import check_plain_address
from nip_core.parameters.services.dialects import find_dialect
from nip_core.redaction import read_key, redact
from nip_core.rollouts.acceptance import LIKELIEST
from nip_core.rollouts.client.completions import (
    ChatAnswer,
    ChatCompletions,
    Endpoint,
    RequestRefusedError,
)
from nip_core.rollouts.model_call import request_body

if TYPE_CHECKING:
    from nip_judges.settings.judge_file import JudgeFile

_NO_KEY = "-"
_LOOK_S = 10.0
_ASKING = (
    *("model_name", "model_provider", "base_url", "api_dialect", "temperature", "top_p"),
    *("reasoning_effort", "served_as", "max_tokens_per_message"),
)
Chat = Sequence[Mapping[str, str]]


def find_judge_endpoint(file: "JudgeFile", environment: Mapping[str, str] = os.environ) -> Endpoint:
    """Find where a judge's model is asked; raises as `find_endpoint` does."""
    return find_endpoint(file, "judge", find_agent(file), file.judge.key, environment)


def find_endpoint(
    file: "JudgeFile",
    block: str,
    agent: PureTextAgentParameters,
    named_key: str | None,
    environment: Mapping[str, str] = os.environ,
) -> Endpoint:
    """Find where the model of a block of a judge's file is asked.

    An answer may come by any name unless the block has `served_as`: the name is recorded. Raises
    SettingsError where there is no address, or a key is missing.
    """
    provider = agent.provider
    if agent.base_url is not None:
        url = agent.base_url.rstrip("/")
        url = url if urlsplit(url).path else f"{url}/v1"
    else:
        variable = provider.address_variable
        elsewhere = environment.get(variable) if variable is not None else None
        if not (elsewhere or provider.address):
            file.refuse(
                (block, "model_provider"),
                f"model_provider {agent.model_provider} has no address of its own; set "
                f"{block}.base_url",
            )
        url = (elsewhere or provider.address or "").rstrip("/")
        try:
            check_plain_address(url)
        except ValueError as error:
            place = f"environment variable {variable}" if elsewhere else agent.model_provider
            raise SettingsError(f"{place}: {error}") from None
    variable = named_key or provider.key_variable
    key = _NO_KEY if variable is None else read_key(environment, variable)
    if not key and agent.base_url is not None and named_key is None:
        key = _NO_KEY
    if not key:
        file.refuse(
            (block, "key"),
            f"the {block} needs its key in the environment variable {variable}, which is not set; "
            f"set it, or name another one in {block}.key",
        )
    names = tuple(agent.served_as) or None
    return Endpoint(url, key, names, joins=provider.is_lm_server)


def find_agent(
    file: "JudgeFile", settings: Mapping[str, Any] | None = None
) -> PureTextAgentParameters:
    """Return the settings by which the model is asked.

    `settings`, of a grader's file, count where the judge's file says nothing.
    """
    agent = file.agent
    if agent is None:
        raise SettingsError(f"{file.path.name}: this judge asks no model")
    own_settings = {
        name: value
        for name, value in (settings or {}).items()
        if value is not None and getattr(agent, name) is None
    }
    if agent.temperature is not None or agent.top_p is not None:
        own_settings = {
            name: v for name, v in own_settings.items() if name not in ("temperature", "top_p")
        }
    return agent.model_copy(update=own_settings) if own_settings else agent


@dataclass(frozen=True)
class Said:
    """A model's answer, or the reason why there is none."""

    answer: ChatAnswer | None
    reason: str | None = None

    @property
    def words(self) -> str:
        return (self.answer.text or "") if self.answer is not None else ""


@dataclass(frozen=True)
class ModelSeat:
    """A model at an endpoint, with the settings by which it is asked."""

    client: ChatCompletions
    endpoint: Endpoint
    agent: PureTextAgentParameters
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of each request; they stand above those of nip."""
    place: str | None = None
    """In the digest in the place of the address: a server of nip's own has another port each
    time."""
    _without: set[str] = field(default_factory=set, compare=False, repr=False)
    """Fields of a request that the endpoint has refused, whatever it asked."""

    @property
    def digest(self) -> str:
        """Hash the model, its address and its settings, and no key."""
        settings = {name: getattr(self.agent, name) for name in _ASKING}
        extra = [self.extra_body] if self.extra_body else []
        return digest([self.place or self.endpoint.base_url, settings, *extra])

    async def say(self, chat: Chat, seed: int, *, with_logprobs: bool = False) -> Said:
        """Ask once. A refusal, a filtered answer and an empty one are no answer, with the reason.

        Raises TransportError and StageError as the client does.
        """
        wants = with_logprobs and find_dialect(self.agent).takes_logprobs
        try:
            return await self._say(chat, seed, wants and "logprobs" not in self._without)
        except RequestRefusedError as refusal:
            # Some models of an API take no such field: that refusal is not of the text.
            if not wants or "logprob" not in str(refusal):
                return Said(None, f"refused: {refusal}")
        self._without.add("logprobs")
        try:
            return await self._say(chat, seed, False)
        except RequestRefusedError as refusal:
            return Said(None, f"refused: {refusal}")

    async def _say(self, chat: Chat, seed: int, with_logprobs: bool) -> Said:
        dialect, limit = find_dialect(self.agent), self.agent.max_tokens_per_message
        token_limit = max(limit or 0, dialect.least_limit)
        body = request_body(self.agent.model_name, self.agent, chat, seed, token_limit)
        if limit is None:  # an answer that is cut off here would not be one of the user's judge
            del body[dialect.limit]
        if with_logprobs:
            body |= {"logprobs": True, "top_logprobs": LIKELIEST}
        body |= self.extra_body
        async with self.client.answers(self.endpoint, body) as answers:
            answer = self._hide_key(answers[0])
        if answer.finish_reason == "content_filter":
            return Said(answer, "the provider's content filter ended the answer")
        if not (answer.text or "").strip():
            reason = f"an empty answer (finish reason {answer.finish_reason})"
            return Said(answer, reason)
        return Said(answer)

    def _hide_key(self, answer: ChatAnswer) -> ChatAnswer:
        """Hide the own key in an answer: a server may repeat its request, and answers are kept."""
        key = self.endpoint.api_key
        if key == _NO_KEY or key not in f"{answer.text}{answer.model}":
            return answer
        text = None if answer.text is None else redact(answer.text, key)
        return replace(answer, text=text, model=redact(answer.model, key))


async def list_served_models(endpoint: Endpoint) -> list[str]:
    """List the models that a server says it has; none where it says nothing."""
    import openai

    address, key = endpoint.base_url, endpoint.api_key
    async with openai.AsyncOpenAI(
        base_url=address, api_key=key, timeout=_LOOK_S, max_retries=0
    ) as client:
        try:
            return [model.id for model in (await client.models.list()).data]
        except (openai.OpenAIError, AttributeError, TypeError):  # or an answer of another form
            return []


def make_seat(
    file: "JudgeFile",
    client: ChatCompletions | None,
    settings: Mapping[str, Any] | None = None,
) -> ModelSeat:
    """Make the seat of the model that a judge's file, or a grader's, names."""
    if client is None:
        raise SettingsError(f"{file.path.name}: this judge asks a model, which needs a client")
    agent = find_agent(file, settings)
    return ModelSeat(client, find_judge_endpoint(file), agent, file.judge.extra_body)
