"""The two tables of rollouts as a batch in memory, and back, without loss.

rollouts_to_nested   tables to a `NestedArrayDict` of batch size (N, T)
nested_to_rollouts   the same tables from it

For callers that think in arrays by round; inside, nip works on the tables. N is the number of
episodes, T the most rounds that the game can have; C channels and A agents stand in the order of
the protocol, K is the most calls that one turn took. Missing strings are None.

    round, seed, y, prover_stance                      (N, T)            int64
    datapoint_id                                       (N, T)            int64
    question, solution                                 (N, T)            string
    message_history, message_agent_id                  (N, T, T, C)      string, int64
    raw_message_history                                (N, T, T, A)      string
    done, terminated, padding                          (N, T)            bool
    (agents, done)                                     (N, T, A)         bool
    (agents, message), (agents, raw_message)           (N, T, A, C), (N, T, A)   string
    (agents, prompt)                                   (N, T, A, 2(TC + 10), 3)  string
    (agents, decision), (agents, continuous_decision)  (N, T, A)         int64, float64
    (agents, retry_count), (agents, token_limit)       (N, T, A, C)      int64, bool
    (next, agents, reward)                             (N, T, A)         float64
    (episode, <column of `episodes`>)                  (N, T)
    (generation, <column of `generations`>)            (N, T, A, K)

The value under a bare key holds before the move of the round: a history has the rounds before
it. Under ``("next", ...)`` the same keys, from round to (agents, done) but for padding, say how it
is after the move. Agents in `message_agent_id` are numbers, -1 is none. A prompt's messages have
role, content and name. In the rows after an episode's end `padding` is true, the state stays as
it was at the end, and nothing is said or paid.

`prover_stance` is the drawn one, else the one that the protocol's provers share, else -1.
`datapoint_id` is a number made from the problem's name, which is ("episode", "problem").
A tree of responses has a row per leaf, and a generation stands in the row of every leaf that it
led to; back in the tables it stands once. Of a part of a tree the first leaf that is there has it.
A missing decision is 2, its continuous value NaN. No agent is paid in a failed episode, which
is neither done nor terminated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, Self

import numpy as np
import pyarrow as pa

from nip_by_hand.agents.history import NO_STANCE, Actions
from nip_by_hand.agents.nested_array_dict import STRING, Array, NestedArrayDict
from nip_core.errors import SettingsError
from nip_core.game.answer_rows import SpokenRow
from nip_core.game.render import Game, InvalidResponse, Situation, parse_columns
from nip_core.hashing import digest
from nip_core.protocols import RoundResult, Turn
from nip_core.rollouts.storage.schema import EPISODES, GENERATIONS
from nip_core.rollouts.storage.table_rows import Episode, read_rows
from nip_core.rollouts.trees import generation_numbers, generations_by_episode, parse_path
from nip_core.tolerance import TOLERANCE

_NOBODY = -1
_DATAPOINT_DIGITS = 15  # 60 bits, so that two problems don't meet and int64 holds them
_PROMPT_FIELDS = ("role", "content", "name")
# The place of a generation in the batch says these.
_PLACE = ("episode", "round", "agent", "attempt")


@dataclass(frozen=True)
class _States:
    """The keys that stand at the top of a batch and below "next", before each of T + 1 rounds."""

    message_history: Array
    message_agent_id: Array
    raw_message_history: Array
    done: Array
    terminated: Array

    @classmethod
    def make_empty(cls, episodes: int, rounds: int, channels: int, agents: int) -> Self:
        """Make the states of episodes before the first message."""
        place = (episodes, rounds + 1)
        return cls(
            message_history=_missing((*place, rounds, channels), STRING),
            message_agent_id=np.full((*place, rounds, channels), _NOBODY),
            raw_message_history=_missing((*place, rounds, agents), STRING),
            done=np.zeros(place, dtype=bool),
            terminated=np.zeros(place, dtype=bool),
        )

    def by_key(self) -> dict[str, Array]:
        """Give the arrays under their keys; they are not copied."""
        return {
            "message_history": self.message_history,
            "message_agent_id": self.message_agent_id,
            "raw_message_history": self.raw_message_history,
            "done": self.done,
            "terminated": self.terminated,
        }


def rollouts_to_nested(
    game: Game, episodes: pa.Table, generations: pa.Table, *, prompts: bool = True
) -> NestedArrayDict:
    """Committed rollouts as a batch of size (N, T), see the module.

    A value that is the same in all rounds of an episode stands once in memory, and before and after
    share it too: those arrays are read-only or overlap, so copy one before changing it.
    Without `prompts`, which are most of the work, ("agents", "prompt") is left out.

    Raises SettingsError if the rollouts were not played with the settings of `game`.
    """
    tables = _Played(game, episodes, generations)
    n, t, a, c = tables.size, tables.rounds, len(tables.agents), len(tables.channels)
    # 1. Begin with nothing said, in the T + 1 states before each round and after the last one.
    states = _States.make_empty(n, t, c, a)
    actions, reward = Actions.make_empty((n, t, a), c), np.zeros((n, t, a))
    # 2. Play each episode again.
    for number, episode in enumerate(tables.episodes):
        _replay(tables, states, actions, reward, number, episode)
    # 3. Before and after a round are the same states, seen from two places.
    batch = NestedArrayDict({}, (n, t))
    _put_problems(batch, tables, episodes)
    for key, state in states.by_key().items():
        batch[key], batch["next", key] = state[:, :-1], state[:, 1:]
    each = np.broadcast_to(states.done[..., None], (n, t + 1, a))
    batch["agents", "done"], batch["next", "agents", "done"] = each[:, :-1], each[:, 1:]
    batch["agents"], batch["next", "agents", "reward"] = actions.by_key(), reward
    batch["generation"] = tables.cells
    if prompts:
        batch["agents", "prompt"] = _prompts(tables)
    return batch


def nested_to_rollouts(game: Game, batch: NestedArrayDict) -> tuple[pa.Table, pa.Table]:
    """Turn a batch of size (N, T) back into its tables of episodes and generations.

    Read from the keys under "episode" and "generation" (and "round"), which say everything.
    Episodes keep their order; generations are in that of
    `nip_core.rollouts.storage.row_tables.build_tables`.
    A part of the episodes gives these episodes, a part of the rounds only their generations.

    Raises ValueError for a batch of another size.
    """
    names = game.protocol.agent_names
    if len(batch.batch_size) != 2 or batch["generation", "key"].shape[2] != len(names):
        raise ValueError(
            f"a batch of size (N, T) with the agents {', '.join(names)} is needed, got one of size "
            f"{batch.batch_size} with keys of shape {batch['generation', 'key'].shape}"
        )
    # 1. Find the places that hold a generation; in a tree one of several holds it first.
    keys = batch["generation", "key"]
    places = np.nonzero(_present(keys))
    once = _once(batch, keys[places], places[0])
    cell = tuple(place[once] for place in places)
    # 2. Make its columns of its place and of the values that are kept there.
    columns: dict[str, list[Any]] = {
        "episode": batch["episode", "key"][cell[:2]].tolist(),
        "round": batch["round"][cell[:2]].tolist(),
        "agent": [names[a] for a in cell[2]],
        "attempt": cell[3].tolist(),
    }
    for field in GENERATIONS:
        if field.name not in _PLACE:
            columns[field.name] = batch["generation", field.name][cell].tolist()
    first = {field.name: batch["episode", field.name][:, 0].tolist() for field in EPISODES}
    return (
        pa.Table.from_pydict(first, schema=EPISODES),
        pa.Table.from_pydict(columns, schema=GENERATIONS),
    )


def _once(batch: NestedArrayDict, keys: Array, rows: Array) -> Array:
    """Mark the generations to take, of those with these keys in these rows of the batch.

    In a tree, that of the first leaf that has it.
    """
    paths = [parse_path(path) for path in batch["episode", "branch_path"][:, 0].tolist()]
    if not any(paths):
        return np.ones(len(keys), dtype=bool)
    first: dict[str, int] = {}
    for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
        if key not in first or paths[row] < paths[first[key]]:
            first[key] = row
    return np.asarray(rows == np.array([first[key] for key in keys.tolist()], dtype=int))


@dataclass(slots=True, kw_only=True)
class _Said(SpokenRow):
    """The parts of a generation that make a turn of an episode."""

    episode: str
    branch_path: str


class _Played:
    """The tables with the values of them that are needed often."""

    def __init__(self, game: Game, episodes: pa.Table, generations: pa.Table):
        protocol = game.protocol
        self.game = game
        self.episodes = [*read_rows(episodes, Episode)]
        self.size = len(self.episodes)
        self.rounds = protocol.max_message_rounds
        self.agents = {name: i for i, name in enumerate(protocol.agent_names)}
        self.channels = {name: i for i, name in enumerate(protocol.channels)}
        self._position = {row.key: n for n, row in enumerate(self.episodes)}
        for row in self.episodes:
            self._check(row)
        self.cells = self._cells(generations)
        self.calls = _present(self.cells["key"]).sum(axis=-1)  # (N, T, A)
        self._rows = generations_by_episode(self.episodes, read_rows(generations, _Said))

    def _check(self, episode: Episode) -> None:
        name = self.game.protocol.name
        if episode.protocol != name:
            _refuse(episode, f"was played by protocol {episode.protocol!r}, not {name!r}")
        if not 0 < episode.rounds <= self.rounds:
            _refuse(episode, f"has {episode.rounds} rounds of at most {self.rounds}")

    @cached_property
    def turns(self) -> list[list[Turn]]:
        """By episode, the valid turns, in the order of play."""
        by_episode = []
        for episode in self.episodes:
            try:
                by_episode.append(self.game.turns(self._rows[episode.key], episode.seed))
            except (InvalidResponse, KeyError) as error:
                _refuse(episode, f"an answer recorded as valid is none ({error})")
        return by_episode

    def _cells(self, generations: pa.Table) -> dict[str, Array]:
        """The columns of `generations` with the shape (N, T, A, K)."""
        keys, episodes, rounds, agents, attempts = (
            generations.column(name).to_pylist() for name in ("key", *_PLACE)
        )
        for key, episode, round_, agent in zip(keys, episodes, rounds, agents, strict=True):
            is_known = episode in self._position and agent in self.agents and round_ < self.rounds
            if not is_known:
                raise SettingsError(
                    f"generation {key}: there is no episode {episode} with a turn of {agent} in "
                    f"round {round_}; give the rollouts with the game that they were played with"
                )
        # A generation stands in the row of every leaf that it led to.
        rows, indices = self._rows_of_cells(generations)
        places = (
            rows,
            np.array(rounds, dtype=int)[indices],
            np.array([self.agents[name] for name in agents], dtype=int)[indices],
            np.array(attempts, dtype=int)[indices],
        )
        shape = (self.size, self.rounds, len(self.agents), max(attempts, default=0) + 1)
        cells: dict[str, Array] = {}
        for field in GENERATIONS:
            if field.name not in _PLACE:
                column = _values(generations.column(field.name), field)
                cells[field.name] = _missing(shape, column.dtype)
                cells[field.name][places] = column[indices]
        if _present(cells["key"]).sum() != len(indices):
            raise SettingsError(
                "two generations stand in the same episode, round, agent and attempt; a batch has "
                "a place for one"
            )
        return cells

    def _rows_of_cells(self, generations: pa.Table) -> tuple[Array, Array]:
        """Map generations to their places in the batch: in a tree, with every leaf that has it."""
        numbers = generation_numbers(self.episodes, generations)
        pairs = [(self._position[key], number) for key, number in numbers]
        both = np.array(pairs, dtype=int).reshape(-1, 2)
        return both[:, 0], both[:, 1]


def _replay(
    tables: _Played,
    states: _States,
    actions: Actions,
    reward: Array,
    n: int,
    episode: Episode,
) -> None:
    """Fill in the episode's places by playing it again, and check it against its record."""
    # 1. Put down messages and decisions with their agents, also in the states after the round.
    turns = tables.turns[n]
    for turn in turns:
        t, a = turn.round, tables.agents[turn.agent]
        actions.raw_message[n, t, a] = turn.text
        states.raw_message_history[n, t + 1 :, t, a] = turn.text
        actions.decision[n, t, a] = turn.move.decision
        if turn.move.value is not None:
            actions.continuous_decision[n, t, a] = turn.move.value
        for channel, message in turn.move.messages.items():
            c = tables.channels[channel]
            actions.message[n, t, a, c] = message
            states.message_history[n, t + 1 :, t, c] = message
            states.message_agent_id[n, t + 1 :, t, c] = a
    # 2. Put down the cost of each answer, and let the protocol judge round after round.
    protocol, seed = tables.game.protocol, episode.seed
    earned = dict.fromkeys(tables.agents, 0.0)
    for t in range(episode.rounds):
        so_far = [turn for turn in turns if turn.round <= t]
        movers = protocol.movers(t, seed, [turn for turn in so_far if turn.round < t])
        for agent, channels in movers.items():
            a, channel_indices = (
                tables.agents[agent],
                [tables.channels[channel] for channel in channels],
            )
            last = max(tables.calls[n, t, a] - 1, 0)
            is_cut = tables.cells["finish_reason"][n, t, a, last] == "length"
            actions.retry_count[n, t, a, channel_indices] = last
            actions.token_limit[n, t, a, channel_indices] = is_cut
        if episode.outcome == "failed":
            continue
        silent = set(movers) - {turn.agent for turn in so_far if turn.round == t}
        stance = episode.prover_stance
        result = tables.game.judge(t, seed, episode.y, stance, so_far, silent)
        for agent, paid in tables.game.charge(result.rewards, so_far, t).items():
            reward[n, t, tables.agents[agent]] = paid
            earned[agent] += paid
        states.done[n, t + 1 :] = result.done
        states.terminated[n, t + 1 :] = result.terminated
    if tables.game.reward_function is not None and episode.outcome != "failed":
        earned = _pay_whole(tables, episode, turns, result, earned)
        reward[n] = 0.0
        reward[n, episode.rounds - 1] = [earned[agent] for agent in tables.agents]
    # 3. The rewards must equal the recorded ones, or the settings are others.
    rewards = episode.rewards
    same = rewards.keys() == earned.keys() and all(
        np.isclose(rewards[agent], earned[agent], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
        for agent in earned
    )
    if not same:
        _refuse(episode, f"recorded the rewards {rewards}, but its moves earn {earned}")


def _pay_whole(
    tables: _Played,
    episode: Episode,
    turns: Sequence[Turn],
    result: RoundResult,
    rewards: Mapping[str, float],
) -> dict[str, float]:
    """Ask the reward function. Raises SettingsError for any error of it, or a wrong value."""
    columns, stance = parse_columns(episode.columns), episode.prover_stance
    situation = Situation(episode.question, episode.solution, stance, episode.seed, columns)
    game, problem = tables.game, episode.problem
    try:
        paid = game.pay(problem, episode.y, situation, turns, episode.rounds, result, rewards)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return dict(paid)


def _put_problems(batch: NestedArrayDict, tables: _Played, episodes: pa.Table) -> None:
    """Put the values that do not change within an episode."""
    shape = batch.batch_size

    def put(key: str, values: Sequence[int]) -> None:
        every_round = np.array(values, dtype=np.int64).reshape(-1, 1)
        batch[key] = batch["next", key] = np.broadcast_to(every_round, shape)

    rounds = np.arange(tables.rounds + 1)
    batch["round"] = np.broadcast_to(rounds[:-1], shape)
    batch["next", "round"] = np.broadcast_to(rounds[1:], shape)
    for field in EPISODES:
        column = _values(episodes.column(field.name), field)
        batch["episode", field.name] = np.broadcast_to(column.reshape(-1, 1), shape)
    put("seed", [episode.seed for episode in tables.episodes])
    put("y", [episode.y for episode in tables.episodes])
    put("datapoint_id", [datapoint_number(episode.problem) for episode in tables.episodes])
    share = tables.game.protocol.shared_stance
    stances = [share(episode.prover_stance) for episode in tables.episodes]
    put("prover_stance", [NO_STANCE if stance is None else stance for stance in stances])
    for key in ("question", "solution"):
        batch[key] = batch["next", key] = batch["episode", key]
    lengths = np.array([episode.rounds for episode in tables.episodes], dtype=int).reshape(-1, 1)
    batch["padding"] = rounds[:-1] >= lengths


def _prompts(tables: _Played) -> Array:
    """Render the chat before each turn of an agent; agents without a model get none."""
    game, rounds = tables.game, tables.rounds
    length = 2 * (rounds * len(tables.channels) + 10)
    shape = (tables.size, rounds, len(tables.agents), length, len(_PROMPT_FIELDS))
    prompts = _missing(shape, STRING)
    for n, episode in enumerate(tables.episodes):
        situation = Situation(
            episode.question, episode.solution, episode.prover_stance, episode.seed
        )
        for t in range(episode.rounds):
            earlier_turns = [turn for turn in tables.turns[n] if turn.round < t]
            for agent in game.protocol.movers(t, episode.seed, earlier_turns):
                if agent not in game.parameters.model_agents:
                    continue
                for i, message in enumerate(game.render(agent, situation, earlier_turns, t)):
                    for f, name in enumerate(_PROMPT_FIELDS):
                        prompts[n, t, tables.agents[agent], i, f] = message.get(name)
    return prompts


def _values(column: pa.ChunkedArray, field: pa.Field) -> Array:
    """A column as an array: strings, numbers, and Python objects where there may be nulls."""
    if pa.types.is_string(field.type):
        return np.array(column.to_pylist(), dtype=STRING)
    if field.nullable or pa.types.is_nested(field.type):
        return np.fromiter(column.to_pylist(), dtype=object, count=len(column))
    return np.asarray(column.to_numpy())


def _missing(shape: tuple[int, ...], kind: Any) -> Array:
    """Nothing, in an array of this type: None where the type has it, else 0."""
    return np.full(shape, None if kind in (STRING, object) else 0, dtype=kind)


def _present(keys: Array) -> Array:
    is_there = [key is not None for key in keys.ravel().tolist()]
    return np.array(is_there, dtype=bool).reshape(keys.shape)


def datapoint_number(problem: str) -> int:
    """Make a number of a problem's id, to stand for it in arrays."""
    return int(digest(problem)[:_DATAPOINT_DIGITS], 16)


def _refuse(episode: Episode, reason: str) -> NoReturn:
    raise SettingsError(
        f"episode {episode.key} {reason}; give the game with the settings that it was played with"
    )
