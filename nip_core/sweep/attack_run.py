"""The settings of an attack on another run's verifier, which is then played as a run of its own.

attack_settings  from the attacked run's settings on record
attack_of        from settings that are not on record yet, of a run that is planned
attack_name      how the run of an attack is called by default
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.parameters.attack import SNEAKY, TEMPERATURE
from nip_core.parameters.checks import attackers
from nip_core.parameters.stored import from_stored, with_defaults
from nip_core.run_store.run import RUN_NAME, RunStore, list_runs
from nip_core.run_store.store import MissingFileError, Store, is_missing, open_store
from nip_core.session.origin import check_attacked

_OF_TRAINING = (
    "base_run",
    "curriculum",
    "opponents",
    "promotion",
    "pure_text_ei",
    "pure_text_grpo",
    "pure_text_malt",
    "text_rl",
    "trainer",
)
"""Settings that have their defaults where the attack sets none."""
_DEFAULT = "agents._default"
ATTACKER = "attacker"
"""The group of attacking provers that shared a model with somebody who does not attack."""
STEPS, TESTED_EVERY, ROLLOUTS = 20, 5, 128
"""Of an attack by training: steps, steps from test to test, and episodes in a step."""


def attack_settings(
    run_store: str,
    run: str,
    attack: Mapping[str, Any],
    *,
    steps: int = STEPS,
    every: int = TESTED_EVERY,
    name: str | None = None,
    overrides: Sequence[str] = (),
) -> HyperParameters:
    """Return the settings of a run that attacks the verifier of `run`, which lies in `run_store`.

    `attack` has settings of the block of that name but `run`; without an `iteration`, the newest
    models are attacked. An attack by training takes so many `steps`, each an iteration, and tests
    `every` so many. `overrides` are laid over what follows from the attacked run.

    Raises SettingsError for what is not there, and for another game than the attacked run's.
    """
    source = RunStore(_store(run_store), run)
    stored = _stored(source)
    for_all = [o for o in overrides if o.startswith(_DEFAULT)]
    if for_all:
        raise SettingsError(
            f"--set {for_all[0].partition('=')[0]}: every agent has the settings of the "
            "attacked run; set those of one agent (agents.prover...)"
        )
    iteration = attack.get("iteration")
    if iteration is None:
        iteration = source.finished_iterations()
        if iteration == 0:
            raise SettingsError(
                f"run {run!r} has finished no iteration, so its verifier was never trained; to "
                "attack the model that it began with, give --iteration 0"
            )
    chosen = {**attack, "run": run, "iteration": iteration}
    parameters = attack_of(
        stored, chosen, run_store, steps=steps, every=every, name=name, overrides=overrides
    )
    check_attacked(parameters, source)
    return parameters


def attack_of(
    stored: Mapping[str, Any],
    attack: Mapping[str, Any],
    run_store: str,
    *,
    steps: int = STEPS,
    every: int = TESTED_EVERY,
    name: str | None = None,
    overrides: Sequence[str] = (),
) -> HyperParameters:
    """Return the settings of an attack on a run with the settings `stored`.

    `attack` names the run and the iteration. Neither its models nor its game are looked at. Raises
    SettingsError for settings that can't be an attack's.
    """
    of_way = _training(stored, steps, every) if attack["by"] == SNEAKY else _choosing(stored)
    values = {
        **{key: value for key, value in stored.items() if key not in _OF_TRAINING},
        "run_name": attack_name(attack["run"], attack) if name is None else name,
        "run_store": run_store,
        "attack": dict(attack),
        "protocol_common": {
            **stored["protocol_common"],
            "randomize_prover_stance": False,
            "shared_reward": False,
        },
        **of_way,
    }
    return load_parameters(values, overrides)


def _choosing(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an attack in which nobody is trained."""
    sampled = {"temperature": TEMPERATURE, "top_p": None}
    return {
        "agents": _agents(stored, sampled),
        "rl": {**stored["rl"], "num_iterations": 0},
        "text_rl": {"test_scheme": "none"},
    }


def _training(stored: Mapping[str, Any], steps: int, every: int) -> dict[str, Any]:
    """The settings of an attack by policy gradient on problems where the provers' claim is wrong.

    Attackers have a group without anybody else, so that the verifier keeps its weights.
    """
    trained = {
        "freeze_agent": False,
        "fine_tune_from_scratch": False,
        "update_schedule": "ConstantUpdateSchedule",
        **dict.fromkeys(("temperature", "top_p", "repetition_penalty")),
    }
    agents = _agents(stored, trained)
    attacking = attackers(from_stored(stored))
    apart = {_group(agents, n) for n in agents if n not in attacking}
    for name in attacking:
        if _group(agents, name) in apart:
            agents[name]["shared_model_group"] = ATTACKER
    size = {"num_iterations": steps, "rollouts_per_iteration": ROLLOUTS, "frames_per_batch": None}
    return {
        "agents": agents,
        "trainer": "pure_text_grpo",
        "rl": {**stored["rl"], **size, "num_epochs": 1},
        "text_rl": {"test_scheme": "all", "test_interval": every},
        "dataset_options": {**stored["dataset_options"], "labels": [0]},
    }


def _agents(stored: Mapping[str, Any], attacker: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of the agents of the attacked run as they play here, by name."""
    attacking = attackers(from_stored(stored))
    frozen = {
        "freeze_agent": True,
        "load_checkpoint_and_parameters": False,
        "checkpoint_run_id": None,
        "checkpoint_version": "latest",
        "published_adapter": None,
    }
    return {
        name: dict(agent)
        if agent.get("is_random")
        else {**agent, **frozen, **(attacker if name in attacking else {})}
        for name, agent in stored["agents"].items()
    }


def _group(agents: Mapping[str, Mapping[str, Any]], name: str) -> str:
    return str(agents[name].get("shared_model_group") or name)


def attack_name(run: str, attack: Mapping[str, Any]) -> str:
    """The default name of an attack. Raises SettingsError where that is too long."""
    name = f"{run}-{attack['by']}-{attack['iteration']}"
    if not RUN_NAME.fullmatch(name):
        raise SettingsError(f"the attack would be called {name!r}, which is too long; give --name")
    return name


def _store(run_store: str) -> Store:
    if is_missing(run_store, "--run-store"):
        raise SettingsError(f"--run-store {run_store!r}: there is no such directory")
    return open_store(run_store, read_only=True, setting="--run-store")


def _stored(source: RunStore) -> dict[str, Any]:
    try:
        return with_defaults(source.open().parameters)
    except MissingFileError:
        there = ", ".join(list_runs(source.store)) or "none"
        raise SettingsError(
            f"run {source.name!r} is not in {source.store.url}; there are {there}"
        ) from None
