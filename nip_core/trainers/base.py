"""The data of all trainers: rollouts, and the examples chosen from them.

Rollouts      committed rollouts that can be read again and again, whole or shard by shard
OfProblems    the rollouts of some problems only
Example       a conversation to imitate (method ``supervised``)
Pair          a better and a worse answer to one prompt (``dpo``)
Trajectory    an agent's tokens in an episode, with its advantage (``trajectories``)
InParts       examples that can be made part by part, each in another process
Choice        the choice of a trainer: examples in the order of play, and counts
Chooser       the function that every trainer is

A trainer is a pure function. It reads small columns of all rollouts to choose examples, and
then the texts of one shard at a time to write it down, so that memory does not grow with their
number. Which examples it chooses does not depend on the order of the rows, nor on the run's name.
Every example names the episode and the generations it came from, and why it was chosen.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from nip_core.game.render import ChatMessage, Game
from nip_core.parameters import Method
from nip_core.rollouts.storage.row_tables import RolloutTables


class Rollouts(Protocol):
    """Committed training rollouts, in the order of play (see `rollouts.storage.schema`)."""

    def episodes(self, columns: Sequence[str]) -> pa.Table:
        """Read these columns of all episodes."""

    def generations(self, columns: Sequence[str]) -> pa.Table:
        """Read these columns of all generations."""

    def shards(self) -> Iterator[RolloutTables]:
        """Yield everything, one shard in memory at a time.

        An episode and its generations, and all branches of a tree, are in one shard.
        """

    def parts(self) -> Sequence["Rollouts"]:
        """Give each shard as rollouts of its own, in order; they are picklable."""


class OfProblems:
    """The part of some rollouts with certain problems alone."""

    def __init__(self, rollouts: Rollouts, problems: Collection[str]):
        self._rollouts, self._problems = rollouts, pa.array(sorted(problems), pa.string())

    def episodes(self, columns: Sequence[str]) -> pa.Table:
        """See `Rollouts`."""
        return self._keep_admitted(self._rollouts.episodes(_add_column(columns, "problem"))).select(
            columns
        )

    def generations(self, columns: Sequence[str]) -> pa.Table:
        """See `Rollouts`."""
        table = self._rollouts.generations(_add_column(columns, "episode"))
        return _keep_of_episodes(table, self.episodes(["key"])).select(columns)

    def shards(self) -> Iterator[RolloutTables]:
        """See `Rollouts`."""
        for shard in self._rollouts.shards():
            episodes = self._keep_admitted(shard.episodes)
            yield RolloutTables(episodes, _keep_of_episodes(shard.generations, episodes))

    def parts(self) -> "list[OfProblems]":
        """See `Rollouts`."""
        problems = self._problems.to_pylist()
        return [OfProblems(part, problems) for part in self._rollouts.parts()]

    def _keep_admitted(self, episodes: pa.Table) -> pa.Table:
        return episodes.filter(pc.is_in(episodes["problem"], value_set=self._problems))


def _keep_of_episodes(generations: pa.Table, episodes: pa.Table) -> pa.Table:
    return generations.filter(pc.is_in(generations["episode"], value_set=episodes["key"]))


def _add_column(columns: Sequence[str], column: str) -> list[str]:
    return [*columns] if column in columns else [*columns, column]


@dataclass(frozen=True, kw_only=True)
class _Lineage:
    """Where an example comes from."""

    key: str
    agent: str
    episode: str  # its key; of a pair, of an episode with the better answer
    generations: tuple[str, ...]  # keys of the agent's generations that are learned, in order
    iteration: int  # of the rollout
    problem: str
    question_id: str  # equal for all variants of one question
    y: int
    reward: float  # of the agent; of a pair, the expected one after the better answer
    reason: str
    tokens: int | None  # about as many as training reads in it; None: not reported


@dataclass(frozen=True, kw_only=True)
class Example(_Lineage):
    """One training conversation. Its assistant messages are learned, unless `weights` differ."""

    messages: tuple[ChatMessage, ...]
    reasoning: tuple[str | None, ...] | None = None
    """By message, its author's thoughts before it; None: no thoughts are trained."""
    weights: tuple[int | None, ...] | None = None
    """By message, 1 if it is learned, 0 if not, None if another agent wrote it; None: all of the
    agent's own are learned."""


@dataclass(frozen=True, kw_only=True)
class Pair(_Lineage):
    """Two answers of an agent to one prompt; `generations` are the better and the worse one."""

    messages: tuple[ChatMessage, ...]  # the prompt
    chosen: str
    rejected: str
    rejected_reward: float  # the expected one after the worse answer
    chosen_reasoning: str | None = None  # the thoughts before it, to be trained on too
    rejected_reasoning: str | None = None


@dataclass(frozen=True, kw_only=True)
class TokenTurn:
    """One generation of an agent in tokens, as the engine reported it."""

    prompt_token_ids: Sequence[int]
    completion_token_ids: Sequence[int]  # stop token included
    logprobs: Sequence[float] | None  # one per token of the completion, natural logarithms


@dataclass(frozen=True, kw_only=True)
class Trajectory(_Lineage):
    """An agent's tokens in an episode, and how much better than expected it went."""

    turns: tuple[TokenTurn, ...]
    group_id: str  # equal for episodes that are compared with each other
    advantage: float


AnyExample = Example | Pair | Trajectory


@dataclass(frozen=True)
class InParts:
    """Examples made part by part. `make` and the parts are picklable."""

    make: Callable[[Any], Iterable[AnyExample]]
    parts: Sequence[Any]
    """In the order of play; each holds what `make` needs."""
    size: int
    """About how many examples there are."""

    def __iter__(self) -> Iterator[AnyExample]:
        for part in self.parts:
            yield from self.make(part)


@dataclass
class Choice:
    """The choice of a trainer. `counts` is complete when `examples` is exhausted."""

    method: Method
    examples: Iterable[AnyExample]
    """In the order of play. They can be gone through once."""
    counts: dict[str, int] = field(default_factory=dict)
    """Counts for people and the record: ``candidates`` (sides of episodes, trees or
    groups, by trainer), and the number left out, by reason."""
    has_reasoning: bool = False
    """Whether examples have thoughts to be trained on."""
    has_weights: bool = False
    """Whether examples may have answers that are not learned."""


class Chooser(Protocol):
    """A trainer. `agents` are the group's trained agents in `iteration`.

    Raises StageError for rollouts that this version of nip reads otherwise than the one that
    played them.
    """

    def __call__(
        self, game: Game, group: str, iteration: int, rollouts: Rollouts, agents: Sequence[str]
    ) -> Choice: ...
