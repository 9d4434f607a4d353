"""Policy gradient: the tokens of an agent, and how much better than others its episode went.

An episode is compared with the others of its group: episodes of one problem, of one iteration, by
one agent (GRPO: Shao et al., 2024). With ``baseline: role`` it is compared with all episodes of the
iteration that the agent played with the same stance (Liu et al., "SPIRAL", 2025): where agents
share a model, each role has an own mean reward, which says nothing about the play in it.
Dividing by the standard deviation is a setting and off, because it gives more weight to problems
that are nearly always or never solved (Liu et al., "Understanding R1-Zero-Like Training", 2025).
``advantage_shift`` lowers the baseline: a batch is trained on for many steps, so most of them are
off-policy, and there a baseline below the mean keeps an improvement that one above it loses (Arnal
et al., "Asymmetric REINFORCE for off-Policy Reinforcement Learning", 2025).

Not trained: failed episodes, sides that an earlier model played, answers in an invalid form
(the one that was asked for instead is), and episodes that taught nothing because all of a group
paid the same. The loss is the server's, see `nip_lm_server.training.methods.policy_gradient`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nip_base.formats.advantages import group_advantages
from nip_core.errors import StageError
from nip_core.game.render import Game
from nip_core.hashing import derive_key
from nip_core.parameters import HyperParameters, PureTextGrpoParameters
from nip_core.parameters.blocks.opponents import split_agents
from nip_core.rollouts.plan import group_size
from nip_core.rollouts.storage.row_tables import RolloutTables
from nip_core.rollouts.storage.table_rows import read_rows
from nip_core.scenarios import RULE_MODEL
from nip_core.trainers.base import Choice, Rollouts, TokenTurn, Trajectory


class _ComparedEpisode(NamedTuple):
    """The parts of an episode that advantages are made of; the fields are columns."""

    key: str
    split: str
    iteration: int
    problem: str
    question_id: str
    sample: int
    y: int
    prover_stance: int | None
    outcome: str
    rewards: Mapping[str, float]
    opponent: str | None


class _SpokenAnswer(NamedTuple):
    """The exchange of a generation in its episode, and whether it is valid."""

    episode: str
    agent: str
    round: int
    exchange: int
    invalid_reason: str | None


class _TokenRow(NamedTuple):
    """The tokens of a generation."""

    key: str
    prompt_token_ids: list[int] | None
    completion_token_ids: list[int] | None
    completion_logprobs: list[float] | None


@dataclass(frozen=True)
class _Side:
    """An episode as one agent played it."""

    episode: _ComparedEpisode
    agent: str
    reward: float


@dataclass(frozen=True)
class _TrainedSide:
    """A side to be trained."""

    side: _Side
    group_id: str
    advantage: float


def choose_trajectories(
    game: Game, group: str, iteration: int, rollouts: Rollouts, agents: Sequence[str]
) -> Choice:
    """Choose one trajectory for each episode and agent of `agents`, with its turns in order.

    The counts are of ``candidates`` (groups, for each agent), and of sides left out:
    ``failed_episodes``; ``not_acted``, sides of agents that had no turn; ``earlier_model``, those
    that played with one; ``by_rule``, those with a verdict of a rule; ``small_groups`` with nothing
    to compare; ``zero_variance_groups`` and the ``zero_variance_episodes`` in them. Raises
    StageError, when the examples are gone through, for generations without tokens on record.
    """
    parameters = game.parameters
    settings = parameters.pure_text_grpo
    # 1. Group the sides that are compared with each other.
    counts: Counter[str] = Counter()
    trained_sides: dict[tuple[str, str], _TrainedSide] = {}
    groups = _group_sides(parameters, rollouts, agents, counts)
    counts["candidates"] = len(groups)
    # 2. Give each an advantage; a group in which all earned the same teaches nothing, unless a
    #    shift makes it hold on to the answers.
    for group_id, sides in groups.items():
        if len(sides) < 2 and settings.baseline != "role":
            counts["small_groups"] += 1
            continue
        advantages = compute_advantages([side.reward for side in sides], settings)
        if advantages is None and not settings.advantage_shift:
            counts["zero_variance_groups"] += 1
            counts["zero_variance_episodes"] += len(sides)
            continue
        for side, advantage in zip(sides, advantages or [0.0] * len(sides), strict=True):
            key = (side.episode.key, side.agent)
            trained_sides[key] = _TrainedSide(side, group_id, advantage + settings.advantage_shift)
    # 3. Take the tokens from the shards, when the examples are gone through.
    return Choice(
        method="trajectories",
        examples=_make_trajectories(rollouts, agents, trained_sides, settings.baseline),
        counts=dict(counts),
    )


def compute_advantages(
    rewards: Sequence[float], settings: PureTextGrpoParameters
) -> list[float] | None:
    """Tell how far each reward is above the baseline of the others; None if all are equal.

    They sum to zero. The standard deviation is the one of a sample (n - 1).
    """
    advantages = group_advantages(rewards, divide_by="sample" if settings.scale_by_std else None)
    if advantages is not None and settings.baseline == "leave_one_out":
        # r - (total - r) / (n - 1) = (r - mean) n / (n - 1)
        count = len(rewards)
        advantages = [value * (count / (count - 1)) for value in advantages]
    return advantages


def _group_sides(
    parameters: HyperParameters, rollouts: Rollouts, agents: Sequence[str], counts: Counter[str]
) -> dict[str, list[_Side]]:
    """Group the sides that are compared, under the id of the group."""
    acted, by_rule = _find_acted(rollouts)
    groups: dict[str, list[_Side]] = defaultdict(list)
    for episode in read_rows(rollouts.episodes(_ComparedEpisode._fields), _ComparedEpisode):
        if episode.outcome == "failed":
            counts["failed_episodes"] += 1
            continue
        for agent in agents:
            # An episode can end before an agent's first turn: then it did nothing to be rewarded.
            if (episode.key, agent) not in acted:
                counts["not_acted"] += 1
                continue
            # The tokens of an earlier model are no sample of the one that is trained.
            if agent in split_agents(episode.opponent):
                counts["earlier_model"] += 1
                continue
            if (episode.key, agent) in by_rule:
                counts["by_rule"] += 1
                continue
            side = _Side(episode, agent, episode.rewards[agent])
            groups[_name_group(parameters, side)].append(side)
    return groups


def _find_acted(rollouts: Rollouts) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Find the (episode, agent) of every valid answer, and of those that a rule wrote."""
    acted: set[tuple[str, str]] = set()
    by_rule: set[tuple[str, str]] = set()
    for part in rollouts.parts():
        rows = part.generations(["episode", "agent", "invalid_reason", "model_asked"])
        rows = rows.filter(pc.is_null(rows["invalid_reason"]))
        ruled = rows.filter(pc.equal(rows["model_asked"], RULE_MODEL))
        for found, table in ((acted, rows), (by_rule, ruled)):
            found.update(zip(*(table[c].to_pylist() for c in ("episode", "agent")), strict=True))
    return acted, by_rule


def _name_group(parameters: HyperParameters, side: _Side) -> str:
    """Make the id of a side's group; two runs of the same game make the same."""
    episode = side.episode
    if parameters.pure_text_grpo.baseline == "role":
        role = (episode.iteration, side.agent, episode.prover_stance)
        return derive_key("role", *role)
    # One problem has several groups in an iteration where all problems are used up in it.
    number = episode.sample // group_size(parameters, episode.split)
    return derive_key("group", episode.iteration, episode.problem, number, side.agent)


def _make_trajectories(
    rollouts: Rollouts,
    agents: Sequence[str],
    trained_sides: Mapping[tuple[str, str], _TrainedSide],
    baseline: str,
) -> Iterator[Trajectory]:
    for shard in rollouts.shards():
        rows = _find_valid_rows(shard)
        for episode in shard.episodes["key"].to_pylist():
            for agent in agents:
                trained_side = trained_sides.get((episode, agent))
                if trained_side is not None:
                    yield _make_trajectory(
                        trained_side, shard.generations, rows[episode, agent], baseline
                    )


def _find_valid_rows(shard: RolloutTables) -> dict[tuple[str, str], list[int]]:
    """Find the places of an agent's valid answers in an episode, in the order of play."""
    answers = read_rows(shard.generations.select(_SpokenAnswer._fields), _SpokenAnswer)
    places_by_side: dict[tuple[str, str], list[tuple[int, int, int]]] = defaultdict(list)
    for index, row in enumerate(answers):
        if row.invalid_reason is None:
            places_by_side[row.episode, row.agent].append((row.round, row.exchange, index))
    return {key: [index for *_, index in sorted(places)] for key, places in places_by_side.items()}


def _make_trajectory(
    trained_side: _TrainedSide, generations: pa.Table, rows: Sequence[int], baseline: str
) -> Trajectory:
    episode, agent = trained_side.side.episode, trained_side.side.agent
    # One trajectory's tokens are Python objects at a time; all of a shard would not fit.
    token_rows = [*read_rows(generations.select(_TokenRow._fields).take(rows), _TokenRow)]
    turns = []
    for row in token_rows:
        if not row.prompt_token_ids or not row.completion_token_ids:
            raise StageError(
                f"episode {episode.key}: generation {row.key} of {agent} was recorded "
                "without its token ids, which trainer pure_text_grpo trains; play the iteration "
                "with this trainer, in a new run, or train with another one"
            )
        turns.append(
            TokenTurn(
                prompt_token_ids=row.prompt_token_ids,
                completion_token_ids=row.completion_token_ids,
                logprobs=row.completion_logprobs,
            )
        )
    return Trajectory(
        key=derive_key("trajectory", episode.key, agent),
        agent=agent,
        episode=episode.key,
        generations=tuple(row.key for row in token_rows),
        iteration=episode.iteration,
        problem=episode.problem,
        question_id=episode.question_id,
        y=episode.y,
        reward=trained_side.side.reward,
        reason=f"baseline {baseline}",
        tokens=sum(len(t.prompt_token_ids) + len(t.completion_token_ids) for t in turns),
        turns=tuple(turns),
        group_id=trained_side.group_id,
        advantage=trained_side.advantage,
    )
