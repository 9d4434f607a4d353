"""The settings of an attack on a verifier, from the settings of the game or run that it plays."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nip_base.importing import find_line
from nip_core.attacks import Attack, find_attack
from nip_core.attacks.base import AttackPlan
from nip_core.errors import NipError, SettingsError
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.parameters.basis.plain import PlainDict, PlainMapping
from nip_core.parameters.blocks.game import OF_REWARD_FUNCTION
from nip_core.parameters.checks import find_attackers
from nip_core.parameters.stored import read_settings

_OF_TRAINING = (
    "base_run",
    "curriculum",
    "imitation",
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


def derive_attack(
    attacked: HyperParameters,
    attack: PlainMapping,
    *,
    steps: int | None,
    every: int,
    name: str,
    overrides: Sequence[str] = (),
) -> HyperParameters:
    """Make the settings of an attack on a run with the settings `attacked`.

    `attack` has the block of that name, the run and the iteration too. An attack by training takes
    at most so many `steps`, and tests `every` so many. Neither models nor game are looked at.
    Raises SettingsError for settings that can't be an attack's.
    """
    return derive_from_record(
        attacked.to_dict(),
        attack,
        run_store=attacked.run_store,
        steps=steps,
        every=every,
        name=name,
        overrides=overrides,
    )


def refuse_default(overrides: Sequence[str], of: str) -> None:
    """Raise SettingsError for a setting of all agents: each has all of its own from a run."""
    for_all = [o for o in overrides if o.startswith(_DEFAULT)]
    if for_all:
        raise SettingsError(
            f"--set {for_all[0].partition('=')[0]}: every agent has the settings of {of}; set "
            "those of one agent (agents.prover...)"
        )


def _plan(
    kind: type[Attack], attack: PlainMapping, test_split: str, steps: int | None, every: int
) -> AttackPlan:
    """Have an attack planned by its class. Raises SettingsError for a mistake in one's own."""
    by = str(attack["by"])
    try:
        plan = kind.plan(attack, test_split, steps, every)
    except NipError:
        raise
    except Exception as error:  # whatever a user's class raises
        line = find_line(error, by.rpartition(":")[0])
        raise SettingsError(
            f"--by: {by}: plan raised {type(error).__name__}: {error}{line}; mend it"
        ) from error
    if not isinstance(plan, AttackPlan):
        raise SettingsError(f"--by: {by}: plan has to return an AttackPlan (got {plan!r:.200})")
    return plan


def derive_from_record(
    on_record: PlainMapping,
    attack: PlainMapping,
    *,
    run_store: str,
    steps: int | None,
    every: int,
    name: str,
    overrides: Sequence[str] = (),
) -> HyperParameters:
    """Do as `derive_attack` does, with settings of a run on record that are completed."""
    attacked = _Attacked(dict(on_record))
    refuse_default(overrides, "the attacked run")
    kind = find_way(str(attack["by"]))
    plan = _plan(kind, attack, str(attacked.stored["test_dataset_split"]), steps, every)
    stored = attacked.stored
    common = stored["protocol_common"]
    values = {
        **{key: value for key, value in stored.items() if key not in _OF_TRAINING},
        "run_name": name,
        "run_store": run_store,
        "attack": {**plan.attack, **attack},
        # Provers argue for acceptance and are paid for it, rather than for a right verdict, or by
        # a function.
        "protocol_common": {
            **{name: value for name, value in common.items() if name not in OF_REWARD_FUNCTION},
            "randomize_prover_stance": False,
            "shared_reward": False,
        },
        **attacked.lay_under(plan),
    }
    return load_parameters(values, overrides)


@dataclass(frozen=True)
class _Attacked:
    """The run under attack."""

    stored: dict[str, Any]
    """Its settings on record, with the defaults of this version."""

    @cached_property
    def attackers(self) -> tuple[str, ...]:
        """Return the provers with a choice of what they say."""
        return find_attackers(read_settings(self.stored))

    def lay_under(self, plan: AttackPlan) -> PlainDict:
        """Lay what an attack plans over the blocks of settings that it keeps; everyone is frozen.

        Attackers may have a group without anybody else.
        """
        agents = self._agents(plan.provers)
        apart = {_group(agents, name) for name in agents if name not in self.attackers}
        for name in self.attackers if plan.has_own_group else ():
            if _group(agents, name) in apart:
                agents[name]["shared_model_group"] = ATTACKER
        changed = {
            name: {**self.stored[name], **value}
            if isinstance(value, Mapping) and name not in _OF_TRAINING
            else value
            for name, value in plan.run.items()
        }
        return {"agents": {**agents}, **changed}

    def _agents(self, changes: PlainMapping) -> dict[str, PlainDict]:
        """Return by name the agents' settings: all frozen, attackers with `changes` on top."""
        frozen: PlainDict = {
            "freeze_agent": True,
            "load_checkpoint_and_parameters": False,
            "checkpoint_run_id": None,
            "checkpoint_version": "latest",
            "published_adapter": None,
        }
        attacking: PlainDict = {"script": None, **changes}  # the attack says what they say
        return {
            name: dict(agent)
            if agent.get("is_random")
            else {**agent, **frozen, **(attacking if name in self.attackers else {})}
            for name, agent in self.stored["agents"].items()
        }


def _group(agents: Mapping[str, PlainMapping], name: str) -> str:
    return str(agents[name].get("shared_model_group") or name)


def find_way(by: str, setting: str = "attack.by") -> type[Attack]:
    """Find an attack. Raises SettingsError where there is none."""
    try:
        return find_attack(by)
    except ValueError as error:
        raise SettingsError(f"{setting}: {error}") from None


def name_way(by: str, script: str) -> str:
    """Name a way of attacking as a part of a run's name: a script, or a class, by its own."""
    called = (script or by).rpartition(":")[2]
    return "-".join(re.findall(r"[a-z0-9]+", called.lower())) if script or ":" in by else by
