"""The task's parameters as settings of a game, and the episodes that it plays.

game_parameters  parameters of the task -> settings
plan_of          settings and split -> the game and its episodes
Plan             these; an episode is found by its sample's id and epoch
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from nip_core.errors import SettingsError
from nip_core.game.render import Game
from nip_core.hashing import canonical_json
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.parameters.load import merged_settings
from nip_core.rollouts.plan import SPLITS, EpisodeSpec, episode_spec, plan_episodes
from nip_core.scenarios import Problem, find_scenario
from nip_core.stages.prepare import check_functions, check_system, load_all_problems

RUN_NAME = "inspect"
_MODEL = {"model_provider": "SelfHosted", "model_name": "inspect"}
"""Stands where the settings of an agent need a model: Inspect's options say which one plays."""
_CHAT_FORMAT = "alternating"


def game_parameters(
    config: str | None = None,
    protocol: str | None = None,
    scenario: str | None = None,
    dataset: str | None = None,
    seed: int | None = None,
    settings: str | Sequence[str] | None = None,
) -> HyperParameters:
    """The settings of the game: `config` as for `nip play`, what else is given, `settings` on top.

    Without a dataset it is the scenario's first. Chats are "alternating" unless it is set.

    Raises SettingsError, also for what can't be played with Inspect's models.
    """
    values: dict[str, Any] = {"run_name": RUN_NAME, "agents": {"_default": dict(_MODEL)}}
    if config is not None:
        values = merged_settings(config)
    named = {"interaction_protocol": protocol, "scenario": scenario, "dataset": dataset}
    values |= {name: value for name, value in {**named, "seed": seed}.items() if value is not None}
    if "dataset" not in values:
        values["dataset"] = _first_dataset(str(values.get("scenario", "code_validation")))
    values["agents"] = _with_chat_format(values.get("agents"))
    on_top = [settings] if isinstance(settings, str) else [str(line) for line in settings or ()]
    parameters = load_parameters(values, on_top)
    _check(parameters)
    return parameters


def _first_dataset(scenario: str) -> str:
    try:
        kind = find_scenario(scenario)
    except ValueError as error:
        raise SettingsError(f"scenario: {error}") from None
    names = [*kind.bundled, *kind.generated]
    if not names:
        raise SettingsError(f"dataset: is missing; scenario {scenario} comes with none")
    return names[0]


def _with_chat_format(agents: Any) -> Any:
    """The agents with a chat format that needs no names, unless their default has one."""
    if agents is not None and not isinstance(agents, Mapping):
        return agents  # which is refused with the other settings
    default = (agents or {}).get("_default")
    if default is not None and not isinstance(default, Mapping):
        return agents
    return {**(agents or {}), "_default": {"chat_format": _CHAT_FORMAT, **(default or {})}}


def _check(parameters: HyperParameters) -> None:
    for name, agent in parameters.model_agents.items():
        if agent.chat_format == "named":
            raise SettingsError(
                f"agents.{name}.chat_format: Inspect's messages carry no names (got 'named'); use "
                "alternating, which writes them into the text"
            )
        if agent.reasoning_effort is not None:
            raise SettingsError(
                f"agents.{name}.reasoning_effort: Inspect asks its models itself (got "
                f"{agent.reasoning_effort!r}); leave it out and use --reasoning-effort"
            )
    if not parameters.model_agents:
        raise SettingsError("agents: all of them are random, so that no model would play")
    if parameters.attack.run is not None:
        raise SettingsError("attack.run: an attack is played by nip train, not by Inspect's task")


@dataclass(frozen=True)
class Episodes:
    """The plays of one sample: epoch e is play `first` + (e - 1) * `step` of the problem."""

    problem: Problem
    first: int
    step: int


@dataclass(frozen=True)
class Plan:
    """A game and what is played of it."""

    game: Game
    split: str
    samples: Mapping[str, Episodes]
    """By the id of the sample, in the order of play."""
    epochs: int
    """How often the settings ask for each sample."""

    def spec(self, sample: str, epoch: int) -> EpisodeSpec:
        """The episode that an epoch of a sample plays: that of `nip play`, seeds included."""
        plays = self.samples[sample]
        number = plays.first + (epoch - 1) * plays.step
        return episode_spec(self.game.parameters, self.split, 0, plays.problem, number)


def plan_of(settings: Mapping[str, Any], split: str) -> Plan:
    """The game and the episodes of a split with the settings of `HyperParameters.to_dict`.

    Raises SettingsError or DatasetError.
    """
    return _plan(canonical_json(settings).decode(), split)


@lru_cache(maxsize=4)  # the task asks, and then the solver
def _plan(settings: str, split: str) -> Plan:
    if split not in SPLITS:
        raise SettingsError(f"split {split!r}: use one of {', '.join(SPLITS)}")
    parameters = HyperParameters.from_dict(json.loads(settings))
    game = Game(parameters)
    check_system(game)
    problems = load_all_problems(parameters)
    check_functions(game, problems)
    plays: dict[str, list[EpisodeSpec]] = defaultdict(list)
    specs = plan_episodes(parameters, problems[split], split, 0)
    for spec in specs:
        plays[spec.problem.id].append(spec)
    # 1. Where all problems are played alike, a play is an epoch.
    counts = {len(of_problem) for of_problem in plays.values()}
    if len(counts) == 1:
        samples = {name: Episodes(of[0].problem, 0, 1) for name, of in plays.items()}
        return Plan(game, split, samples, counts.pop())
    # 2. Else it is a sample of its own.
    step = max(spec.sample for spec in specs) + 1
    by_play = {f"{s.problem.id}.{s.sample}": Episodes(s.problem, s.sample, step) for s in specs}
    return Plan(game, split, by_play, 1)
