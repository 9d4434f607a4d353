"""The settings of an attack on another run's verifier, which is then played as a run of its own.

attack_settings  from the attacked run's settings on record
attack_name      how the run of an attack is called by default
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.parameters.attack import TEMPERATURE
from nip_core.parameters.stored import from_stored, with_defaults
from nip_core.protocols import make_protocol
from nip_core.run_store.run import RUN_NAME, RunStore, list_runs
from nip_core.run_store.store import MissingFileError, Store, open_store
from nip_core.stages.origin import check_attacked

_FIRST = (
    "base_run",
    "curriculum",
    "promotion",
    "pure_text_ei",
    "pure_text_grpo",
    "pure_text_malt",
    "text_rl",
    "trainer",
)
"""Settings of training, which have their defaults where the attack sets none."""
_DEFAULT = "agents._default"


def attack_settings(
    run_store: str,
    run: str,
    attack: Mapping[str, Any],
    *,
    name: str | None = None,
    overrides: Sequence[str] = (),
) -> HyperParameters:
    """Return the settings of a run that attacks the verifier of `run`, which lies in `run_store`.

    `attack` has settings of the block of that name but `run`; without an `iteration`, the newest
    models are attacked. `overrides` are laid over what follows from the attacked run: its game,
    with provers that argue for acceptance and sample at temperature 1, and nobody trained.

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
    provers = make_protocol(from_stored(stored)).provers
    chosen = {**attack, "run": run, "iteration": iteration}
    values = {
        **{key: value for key, value in stored.items() if key not in _FIRST},
        "run_name": attack_name(run, chosen) if name is None else name,
        "run_store": run_store,
        "attack": chosen,
        "agents": {
            name: _agent(dict(agent), name in provers) for name, agent in stored["agents"].items()
        },
        "protocol_common": {
            **stored["protocol_common"],
            "randomize_prover_stance": False,
            "shared_reward": False,
        },
        "rl": {**stored["rl"], "num_iterations": 0},
        "text_rl": {"test_scheme": "none"},
    }
    parameters = load_parameters(values, overrides)
    check_attacked(parameters, source)
    return parameters


def attack_name(run: str, attack: Mapping[str, Any]) -> str:
    """The default name of an attack. Raises SettingsError where that is too long."""
    name = f"{run}-{attack['by']}-{attack['iteration']}"
    if not RUN_NAME.fullmatch(name):
        raise SettingsError(f"the attack would be called {name!r}, which is too long; give --name")
    return name


def _store(run_store: str) -> Store:
    if "://" not in run_store and not Path(run_store).is_dir():
        raise SettingsError(f"--run-store {run_store!r}: there is no such directory")
    return open_store(run_store, read_only=True)


def _stored(source: RunStore) -> dict[str, Any]:
    try:
        return with_defaults(source.open().parameters)
    except MissingFileError:
        there = ", ".join(list_runs(source.store)) or "none"
        raise SettingsError(
            f"run {source.name!r} is not in {source.store.url}; there are {there}"
        ) from None


def _agent(agent: dict[str, Any], is_prover: bool) -> dict[str, Any]:
    """The settings of an agent of the attacked run as it plays here."""
    if agent.get("is_random"):
        return agent
    agent |= {
        "freeze_agent": True,
        "load_checkpoint_and_parameters": False,
        "checkpoint_run_id": None,
        "checkpoint_version": "latest",
    }
    if is_prover:
        agent |= {"temperature": TEMPERATURE, "top_p": None}
    return agent
