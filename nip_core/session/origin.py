"""Taking over from another run: models to begin with, and the settings of agents.

takes_over            whether the settings ask for any of that
resolve_settings      the settings with those that are taken over
find_origin           which models of another run play, by iteration
check_attacked        refuses an attack on a missing run or iteration, or on another game
check_game            refuses an attack that plays another game than the run with these settings
list_attacked_groups  the groups of the attacked run with models that play
ModelSearch           looks for models of other runs
bring_adapters        makes adapters of that run's own server known to this run's own server

Four settings ask for it. ``base_run.base_run_type: parameters``: iteration 0 plays with the
final models of the base run. ``rerun_tests``: each iteration plays with the models that played
it in the base run, and there are as many. Other settings are this run's own. With an agent's
``load_checkpoint_and_parameters`` its group begins with the model that a run has trained for the
agent of this name, and the agent has the settings that it had there. With ``attack.run`` all
groups play with the models that played an iteration there. A fifth, an agent's
``published_adapter``, names an adapter of the Hugging Face Hub, see `from_hub`.

The models found are part of the run's identity (``contents.origin`` in run.json) and read from
there when the run is opened again, so that the other run may go on, or go. Nothing is written to
it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from nip_core.bridges import PublishedAdapter, need_hub
from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters, PureTextAgentParameters, load_parameters
from nip_core.parameters.derived.hosting import find_host
from nip_core.parameters.derived.model_names import base_name
from nip_core.parameters.stored import complete_settings
from nip_core.records.models import ServedModel, read_models
from nip_core.run_store.run import RunRecord, RunStore, list_runs
from nip_core.run_store.store import MissingFileError, Store
from nip_core.servers.kept_models import bring_models, has_model

SAME_GAME = ("scenario", "scenario_settings", "code_validation", "dataset", "interaction_protocol")

Models = Mapping[str, ServedModel]
"""By group."""


@dataclass(frozen=True)
class Origin:
    """The models of other runs that a run plays with."""

    models: tuple[Models, ...] = ()
    """[i]: by group, the models that play iteration i; other groups play with models of this
    run. Only `rerun_tests` has more than one."""
    adapters: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    """By run, the models to copy from its own server, each with its content digest."""
    published: Mapping[str, PublishedAdapter] = field(default_factory=dict)
    """By name, adapters of the Hub."""

    @classmethod
    def of(cls, facts: Sequence[Mapping[str, Any]]) -> "Origin":
        """Rebuild the origin from its `facts`; its models were brought to the run before."""
        return cls(tuple({g: ServedModel(**m) for g, m in models.items()} for models in facts))

    def bringing(self, adapters: Mapping[str, Mapping[str, str | None]]) -> "Origin":
        """Return the same with further models to copy, by run."""
        names = {*self.adapters, *adapters}
        both = {run: {**self.adapters.get(run, {}), **adapters.get(run, {})} for run in names}
        return replace(self, adapters=both)

    def facts(self) -> list[dict[str, Any]]:
        """Return its part of run.json."""
        return [{group: asdict(m) for group, m in models.items()} for models in self.models]


def takes_over(parameters: HyperParameters) -> bool:
    """Return whether the settings name another run, or an adapter of the Hub."""
    agents = parameters.model_agents.values()
    return parameters.names_run or any(agent.published_adapter is not None for agent in agents)


def resolve_settings(
    parameters: HyperParameters, store: Store, record: RunRecord | None
) -> HyperParameters:
    """Return the settings of the run with those it takes over; `record` is the run on record, if
    any.

    Raises SettingsError when another run that the settings name, or its agent, is not there.
    """
    agents_taken_over: dict[str, dict[str, Any]] = {}
    for name, agent in parameters.model_agents.items():
        if agent.load_checkpoint_and_parameters:
            loaded = (
                _agent_on_record(record, name)
                if record is not None
                else _agent_of(_checkpoint_run(store, name, agent), name)
            )
            agents_taken_over[name] = agent.loaded_from(loaded).to_dict()
    iterations = _rerun_iterations(parameters, store, record)
    if not agents_taken_over and iterations is None:
        return parameters
    values = parameters.to_dict()
    values["agents"] = {**values["agents"], **agents_taken_over}
    if iterations is not None:
        values["rl"] = {**values["rl"], "num_iterations": iterations}
    return load_parameters(values)


def _rerun_iterations(
    parameters: HyperParameters, store: Store, record: RunRecord | None
) -> int | None:
    """Return how many iterations a rerun of tests has: as many as the base run has finished."""
    if parameters.base_run.base_run_type != "rerun_tests":
        return None
    if record is not None:
        # As on record: the base run may have gone on since.
        return max(len(record.contents.get("origin", [])) - 1, 0)
    return _run(store, "base_run.run_id", str(parameters.base_run.run_id)).finished_iterations()


def find_origin(
    parameters: HyperParameters, store: Store | None, record: RunRecord | None
) -> Origin:
    """Find the models of other runs, and the adapters of the Hub, by the resolved settings.

    `store` may be missing where the settings name no run. Raises SettingsError when one is not
    there, or can't play here.
    """
    if record is not None:
        # The models were brought when the run was created, and the other run may be gone by now.
        return Origin.of(record.contents.get("origin", []))
    # A base run gives the models of whole iterations, a checkpoint the model of one group.
    search = ModelSearch(parameters, store)
    models = search.base_run() or search.attacked()
    # Nothing is trained, so no group begins with anything else.
    if parameters.base_run.base_run_type == "rerun_tests":
        return Origin(tuple(models), search.adapters)
    for group in parameters.groups:
        model = search.checkpoint(group) or search.from_hub(group)
        if model is not None:
            models = models or [{}]
            models[0][group] = model
    return Origin(tuple(models), search.adapters, search.published)


def check_attacked(parameters: HyperParameters, source: RunStore) -> None:
    """Compare an attack with the attacked run `source`. Raises SettingsError.

    The models must be there, the verifier's must have been trained, unless iteration 0 is asked
    for, and the game and its problems must be the same.
    """
    attack, name = parameters.attack, source.name
    try:
        record = source.open()
    except MissingFileError:
        names = ", ".join(list_runs(source.store)) or "none"
        raise SettingsError(
            f"attack.run: there is no run {name!r} in {source.store.url}; there are {names}"
        ) from None
    source_settings = complete_settings(record.parameters)
    check_game(parameters, source_settings)
    finished = source.finished_iterations()
    if attack.iteration > finished:
        raise SettingsError(
            f"attack.iteration: run {name!r} has finished {finished} iterations, so the models of "
            f"iteration {attack.iteration} are not there yet; the last are those of {finished}"
        )
    group = source_settings["agents"]["verifier"].get("shared_model_group") or "verifier"
    model = read_models(source, attack.iteration).get(group)
    if attack.iteration > 0 and (model is None or model.trained_in is None):
        raise SettingsError(
            f"attack.iteration: the verifier of run {name!r} was not trained before iteration "
            f"{attack.iteration}; to attack the model that it began with, give --iteration 0"
        )


def check_game(parameters: HyperParameters, source_settings: Mapping[str, Any]) -> None:
    """Compare the game of an attack with the settings on record. Raises SettingsError."""
    name = parameters.attack.run
    if (target := source_settings["attack"]["run"]) is not None:
        raise SettingsError(
            f"attack.run: {name!r} is an attack itself and has trained no verifier; attack "
            f"{target!r}"
        )
    # With defaults that settings leave out as older ones do.
    settings, settings_there = map(complete_settings, (parameters.to_dict(), source_settings))
    for setting in (*SAME_GAME, "tool"):
        value, value_there = settings.get(setting), settings_there.get(setting)
        if value != value_there:
            raise SettingsError(
                f"{setting}: an attack plays the game of the run that it attacks, {name!r}, where "
                f"it is {value_there!r} (got {value!r}); leave it out"
            )


def list_attacked_groups(parameters: HyperParameters, source: RunStore) -> dict[str, str]:
    """By group of an attack, the group of the attacked run that lends it a model."""
    agents = complete_settings(source.open().parameters)["agents"]
    return {
        group: str(agents[names[0]].get("shared_model_group") or names[0])
        for group, names in parameters.groups.items()
    }


def _list_groups_there(parameters: HyperParameters, source: RunStore) -> dict[str, str]:
    """By group, the group of a base run that lends its first model: by name, or by its agents."""
    agents = complete_settings(source.open().parameters)["agents"]
    group_of = {
        name: str(agent.get("shared_model_group") or name) for name, agent in agents.items()
    }
    groups = {}
    for group, names in parameters.groups.items():
        of_agents = {group_of.get(name, group) for name in names}
        is_one = group not in group_of.values() and len(of_agents) == 1
        groups[group] = of_agents.pop() if is_one else group
    return groups


def _list_scripted_groups(source: RunStore) -> set[str]:
    """List the groups in which a script wrote for an agent, whose model has not played."""
    agents = complete_settings(source.open().parameters)["agents"]
    return {
        str(agent.get("shared_model_group") or name)
        for name, agent in agents.items()
        if agent.get("script")
    }


def bring_adapters(origin: Origin, store: Store, state_dir: Path) -> None:
    """Copy the adapters into the state of the run's own server. The server must not run yet.

    Raises CorruptionError for a damaged one, StoreError if the disk refuses.
    """
    for run, digests in origin.adapters.items():
        bring_models(RunStore(store, run), state_dir, digests)
    if origin.published:
        need_hub("published_adapter").bring_published(origin.published.values(), state_dir)


def _run(store: Store, setting: str, name: str) -> RunStore:
    """Open the run named by a setting. Raises SettingsError if it has nothing to take over."""
    run = RunStore(store, name)
    try:
        run.open()
    except MissingFileError:
        raise SettingsError(f"{setting}: there is no run {name!r} in {store.url}") from None
    if run.finished_iterations() == 0:
        raise SettingsError(
            f"{setting}: run {name!r} has finished no iteration yet, so it has trained no model"
        )
    return run


def _checkpoint_run(store: Store, name: str, agent: PureTextAgentParameters) -> RunStore:
    assert agent.checkpoint_run_id is not None  # the settings say so: `check_agents`
    return _run(store, f"agents.{name}.checkpoint_run_id", agent.checkpoint_run_id)


def _agent_of(run: RunStore, name: str) -> dict[str, Any]:
    agents = complete_settings(run.open().parameters)["agents"]
    agent = agents.get(name)
    if agent is None or agent.get("is_random"):
        with_models = [n for n, a in agents.items() if not a.get("is_random")]
        raise SettingsError(
            f"agents.{name}.checkpoint_run_id: run {run.name!r} has no agent {name!r} with a "
            f"model; it has {', '.join(with_models) or 'none'}"
        )
    return dict(agent)


def _agent_on_record(record: RunRecord, name: str) -> dict[str, Any]:
    # A run without such an agent on record is refused later, with the difference shown.
    return dict(record.parameters.get("agents", {}).get(name, {}))


class ModelSearch:
    """Looks for the models with which groups begin; notes the adapters that have to be copied."""

    def __init__(self, parameters: HyperParameters, store: Store | None):
        self._parameters, self._there = parameters, store
        self.adapters: dict[str, dict[str, str | None]] = {}
        self.published: dict[str, PublishedAdapter] = {}

    @property
    def _store(self) -> Store:
        assert self._there is not None  # the settings name a run
        return self._there

    def base_run(self) -> list[dict[str, ServedModel]]:
        """Find the models of a base run by iteration, where there is one."""
        base = self._parameters.base_run
        if base.base_run_type == "none":
            return []
        setting = "base_run.run_id"
        source = _run(self._store, setting, str(base.run_id))
        last = source.finished_iterations()
        groups_there = _list_groups_there(self._parameters, source)
        iterations = range(last + 1) if base.base_run_type == "rerun_tests" else [last]
        return [
            {
                group: self.model(setting, source, iteration, group_there, group)
                for group, group_there in groups_there.items()
            }
            for iteration in iterations
        ]

    def attacked(self) -> list[dict[str, ServedModel]]:
        """Find the models of the attacked run, the verifier's included."""
        attack = self._parameters.attack
        if attack.run is None:
            return []
        source = RunStore(self._store, attack.run)
        check_attacked(self._parameters, source)
        return [
            {
                group: self.model("attack.run", source, attack.iteration, group_there, group)
                for group, group_there in list_attacked_groups(self._parameters, source).items()
                # A group that is trained to attack begins with the base model.
                if group not in self._parameters.trainable_groups
            }
        ]

    def checkpoint(self, group: str) -> ServedModel | None:
        """Find the model with which the group's agents ask to begin."""
        # All agents of a group ask for the same one: `check_groups`.
        name = self._parameters.groups[group][0]
        agent = self._parameters.model_agents[name]
        if not agent.load_checkpoint_and_parameters:
            return None
        run = _checkpoint_run(self._store, name, agent)
        finished = run.finished_iterations()
        version = agent.checkpoint_version
        iteration = finished - 1 if version == "latest" else int(version)
        if iteration >= finished:
            raise SettingsError(
                f"agents.{name}.checkpoint_version: run {run.name!r} has no model of iteration "
                f"{iteration}; its last is {finished - 1}"
            )
        source_group = _agent_of(run, name).get("shared_model_group") or name
        setting = f"agents.{name}.checkpoint_run_id"
        return self.model(setting, run, iteration + 1, source_group, group)

    def from_hub(self, group: str) -> ServedModel | None:
        """Find the adapter of the Hub with which the group's agents ask to begin."""
        name = self._parameters.groups[group][0]
        if self._parameters.model_agents[name].published_adapter is None:
            return None
        hub = need_hub(f"agents.{name}.published_adapter")
        published = hub.find_published(self._parameters, name)
        model = published.model()
        self.published[model.model] = published
        return model

    def model(
        self, setting: str, source: RunStore, iteration: int, source_group: str, group: str
    ) -> ServedModel:
        """Find the model of `source_group` in an iteration of `source`, for `group` of this run.

        Raises SettingsError, with the `setting` that names the run, for one that can't play here.
        """
        agent = self._parameters.group_parameters(group)
        base = base_name(self._parameters, agent)
        models = read_models(source, iteration)
        model = models.get(source_group)
        if model is None and (iteration == 0 or source_group in _list_scripted_groups(source)):
            return ServedModel(base, base)
        if model is None:
            raise SettingsError(
                f"{setting}: run {source.name!r} has no model group {source_group!r}; it has "
                f"{', '.join(models)}"
            )
        # An adapter plays over the base model that it was trained on, and over no other.
        if model.base_model != base:
            raise SettingsError(
                f"{setting}: the model of group {source_group!r} in run {source.name!r} is one of "
                f"{model.base_model!r}, but here the base model of {group!r} is {base!r}; give its "
                "agents the model_name of that run"
            )
        if model.trained_in is None:
            return model
        if find_host(self._parameters, agent).takes_adapters:
            if not has_model(source, model.model):
                raise SettingsError(
                    f"{setting}: model {model.model} is not in the own server of run "
                    f"{source.name!r}; name the server that has it (lm_server.url)"
                )
            self.adapters.setdefault(source.name, {})[model.model] = model.digest
        # A proof holds for the server that gave it; here the model is proved anew.
        return replace(model, proof=None, from_run=model.from_run or source.name)
