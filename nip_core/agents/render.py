"""From the record of an episode to the chat that an agent sees: one pure function.

Prompting and dataset building both call `render`, so what is trained is what was asked.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nip_core.agents.chat_format import format_chat
from nip_core.parameters import HyperParameters
from nip_core.protocols import Move, Protocol, TokenChoice, Turn, make_protocol
from nip_core.protocols.zero_knowledge import EXTRA_AGENTS, ZeroKnowledgeProtocol
from nip_core.scenarios.code_validation.parsing import AnswerForm, parse_response
from nip_core.scenarios.code_validation.prompts import SystemPrompts
from nip_core.scenarios.code_validation.verdicts import InvalidResponse

ChatMessage = dict[str, str]


@dataclass(frozen=True)
class Situation:
    """What an episode is about: the facts of the problem, never its label."""

    question: str
    solution: str
    stance: int | None  # the drawn verdict the provers argue for, if any
    seed: int


class Game:
    """A protocol with the scenario's prompts: everything needed to render and to judge."""

    def __init__(self, parameters: HyperParameters):
        self.parameters = parameters
        self.protocol: Protocol = make_protocol(parameters)
        self.prompts = SystemPrompts(parameters, self.protocol)

    def render(
        self, agent: str, situation: Situation, turns: Sequence[Turn], round_: int
    ) -> list[ChatMessage]:
        """The chat of `agent` when it is asked in `round_`, after `turns` (in round order).

        In each round come first what the agent is told before its turn (that it is its last, or
        the supervisor's message), then its own answer as it was generated, then what the others
        wrote in channels that it sees. A longer history has the chat of a shorter one as its
        beginning. Messages have role and content, those of others also a name; the setting
        `chat_format` decides in which form they leave.
        """
        protocol, seed = self.protocol, situation.seed
        system = self.prompts.render(
            agent, situation.question, situation.solution, situation.stance, seed
        )
        chat: list[ChatMessage] = [{"role": "system", "content": system}]
        own_turns = 0
        for r in range(round_ + 1):
            before = [turn for turn in turns if turn.round < r]
            if agent in protocol.movers(r, seed, before):
                chat += self._told_before_turn(agent, situation, r, own_turns)
                own_turns += 1
            now = [turn for turn in turns if turn.round == r]
            chat += [
                {"role": "assistant", "content": turn.text} for turn in now if turn.agent == agent
            ]
            for channel in protocol.channel_order(agent, r, seed):
                for turn in now:
                    if turn.agent != agent and channel in turn.move.messages:
                        message = {"role": "user", "content": turn.move.messages[channel]}
                        if not protocol.agents[turn.agent].anonymous:
                            message["name"] = protocol.human_name(turn.agent, seed)
                        chat.append(message)
        asked = agent in protocol.movers(round_, seed, turns) and not any(
            turn.agent == agent and turn.round == round_ for turn in turns
        )
        return format_chat(chat, self.parameters.model_agents[agent].chat_format, asked=asked)

    def _told_before_turn(
        self, agent: str, situation: Situation, round_: int, own_turns: int
    ) -> list[ChatMessage]:
        settings, seed = self.parameters.model_agents[agent], situation.seed
        due = {
            "none": False,
            "all": True,
            "first": own_turns == 0,
            "all_but_first": own_turns > 0,
        }[settings.use_supervisor_message]
        if due:
            content = self.prompts.supervisor_message(agent, round_, seed, situation.stance)
            return [{"role": "user", "content": content, "name": settings.supervisor_name}]
        last = self.protocol.is_last_turn(agent, round_, seed)
        if last and self.protocol.agents[agent].last_round_message:
            return [{"role": "system", "content": self.prompts.last_round_message}]
        return []

    def form(self, agent: str, round_: int, seed: int, turns: Sequence[Turn]) -> AnswerForm:
        """What form the answer of `agent` in `round_` must have, after `turns`."""
        protocol = self.protocol
        channels = protocol.movers(round_, seed, turns)[agent]
        return AnswerForm(
            channels=channels,
            headers=protocol.headers(agent, channels, seed),
            scale=protocol.scale if protocol.may_decide(agent) else None,
            has_reasoning=self.parameters.code_validation.system_prompt_version == "v2",
        )

    def top_logprobs(self, agent: str) -> int:
        """For how many of the likeliest tokens the agent's calls ask; 0 where nobody needs them."""
        protocol = self.protocol
        compared = isinstance(protocol, ZeroKnowledgeProtocol) and protocol.by_tokens
        if compared and agent in EXTRA_AGENTS:
            return self.parameters.zk_protocol.top_logprobs
        return 0

    def parse(self, agent: str, round_: int, seed: int, text: str, turns: Sequence[Turn]) -> Move:
        """The move in `text`, after `turns`. Raises InvalidResponse."""
        return parse_response(text, self.form(agent, round_, seed, turns))

    def turns(self, generations: Iterable[dict[str, Any]], seed: int) -> list[Turn]:
        """The turns in an episode's generation rows; invalid answers are no turns."""
        order = {name: i for i, name in enumerate(self.protocol.agent_names)}
        rows = [row for row in generations if row["invalid_reason"] is None]
        rows.sort(key=lambda row: (row["round"], order[row["agent"]]))
        turns: list[Turn] = []
        for row in rows:
            before = [turn for turn in turns if turn.round < row["round"]]
            move = self.parse(row["agent"], row["round"], seed, row["text"], before)
            tokens = tokens_of(row.get("token_logprobs"))
            turns.append(Turn(row["round"], row["agent"], row["text"], move, tokens))
        return turns


def tokens_of(recorded: Sequence[dict[str, Any]] | None) -> tuple[TokenChoice, ...] | None:
    """The column `token_logprobs` of a generation, as turns have it."""
    if recorded is None:
        return None
    return tuple(
        TokenChoice(
            entry["token"],
            entry["logprob"],
            {other["token"]: other["logprob"] for other in entry["top"]},
        )
        for entry in recorded
    )


__all__ = ["ChatMessage", "Game", "InvalidResponse", "Situation", "Turn", "tokens_of"]
