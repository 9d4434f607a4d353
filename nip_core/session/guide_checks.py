"""Whether a server does what settings ask of it, asked before anything is played.

It holds the answers of a guided agent to their form, and takes the tools of an agent that calls by
OpenAI's `tools`.
"""

import logging
import re
from typing import Any

import aiohttp

from nip_base.formats.bounds import parse_json
from nip_core.concurrency import gather_or_cancel
from nip_core.errors import BudgetError, ServerError, SettingsError, StageError
from nip_core.game.answer_guide import GUIDE_FIELD, least_tokens
from nip_core.game.render import Game
from nip_core.proxies import proxy_for
from nip_core.redaction import redact
from nip_core.rollouts.client.chat_client import read_error
from nip_core.rollouts.client.completions import Endpoint, RequestRefusedError
from nip_core.rollouts.model_call import request_body
from nip_core.session.prompt_checks import sample_conversation
from nip_core.session.session import Session
from nip_core.tools import Tool

_log = logging.getLogger(__name__)
_WORD = "guided in 3 words"  # tokenizers differ in these: blanks, digits
_GRAMMAR = f"%llguidance {{}}\nstart: word\nword[max_tokens={2 * len(_WORD)}]: /{_WORD}/\n"
_LEAST_TOKENS = 16  # that OpenAI takes as a limit
_TIMEOUT_S = 300.0  # a small answer, but the first one of a model may wait for much
_NOT_OF_THE_FORM = frozenset({401, 402, 403, 408, 429, 500, 502, 503, 504})
"""For any parameter: a key, a bill, too many calls, a server in trouble."""
_OF_THE_TOOLS = frozenset({400, 404, 422})
"""What servers say to `tools`; 404 is of a gateway without a host of the model that takes them."""


async def check_guides(session: Session) -> None:
    """Refuse agents with `guided_decoding` without room for answers, or at a server without it.

    Raises SettingsError, or ServerError for a server that does not answer.
    """
    parameters = session.parameters
    guided = [name for name, agent in parameters.model_agents.items() if agent.guided_decoding]
    for agent in guided:
        _check_room(session.game, agent)
    groups = {
        group: agent
        for group, agents in parameters.groups.items()
        for agent in guided
        if agent in agents
    }
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as http:
        await gather_or_cancel(_check_server(http, session, *item) for item in groups.items())


def _check_room(game: Game, agent: str) -> None:
    conversation = sample_conversation(game, agent)
    forms = [game.form(agent, round_, seed, turns) for seed, round_, turns in conversation]
    needed = max(map(least_tokens, forms), default=0)
    limit = game.parameters.max_tokens(agent)
    if limit < needed:
        raise SettingsError(
            f"agents.{agent}.max_tokens_per_message is {limit}, but a guided answer, with the line "
            f"that it ends with, may take {needed}: raise it, or leave out guided_decoding"
        )


async def check_native_tools(session: Session) -> None:
    """Refuse to call by OpenAI's `tools` at a server that refuses them.

    It asks twice, for a few tokens, before the run is created, and as playing does: again where a
    server is in trouble. Raises SettingsError, or ServerError for a server that does not answer.
    """
    if session.run.store.exists(f"{session.run.root}/run.json"):
        return  # it was asked then
    for group, agents in session.parameters.groups.items():
        for agent in agents:
            if (tool := session.game.native_tool(agent)) is not None:
                await _check_tools(session, group, agent, tool)


async def _check_tools(session: Session, group: str, agent: str, tool: Tool) -> None:
    endpoint, model = session.at(group).play, session.base_model(group)
    chat = [{"role": "user", "content": "Hello."}]
    settings, counts = session.parameters.model_agents[agent], list[int]()
    for asked in (tool, None):
        body = request_body(model, settings, chat, 0, _LEAST_TOKENS, tool=asked)
        try:
            counts.append((await session.client.complete(endpoint, body)).prompt_tokens)
        except BudgetError:
            raise
        except (RequestRefusedError, StageError, ServerError) as error:
            status = re.search(r"HTTP (\d+)", str(error))
            if asked is None or status is None or int(status[1]) not in _OF_THE_TOOLS:
                raise ServerError(
                    f"{error}; so it is not known whether it lets agents.{agent} call tools: mend "
                    "that, or wait, and run again"
                ) from None
            raise SettingsError(
                f"tool.call: {endpoint.base_url} does not take OpenAI's tools for model {model!r} "
                f"({error}); set tool.call: line, or serve the model where its chat template has "
                "tools, vLLM with --enable-auto-tool-choice and --tool-call-parser"
            ) from None
    # A server that passes over the field, as some do, counts no token of it. Others count none.
    if counts[0] and counts[0] == counts[1]:
        _log.warning(
            "tool.call: %s counts as many tokens of a prompt with OpenAI's tools as without them, "
            "so agents.%s may not be shown its tool: look at its first episodes, or set tool.call: "
            "line",
            endpoint.base_url,
            agent,
        )


async def _ask(
    http: aiohttp.ClientSession, endpoint: Endpoint, body: dict[str, Any], unknown: str
) -> tuple[int, bytes | None, str]:
    """Return status, body and words of an answer; no body where the server answers later.

    Raises ServerError for an answer that tells nothing: then something is `unknown`.
    """
    url = f"{endpoint.base_url}/chat/completions"
    headers = {"Authorization": f"Bearer {endpoint.api_key}", **dict(endpoint.headers)}
    try:
        async with http.post(url, json=body, headers=headers, proxy=proxy_for(url)) as response:
            raw, status = await response.read(), response.status
    except (aiohttp.ClientError, TimeoutError) as error:
        reason = redact(f"{type(error).__name__}: {error}", endpoint.api_key)
        raise ServerError(f"{url}: no answer ({reason})") from None
    words = " ".join(redact(raw.decode(errors="replace"), endpoint.api_key).split())[:300]
    if status == 503 and read_error(raw).get("code") == "engine_training":
        # It leaves its device to a training of this run, before which it was asked.
        return status, None, words
    if status in _NOT_OF_THE_FORM:
        raise ServerError(
            f"{url}: HTTP {status}: {words}; {unknown}: mend that, or wait, and run again"
        )
    return status, raw, words


async def _check_server(
    http: aiohttp.ClientSession, session: Session, group: str, agent: str
) -> None:
    """Ask for words that the model would hardly write by itself."""
    endpoint, model = session.at(group).play, session.base_model(group)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Hello."}],
        "max_tokens": 2 * len(_WORD),
        "temperature": 0.0,
        GUIDE_FIELD: {"grammar": _GRAMMAR},
    }
    unknown = f"so it is not known whether it holds agents.{agent} to the form of its answers"
    status, raw, words = await _ask(http, endpoint, body, unknown)
    if raw is None:
        return
    try:
        answer = parse_json(raw)
        text = answer["choices"][0]["message"]["content"] if status == 200 else None
    except (ValueError, KeyError, IndexError, TypeError):
        text = None
    if text == _WORD:
        return
    happened = f"HTTP {status}: {words}" if status != 200 else f"it answered {text!r:.80}"
    raise SettingsError(
        f"agents.{agent}.guided_decoding: {endpoint.base_url} does not hold model {model!r} to the "
        f"form of an answer ({happened}); leave it out, or serve the model by `nip serve` or vLLM"
    )
