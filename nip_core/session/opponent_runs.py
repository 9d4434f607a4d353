"""Other runs and scripts that play in training: their facts, and that they fit this run.

find_opponents_there   the settings with the facts of these
list_adapters_there    by run, the models to copy from its own server
check_opponent_scripts tries their scripts before anything is paid for
digest_opponents       of their prompts from outside of nip, for the run's identity

An attack plays as it attacked: with its worst provers, or its script, who are asked as they were
there, with the sampling of there. The facts stand in the settings of this run (`found`), and
its models are copied, so that the other run may go on, or go.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from nip_core.errors import SettingsError
from nip_core.game.render import Game
from nip_core.hashing import digest
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.parameters.blocks.game import OF_REWARD_FUNCTION
from nip_core.parameters.blocks.opponents import (
    RUNS,
    FoundOpponent,
    OpponentRun,
    name_opponent,
)
from nip_core.parameters.checks import GROUP_SETTINGS, find_attackers, list_scripted
from nip_core.parameters.derived.hosting import find_host
from nip_core.parameters.stored import complete_settings, read_settings
from nip_core.protocols import find_protocol, make_protocol
from nip_core.records.attack_on_record import read_shown_attack
from nip_core.records.iterations import Records
from nip_core.records.models import ServedModel, list_of_others, map_agents_to_groups
from nip_core.records.status import find_status
from nip_core.rollouts.plan import TRAIN, plan_episodes
from nip_core.rollouts.scripted_call import TRIED, check_script, find_opponent_scripts
from nip_core.run_store.run import RunRecord, RunStore, list_runs
from nip_core.run_store.store import MissingFileError, Store
from nip_core.scenarios import Problem, make_scenario
from nip_core.scenarios.scripts import load_script
from nip_core.session.origin import SAME_GAME, ModelSearch

_NOT_ASKED = {*GROUP_SETTINGS, "shared_model_group", "update_schedule", "set_addresses", "_type"}
"""Settings of an agent that say nothing of how it is asked."""


def find_opponents_there(
    parameters: HyperParameters, store: Store | None, record: RunRecord | None
) -> HyperParameters:
    """Return the settings with the facts of the runs, and scripts, that play in training here.

    `store` may be missing where the settings name no run. A run that is on `record` has it there.
    Raises SettingsError for a run, or a script, that is not there, or that can't play in this one.
    """
    opponents = parameters.opponents
    if opponents.kind != RUNS:
        return parameters
    on_record = _read_found(record)
    runs = []
    for entry in opponents.runs:
        opponent = on_record.get(entry.name)
        if record is None and entry.script is not None:
            opponent = _find_script(parameters, entry.script).to_dict()
        elif record is None:
            assert store is not None  # the settings name a run
            opponent = _Other(parameters, store, entry).find().to_dict()
        runs.append({**entry.to_dict(), "found": opponent})
    values = parameters.to_dict()
    values["opponents"] = {**opponents.to_dict(), "runs": runs}
    return load_parameters(values)


def list_adapters_there(parameters: HyperParameters) -> dict[str, dict[str, str | None]]:
    """List by run the models to copy from its own server, each with its content digest."""
    adapters: dict[str, dict[str, str | None]] = {}
    for agent, models in list_of_others(parameters).items():
        for run, model in models.items():
            if model.trained_in is None:
                continue
            if find_host(parameters, parameters.model_agents[agent]).takes_adapters:
                adapters.setdefault(str(run), {})[model.model] = model.digest
    return adapters


def check_opponent_scripts(game: Game, problems: Mapping[str, list[Problem]]) -> None:
    """Try the scripts of opponents on some problems. Raises SettingsError, as `check_script`."""
    try:
        scripts = find_opponent_scripts(game)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if scripts:
        specs = plan_episodes(game.parameters, problems[TRAIN], TRAIN, 0)
        for entry in game.parameters.opponents.runs:
            if (script := scripts.get(entry.name)) is not None:
                met = [spec for spec in specs if entry.is_met_on(spec.problem.y)][:TRIED]
                check_script(game.of_others[entry.name], script, met, entry.agents)


def digest_opponents(game: Game) -> dict[str, dict[str, str]]:
    """Digest by opponent the user's files with which it plays: templates by agent, a script."""
    digests = {}
    protocol = find_protocol(game.parameters.interaction_protocol)
    of_user = protocol.template_directory is not None or ":" in game.parameters.scenario
    for entry in game.parameters.opponents.runs:
        if entry.found is None:
            continue
        other_game = game.of_others[entry.name]
        of_run = {
            name: digest(other_game.prompts.template(name).template)
            for name in entry.agents
            if of_user
            or other_game.parameters.prompted_agents[name].system_prompt_template_path is not None
        }
        if entry.found.script_digest is not None:
            of_run["script"] = entry.found.script_digest
        if of_run:
            digests[entry.name] = of_run
    return digests


def _read_found(record: RunRecord | None) -> dict[str, Any]:
    """Read by opponent the facts on record; one missing there has another record, an error."""
    opponents = {} if record is None else record.parameters.get("opponents") or {}
    return {
        name_opponent(entry["run"], entry.get("script")): entry.get("found")
        for entry in opponents.get("runs") or ()
    }


def _find_script(parameters: HyperParameters, name: str) -> FoundOpponent:
    """Find a script and whom it plays. Raises SettingsError if it is not there, or plays nobody."""
    try:
        script = load_script(make_scenario(parameters), name, "opponents.runs")
    except ValueError as error:
        raise SettingsError(str(error)) from None
    agents = parameters.opponents.of or find_attackers(parameters)
    if not agents:
        raise SettingsError(
            f"opponents.runs: {name} plays provers that argue for acceptance, of which protocol "
            f"{parameters.interaction_protocol!r} has none; name agents in opponents.of"
        )
    return FoundOpponent(
        iteration=None,
        shared_reward=parameters.protocol_common.shared_reward,
        asked={agent: {} for agent in parameters.prompted_agents if agent in agents},
        script=name,
        script_digest=script.digest,
    )


class _Other:
    """One of the other runs."""

    def __init__(self, parameters: HyperParameters, store: Store, entry: OpponentRun) -> None:
        """Raises SettingsError for a run that is not there."""
        assert entry.run is not None  # it is no script
        self._parameters, self._store, self._entry = parameters, store, entry
        self._setting = "opponents.runs"
        self._run = RunStore(store, entry.run)
        try:
            self._record = self._run.open()
        except MissingFileError:
            names = ", ".join(list_runs(store)) or "none"
            raise SettingsError(
                f"{self._setting}: there is no run {entry.run!r} in {store.url}; there are {names}"
            ) from None
        self._stored = complete_settings(self._record.parameters)

    def find(self) -> FoundOpponent:
        """Find the players and how they are asked. Raises SettingsError if they can't play here."""
        self._check_game()
        other_run = read_settings(self._stored)
        if other_run.choice is not None and not other_run.choice.has_own_provers:
            raise self._refuse(
                f"attacks by {other_run.attack.by}, which chooses among messages of the attacked "
                "run's provers and has none of its own; name an attack by training or by a script"
            )
        agents = self._choose_agents(other_run)
        settings_there = {agent: self._find_asked(agent) for agent in agents}
        shared = self._stored["protocol_common"]["shared_reward"]
        if other_run.choice is not None:
            if self._entry.iteration is not None:
                raise self._refuse(
                    "attacks by a script, which has no iterations; leave iteration out"
                )
            return FoundOpponent(
                iteration=None,
                shared_reward=shared,
                asked=settings_there,
                script=other_run.choice.script,
                script_digest=self._record.contents.get("script"),
            )
        iteration = self._find_iteration()
        models = {agent: self._find_model(agent, iteration) for agent in agents}
        return FoundOpponent(
            iteration=iteration,
            shared_reward=shared,
            asked=settings_there,
            models={agent: asdict(model) for agent, model in models.items()},
        )

    def _refuse(self, reason: str) -> SettingsError:
        return SettingsError(f"{self._setting}: run {self._entry.run!r} {reason}")

    def _check_game(self) -> None:
        """Refuse a run of another game: messages that its provers learned would not fit here."""
        settings = self._parameters.to_dict()
        rounds = find_protocol(self._parameters.interaction_protocol).rounds_setting
        names = [name for name in SAME_GAME if name != "dataset"]
        names += ["zk_protocol", "merlin_arthur_protocol", *([rounds] if rounds else [])]
        game = {name: settings.get(name) for name in (*names, "tool")}
        game_there = {name: self._stored.get(name) for name in game}
        for name, value in settings["protocol_common"].items():
            # An attack changes the rewards of each agent, and its provers are asked so.
            if name not in ("shared_reward", *OF_REWARD_FUNCTION):
                game[f"protocol_common.{name}"] = value
                game_there[f"protocol_common.{name}"] = self._stored["protocol_common"][name]
        for name, value in game.items():
            if game_there[name] != value:
                raise self._refuse(
                    f"plays another game: {name} is {game_there[name]!r} there and {value!r} here; "
                    "name a run of this game"
                )

    def _choose_agents(self, other_run: HyperParameters) -> tuple[str, ...]:
        """Choose the agents that the run plays: provers with a model, of an attack who attacked."""
        offered = find_attackers(other_run)
        if other_run.target_run is None:
            scripted = list_scripted(other_run)
            having = [name for name in other_run.prompted_agents if name not in scripted]
            offered = tuple(p for p in self._list_provers() if p in having)
        asked_for = self._parameters.opponents.of or self._list_provers()
        # In the order of the protocol, for any order in the settings.
        agents = [a for a in self._parameters.prompted_agents if a in offered and a in asked_for]
        if not agents:
            raise self._refuse(
                f"has no model for {', '.join(asked_for)}; it has some for "
                f"{', '.join(offered) or 'nobody'}: name other agents in opponents.of, or leave it "
                "out"
            )
        return tuple(agents)

    def _list_provers(self) -> tuple[str, ...]:
        return make_protocol(self._parameters).provers

    def _find_asked(self, agent: str) -> dict[str, Any]:
        """Find the settings by which an agent is asked there otherwise than here."""
        own_settings = self._parameters.prompted_agents[agent].to_dict()
        other_settings = self._stored["agents"][agent]
        return {
            name: other_settings[name]
            for name, value in own_settings.items()
            if name not in _NOT_ASKED and name in other_settings and other_settings[name] != value
        }

    def _find_iteration(self) -> int:
        """Find the iteration of the models: the newest, of an attack the worst provers'."""
        iteration, finished = self._entry.iteration, self._run.finished_iterations()
        if iteration is not None:
            if iteration > finished:
                raise self._refuse(
                    f"has finished {finished} iterations, so the models of iteration {iteration} "
                    f"are not there; the last are those of {finished}"
                )
            return iteration
        if self._stored["attack"]["run"] is None:
            if finished == 0:
                raise self._refuse("has finished no iteration yet, so it has trained no model")
            return finished
        records = Records(self._run)
        attack = read_shown_attack(records)
        if find_status(self._run, records) != "finished" or attack is None:
            raise self._refuse(
                "is an attack that is not finished, so its worst provers are not known; go on with "
                "it first, or give an iteration"
            )
        worst = attack.worst
        return finished if worst is None else worst.step

    def _find_model(self, agent: str, iteration: int) -> ServedModel:
        group = map_agents_to_groups(self._parameters)[agent]
        of_agent = self._stored["agents"][agent].get("shared_model_group") or agent
        search = ModelSearch(self._parameters, self._store)
        model = search.model(self._setting, self._run, iteration, of_agent, group)
        return replace(model, proof=None)
