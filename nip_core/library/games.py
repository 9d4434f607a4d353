"""A game whose models another program asks: its settings, its problems, and its episodes.

make_game             settings, checked -> the game with its problems
make_game_parameters  the settings alone
PlayableGame          a game, its problems, and the episodes of a split
open_game             the same of settings as JSON, made once in a process
join_problem_text     the texts of a problem, for reading

Seeds and keys are those of `nip play`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from nip_core.errors import SettingsError
from nip_core.game.function_checks import check_functions, check_system
from nip_core.game.render import Game
from nip_core.hashing import canonical_json
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.parameters.load import merge_settings
from nip_core.rollouts.plan import EpisodeSpec, find_played_problems, list_splits, plan_episodes
from nip_core.rollouts.split_problems import load_split_problems
from nip_core.scenarios import Problem, find_scenario

_CHAT_FORMAT = "alternating"


@dataclass(frozen=True)
class PlayableGame:
    """A game that is checked, with its problems."""

    game: Game
    problems: Mapping[str, Sequence[Problem]]
    """By split: train, validation, test."""

    @property
    def parameters(self) -> HyperParameters:
        """Every setting."""
        return self.game.parameters

    def plan(self, split: str = "test", iteration: int = 0) -> tuple[EpisodeSpec, ...]:
        """Plan the episodes of a split in an iteration, in the order of play.

        Each iteration of the train split has further problems; `nip play` plays iteration 0. Raises
        SettingsError for an unknown split.
        """
        if split not in (splits := list_splits(self.parameters)):
            raise SettingsError(f"split {split!r}: use one of {', '.join(splits)}")
        problems = find_played_problems(self.parameters, self.problems, split)
        return tuple(plan_episodes(self.parameters, problems, split, iteration))


def make_game(
    config: str | None = None,
    *,
    protocol: str | None = None,
    scenario: str | None = None,
    dataset: str | None = None,
    seed: int | None = None,
    settings: str | Sequence[str] | None = None,
) -> PlayableGame:
    """Make a game of a configuration, of names, or of both; `settings` ("a.b=c") lie on top.

    `config` is a file or a bundled name, as for `nip play`; with none, every setting has its
    default. `protocol` and `scenario` are nip's, or classes of one's own by
    ``path/to/file.py:Class`` or ``package.module:Class``. The default dataset is the scenario's
    first. All settings are checked, and the scenario's functions are tried on problems.

    Raises SettingsError or DatasetError.
    """
    return _make(make_game_parameters(None, config, protocol, scenario, dataset, seed, settings))


def make_game_parameters(
    program: str | None,
    config: str | None = None,
    protocol: str | None = None,
    scenario: str | None = None,
    dataset: str | None = None,
    seed: int | None = None,
    settings: str | Sequence[str] | None = None,
) -> HyperParameters:
    """Make the settings of a game, as `make_game` has them.

    `program` is the other program that asks the models, as errors name it; its messages carry no
    names. None: a function of the user's asks them. Chats are "alternating" unless the settings
    say another format.

    Raises SettingsError, also for a game that can't be played with another program's models.
    """
    name = "library" if program is None else program.lower()
    # Settings of an agent need a model; the program's options say which one plays.
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
        return agents  # refused with the other settings
    default = (agents or {}).get("_default")
    if default is not None and not isinstance(default, Mapping):
        return agents
    return {**(agents or {}), "_default": {"chat_format": _CHAT_FORMAT, **(default or {})}}


def _check(parameters: HyperParameters, program: str | None) -> None:
    for name, agent in parameters.model_agents.items():
        if program is not None and agent.chat_format == "named":
            raise SettingsError(
                f"agents.{name}.chat_format: {program}'s messages carry no names (got 'named'); "
                "use alternating, which writes them into the text"
            )
    if program is not None and parameters.tool.call == "native":
        raise SettingsError(
            f"tool.call: {program}'s models are asked without OpenAI's tools (got native); use line"
        )
    if not parameters.model_agents:
        raise SettingsError("agents: all of them are random, so that no model would play")
    if parameters.target_run is not None:
        asks = "the models of a library's user" if program is None else f"{program}'s models"
        raise SettingsError(f"attack.run: an attack is played by nip train, not by {asks}")


def open_game(settings: Mapping[str, Any]) -> PlayableGame:
    """Make the game with the settings of `HyperParameters.to_dict`, once for equal settings.

    Raises SettingsError or DatasetError.
    """
    return _open(canonical_json(settings).decode())


@lru_cache(maxsize=4)  # a program makes a list of the problems, and then plays
def _open(settings: str) -> PlayableGame:
    return _make(HyperParameters.from_dict(json.loads(settings)))


def _make(parameters: HyperParameters) -> PlayableGame:
    game = Game(parameters)
    check_system(game)
    problems = load_split_problems(parameters)
    check_functions(game, problems)
    return PlayableGame(game, problems)


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
