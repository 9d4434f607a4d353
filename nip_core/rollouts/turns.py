"""Turns and episodes as they are played, with the calls of each."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from nip_core.game.answer_rows import make_exchange
from nip_core.protocols import Exchange, Move, Turn
from nip_core.rollouts.storage.table_rows import CallRecord, Episode, MessageChoice


@dataclass(frozen=True)
class PlayedExchange:
    """An exchange, and its calls."""

    records: Sequence[CallRecord]
    """Invalid answers first; where there is a `move`, the last one is the accepted answer."""
    move: Move | None = None
    """Of the accepted answer; None: there is none."""
    problem: str = ""
    """Why there is none."""
    is_invalid: bool = False
    """Whether each call was answered, if not in a valid form."""

    @property
    def answer(self) -> Exchange:
        """The accepted answer, as agents and protocols see it."""
        return make_exchange(self.records[-1].generation)


@dataclass(frozen=True)
class PlayedTurn:
    """The exchanges of an agent in a round, in order: at least one."""

    round: int
    agent: str
    exchanges: Sequence[PlayedExchange]

    @property
    def records(self) -> list[CallRecord]:
        """List the calls of all exchanges."""
        return [record for exchange in self.exchanges for record in exchange.records]

    @property
    def end(self) -> PlayedExchange:
        """The last exchange, which has the agent's move, or the reason why it has none."""
        return self.exchanges[-1]

    @property
    def turn(self) -> Turn | None:
        """The turn as protocols see it; None where its last exchange has no accepted answer."""
        if self.end.move is None:
            return None
        *earlier, last = [exchange.answer for exchange in self.exchanges]
        return Turn(self.round, self.agent, last.text, self.end.move, last.tokens, tuple(earlier))


@dataclass(frozen=True)
class Played:
    """The episodes from a state on, and their calls."""

    episodes: list[Episode]
    """One for each leaf, in the order of their branch paths."""
    records: list[CallRecord]
    """One for each call."""
    choices: list[MessageChoice] = field(default_factory=list)
    """Of an attack, see `message_choice`."""


def assign_episode(record: CallRecord, episode: str) -> CallRecord:
    """Write the episode of a generation into its record; a node can't know it."""
    generation = record.generation
    if generation.episode == episode:
        return record
    return replace(record, generation=replace(generation, episode=episode))
