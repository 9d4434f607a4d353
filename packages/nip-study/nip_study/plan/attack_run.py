"""The settings of an attack on another run's verifier; the attack is a run of its own.

attack_settings  from the attacked run's settings on record
derive_attack    from settings that are not on record yet, of a run that is planned
find_way         an attack by its name or address
name_way         a way of attacking, as a part of a run's name
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nip_base.importing import find_line
from nip_core.attacks import Attack, find_attack
from nip_core.attacks.base import AttackPlan
from nip_core.attacks.course import TESTED_EVERY
from nip_core.errors import NipError, SettingsError
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.parameters.basis.plain import PlainDict, PlainMapping
from nip_core.parameters.blocks.game import OF_REWARD_FUNCTION
from nip_core.parameters.checks import find_attackers
from nip_core.parameters.stored import complete_settings, read_settings
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
"""The group of attacking provers that shared a model with an agent that does not attack."""


def attack_settings(
    run_store: str,
    run: str,
    attack: PlainMapping,
    *,
    steps: int | None = None,
    every: int = TESTED_EVERY,
    name: str | None = None,
    overrides: Sequence[str] = (),
) -> HyperParameters:
    """Make the settings of an attack on the verifier of `run` in `run_store`.

    `attack` has settings of the block of that name but `run`; without an `iteration`, the newest
    models are attacked. An attack by training takes at most so many `steps`, each an iteration, and
    tests `every` so many. `overrides` are laid over the settings derived from the attacked run.

    Raises SettingsError for a missing run or iteration, and for another game than the run's.
    """
    source = RunStore(_open_store(run_store), run)
    attacked_run = _read_attacked(source)
    iteration = attack.get("iteration")
    if iteration is None:
        iteration = source.finished_iterations()
        if iteration == 0:
            raise SettingsError(
                f"run {run!r} has finished no iteration, so its verifier was never trained; to "
                "attack the model that it began with, give --iteration 0"
            )
    attack_settings_given = {**attack, "run": run, "iteration": iteration}
    parameters = _lay_over(
        attacked_run, attack_settings_given, run_store, steps, every, name, overrides
    )
    check_attacked(parameters, source)
    return parameters


def derive_attack(
    attacked_parameters: HyperParameters,
    attack: PlainMapping,
    *,
    steps: int | None,
    every: int,
    name: str,
    overrides: Sequence[str] = (),
) -> HyperParameters:
    """Make the settings of an attack on a planned run with the settings `attacked_parameters`.

    `attack` names the run and the iteration. Neither its models nor its game are looked at. Raises
    SettingsError for settings that can't be an attack's.
    """
    run = _Attacked(attacked_parameters.to_dict())
    return _lay_over(run, attack, attacked_parameters.run_store, steps, every, name, overrides)


def refuse_default(overrides: Sequence[str], noun: str) -> None:
    """Raise SettingsError for a setting of all agents: each has all of its own from a run."""
    for_all = [o for o in overrides if o.startswith(_DEFAULT)]
    if for_all:
        raise SettingsError(
            f"--set {for_all[0].partition('=')[0]}: every agent has the settings of {noun}; set "
            "those of one agent (agents.prover...)"
        )


def _plan(
    kind: type[Attack], attack: PlainMapping, test_split: str, steps: int | None, every: int
) -> AttackPlan:
    """Have an attack planned by its class. Raises SettingsError for a mistake in one's own."""
    way = str(attack["by"])
    try:
        plan = kind.plan(attack, test_split, steps, every)
    except NipError:
        raise
    except Exception as error:  # whatever a user's class raises
        line = find_line(error, way.rpartition(":")[0])
        raise SettingsError(
            f"--by: {way}: plan raised {type(error).__name__}: {error}{line}; mend it"
        ) from error
    if not isinstance(plan, AttackPlan):
        raise SettingsError(f"--by: {way}: plan has to return an AttackPlan (got {plan!r:.200})")
    return plan


def _lay_over(
    attacked_run: "_Attacked",
    attack: PlainMapping,
    run_store: str,
    steps: int | None,
    every: int,
    name: str | None,
    overrides: Sequence[str],
) -> HyperParameters:
    """Lay an attack's changes over the settings of the attacked run, and check them."""
    refuse_default(overrides, "the attacked run")
    kind = find_way(str(attack["by"]))
    plan = _plan(kind, attack, str(attacked_run.stored["test_dataset_split"]), steps, every)
    stored_settings = attacked_run.stored
    common = stored_settings["protocol_common"]
    values = {
        **{key: value for key, value in stored_settings.items() if key not in _OF_TRAINING},
        "run_name": _default_name(attack) if name is None else name,
        "run_store": run_store,
        "attack": {**plan.attack, **attack},
        # Provers argue for acceptance and are paid for it, rather than for a right verdict, or by
        # a function.
        "protocol_common": {
            **{name: value for name, value in common.items() if name not in OF_REWARD_FUNCTION},
            "randomize_prover_stance": False,
            "shared_reward": False,
        },
        **attacked_run.lay_under(plan),
    }
    return load_parameters(values, overrides)


@dataclass(frozen=True)
class _Attacked:
    """The run under attack."""

    stored: dict[str, Any]
    """Its settings on record, with the defaults of this version."""

    @cached_property
    def attackers(self) -> tuple[str, ...]:
        """Return the provers with a choice of their messages."""
        return find_attackers(read_settings(self.stored))

    def lay_under(self, plan: AttackPlan) -> PlainDict:
        """Lay an attack's plan over the blocks of settings that it keeps; all agents are frozen.

        Attackers may have a group of their own.
        """
        agents = self._agents(plan.provers)
        honest_groups = {_group(agents, name) for name in agents if name not in self.attackers}
        for name in self.attackers if plan.has_own_group else ():
            if _group(agents, name) in honest_groups:
                agents[name]["shared_model_group"] = ATTACKER
        changed_agents = {
            name: {**self.stored[name], **value}
            if isinstance(value, Mapping) and name not in _OF_TRAINING
            else value
            for name, value in plan.run.items()
        }
        return {"agents": {**agents}, **changed_agents}

    def _agents(self, changes: PlainMapping) -> dict[str, PlainDict]:
        """Return by name the agents' settings: all frozen, attackers with `changes` on top."""
        frozen: PlainDict = {
            "freeze_agent": True,
            "load_checkpoint_and_parameters": False,
            "checkpoint_run_id": None,
            "checkpoint_version": "latest",
            "published_adapter": None,
        }
        return {
            name: dict(agent)
            if agent.get("is_random")
            else {**agent, **frozen, **(changes if name in self.attackers else {})}
            for name, agent in self.stored["agents"].items()
        }


def _group(agents: Mapping[str, PlainMapping], name: str) -> str:
    return str(agents[name].get("shared_model_group") or name)


def find_way(way: str, setting: str = "attack.by") -> type[Attack]:
    """Find an attack. Raises SettingsError where there is none."""
    try:
        return find_attack(way)
    except ValueError as error:
        raise SettingsError(f"{setting}: {error}") from None


def name_way(way: str, script: str) -> str:
    """Name a way of attacking as a part of a run's name: a script, or a class, by its own."""
    name = (script or way).rpartition(":")[2]
    return "-".join(re.findall(r"[a-z0-9]+", name.lower())) if script or ":" in way else way


def _default_name(attack: PlainMapping) -> str:
    """Name an attack after its run, its way and its iteration.

    Raises SettingsError where that is too long.
    """
    way = name_way(str(attack["by"]), str(attack.get("script") or ""))
    name = f"{attack['run']}-{way}-{attack['iteration']}"
    if not RUN_NAME.fullmatch(name):
        raise SettingsError(f"the attack would be called {name!r}, which is too long; give --name")
    return name


def _open_store(run_store: str) -> Store:
    if is_missing(run_store, "--run-store"):
        raise SettingsError(f"--run-store {run_store!r}: there is no such directory")
    return open_store(run_store, read_only=True, setting="--run-store")


def _read_attacked(source: RunStore) -> _Attacked:
    """Read the settings of the run under attack. Raises SettingsError if it is not there."""
    try:
        return _Attacked(complete_settings(source.open().parameters))
    except MissingFileError:
        run_names = ", ".join(list_runs(source.store)) or "none"
        raise SettingsError(
            f"run {source.name!r} is not in {source.store.url}; there are {run_names}"
        ) from None
