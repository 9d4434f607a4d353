"""The record of an episode in a log, beside the calls: messages with their agents, and decisions.

moves_of       what the valid answers of an episode were taken for
Remark         a line of the transcript, in a span of its channel where it is a message
remarks        those of one generation
conversation   an episode as messages, for reading; output_of, its last answer
explanation    the reason of the verdict: the deciding answer, and the last of each other agent
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inspect_ai.model import ChatMessage, ChatMessageAssistant, ModelOutput

from nip_core.evaluation.episode_transcripts import DECISION_WORDS
from nip_core.game.answer_rows import AnswerPlace, place_of, place_of_move
from nip_core.game.render import Game
from nip_core.protocols import NO_DECISION, Move
from nip_core.rollouts.storage.table_rows import Generation

Moves = Mapping[AnswerPlace, Move]
"""By the exchange that has the move."""


@dataclass(frozen=True)
class Remark:
    """The outcome of an answer."""

    source: str
    data: dict[str, Any]
    channel: str | None = None  # None: it is no message


def moves_of(game: Game, seed: int, rows: Sequence[Generation]) -> Moves:
    """Read the moves in generations of an episode. Raises InvalidResponse for an answer of another
    version of nip with another reading.
    """
    return {place_of_move(turn): turn.move for turn in game.turns(rows, seed)}


def remarks(game: Game | None, row: Generation, moves: Moves) -> list[Remark]:
    """Tell the outcome of a generation: messages by channel, a decision, or why it is invalid.

    Without a game there are no channels.
    """
    agent = row.agent
    source = f"{agent}, round {row.round}"
    if row.invalid_reason is not None:
        return [Remark(source, {"invalid answer": row.invalid_reason, "attempt": row.attempt})]
    if row.decision != NO_DECISION:
        value = row.decision_value
        more = {} if value is None or abs(value) in (0, 1) else {"value": value}
        return [Remark(source, {"decision": DECISION_WORDS[row.decision], **more})]
    if row.tool_result is not None:
        return [Remark(source, {"called a tool": row.tool_result})]
    move = moves.get(place_of(row).first, Move())
    return [
        Remark(source, {"read by": readers(game, agent, channel), "message": message}, channel)
        for channel, message in move.messages.items()
    ]


def readers(game: Game | None, agent: str, channel: str) -> list[str]:
    """List the channel's readers among the other agents."""
    if game is None:
        return []
    protocol = game.protocol
    return [
        reader
        for reader in protocol.agent_names
        if reader != agent and channel in protocol.visible_channels(reader)
    ]


def conversation(game: Game | None, rows: Sequence[Generation], moves: Moves) -> list[ChatMessage]:
    """The valid answers of an episode as messages, each with who spoke above it."""
    messages: list[ChatMessage] = []
    for row in rows:
        if row.invalid_reason is not None:
            continue
        came_of_it = remarks(game, row, moves)
        channels = [remark.channel for remark in came_of_it if remark.channel is not None]
        notes = [f"round {row.round}", *(_note(game, row.agent, c) for c in channels)]
        if row.decision != NO_DECISION:
            notes.append(f"decides: {DECISION_WORDS[row.decision]}")
        messages.append(
            ChatMessageAssistant(
                id=row.key,
                content=f"**{row.agent}** ({', '.join(notes)})\n\n{row.text}",
                model=row.model_served,
            )
        )
    return messages


def output_of(rows: Sequence[Generation]) -> ModelOutput:
    """Give the last answer of an episode as its output."""
    if not rows:
        return ModelOutput.from_content("", "")
    return ModelOutput.from_content(rows[-1].model_served, rows[-1].text)


def explanation(verdict: str, rows: Sequence[Generation]) -> str:
    """Explain a verdict by the answer that decided, and by the last of each other agent."""
    last = {row.agent: row for row in rows if row.invalid_reason is None}
    decided = [row for row in last.values() if row.decision != NO_DECISION][-1:]
    parts = [verdict]
    for row in sorted(last.values(), key=lambda row: row not in decided):
        role = f"decides: {DECISION_WORDS[row.decision]}" if row in decided else "last message"
        parts.append(f"**{row.agent}** (round {row.round}, {role})\n\n{row.text}")
    return "\n\n".join(parts)


def _note(game: Game | None, agent: str, channel: str) -> str:
    return f"{channel}, read by {' and '.join(readers(game, agent, channel)) or 'nobody'}"
