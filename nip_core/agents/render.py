"""From the record of an episode to the chat that an agent sees: one pure function.

Prompting and dataset building both call `render`, so what is trained is what was asked.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nip_core.parameters import HyperParameters
from nip_core.protocols import Move, Protocol, make_protocol
from nip_core.scenarios.code_validation.parsing import InvalidResponse, parse_response
from nip_core.scenarios.code_validation.prompts import SystemPrompts

ChatMessage = dict[str, str]


@dataclass(frozen=True)
class Turn:
    """What one agent wrote in one round, as the model gave it and as the game took it."""

    round: int
    agent: str
    text: str
    move: Move


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

        Messages have role and content, those of others also a name. In each round come first
        the last-round message (if it is due), then the agent's own answer as it was generated,
        then what the others wrote in channels that it sees.
        """
        protocol = self.protocol
        system = self.prompts.render(
            agent, situation.question, situation.solution, situation.stance
        )
        chat: list[ChatMessage] = [{"role": "system", "content": system}]
        visible = protocol.visible_channels(agent)
        must_decide = (
            protocol.last_round_message
            and not protocol.is_prover(agent)
            and agent in protocol.active(protocol.max_message_rounds - 1, situation.seed)
        )
        for r in range(round_ + 1):
            if must_decide and protocol.is_last_round(r):
                chat.append({"role": "system", "content": self.prompts.last_round_message})
            now = [turn for turn in turns if turn.round == r]
            chat += [
                {"role": "assistant", "content": turn.text} for turn in now if turn.agent == agent
            ]
            for channel in visible:
                for turn in now:
                    if turn.agent != agent and channel in turn.move.messages:
                        message = {"role": "user", "content": turn.move.messages[channel]}
                        spec = protocol.agents[turn.agent]
                        if not spec.anonymous:
                            message["name"] = spec.human_name
                        chat.append(message)
        return chat

    def parse(self, agent: str, round_: int, seed: int, text: str) -> Move:
        """The move in `text`. Raises InvalidResponse."""
        channels = self.protocol.active(round_, seed)[agent]
        return parse_response(text, channels, may_decide=not self.protocol.is_prover(agent))

    def turns(self, generations: Iterable[dict[str, Any]], seed: int) -> list[Turn]:
        """The turns in an episode's generation rows; invalid answers are no turns."""
        order = {name: i for i, name in enumerate(self.protocol.agent_names)}
        rows = [row for row in generations if row["invalid_reason"] is None]
        rows.sort(key=lambda row: (row["round"], order[row["agent"]]))
        return [
            Turn(
                row["round"],
                row["agent"],
                row["text"],
                self.parse(row["agent"], row["round"], seed, row["text"]),
            )
            for row in rows
        ]


__all__ = ["ChatMessage", "Game", "InvalidResponse", "Situation", "Turn"]
