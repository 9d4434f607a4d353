"""Whether the server of a guided agent holds answers to a form, asked before anything is played."""

import aiohttp

from nip_base.formats.bounds import parse_json
from nip_core.concurrency import gather_or_cancel
from nip_core.errors import ServerError, SettingsError
from nip_core.game.answer_guide import GUIDE_FIELD, least_tokens
from nip_core.game.render import Game
from nip_core.proxies import proxy_for
from nip_core.redaction import redact
from nip_core.rollouts.client.chat_client import read_error
from nip_core.session.prompt_checks import sample_conversation
from nip_core.session.session import Session

_WORD = "guided in 3 words"  # tokenizers differ in these: blanks, digits
_GRAMMAR = f"%llguidance {{}}\nstart: word\nword[max_tokens={2 * len(_WORD)}]: /{_WORD}/\n"
_TIMEOUT_S = 300.0  # a small answer, but the first one of a model may wait for much
_NOT_OF_THE_FORM = frozenset({401, 402, 403, 408, 429, 500, 502, 503, 504})
"""For any parameter: a key, a bill, too many calls, a server in trouble."""


async def check_guides(session: Session) -> None:
    """Refuse agents with `guided_decoding` without room for answers, or with a server that can't.

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


async def _check_server(
    http: aiohttp.ClientSession, session: Session, group: str, agent: str
) -> None:
    """Ask for words that the model would hardly write by itself."""
    endpoint, model = session.at(group).play, session.base_model(group)
    url = f"{endpoint.base_url}/chat/completions"
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Hello."}],
        "max_tokens": 2 * len(_WORD),
        "temperature": 0.0,
        GUIDE_FIELD: {"grammar": _GRAMMAR},
    }
    headers = {"Authorization": f"Bearer {endpoint.api_key}", **dict(endpoint.headers)}
    try:
        async with http.post(url, json=body, headers=headers, proxy=proxy_for(url)) as response:
            raw, status = await response.read(), response.status
    except (aiohttp.ClientError, TimeoutError) as error:
        reason = redact(f"{type(error).__name__}: {error}", endpoint.api_key)
        raise ServerError(f"{url}: no answer ({reason})") from None
    if status == 503 and read_error(raw).get("code") == "engine_training":
        # It leaves its device to a training of this run, before which it was asked.
        return
    words = " ".join(redact(raw.decode(errors="replace"), endpoint.api_key).split())[:300]
    if status in _NOT_OF_THE_FORM:
        raise ServerError(
            f"{url}: HTTP {status}: {words}; so it is not known whether it holds agents.{agent} to "
            "the form of its answers: mend that, or wait, and run again"
        )
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
