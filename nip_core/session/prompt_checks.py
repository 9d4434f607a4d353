"""Whether a model's server can take the game's chats, asked before anything is played."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import aiohttp

from nip_base.formats.bounds import parse_json
from nip_core.concurrency import gather_or_cancel
from nip_core.costs.loads import TOOL_TOKENS
from nip_core.errors import ServerError, SettingsError
from nip_core.game.answers.reasons import Kind
from nip_core.game.render import Game, Turn, make_situation
from nip_core.jobs.server_calls import LmServer, TemplateFacts
from nip_core.protocols import Move
from nip_core.proxies import proxy_for
from nip_core.records.left_out import Facts
from nip_core.redaction import redact
from nip_core.scenarios import Problem, Scenario
from nip_core.scenarios.checked import draw_columns
from nip_core.session.session import Session

_SEEDS = 16  # in one of them every agent has a turn
_AT_ONCE = 32  # requests
_SLACK = 16  # tokens that may come in where texts are joined

Conversation = list[tuple[int, int, list[Turn]]]
"""An agent's turns: seed, round, and the messages before."""


async def check_prompts(session: Session) -> dict[str, Facts]:
    """Let the server lay out a conversation of each agent, and long first prompts.

    Returns the token counts of the problems that are too long, longest first: their first prompt
    leaves an agent no room for an answer. Raises SettingsError when the chat template refuses a
    shape that the game needs, or when even the shortest problem leaves no room. Servers without
    /tokenize are not checked.
    """
    every = {p.id: p for problems in session.problems.values() for p in problems}
    ordered = sorted(every.values(), key=lambda p: (-_size(p, session.game.scenario), p.id))
    too_long: dict[str, Facts] = {}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
        for group, agents in session.parameters.groups.items():
            if (server := session.at(group).lm_server) is not None:
                for agent in agents:
                    check = _AgentCheck(http, session, server, group, agent, ordered[-1])
                    await check.run()
                    too_long |= await check.too_long([p for p in ordered if p.id not in too_long])
    return too_long


def _size(problem: Problem, scenario: Scenario) -> int:
    texts = {**problem.texts, **draw_columns(scenario, problem.texts, 0)}
    return sum(len(text.encode()) for text in texts.values())


class _TemplateRefusal(Exception):
    """The server can't make a prompt of a chat; the text is its reason."""

    def __init__(self, reason: str | None, code: str | None = None) -> None:
        super().__init__(reason)
        self.code = code


class _AgentCheck:
    """The chats of one agent, laid out by the server of its group."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        session: Session,
        server: LmServer,
        group: str,
        agent: str,
        problem: Problem,
    ) -> None:
        self._http, self._session, self._server = http, session, server
        self._group, self._agent, self._problem = group, agent, problem
        self._endpoint, self._model = session.at(group).play, session.base_model(group)
        self._conversation = sample_conversation(session.game, agent)
        # The server lays out no `tools` here.
        self._tool_tokens = 0 if session.game.native_tool(agent) is None else TOOL_TOKENS

    async def run(self) -> None:
        """Ask for every chat of the agent. Raises SettingsError for the first one refused."""
        for number, chat in enumerate(self._chats(self._session.game)):
            try:
                answer = await self._tokenize(chat)
            except _TemplateRefusal as refusal:
                if refusal.code == "context_length_exceeded":
                    raise self._no_room(f"is too long ({refusal})") from None
                shape = ", ".join(m["role"] for m in chat)
                raise SettingsError(
                    f"agents.{self._agent}.model_name: model {self._model!r} can't take this "
                    f"game's chats ({shape}): {refusal}; {await self._advice()}"
                ) from None
            if not answer:
                return  # this server can't say
            if number == 0:
                self._check_room(answer)
                if not await self._is_read(chat):
                    raise SettingsError(
                        f"agents.{self._agent}.model_name: the chat template of {self._model!r} "
                        "leaves out system messages, so the agent would not see the problem; "
                        f"{await self._advice()}"
                    )
        await self._check_names()

    async def _check_names(self) -> None:
        """Refuse chats of several speakers where the template leaves out their names."""
        status = await self._server.engine_status(self._model)
        # Our own engines know, if they have a template; others are tried.
        if status is not None:
            template = status.template_facts or TemplateFacts()
            if template.shows_names is not False:
                return
        for chat in self._chats(self._session.game):
            speakers = sorted({m["name"] for m in chat if m["role"] == "user" and "name" in m})
            if len(speakers) < 2:
                continue
            renamed = [{**m, "name": "Nobody"} if "name" in m else m for m in chat]
            tokens = [(await self._tokenize(c)).get("tokens") for c in (chat, renamed)]
            if tokens[0] is not None and tokens[0] == tokens[1]:
                raise SettingsError(
                    f"agents.{self._agent}.chat_format: the chat template of {self._model!r} "
                    f"leaves out names, so the agent could not tell {' from '.join(speakers)}; "
                    f"{await self._advice(('alternating', 'alternating_no_system'))}"
                )
            return

    async def too_long(self, problems: Sequence[Problem]) -> dict[str, Facts]:
        """By id the problems with a first prompt that leaves no room for an answer."""
        # 1. The tokens of the prompt without any problem.
        scenario = self._session.game.scenario
        unseen = {column.name: "-" for column in scenario.columns if column.drawn}
        columns = {**self._problem.columns, **unseen}
        bare = replace(self._problem, question="-", solution="-", columns=columns)
        shell = await self._measured(bare) if self._conversation else None
        if not shell:
            return {}
        # 2. A token has a byte at least, so most problems need no look.
        free = shell["context"] - shell["answer"] - shell["prompt"] - _SLACK
        doubtful = [problem for problem in problems if _size(problem, scenario) > free]
        long_prompts: dict[str, Facts] = {}
        # 3. The rest are counted by the server, some at a time.
        for start in range(0, len(doubtful), _AT_ONCE):
            some = doubtful[start : start + _AT_ONCE]
            for problem, facts in zip(
                some, await gather_or_cancel(map(self._measured, some)), strict=True
            ):
                if facts == {}:
                    continue
                if facts is None:  # so long that the server does not count it
                    long_prompts[problem.id] = {**shell, "prompt": None}
                elif facts["prompt"] + facts["answer"] > facts["context"]:
                    long_prompts[problem.id] = facts
        return long_prompts

    async def _measured(self, problem: Problem) -> dict[str, Any] | None:
        """The tokens of the first prompt for a problem; None if it is far too long.

        Empty if the server can't say.
        """
        try:
            answer = await self._tokenize(self._chats(self._session.game, problem)[0])
        except _TemplateRefusal as refusal:
            if refusal.code == "context_length_exceeded":
                return None
            raise SettingsError(
                f"agents.{self._agent}: model {self._model!r} can't take the prompt for problem "
                f"{problem.id!r}: {refusal}"
            ) from None
        if not answer:
            return {}
        needed = self._session.parameters.max_tokens(self._agent)
        return {
            "agent": self._agent,
            "prompt": answer["count"],
            "answer": needed,
            "context": answer["max_model_len"],
        }

    def _chats(self, game: Game, problem: Problem | None = None) -> list[list[dict[str, str]]]:
        """List the chats of the agent's turns, and those in which it is asked again."""
        problem = problem or self._problem
        stance = 1 if game.parameters.protocol_common.randomize_prover_stance else None
        retries: tuple[Kind, ...] = ("empty",) if game.parameters.gives_hint(self._agent) else ()
        return [
            game.render(
                self._agent,
                make_situation(problem, stance, seed),
                turns,
                round_,
                wrong,
            )
            for wrong in (None, *retries)
            for seed, round_, turns in self._conversation
        ]

    def _check_room(self, answer: Mapping[str, Any]) -> None:
        parameters, length = self._session.parameters, answer["max_model_len"]
        longest_example = parameters.fine_tuning.max_length or 0
        if longest_example > length:
            raise SettingsError(
                f"fine_tuning.max_length is {longest_example}, but the context of "
                f"{self._model!r} is {length} tokens"
            )
        room = length - answer["count"]
        needed = parameters.max_tokens(self._agent)
        if room < needed:
            raise self._no_room(
                f"takes {answer['count']} of {length} tokens and leaves {room} of the {needed} "
                "that a message may need"
            )

    def _no_room(self, reason: str) -> SettingsError:
        return SettingsError(
            f"agents.{self._agent}: the prompt for the shortest problem, {self._problem.id!r}, "
            f"{reason}; lower max_tokens_per_message, use shorter problems or another model"
        )

    async def _is_read(self, chat: list[dict[str, str]]) -> bool:
        """Return whether the prompt depends on the first message: the problem stands there.

        Some templates leave system messages out without a word.
        """
        other_chat = [{**chat[0], "content": "-"}, *chat[1:]]
        counts = [(await self._tokenize(c)).get("count") for c in (chat, other_chat)]
        return counts[0] is None or counts[0] != counts[1]

    async def _advice(
        self, forms: Sequence[str] = ("alternating", "alternating_no_system", "named")
    ) -> str:
        """Try the chat formats, and return one the model would take."""
        for form in forms:
            chats = self._chats(_with_format(self._session.game, self._agent, form))
            try:
                for chat in chats:
                    await self._tokenize(chat)
                if await self._is_read(chats[0]):
                    return f"with agents.{self._agent}.chat_format: {form} it takes them"
            except _TemplateRefusal:
                continue
        return "no chat_format helps, use another model"

    async def _tokenize(self, chat: list[dict[str, str]]) -> dict[str, Any]:
        """The server's word on the chat; empty if it can't say. Raises _TemplateRefusal."""
        url = self._endpoint.base_url.removesuffix("/v1") + "/tokenize"
        key = self._endpoint.api_key
        try:
            async with self._http.post(
                url,
                json={"model": self._model, "messages": chat},
                headers={"Authorization": f"Bearer {key}"},
                proxy=proxy_for(url),
            ) as response:
                raw, status = await response.read(), response.status
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = redact(f"{type(error).__name__}: {error}", key)
            raise ServerError(f"{url}: no answer ({reason})") from None
        try:
            body = parse_json(raw)
        except ValueError:
            body = None  # a page, as servers that don't know the path have one
        if status == 200 and isinstance(body, dict):
            if self._tool_tokens:
                body["count"] += self._tool_tokens
            return body
        error_body = body.get("error") if isinstance(body, dict) else None
        error_ = error_body if isinstance(error_body, dict) else {}
        message = redact(str(error_["message"]), key) if error_.get("message") else None
        if status == 400:
            raise _TemplateRefusal(message, error_.get("code"))
        if status in (401, 403):
            raise SettingsError(f"{url}: the key is refused (HTTP {status}: {message})")
        # It has no such model, or no such path; some servers have a message for that, too.
        if status == 404 and message and self._is_about_model(error_, message):
            raise SettingsError(f"agents.{self._agent}.model_name: {url}: {message}")
        if status in (404, 405, 501):
            return {}
        if status == 503 and error_.get("code") == "engine_training":
            # It leaves its device to a training of this run; the prompts were checked before.
            return {}
        raise ServerError(f"{url}: HTTP {status}: {message}")

    def _is_about_model(self, error: dict[str, Any], message: str) -> bool:
        about = error.get("param") == "model" or error.get("code") == "model_not_found"
        return about or self._model in message


def sample_conversation(game: Game, agent: str) -> Conversation:
    """Make the turns of an episode with some of `agent`; every message is a placeholder."""
    protocol = game.protocol
    for seed in range(_SEEDS):
        conversation: Conversation = []
        turns: list[Turn] = []
        for round_ in range(protocol.max_message_rounds):
            movers = protocol.movers(round_, seed, turns)
            if agent in movers:
                conversation.append((seed, round_, list(turns)))
            turns += [
                Turn(round_, mover, "-", Move(dict.fromkeys(movers[mover], "-")))
                for mover in protocol.agent_names
                if mover in movers
            ]
        if conversation:
            return conversation
    return []


def _with_format(game: Game, agent: str, form: str) -> Game:
    """The same game with chats of `agent` in another form."""
    agents = dict(game.parameters.agents)
    agents[agent] = agents[agent].model_copy(update={"chat_format": form})
    return Game(game.parameters.model_copy(update={"agents": agents}))
