"""A game with models that another program asks: its settings, and the episodes that are played.

make_game_parameters  the options of that program -> settings
list_plan             settings and split -> the game and its episodes
Plan                  these
join_problem_text     the texts of a problem, for reading

`nip_inspect` and `nip_verifiers` play so. Seeds and keys are those of `nip play`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from nip_core.errors import SettingsError
from nip_core.game.render import Game
from nip_core.hashing import canonical_json
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.parameters.load import merge_settings
from nip_core.rollouts.plan import SPLITS, EpisodeSpec, plan_episodes
from nip_core.scenarios import find_scenario
from nip_core.session.prepare import check_functions, check_system
from nip_core.session.problems_of_run import load_all_problems

_CHAT_FORMAT = "alternating"


def make_game_parameters(
    program: str,
    config: str | None = None,
    protocol: str | None = None,
    scenario: str | None = None,
    dataset: str | None = None,
    seed: int | None = None,
    settings: str | Sequence[str] | None = None,
) -> HyperParameters:
    """The settings of the game: `config` as for `nip play`, the other arguments, `settings` on top.

    Without a dataset it is the scenario's first. Chats are "alternating" unless it is set.
    `program` asks the models; errors name it.

    Raises SettingsError, also for games that can't be played with another program's models.
    """
    name = program.lower()
    # Where the settings of an agent need a model: the program's options say which one plays.
    model = {"model_provider": "SelfHosted", "model_name": name}
    values: dict[str, Any] = {"run_name": name, "agents": {"_default": model}}
    if config is not None:
        values = merge_settings(config)
    names = {"interaction_protocol": protocol, "scenario": scenario, "dataset": dataset}
    values |= {name: value for name, value in {**names, "seed": seed}.items() if value is not None}
    if "dataset" not in values:
        values["dataset"] = _first_dataset(str(values.get("scenario", "code_validation")))
    values["agents"] = _with_chat_format(values.get("agents"))
    on_top = [settings] if isinstance(settings, str) else [str(line) for line in settings or ()]
    parameters = load_parameters(values, on_top)
    _check(parameters, program)
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
    """Give the agents a chat format without names, unless their default has one."""
    if agents is not None and not isinstance(agents, Mapping):
        return agents  # which is refused with the other settings
    default = (agents or {}).get("_default")
    if default is not None and not isinstance(default, Mapping):
        return agents
    return {**(agents or {}), "_default": {"chat_format": _CHAT_FORMAT, **(default or {})}}


def _check(parameters: HyperParameters, program: str) -> None:
    for name, agent in parameters.model_agents.items():
        if agent.chat_format == "named":
            raise SettingsError(
                f"agents.{name}.chat_format: {program}'s messages carry no names (got 'named'); "
                "use alternating, which writes them into the text"
            )
    if not parameters.model_agents:
        raise SettingsError("agents: all of them are random, so that no model would play")
    if parameters.target_run is not None:
        raise SettingsError(
            f"attack.run: an attack is played by nip train, not by {program}'s models"
        )


@dataclass(frozen=True)
class Plan:
    """A game and its episodes to be played."""

    game: Game
    split: str
    specs: tuple[EpisodeSpec, ...]
    """The episodes of the split in iteration 0, in the order of play."""


def list_plan(settings: Mapping[str, Any], split: str) -> Plan:
    """The game and the episodes of a split with the settings of `HyperParameters.to_dict`.

    Raises SettingsError or DatasetError.
    """
    return _plan(canonical_json(settings).decode(), split)


@lru_cache(maxsize=4)  # a list of the problems is made first, and then they are played
def _plan(settings: str, split: str) -> Plan:
    if split not in SPLITS:
        raise SettingsError(f"split {split!r}: use one of {', '.join(SPLITS)}")
    parameters = HyperParameters.from_dict(json.loads(settings))
    game = Game(parameters)
    check_system(game)
    problems = load_all_problems(parameters)
    check_functions(game, problems)
    return Plan(game, split, tuple(plan_episodes(parameters, problems[split], split, 0)))


def join_problem_text(game: Game | None, texts: Mapping[str, str]) -> str:
    """Join all visible texts of a problem under the scenario's headings."""
    if game is None:
        return "\n\n".join(f"## {name.capitalize()}\n\n{text}" for name, text in texts.items())
    parts = []
    for column in game.scenario.columns:
        text = texts.get(column.name, "")
        if text and not column.hidden:
            code = text if column.code is None else f"```{column.code}\n{text}\n```"
            parts.append(f"## {column.heading}\n\n{code}")
    return "\n\n".join(parts)
