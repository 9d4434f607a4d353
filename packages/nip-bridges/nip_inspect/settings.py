"""The task's parameters as settings of a game, and the episodes that it plays.

game_parameters  parameters of the task -> settings
plan_of          settings and split -> the game and its episodes
Plan             these; an episode is found by its sample's id and epoch
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nip_core.errors import SettingsError
from nip_core.game.render import Game
from nip_core.library.games import make_game_parameters, open_game
from nip_core.parameters import HyperParameters
from nip_core.rollouts.plan import EpisodeSpec, episode_spec
from nip_core.scenarios import Problem


def game_parameters(
    config: str | None = None,
    protocol: str | None = None,
    scenario: str | None = None,
    dataset: str | None = None,
    seed: int | None = None,
    settings: str | Sequence[str] | None = None,
) -> HyperParameters:
    """The settings of the game, see `nip_core.library.make_game`. Raises SettingsError."""
    parameters = make_game_parameters(
        "Inspect", config, protocol, scenario, dataset, seed, settings
    )
    for name, agent in parameters.model_agents.items():
        if agent.reasoning_effort is not None:
            raise SettingsError(
                f"agents.{name}.reasoning_effort: Inspect asks its models itself (got "
                f"{agent.reasoning_effort!r}); leave it out and use --reasoning-effort"
            )
    return parameters


@dataclass(frozen=True)
class Episodes:
    """The plays of one sample: epoch e is play `first` + (e - 1) * `step` of the problem."""

    problem: Problem
    first: int
    step: int


@dataclass(frozen=True)
class Plan:
    """A game and its problems to play."""

    game: Game
    split: str
    samples: Mapping[str, Episodes]
    """By the id of the sample, in the order of play."""
    epochs: int
    """How often the settings ask for each sample."""

    def spec(self, sample: str, epoch: int) -> EpisodeSpec:
        """Specify the episode of a sample's epoch: the one of `nip play`, seeds included."""
        plays = self.samples[sample]
        number = plays.first + (epoch - 1) * plays.step
        return episode_spec(self.game.parameters, self.split, 0, plays.problem, number)


def plan_of(settings: Mapping[str, Any], split: str) -> Plan:
    """The game and the episodes of a split with the settings of `HyperParameters.to_dict`.

    Raises SettingsError or DatasetError.
    """
    opened = open_game(settings)
    specs = opened.plan(split)
    plays: dict[str, list[EpisodeSpec]] = defaultdict(list)
    for spec in specs:
        plays[spec.problem.id].append(spec)
    # 1. Where all problems are played alike, a play is an epoch.
    counts = {len(of_problem) for of_problem in plays.values()}
    if len(counts) == 1:
        samples = {name: Episodes(episodes[0].problem, 0, 1) for name, episodes in plays.items()}
        return Plan(opened.game, split, samples, counts.pop())
    # 2. Else it is a sample of its own.
    step = max(spec.sample for spec in specs) + 1
    by_play = {f"{s.problem.id}.{s.sample}": Episodes(s.problem, s.sample, step) for s in specs}
    return Plan(opened.game, split, by_play, 1)
