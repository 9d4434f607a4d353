"""Curriculum: begin with some problems, those with the highest rewards, and take in more and more.

For any trainer: it says which problems' rollouts are chosen from, not how. The method comes from
NVIDIA's NeMo Agent Toolkit (`CurriculumLearningConfig`). Its schedule counts from -1, so that the
first stage is an iteration shorter than the others; unlike there, draws are seeded and nothing has
to be remembered: the state of an iteration follows from the settings and its rollouts.

How hard a problem is, is read from the rollouts themselves, anew in each iteration. The problems
are ranked among those of the iteration; one that has left comes back when its rewards do.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nip_core.hashing import derive_key
from nip_core.parameters import CurriculumParameters, HyperParameters
from nip_core.parameters.blocks.opponents import split_agents
from nip_core.rollouts.storage.table_rows import read_rows
from nip_core.rollouts.trees import Path, expected_rewards, parse_path
from nip_core.tolerance import at_least
from nip_core.trainers.base import Rollouts

_ROUNDING = 1e-9  # 3 * 0.1 is a little more than 0.3


class _PaidEpisode(NamedTuple):
    """The parts of an episode that the curriculum looks at; the fields are columns."""

    iteration: int
    problem: str
    sample: int
    branch_path: str
    outcome: str
    rewards: dict[str, float]
    opponent: str | None


@dataclass(frozen=True)
class Admission:
    """The admitted problems, and why the others are left out."""

    problems: frozenset[str]
    state: dict[str, Any] = field(default_factory=dict)
    """``current_percentile``, ``last_expansion_epoch`` (-1 before the first), ``total_groups``,
    ``included_groups`` (problems, sorted), and how many were ``left_out`` because they were
    ``too_equal``, because it is ``too_early`` for them, or as ``not_drawn``. JSON, for the record;
    empty without a curriculum."""


def admit(
    parameters: HyperParameters, agents: Sequence[str], iteration: int, rollouts: Rollouts
) -> Admission:
    """Choose the problems with rollouts to train `agents` on in `iteration`.

    A problem's rewards are the rewards of its episodes, each the mean over `agents`; a tree of
    responses is one episode, worth its root's expectation. Failed episodes have none, and a problem
    with only such is not admitted. A problem that was played once has nothing to differ from and is
    not measured by `min_reward_diff`. A single problem is taken as it is.
    """
    settings = parameters.curriculum
    rewards = _read_rewards(agents, rollouts)
    if not settings.enabled:
        return Admission(frozenset(rewards))
    share, last = percentile(settings, iteration)
    seed = parameters.seed
    left_out = {"too_equal": 0, "too_early": 0, "not_drawn": 0}
    problems = sorted(rewards)
    if len(problems) > 1:
        # 1. Leave out problems with rewards that hardly differ.
        problems = [p for p in problems if not _is_too_equal(rewards[p], settings.min_reward_diff)]
        left_out["too_equal"] = len(rewards) - len(problems)
        # 2. Rank the others by their mean reward, and admit the share of this iteration.
        sign = 1 if settings.sort_ascending else -1
        means = {p: math.fsum(rewards[p]) / len(rewards[p]) for p in problems}
        # To nine decimals: equal rewards must not be ranked by their rounding errors.
        rank = {p: (sign * round(means[p], 9), derive_key("curriculum", seed, p)) for p in problems}
        problems.sort(key=rank.__getitem__)
        early = problems[: max(1, _round_up(len(problems) * share))]
        left_out["too_early"] = len(problems) - len(early)
        # 3. Draw from these, if the settings say so.
        subsample = _draw(early, settings.random_subsample, seed, iteration)
        left_out["not_drawn"] = len(early) - len(subsample)
        problems = subsample
    state = {
        "current_percentile": share,
        "last_expansion_epoch": last,
        "total_groups": len(rewards),
        "included_groups": sorted(problems),
        "left_out": left_out,
    }
    return Admission(frozenset(problems), state)


def percentile(settings: CurriculumParameters, iteration: int) -> tuple[float, int]:
    """Compute the share of the problems in `iteration`, above 0 to 1, and when it last grew."""
    share, last = settings.initial_percentile, -1
    for now in range(iteration + 1):
        if now - last >= settings.expansion_interval and share < 1:
            share, last = min(1.0, round(share + settings.increment_percentile, 9)), now
    return share, last


def _read_rewards(agents: Sequence[str], rollouts: Rollouts) -> Mapping[str, list[float]]:
    """Read by problem the rewards of its episodes; of a tree, the expected one at its root.

    An agent has no reward where an earlier model played for it.
    """
    trees: dict[tuple[str, int, int], dict[Path, dict[str, float] | None]] = defaultdict(dict)
    learning: dict[tuple[str, int, int], list[str]] = {}
    for episode in read_rows(rollouts.episodes(_PaidEpisode._fields), _PaidEpisode):
        place = (episode.problem, episode.iteration, episode.sample)
        tree = trees[place]
        learning[place] = [agent for agent in agents if agent not in split_agents(episode.opponent)]
        failed = episode.outcome == "failed"
        tree[parse_path(episode.branch_path)] = None if failed else episode.rewards
    rewards: dict[str, list[float]] = defaultdict(list)
    for place, leaves in sorted(trees.items()):
        expected, those = expected_rewards(leaves)[()], learning[place]
        if expected is not None and those:
            mean = math.fsum(expected[agent] for agent in those) / len(those)
            rewards[place[0]].append(mean)
    return dict(rewards)


def _is_too_equal(rewards: Sequence[float], min_spread: float) -> bool:
    return len(rewards) > 1 and not at_least(max(rewards) - min(rewards), min_spread)


def _draw(problems: Sequence[str], fraction: float | None, seed: int, iteration: int) -> list[str]:
    if fraction is None:
        return list(problems)
    shuffled = sorted(
        problems, key=lambda p: derive_key("curriculum subsample", seed, iteration, p)
    )
    return shuffled[: _round_up(len(problems) * fraction)]


def _round_up(number: float) -> int:
    return math.ceil(number - _ROUNDING)
