"""Rollouts as trainers look at them: small columns of everything, then episodes one by one."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nip_core.errors import StageError
from nip_core.game.answer_rows import SpokenRow, place_of
from nip_core.game.answers.reasons import Kind
from nip_core.game.render import (
    Game,
    InvalidResponse,
    Situation,
    Turn,
    parse_columns,
)
from nip_core.hashing import derive_key
from nip_core.parameters.blocks.opponents import split_agents
from nip_core.rollouts.storage.schema import EPISODES
from nip_core.rollouts.storage.table_rows import read_rows, row_columns
from nip_core.rollouts.trees import TREE_COLUMNS, for_each_episode
from nip_core.scenarios import RULE_MODEL
from nip_core.trainers.base import Rollouts

_PLACE = ("split", "iteration", "problem", "sample", "branch_path")
_FACTS = ("key", "run", *_PLACE, "y", "decision", "outcome", "rewards", "opponent")
_OF_EPISODES = (
    *("key", "iteration", "problem", "question_id", "y", "rounds"),
    *("question", "solution", "columns", "prover_stance", "seed"),
)

_OF_TREES = ("key", "branch_path", *TREE_COLUMNS)


@dataclass(slots=True, kw_only=True)
class PlayedAnswer(SpokenRow):
    """A valid generation. All fields but the last are columns."""

    episode: str
    key: str
    prompt_tokens: int
    completion_tokens: int
    reasoning: str | None = None  # None also where thoughts were not read
    wrong: Kind | None = None
    """The fault of the answer before, as the hint said; None: there was no hint, or hints
    were not read."""

    @property
    def tokens(self) -> int | None:
        """Count prompt and answer; None: not reported."""
        is_known = self.prompt_tokens > 0 and self.completion_tokens > 0
        return self.prompt_tokens + self.completion_tokens if is_known else None


class _Tried(NamedTuple):
    """An invalid generation; the fields are columns."""

    round: int
    agent: str
    exchange: int
    attempt: int
    text: str
    finish_reason: str
    invalid_reason: str


class Sides:
    """All episodes from the sides of some agents. Arrays have one entry per episode."""

    def __init__(self, rollouts: Rollouts, agents: Sequence[str]):
        self.parts = rollouts.parts()
        tables = [part.episodes(_FACTS) for part in self.parts]
        self.sizes = [table.num_rows for table in tables]  # by part, how many episodes it has
        episodes = pa.concat_tables([EPISODES.empty_table().select(_FACTS), *tables])
        self._places = episodes.select(_PLACE)
        self.keys: list[str] = episodes["key"].to_pylist()
        self.y = _make_array(episodes["y"])
        self.decision = _make_array(episodes["decision"])
        self.failed = _make_array(pc.equal(episodes["outcome"], "failed"))
        self.rewards = {a: _read_rewards(episodes["rewards"], a) for a in agents}
        # By agent, where another model played for it: that model's messages are not its own.
        opponents = pc.unique(episodes["opponent"]).to_pylist()
        kinds = {
            a: [opponent for opponent in opponents if a in split_agents(opponent)] for a in agents
        }
        self.was_opponent = {
            a: _make_array(
                pc.is_in(episodes["opponent"], value_set=pa.array(opponent, pa.string()))
            )
            for a, opponent in kinds.items()
        }
        # Shard by shard, as an iteration may have many millions of generations.
        columns = ("episode", "branch_path", "agent", "invalid_reason", "model_asked")
        spoke: dict[str, list[pa.Array]] = {agent: [] for agent in agents}
        by_rule: dict[str, list[pa.Array]] = {agent: [] for agent in agents}
        for part, table in zip(self.parts, tables, strict=True):
            valid = for_each_episode(table, part.generations(columns))
            valid = valid.filter(pc.is_null(valid["invalid_reason"]))
            for agent in agents:
                spoken = valid.filter(pc.equal(valid["agent"], agent))
                ruled = spoken.filter(pc.equal(spoken["model_asked"], RULE_MODEL))
                for found, rows in ((spoke, spoken), (by_rule, ruled)):
                    found[agent] += pc.is_in(table["key"], value_set=rows["episode"]).chunks
        self.spoke, self.by_rule = (
            {agent: _make_array(pa.chunked_array(found[agent], pa.bool_())) for agent in agents}
            for found in (spoke, by_rule)
        )

    @cached_property
    def places(self) -> list[str]:
        """Make by episode a hash of its place in the plan, without the run's name."""
        columns = [column.to_pylist() for column in self._places.columns]
        return [derive_key(*place) for place in zip(*columns, strict=True)]


@dataclass(slots=True)
class PlayedEpisode:
    """A played episode."""

    key: str
    iteration: int
    problem: str
    question_id: str
    y: int
    rounds: int
    situation: Situation
    turns: Sequence[Turn]
    answers: Sequence[PlayedAnswer]

    def list_answers(self, agent: str) -> list[PlayedAnswer]:
        """List the agent's answers, in order."""
        answers = [answer for answer in self.answers if answer.agent == agent]
        return sorted(answers, key=attrgetter("round", "exchange", "key"))


def read_played(
    game: Game,
    part: Rollouts,
    keys: Collection[str],
    *,
    thoughts: bool = False,
    hints: bool = False,
) -> Iterator[PlayedEpisode]:
    """Read the episodes with these keys in one of the `Sides.parts`, in the order of play.

    The agents' `thoughts` and the `hints` that they were given are read if they are asked for.
    Raises StageError for an answer that this version of nip reads otherwise.
    """
    if not keys:
        return
    episodes = part.episodes(_OF_EPISODES)
    episode_keys = episodes["key"].to_pylist()
    indices = [i for i, key in enumerate(episode_keys) if key in keys]
    unread = {"wrong", "token_logprobs", *(() if thoughts else ("reasoning",))}
    fields = [name for name in row_columns(PlayedAnswer) if name not in unread]
    of_hints = ("finish_reason",) if hints else ()
    generations = part.generations((*fields, *of_hints, "branch_path"))
    generations = for_each_episode(part.episodes(_OF_TREES), generations)
    valid = pc.is_null(generations["invalid_reason"])
    if len(indices) < len(episode_keys):
        episodes = episodes.take(indices)
        valid = pc.and_(valid, pc.is_in(generations["episode"], value_set=episodes["key"]))
    by_episode: dict[str, list[PlayedAnswer]] = defaultdict(list)
    for answer in read_rows(generations.filter(valid), PlayedAnswer):
        by_episode[answer.episode].append(answer)
    if hints:
        _add_hints(game, generations, by_episode)
    for row in _iterate_rows(episodes):
        key, iteration, problem, question_id, y, rounds, *facts = row
        question, solution, columns, stance, seed = facts
        answers = by_episode[key]
        try:
            turns = game.turns(answers, seed)
        except InvalidResponse as invalid:
            raise StageError(
                f"episode {key}: an answer that counted as valid when it was played is not "
                f"({invalid.reason}); another version of nip has played it: train with that one"
            ) from None
        situation = Situation(question, solution, stance, seed, parse_columns(columns))
        yield PlayedEpisode(
            key, iteration, problem, question_id, y, rounds, situation, turns, answers
        )


def _add_hints(
    game: Game, generations: pa.Table, by_episode: Mapping[str, list[PlayedAnswer]]
) -> None:
    """Add to each answer what was wrong with the one before it, as its agent was told."""
    invalid = generations.filter(pc.is_valid(generations["invalid_reason"]))
    tried: dict[str, list[_Tried]] = defaultdict(list)
    for episode, *facts in _iterate_rows(invalid.select(("episode", *_Tried._fields))):
        if episode in by_episode:
            tried[episode].append(_Tried(*facts))
    for episode, rows in tried.items():
        mistakes, answers = game.find_mistakes(rows), by_episode[episode]
        for answer in answers:
            answer.wrong = mistakes.get(place_of(answer))


def _iterate_rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Yield the rows, made column by column: much faster than `to_pylist`."""
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def _make_array(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    numbers: np.ndarray[Any, Any] = column.to_numpy()
    return numbers


def _read_rewards(rewards: pa.ChunkedArray, agent: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Read the agent's reward in each episode; NaN where it is not there."""
    earned = np.full(len(rewards), np.nan)
    start = 0
    for chunk in rewards.chunks:
        entries = chunk.flatten()
        is_agent = pc.equal(entries.field("agent"), agent)
        parents = pc.list_parent_indices(chunk).filter(is_agent).to_numpy(zero_copy_only=False)
        values = entries.field("reward").filter(is_agent).to_numpy(zero_copy_only=False)
        earned[start + parents] = values
        start += len(chunk)
    return earned
