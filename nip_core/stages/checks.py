"""Checks that need a server: the game's chats through the model's chat template and context."""

from typing import TYPE_CHECKING, Any

import aiohttp

from nip_core.agents.chat_client import Endpoint
from nip_core.agents.render import Game, Situation, Turn
from nip_core.errors import ServerError, SettingsError
from nip_core.lm_server.version import SERVER_VERSION
from nip_core.protocols import Move
from nip_core.redaction import redact

if TYPE_CHECKING:
    from nip_core.stages.session import Session


async def check_prompts(session: "Session") -> None:
    """Let the server lay out each agent's longest first prompts and a whole conversation.

    Raises SettingsError when the chat template refuses a shape that the game needs, or when the
    longest problem leaves no room for an answer. Servers without /tokenize are not checked.
    """
    parameters, game = session.parameters, session.game
    longest = max(
        (p for problems in session.problems.values() for p in problems),
        key=lambda p: len(p.question) + len(p.solution),
    )
    situation = Situation(longest.question, longest.solution, None, 0)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
        for group, agents in parameters.groups.items():
            if parameters.group_parameters(group).model_provider != "SelfHosted":
                continue
            for agent in agents:
                first = True
                for round_, turns in _sample_conversation(game):
                    if agent not in game.protocol.active(round_, 0):
                        continue
                    chat = game.render(agent, situation, turns, round_)
                    answer = await _tokenize(
                        http, session.endpoint(group), session.base_model(group), chat, agent
                    )
                    if not answer:
                        break  # this server can't say
                    longest_example = parameters.fine_tuning.max_length or 0
                    if longest_example > answer["max_model_len"]:
                        raise SettingsError(
                            f"fine_tuning.max_length is {longest_example}, but the context of "
                            f"{session.base_model(group)!r} is {answer['max_model_len']} tokens"
                        )
                    if first:
                        await _check_system_message(http, session, group, chat, agent)
                    room = answer["max_model_len"] - answer["count"]
                    needed = parameters.model_agents[agent].effective_max_tokens
                    if first and room < needed:
                        raise SettingsError(
                            f"agents.{agent}: the prompt for problem {longest.id!r} takes "
                            f"{answer['count']} of {answer['max_model_len']} tokens and leaves "
                            f"{room} of the {needed} that a message may need; lower "
                            "max_tokens_per_message, use shorter problems or another model"
                        )
                    first = False


async def check_version(session: "Session") -> None:
    """Compare versions with the lm_server that the settings name.

    Raises SettingsError if its major version (below 1.0: its minor one) differs. A server that
    has no /version isn't ours and is not checked.
    """
    if session.parameters.lm_server.url is None:
        return
    url = session.parameters.lm_server.url.rstrip("/").removesuffix("/v1") + "/version"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
        try:
            async with http.get(url) as response:
                body = await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ServerError(f"{url}: no answer ({type(error).__name__}: {error})") from None
        except ValueError:
            return
    theirs = body.get("version") if response.status == 200 and isinstance(body, dict) else None
    if isinstance(theirs, str) and _compatible(theirs) != _compatible(SERVER_VERSION):
        raise SettingsError(
            f"lm_server.url: the server at {url} has version {theirs}, this is {SERVER_VERSION}: "
            "use the same version on both sides"
        )


def _compatible(version: str) -> tuple[str, ...]:
    major, *rest = version.split(".")
    return (major, *rest[:1]) if major == "0" else (major,)


async def _check_system_message(
    http: aiohttp.ClientSession,
    session: "Session",
    group: str,
    chat: list[dict[str, str]],
    agent: str,
) -> None:
    """Some templates leave system messages out without a word; the problem stands in them."""
    counts = [
        (await _tokenize(http, session.endpoint(group), session.base_model(group), c, agent)).get(
            "count"
        )
        for c in (chat, [{**chat[0], "content": "-"}, *chat[1:]])
    ]
    if counts[0] is not None and counts[0] == counts[1]:
        raise SettingsError(
            f"agents.{agent}.model_name: the chat template of {session.base_model(group)!r} leaves "
            "out system messages, so the agent would not see the problem; use another model"
        )


def _sample_conversation(game: Game) -> list[tuple[int, list[Turn]]]:
    """Each round with the turns before it, every message a placeholder."""
    rounds: list[tuple[int, list[Turn]]] = []
    turns: list[Turn] = []
    for round_ in range(game.protocol.max_message_rounds):
        rounds.append((round_, list(turns)))
        for agent, channels in game.protocol.active(round_, 0).items():
            turns.append(Turn(round_, agent, "-", Move(dict.fromkeys(channels, "-"))))
    return rounds


async def _tokenize(
    http: aiohttp.ClientSession,
    endpoint: Endpoint,
    model: str,
    chat: list[dict[str, str]],
    agent: str,
) -> dict[str, Any]:
    url = endpoint.base_url.removesuffix("/v1") + "/tokenize"
    try:
        async with http.post(
            url,
            json={"model": model, "messages": chat},
            headers={"Authorization": f"Bearer {endpoint.api_key}"},
        ) as response:
            body = await response.json(content_type=None)
            status = response.status
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise ServerError(f"{url}: no answer ({type(error).__name__}: {error})") from None
    if status == 200:
        return dict(body)
    said = (body.get("error") or {}).get("message") if isinstance(body, dict) else None
    message = redact(str(said), endpoint.api_key) if said else None
    if status == 400:
        shape = ", ".join(m["role"] for m in chat)
        raise SettingsError(
            f"agents.{agent}.model_name: model {model!r} can't take this game's chats "
            f"({shape}): {message}"
        )
    if status in (401, 403):
        raise SettingsError(f"{url}: the key is refused (HTTP {status}: {message})")
    if status == 404 and message:
        raise SettingsError(f"agents.{agent}.model_name: {message}")
    if status in (404, 405, 501):
        return {}
    if status == 503 and (body.get("error") or {}).get("code") == "engine_training":
        # It leaves its device to a training of this run, whose prompts were checked before.
        return {}
    raise ServerError(f"{url}: HTTP {status}: {message}")
