"""The context of all episodes of a shard: who plays, and where answers are kept."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from nip_core.game.render import Game
from nip_core.parameters.blocks.opponents import split_agents
from nip_core.progress.board import Progress
from nip_core.rollouts.branching import Branch, no_branching
from nip_core.rollouts.client.completions import ChatCompletions
from nip_core.rollouts.failures import Failures
from nip_core.rollouts.model_call import Player
from nip_core.rollouts.plan import EpisodeSpec, OpponentKey
from nip_core.rollouts.storage.table_rows import Appends, CallRecord, LabelRow


@dataclass(frozen=True)
class ShardContext:
    """The things that all episodes of a shard share."""

    game: Game
    players: Mapping[str, Player]
    client: ChatCompletions
    log: Appends  # where finished generations are made durable
    recorded: Mapping[str, CallRecord]  # the answers in the journal, by generation key
    progress: Progress
    failures: Failures | None = None  # None: the shard is the whole split
    places: AbstractAsyncContextManager[Any] | None = None  # of an episode; None: of this shard
    branch: Branch = no_branching
    labels: dict[str, LabelRow] = field(default_factory=dict)  # made in play, by generation key
    opponents: Mapping[tuple[str, OpponentKey], Player] = field(default_factory=dict)
    """By agent and opponent, the player with an earlier model or another run's, see `league`."""

    def player(self, spec: EpisodeSpec, agent: str) -> Player:
        """Find the player of an agent in this episode, with its present model or another one."""
        key = spec.opponent_key
        if key is not None and agent in split_agents(spec.opponent):
            return self.opponents[agent, key]
        return self.players[agent]
