"""Who speaks when, and who reads it, of one episode, as a table: messages by agents.

lay_out_timeline  the table of a page
lay_out_messages  the same of messages
Timeline          its rows; None for a game of two agents in one channel, whose dialogue says it all
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from nip_core.evaluation.episode_transcripts import DECISION_WORDS, Message
from nip_core.game.render import Game
from nip_core.protocols import NO_DECISION, Protocol
from nip_view.episode_page import EpisodePage

_FEW_AGENTS = 2


@dataclass(frozen=True)
class TimelineCell:
    """An agent's part in a message."""

    kind: Literal["speaks", "reads", "unseen"]
    words: str


@dataclass(frozen=True)
class TimelineRow:
    """A message, valid or not."""

    number: int
    """Its place in the dialogue, from 0 on."""
    cells: tuple[TimelineCell, ...]
    """By agent of the timeline."""


@dataclass(frozen=True)
class Timeline:
    """All messages of an episode."""

    agents: tuple[str, ...]
    rounds: tuple[tuple[int, tuple[TimelineRow, ...]], ...]
    """The messages of each round."""
    count: int


def lay_out_timeline(page: EpisodePage, game: Game | None) -> Timeline | None:
    """Lay out an episode; None where it can't be told who reads what, or there is no need."""
    if game is None or game.protocol.name != page.row.protocol:
        return None
    return lay_out_messages([turn.message for turn in page.turns], game.protocol)


def lay_out_messages(messages: Sequence[Message], protocol: Protocol) -> Timeline | None:
    """Lay out the messages of an episode of this protocol; None where there is no need."""
    few = len(protocol.channels) == 1 and len(protocol.agent_names) <= _FEW_AGENTS
    if few or not messages:
        return None
    rows = [
        (message.round, TimelineRow(number, _lay_out_cells(message, protocol)))
        for number, message in enumerate(messages)
    ]
    rounds = [
        (round_, tuple(row for _, row in turns)) for round_, turns in groupby(rows, _get_round)
    ]
    return Timeline(protocol.agent_names, tuple(rounds), len(rows))


def _get_round(row: tuple[int, TimelineRow]) -> int:
    return row[0]


def _lay_out_cells(message: Message, protocol: Protocol) -> tuple[TimelineCell, ...]:
    return tuple(
        TimelineCell("speaks", _describe_turn(message, len(protocol.channels)))
        if agent == message.agent
        else _describe_reader(message.channels, protocol.visible_channels(agent))
        for agent in protocol.agent_names
    )


def _describe_turn(message: Message, channels: int) -> str:
    if message.invalid_reason is not None:
        return f"invalid answer {message.attempt + 1}"
    if message.tool_result is not None:
        return "calls a tool"
    if message.decision != NO_DECISION:
        return f"decides: {DECISION_WORDS[message.decision]}"
    if 1 < len(message.channels) == channels:
        return "to all channels"
    return f"to {', '.join(message.channels)}" if message.channels else "speaks"


def _describe_reader(channels: Sequence[str], visible: Sequence[str]) -> TimelineCell:
    """Name the ones of these channels that an agent reads."""
    channels_read = [channel for channel in channels if channel in visible]
    if not channels_read:
        return TimelineCell("unseen", "does not see it")
    whole = len(channels_read) == len(channels)
    return TimelineCell("reads", "reads" if whole else f"reads {', '.join(channels_read)}")
