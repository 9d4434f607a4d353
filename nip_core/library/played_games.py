"""Playing a game with the caller's models, as it is and attacked."""

import asyncio
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any

import pyarrow as pa

from nip_core.attacks import Attack
from nip_core.attacks.course import TESTED_EVERY
from nip_core.errors import SettingsError
from nip_core.game.answer_rows import place_of
from nip_core.game.render import ChatMessage, Game, Situation, parse_columns
from nip_core.library.games import PlayableGame
from nip_core.library.model_functions import FunctionCalls, ModelFunction
from nip_core.nearest import did_you_mean
from nip_core.parameters import RandomAgentParameters
from nip_core.parameters.attack_settings import derive_attack, find_way, name_way
from nip_core.parameters.blocks.attack import AttackParameters
from nip_core.parameters.checks import list_scripted
from nip_core.progress.board import Progress
from nip_core.rollouts.acceptance import LIKELIEST
from nip_core.rollouts.client.completions import ChatCompletions, Endpoint
from nip_core.rollouts.engine import play_episodes
from nip_core.rollouts.episode import play_episode
from nip_core.rollouts.message_choice import make_choice_play
from nip_core.rollouts.model_call import RANDOM_MODEL, Player
from nip_core.rollouts.plan import ATTACK, TEST
from nip_core.rollouts.scripted_call import (
    check_script,
    find_attack_script,
    make_scripted_players,
)
from nip_core.rollouts.shard_context import ShardContext
from nip_core.rollouts.storage.row_tables import Tables, build_tables, canonical_digest
from nip_core.rollouts.storage.table_rows import (
    Appends,
    Episode,
    Generation,
    Record,
    read_rows,
)
from nip_core.rollouts.trees import parse_path
from nip_core.scenarios import RULE_MODEL

Models = ModelFunction | Mapping[str, ModelFunction]
"""A function for all agents, or by agent."""


@dataclass(frozen=True)
class RewardedAnswer:
    """A valid answer of an agent, as it was asked for, with the reward of the episode."""

    agent: str
    episode: str
    problem: str
    sample: int
    """Which play of the problem; the plays of one problem are a group to be compared."""
    round: int
    messages: list[ChatMessage]
    text: str
    reward: float
    """Of the whole episode."""
    prompt_token_ids: list[int] | None
    token_ids: list[int] | None
    logprobs: list[float] | None


@dataclass(frozen=True)
class PlayedEpisodes:
    """Episodes in memory, in the tables that a run has on disk (docs/data.md)."""

    game: Game
    tables: Tables

    @property
    def episodes(self) -> pa.Table:
        """A row for each episode: the problem, the end, the rewards."""
        return self.tables.episodes

    @property
    def generations(self) -> pa.Table:
        """A row for each model call, invalid answers included."""
        return self.tables.generations

    @cached_property
    def digest(self) -> str:
        """The digest that `nip play` writes into the manifest of the same episodes."""
        return canonical_digest(self.episodes, self.generations)

    def list_answers(self, agent: str) -> list[RewardedAnswer]:
        """List the valid answers of an agent in the order of play, each with its chat.

        Failed episodes have none. An agent, or an attacker, is trained on these. Raises
        SettingsError for an agent that the protocol does not have.
        """
        if agent not in (names := self.game.protocol.agent_names):
            raise SettingsError(
                f"list_answers: there is no agent {agent!r}{did_you_mean(agent, names)}; there are "
                f"{', '.join(names)}"
            )
        return [*self._list_all(agent)]

    def _list_all(self, agent: str) -> Iterator[RewardedAnswer]:
        rows = [*read_rows(self.generations, Generation)]
        spoken = {key: [*of_key] for key, of_key in groupby(rows, attrgetter("episode"))}
        for episode in read_rows(self.episodes, Episode):
            if episode.outcome != "failed":
                yield from self._list_own(agent, episode, spoken.get(episode.key, []))

    def _list_own(
        self, agent: str, episode: Episode, rows: list[Generation]
    ) -> Iterator[RewardedAnswer]:
        turns, wrong = self.game.turns(rows, episode.seed), self.game.find_mistakes(rows)
        columns = {**parse_columns(episode.columns)}
        situation = Situation(
            episode.question, episode.solution, episode.prover_stance, episode.seed, columns
        )
        for row in rows:
            is_own = row.agent == agent and row.model_asked != RULE_MODEL
            if not is_own or row.invalid_reason is not None:
                continue
            place = place_of(row)
            yield RewardedAnswer(
                agent=agent,
                episode=episode.key,
                problem=episode.problem,
                sample=episode.sample,
                round=row.round,
                messages=self.game.render_at(place, situation, turns, wrong.get(place)),
                text=row.text,
                reward=dict(episode.rewards).get(agent, 0.0),
                prompt_token_ids=row.prompt_token_ids,
                token_ids=row.completion_token_ids,
                logprobs=row.completion_logprobs,
            )


async def play(
    game: PlayableGame,
    models: Models,
    split: str = TEST,
    *,
    iteration: int = 0,
    limit: int | None = None,
    records_tokens: bool = False,
    asks_logprobs: bool = False,
) -> PlayedEpisodes:
    """Play the episodes of a split, the first `limit` of them, many at a time.

    With equal settings and answers `nip play` has the same episodes. With `records_tokens` the
    functions are asked for tokens (`return_token_ids`, at temperature 1, as training needs them),
    with `asks_logprobs` for `logprobs`, from which P(accept) of a verdict is read.

    Raises SettingsError for models that are missing, and StageError where more episodes fail than
    `rollouts.failure_threshold`.
    """
    specs = game.plan(split, iteration)[:limit]
    places = asyncio.Semaphore(game.parameters.rollouts.concurrency)
    client = make_calls(game.game, models, places)
    names = {name: agent.model_name for name, agent in game.parameters.model_agents.items()}
    with_tokens = names if records_tokens else ()
    context = make_context(game.game, names, client, MemoryLog(), with_tokens, asks_logprobs)
    chooses = split == ATTACK and game.parameters.choice is not None
    way = make_choice_play(game.parameters).play if chooses else play_episode
    shard = await play_episodes(specs, context, way)
    order = {(spec.problem.id, spec.sample): i for i, spec in enumerate(specs)}
    shard.episodes.sort(
        key=lambda row: (order[row.problem, row.sample], parse_path(row.branch_path))
    )
    shard.choices.sort(key=lambda row: (order[row.problem, row.sample], row.n))
    tables = build_tables(shard.episodes, shard.generations, shard.timings, shard.choices)
    return PlayedEpisodes(game.game, tables)


def make_attack_game(
    game: PlayableGame, by: str | type[Attack] = "best-of-n", **options: Any
) -> PlayableGame:
    """Make the game in which provers attack the verifier of `game`, as `nip attack` has it.

    They argue for acceptance, and are paid for it. `by` is an attack by name or address, or its
    class; `options` are settings of the block `attack` (docs/settings.md), or of one's own class.
    For an attack by training, its train split has the episodes that provers learn from, and
    `PlayedEpisodes.list_answers` their rewards.

    Raises SettingsError for an attack that can't be made.
    """
    name = by if isinstance(by, str) else (by.name or f"{by.__module__}:{by.__qualname__}")
    find_way(name, "by")
    fields = AttackParameters.model_fields
    block = {key: value for key, value in options.items() if key in fields}
    if own := {key: value for key, value in options.items() if key not in fields}:
        block["options"] = own
    script_name = block.get("script")
    if callable(script_name):
        script_name = f"{script_name.__module__}:{script_name.__qualname__}"
        block["script"] = script_name
    run = game.parameters.run_name
    parameters = derive_attack(
        game.parameters,
        {"iteration": 0, **block, "by": name, "run": run},
        steps=None,
        every=TESTED_EVERY,
        name=f"{run}-{name_way(name, str(script_name or ''))}-0",
    )
    attacking = Game(parameters)
    try:
        script = find_attack_script(attacking)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    attack_game = PlayableGame(attacking, game.problems)
    if script is not None:
        check_script(attacking, script, attack_game.plan(ATTACK), list_scripted(parameters))
    return attack_game


def make_context(
    game: Game,
    models: Mapping[str, str],
    client: ChatCompletions,
    log: Appends,
    records_tokens: Container[str] = (),
    asks_logprobs: bool = False,
) -> ShardContext:
    """Make the context of episodes whose calls `client` answers, at addresses that are agents.

    `models` names the model of each agent for the rows, and `records_tokens` the agents whose
    tokens they keep.
    """
    chooses = game.parameters.choice is not None
    players = make_scripted_players(game)
    players |= {
        name: Player(name, RANDOM_MODEL, None, agent)
        if isinstance(agent, RandomAgentParameters)
        else Player(
            name,
            models[name],
            Endpoint(name, ""),
            agent,
            record_tokens=name in records_tokens,
            record_logprobs=name in records_tokens,
            top_logprobs=LIKELIEST if asks_logprobs and chooses and name == "verifier" else 0,
            record_p_accept=asks_logprobs,
        )
        for name, agent in game.parameters.agents.items()
        if name not in players
    }
    return ShardContext(game, players, client, log, {}, Progress())


def make_calls(
    game: Game,
    models: Models,
    places: asyncio.Semaphore,
    seats: Mapping[str, ModelFunction] = {},
) -> FunctionCalls:
    """Give each agent its function, `seats` first. Raises SettingsError for one that has none."""
    agents = game.parameters.model_agents
    by_agent = models if isinstance(models, Mapping) else dict.fromkeys(agents, models)
    functions = {**by_agent, **seats}
    if lacking := [agent for agent in agents if agent not in functions]:
        raise SettingsError(
            f"models: {', '.join(lacking)} of protocol {game.protocol.name} has no function (got "
            f"{', '.join(functions) or 'none'}); give one for each agent, or one for all"
        )
    return FunctionCalls(functions, places, seats)


class MemoryLog:
    """A journal that keeps nothing, as the rows are returned."""

    async def append(self, record: Record) -> None:
        """Let a record go."""
