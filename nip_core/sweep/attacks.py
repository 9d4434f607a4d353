"""The attacks of a sweep on the verifiers of its runs, once these are trained.

SweptAttack  an attack on one run of a sweep, with its settings checked
AttackEntry  what a sweep's file says of an attack

    attacks:
      sneaky: {by: sneaky, steps: 20, every: 5, set: {rl.lr: 0.001}}
      chosen: {by: best-of-n, n: [1, 4, 16], leave_out: [{protocol: solo}]}
      named: {by: script, script: right-step}
"""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nip_core.errors import SettingsError
from nip_core.parameters import HyperParameters
from nip_core.parameters.attack import SCRIPT, SNEAKY, WAY_OF
from nip_core.parameters.plain import PlainDict, PlainMapping
from nip_core.run_store.run import RUN_NAME
from nip_core.session.origin import check_game
from nip_core.sweep.attack_run import TESTED_EVERY, derive_attack

Value = str | int | float | bool | None
Count = Annotated[int, Field(ge=1)]


class AttackEntry(BaseModel):
    """An attack in a sweep's file; defaults are those of `nip attack`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    by: Literal["best-of-n", "sneaky", "script"]
    script: str | None = None
    """For script: which one, as in `attack.script`."""
    n: list[int] | None = None
    """For best-of-n: how many messages there are to choose from, in ascending order."""
    steps: Count | None = None
    """For sneaky: steps of training; the most steps, with `until: plateau`."""
    every: Count | None = None
    """For sneaky: steps from test to test."""
    until: Literal["steps", "plateau"] | None = None
    """For sneaky: when training ends, as in `attack.until`."""
    iteration: Annotated[int, Field(ge=0)] | None = None
    """Whose models: those that play this iteration; None: the last ones."""
    problems: Count | None = None
    """Most problems of each label; None: all."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Settings on top of the attacked run's, by dotted name."""
    leave_out: list[dict[str, Value]] = Field(default_factory=list)
    """Runs that are not attacked: values of some of the axes each."""

    @model_validator(mode="after")
    def _check_way(self) -> "AttackEntry":
        for option, way in WAY_OF.items():
            if self.by != way and getattr(self, option, None) is not None:
                raise ValueError(f"{option} is not for by: {self.by}; leave it out")
        if self.by == SCRIPT and self.script is None:
            raise ValueError("script is missing; name the one that writes the provers' messages")
        return self


@dataclass(frozen=True)
class SweptAttack:
    """An attack on a run of a sweep; it is a run of its own."""

    label: str
    """Its name in the sweep's file."""
    name: str
    """Of its run."""
    parameters: HyperParameters

    @property
    def settings(self) -> PlainMapping:
        """Return all of its settings."""
        return self.parameters.to_dict()

    @property
    def n(self) -> int | None:
        """Return the largest number of messages to choose from; None for an attack by training."""
        attack = self.parameters.attack
        return None if attack.by == SNEAKY else attack.candidates[-1]


def plan_attack(label: str, entry: AttackEntry, attacked: HyperParameters) -> SweptAttack:
    """Plan the attack `label` on a planned run.

    Raises SettingsError where the run has nobody who could attack, or nothing worth attacking.
    """
    name = f"{attacked.run_name}-{label}"
    if not RUN_NAME.fullmatch(name):
        raise SettingsError(
            f"its run would be called {name!r}, which is not one of at most 41 lower-case letters, "
            "digits and '-'; give the attack, or the values of the axes, shorter names"
        )
    last = attacked.rl.num_iterations
    iteration = last if entry.iteration is None else entry.iteration
    if iteration > last:
        raise SettingsError(f"iteration {iteration}: the run has {last}, counted from 0")
    verifier = attacked.model_agents.get("verifier")
    is_trained = last > 0 and (verifier is None or not verifier.freeze_agent)
    if entry.iteration is None and not is_trained:
        raise SettingsError(
            "the run trains no verifier; leave it out (leave_out), or attack the models that it "
            "begins with (iteration: 0)"
        )
    attack: PlainDict = {"by": entry.by, "run": attacked.run_name, "iteration": iteration}
    attack |= {"problems": entry.problems, **({} if entry.n is None else {"n": [*entry.n]})}
    attack |= {} if entry.script is None else {"script": entry.script}
    attack |= {} if entry.until is None else {"until": entry.until}
    overrides = [f"{key}={json.dumps(value)}" for key, value in entry.set.items()]
    parameters = derive_attack(
        attacked,
        attack,
        steps=entry.steps,
        every=entry.every or TESTED_EVERY,
        name=name,
        overrides=overrides,
    )
    check_game(parameters, attacked.to_dict())
    return SweptAttack(label, name, parameters)
