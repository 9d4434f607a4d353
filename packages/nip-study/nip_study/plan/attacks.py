"""The attacks of a sweep on the verifiers of its runs, once these are trained.

SweptAttack  an attack on one run of a sweep, with its settings checked
AttackEntry  an attack in a sweep's file
name_held_out  the list `held_out` as attacks with names
order_attacks  the attacks on a run, each behind the one that it imitates

    attacks:
      sneaky: {by: sneaky, steps: 20, every: 5, set: {rl.lr: 0.001}}
      chosen: {by: best-of-n, n: [1, 4, 16], leave_out: [{protocol: solo}]}
      named: {by: script, script: right-step, set: {test_dataset_split: validation}}
      begun: {by: sneaky, start_from: named}
      held_out: [no-answer, silent.py:list_c]    # scripts that no attacked run was trained against
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nip_core.attacks import Attack, find_attack, list_options_of_others
from nip_core.attacks.base import CHATS
from nip_core.attacks.course import TEST, TESTED_EVERY, VALIDATION
from nip_core.errors import SettingsError, StoreError
from nip_core.parameters import HyperParameters
from nip_core.parameters.attack_settings import derive_attack, find_way, name_way
from nip_core.parameters.basis.plain import PlainDict, PlainMapping
from nip_core.parameters.blocks.opponents import OpponentRun
from nip_core.parameters.named_files import find_in_sweep
from nip_core.run_store.run import RUN_NAME, RunStore
from nip_core.run_store.store import open_store
from nip_core.scenarios import make_scenario
from nip_core.scenarios.scripts import LoadedScript, load_script
from nip_core.session.imitated import check_start_file
from nip_core.session.origin import check_game

Value = str | int | float | bool | None
Count = Annotated[int, Field(ge=1)]
HELD_OUT = "held_out"
"""In the place of attacks' names: those that are held out."""


class AttackEntry(BaseModel):
    """An attack in a sweep's file; defaults are those of `nip attack`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    by: Annotated[str, Field(min_length=1)]
    """An attack of nip's, or one of your own, seen from the sweep's file."""
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
    start_from: Annotated[str, Field(min_length=1)] | None = None
    """For sneaky: another attack of this sweep on the same run, which is played first and whose
    messages that fooled the verifier are imitated; or a file of chats, seen from the sweep's."""
    iteration: Annotated[int, Field(ge=0)] | Literal["last"] | None = None
    """Whose models: those that play this iteration; None: the last ones, of a run that trains its
    verifier; "last": the last ones of any run."""
    problems: Count | None = None
    """Most problems of each label; None: all."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Settings on top of the attacked run's, by dotted name."""
    leave_out: list[dict[str, Value]] = Field(default_factory=list)
    """Runs that are not attacked: values of some of the axes each."""
    held_out: bool = False
    """Whether none of the attacked runs may have been trained against its script."""

    @field_validator("by")
    @classmethod
    def _check_by(cls, value: str) -> str:
        if ":" not in value:  # one that stands beside the sweep's file is found from there
            find_attack(value)
        return value

    @model_validator(mode="after")
    def _check_way(self) -> "AttackEntry":
        if self.held_out and self.script is None:
            raise ValueError(
                "held_out is for scripts: nip can't tell whether a run was trained against other "
                "attacks; leave it out"
            )
        if ":" in self.by:  # it may stand beside the sweep's file
            return self
        kind = find_attack(self.by)
        self.check_options(kind)
        if kind.takes_script and self.script is None:
            raise ValueError("script is missing; name the one that writes the provers' messages")
        return self

    def check_options(self, kind: type[Attack]) -> None:
        """Raise ValueError for an option that is for other attacks."""
        for option in list_options_of_others(kind):
            if getattr(self, option, None) is not None:
                raise ValueError(f"{option} is not for by: {self.by}; leave it out")


@dataclass(frozen=True)
class SweptAttack:
    """An attack on a run of a sweep; it is a run of its own."""

    label: str
    """Its name in the sweep's file."""
    name: str
    """Of its run."""
    parameters: HyperParameters
    imitates: str | None = None
    """The label of the attack on the same run whose messages it begins with; None: of none."""
    is_held_out: bool = False
    """Whether the run was not trained against its script, as its file says."""

    @property
    def settings(self) -> PlainMapping:
        """Return all of its settings."""
        return self.parameters.to_dict()

    @property
    def n(self) -> int | None:
        """Return the largest number of messages to choose from; None for an attack by training."""
        choice = self.parameters.choice
        return None if choice is None else choice.counts[-1]


def plan_attack(
    label: str,
    entry: AttackEntry,
    attacked_parameters: HyperParameters,
    labels: Collection[str] = (),
    file: str = "",
) -> SweptAttack:
    """Plan the attack `label` on a planned run; `labels` are those of all attacks of the `file`.

    Raises SettingsError where the run has no possible attacker, or nothing worth attacking.
    """
    name = f"{attacked_parameters.run_name}-{label}"
    if not RUN_NAME.fullmatch(name):
        raise SettingsError(
            f"its run would be called {name!r}, which is not one of at most 41 lower-case letters, "
            "digits and '-'; give the attack, or the values of the axes, shorter names"
        )
    iterations = attacked_parameters.rl.num_iterations
    verifier = attacked_parameters.model_agents.get("verifier")
    is_trained = iterations > 0 and (verifier is None or not verifier.freeze_agent)
    # The last models of a verifier that is never trained are those that it begins with.
    last = iterations if is_trained or entry.iteration is None else 0
    iteration = entry.iteration if isinstance(entry.iteration, int) else last
    if iteration > iterations:
        raise SettingsError(f"iteration {iteration}: the run has {iterations}, counted from 0")
    if entry.iteration is None and not is_trained:
        raise SettingsError(
            "the run trains no verifier; leave it out (leave_out), or attack the models that it "
            "begins with (iteration: 0, or last)"
        )
    way = _find_file("by", entry.by, file)
    try:
        entry.check_options(find_way(way))
    except ValueError as error:
        raise SettingsError(str(error)) from None
    attack: PlainDict = {"by": way, "run": attacked_parameters.run_name, "iteration": iteration}
    attack |= {"problems": entry.problems, **({} if entry.n is None else {"n": [*entry.n]})}
    if entry.script is not None:
        attack["script"] = _find_file("script", entry.script, file)
    attack |= {} if entry.until is None else {"until": entry.until}
    imitates = entry.start_from if entry.start_from in labels else None
    if entry.start_from is not None:
        attack["start_from"] = (
            f"{attacked_parameters.run_name}-{imitates}"
            if imitates
            else _find_file("start_from", entry.start_from, file)
        )
    overrides = [f"{key}={json.dumps(value)}" for key, value in entry.set.items()]
    parameters = derive_attack(
        attacked_parameters,
        attack,
        steps=entry.steps,
        every=entry.every or TESTED_EVERY,
        name=name,
        overrides=overrides,
    )
    check_game(parameters, attacked_parameters.to_dict())
    if parameters.attack.start_file is not None:
        check_start_file(parameters)
    if entry.held_out:
        _refuse_trained_against(parameters, attacked_parameters)
    return SweptAttack(label, name, parameters, imitates, entry.held_out)


def name_held_out(attacks: Any) -> Any:
    """Give each entry of the list `held_out` a name, its script's own, as attacks of a file have.

    Raises ValueError for an entry that names no script, and for a name that stands twice.
    """
    if not isinstance(attacks, Mapping) or HELD_OUT not in attacks:
        return attacks
    named, entries = dict[Any, Any](), attacks[HELD_OUT]
    for entry in entries if isinstance(entries, list) else [entries]:
        values = {"script": entry} if isinstance(entry, str) else entry
        script = values.get("script") if isinstance(values, Mapping) else None
        if not isinstance(entries, list) or not isinstance(script, str):
            raise ValueError(
                f"{HELD_OUT} is a list of scripts: names, addresses, or attacks with the key "
                f"script (got {entry!r:.80})"
            )
        label = name_way("script", script)
        if label in {**named, **attacks}:
            raise ValueError(
                f"{HELD_OUT}: {script}: there is another attack {label!r}; give this one a name "
                "outside of the list, with held_out: true"
            )
        named[label] = {"by": "script", HELD_OUT: True, **values}
    # They stand where the list stood: the order is that of the table.
    parts = (named if label == HELD_OUT else {label: entry} for label, entry in attacks.items())
    return {label: entry for part in parts for label, entry in part.items()}


def _refuse_trained_against(attack: HyperParameters, attacked: HyperParameters) -> None:
    """Raise SettingsError where the attacked run meets the script of an attack in training."""
    scenario = make_scenario(attacked)
    met = [*_list_trained_against(attacked)]
    try:
        held_out = load_script(scenario, attack.attack.script or "")
        scripts = [load_script(scenario, name) for _, name in met]
    except ValueError as error:
        raise SettingsError(str(error)) from None
    for (place, name), script in zip(met, scripts, strict=True):
        if _is_same(held_out, script):
            raise SettingsError(
                f"{HELD_OUT}: the run is trained against {name} ({place}); leave it out "
                "(leave_out), or make this an attack that is not held out"
            )


def _list_trained_against(parameters: HyperParameters) -> Iterator[tuple[str, str]]:
    """List the scripts that a run meets in training, each behind the setting that names it."""
    for name, agent in parameters.agents.items():
        script = getattr(agent, "script", None)  # an agent that plays at random has none
        if script is not None:
            yield f"agents.{name}.script", script
    for place, entry in enumerate(parameters.opponents.runs):
        if (script := _find_script(entry, parameters.run_store)) is not None:
            yield f"opponents.runs.{place}", script


def _find_script(entry: OpponentRun, run_store: str) -> str | None:
    """Find the script that plays in training; None for a run with models, or one not there."""
    if entry.run is None or entry.found is not None:
        return entry.script if entry.found is None else entry.found.script
    try:
        record = RunStore(open_store(run_store, read_only=True), entry.run).open()
    except StoreError:  # said by the run that needs it
        return None
    script: str | None = (record.parameters.get("attack") or {}).get("script")
    return script


def _is_same(script: LoadedScript, other: LoadedScript) -> bool:
    """Tell whether two scripts are one function, also in two copies of its file."""
    is_copy = script.digest is not None and script.digest == other.digest
    return script.function is other.function or (is_copy and script.called == other.called)


def _find_file(setting: str, value: str, file: str) -> str:
    """Return a path as it is found from here, where it is seen from the sweep's file."""
    path = find_in_sweep(f"attack.{setting}", value, file)
    return path if isinstance(path, str) else value


def check_imitations(entries: Mapping[str, AttackEntry]) -> None:
    """Raise SettingsError for an attack that imitates a missing one, or waits for itself."""
    for label, entry in entries.items():
        start = entry.start_from
        if start is None or start.endswith(CHATS):
            continue
        place = f"attacks.{label}.start_from"
        if start not in entries:
            names = ", ".join(name for name in entries if name != label) or "none"
            raise SettingsError(
                f"{place}: {start!r} is neither another attack of this sweep (there are {names}) "
                "nor a file of chats, which ends in .jsonl"
            )
        chain = [label]
        while start in entries:
            if start in chain:
                raise SettingsError(
                    f"{place}: {' -> '.join([*chain, start])}: an attack can't begin with what "
                    "waits for it; let one of them begin without start_from"
                )
            chain.append(start)
            start = entries[start].start_from or ""


def order_attacks(attacks: Sequence[SweptAttack]) -> list[SweptAttack]:
    """Put the attacks on a run in order: each behind the one that it imitates.

    Raises SettingsError where that one is not made on this run, or plays nothing but the problems
    with which the other is tested.
    """
    by_label = {attack.label: attack for attack in attacks}
    depths: dict[str, int] = {}
    for attack in attacks:
        depth, label = 0, attack
        while label.imitates is not None:
            if label.imitates not in by_label:
                raise SettingsError(
                    f"attacks.{label.label}.start_from: {label.imitates!r} is not made on this run "
                    "(leave_out), so there is nothing to imitate; leave this one out, too"
                )
            source = by_label[label.imitates]
            _check_imitable(label, source)
            depth, label = depth + 1, source
        depths[attack.label] = depth
    return sorted(attacks, key=lambda attack: depths[attack.label])


def _check_imitable(attack: SweptAttack, source: SweptAttack) -> None:
    # One by training plays training problems in its steps, whatever it is tested with.
    if source.parameters.choice is None:
        return
    split = attack.parameters.test_dataset_split
    if source.parameters.test_dataset_split == split:
        other_split = VALIDATION if split == TEST else TEST
        raise SettingsError(
            f"attacks.{attack.label}.start_from: {source.label!r} plays {split} problems alone, "
            "with which this attack is tested, so all of its messages would be left out; add "
            f"test_dataset_split: {other_split} to its set"
        )
