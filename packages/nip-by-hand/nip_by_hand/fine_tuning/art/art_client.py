"""Calls that ART's own client and ours have no words for.

TokenIdsClient     an OpenAI client that asks for token ids wherever log-probabilities are asked for
health_problem     the fault of a server, within a few seconds
check_base_model   refuse a base model that a server has not, or can't train
delete_model       take a model off a server, unless it needs it
explain_unlisted   why a server does not list a model
"""

from collections.abc import Sequence
from typing import Any

import aiohttp
from openai import APIStatusError, AsyncOpenAI, OpenAIError, Timeout
from pydantic import BaseModel

from nip_core.errors import SettingsError
from nip_core.jobs.job import Backend, Refused
from nip_core.proxies import http_client, proxy_for
from nip_core.redaction import redact

_TIMEOUT_S = 1200.0
_CONNECT_S = 5.0
_HEALTH_S = 10.0
_NOT_FOUND, _NEEDED = 404, 409


class TokenIdsClient(AsyncOpenAI):
    """The client that `model.openai_client()` gives, with ART's own timeouts.

    ART's servers are started so that tokens are named by their ids. Here a request that wants
    log-probabilities asks for the ids; they are then in the answer's choices as ``token_ids``.
    """

    def __init__(self, base_url: str, api_key: str) -> None:
        timeout = Timeout(_TIMEOUT_S, connect=_CONNECT_S)
        super().__init__(
            base_url=base_url, api_key=api_key, timeout=timeout, http_client=http_client(base_url)
        )

    async def _prepare_options(self, options: Any) -> Any:
        body = options.json_data
        if isinstance(body, dict) and options.url.endswith("/completions") and body.get("logprobs"):
            options.json_data = {"return_token_ids": True, **body}
        return options


class _Health(BaseModel):
    """The parts of a server's answer about its health that are read."""

    problems: list[str] | None = None
    lent_to_training: list[str] | None = None


async def health_problem(root: str) -> str | None:
    """Return the trouble with the server at `root`; None if there is none.

    An engine that has left its device to a training comes back by itself, and is no problem.
    """
    try:
        timeout = aiohttp.ClientTimeout(total=_HEALTH_S)
        async with aiohttp.ClientSession(timeout=timeout, proxy=proxy_for(root)) as session:
            async with session.get(f"{root}/health") as response:
                document = await response.json(content_type=None)
                if response.status == 200:
                    return None
                health = _Health.model_validate(document)
                problems = health.problems or [f"HTTP {response.status}"]
                lent = health.lent_to_training or []
                return None if len(problems) <= len(lent) else "; ".join(problems)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"


async def delete_model(client: AsyncOpenAI, name: str) -> str | None:
    """Delete a model; say why the server keeps it, or None. A missing one is no error."""
    try:
        await client.models.delete(name)
    except APIStatusError as error:
        if error.status_code == _NOT_FOUND:
            return None
        if error.status_code != _NEEDED:
            raise
        return str(error)
    return None


async def check_base_model(server: Backend, root: str, base_model: str) -> None:
    """Raise SettingsError unless the lm_server at `root` can train this model.

    Raises Refused or NoAnswer if the server refuses or doesn't answer.
    """
    try:
        facts = await server.describe_model(base_model)
    except Refused as error:
        if error.status != _NOT_FOUND:
            raise
        raise SettingsError(
            f"base_model: {root} has no model {base_model!r}; name one that it serves"
        ) from None
    if not facts.is_lm_servers:
        raise SettingsError(f"{root} is no lm_server: it says nothing of how it trains")
    if (facts.kind or "base") != "base":
        raise SettingsError(f"base_model: {base_model!r} is a fine-tune on {root}")


async def explain_unlisted(base_url: str, api_key: str, names: Sequence[str]) -> str | None:
    """Tell why a server lists none of `names`, nor a step of one (``name@3``); None if it does."""
    client = AsyncOpenAI(
        base_url=base_url,
        api_key=api_key,
        max_retries=0,
        timeout=_HEALTH_S,
        http_client=http_client(base_url),
    )
    async with client:
        try:
            listed = [model.id async for model in client.models.list()]
        except OpenAIError as error:
            return redact(f"{base_url} is not healthy: {error}", api_key)
    if any(name in names or name.rpartition("@")[0] in names for name in listed):
        return None
    name_list = " nor ".join(map(repr, names))
    return f"{base_url} lists neither {name_list}; it has {', '.join(listed) or 'none'}"
