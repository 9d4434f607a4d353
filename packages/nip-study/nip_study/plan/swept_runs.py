"""The runs of a sweep, from its file.

read_sweep  a YAML file -> Sweep
Sweep       a name, a store, and the runs: every combination of the axes' values
SweptRun    one of them, with its settings checked

    name: rounds
    config: deterministic
    set: {rl.num_iterations: 2}
    axes:
      interaction_protocol: [adp, nip]        # the axis is a setting
      prover:                                 # named values, each with settings
        helpful: {}
        opposed: {protocol_common.shared_reward: false}
      seed: [1, 2, 3]
    leave_out:
      - {interaction_protocol: adp, prover: opposed}
    attacks:                                    # on the verifier of each run (see `attacks`)
      chosen: {by: best-of-n, n: [1, 4]}
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from nip_core.errors import SettingsError
from nip_core.hashing import digest
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.parameters.basis.plain import PlainDict, PlainMapping
from nip_core.parameters.load import merge_settings, read_yaml
from nip_core.parameters.named_files import find_in_sweep
from nip_core.run_store.run import RUN_NAME
from nip_study.plan.attacks import (
    AttackEntry,
    SweptAttack,
    Value,
    check_imitations,
    name_held_out,
    order_attacks,
    plan_attack,
)
from nip_study.plan.planned import group_by_arm

MOST_RUNS = 2_000
"""Combinations of a sweep; every one is read and checked before the first run."""

_File = TypeVar("_File", bound=BaseModel)
# Any: YAML has dates, too; the error about one names its run, which is not known here yet.
Values = Annotated[list[Value] | dict[str, dict[str, Any]], Field(min_length=1)]


class SweepFile(BaseModel):
    """The content of a sweep's file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    """Of the sweep; the names of its runs begin with it."""
    config: str
    """The part that all runs share: a configuration's path, seen from this file or from here, or
    the name of a bundled one."""
    run_store: str | None = None
    """Where the runs are kept; by default where the configuration says."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Settings of all runs, by dotted name."""
    axes: dict[str, Values] = Field(min_length=1)
    """The differences: a setting with its values, or a name of your own with named values, each of
    which is a mapping of settings."""
    leave_out: list[dict[str, Value]] = Field(default_factory=list)
    """Combinations that are not run: values of some of the axes each."""
    attacks: Annotated[dict[str, AttackEntry], BeforeValidator(name_held_out)] = Field(
        default_factory=dict
    )
    """By name, how the verifier of each run is attacked once it is trained."""


@dataclass(frozen=True)
class SweptRun:
    """A run of a sweep."""

    name: str
    values: Mapping[str, str]
    """By axis, the value as it is written or named in the file."""
    overrides: tuple[str, ...]
    """Settings on top of the configuration, as of ``--set``."""
    settings: PlainMapping
    """All of them, so that a configuration that changes meanwhile changes nothing."""
    parameters: HyperParameters
    """The same, checked."""
    attacks: tuple[SweptAttack, ...] = ()
    """In the order of the file, those that are made on it."""

    @property
    def tested_by(self) -> tuple[str, ...]:
        """Return the names of its attacks that play the problems of its own tests.

        Beside attacks on the trained verifier those on the untrained one are controls: left out.
        """
        split = self.parameters.test_dataset_split
        iterations = {attack.label: attack.parameters.attack.iteration for attack in self.attacks}
        return tuple(
            attack.label
            for attack in self.attacks
            if attack.parameters.test_dataset_split == split
            and (iterations[attack.label] or not any(iterations.values()))
        )

    @property
    def attacks_in_order(self) -> list[SweptAttack]:
        """Return the attacks on it as they are played: each behind the one that it imitates."""
        return order_attacks(self.attacks)

    @property
    def problems(self) -> tuple[str, str]:
        """Return its scenario and its dataset."""
        return self.parameters.scenario, self.parameters.dataset


@dataclass(frozen=True)
class Sweep:
    """A sweep, as its file asks for it."""

    name: str
    config: str
    run_store: str
    axes: tuple[str, ...]
    runs: tuple[SweptRun, ...]
    attacks: tuple[str, ...] = ()
    """Their names, in the order of the file."""

    @property
    def arms(self) -> dict[tuple[str, ...], list[SweptRun]]:
        """Group the runs by their arms, in the order of the file."""
        return group_by_arm(self.runs)


def read_sweep(path: Path, overrides: tuple[str, ...] = ()) -> Sweep:
    """Read a sweep from its file, with `overrides` for all runs on top, and check each run.

    Raises:
        SettingsError: the file is not a sweep's, a run's settings are wrong, two runs would be the
            same or have the same name, or nothing is left to run. The message names file and place.
    """
    # 1. The file.
    file = read_yaml_as(path, SweepFile)
    if not RUN_NAME.fullmatch(file.name):
        raise SettingsError(
            f"{path}: name {file.name!r}: use at most 41 lower-case letters, digits and '-'"
        )
    config_path = path.parent / file.config
    config = str(config_path) if config_path.is_file() else file.config
    _check_values(path, file)
    _check_left_out(path, "leave_out", file.leave_out, file)
    for label, entry in file.attacks.items():
        _check_left_out(path, f"attacks.{label}.leave_out", entry.leave_out, file)
    try:
        check_imitations(file.attacks)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None
    # 2. Every combination that is not left out, as a run.
    runs = tuple(
        _plan_run(path, file, config, combination, overrides)
        for combination in _combinations(file)
        if not any(_matches(combination, left_out) for left_out in file.leave_out)
    )
    if not runs:
        raise SettingsError(f"{path}: leave_out leaves no run")
    # 3. No two are the same, all lie in one store.
    _check_differences(path, runs)
    [store, *other_stores] = {run.parameters.run_store for run in runs}
    if other_stores:
        raise SettingsError(f"{path}: the runs of a sweep need one run_store; take it off the axes")
    return Sweep(file.name, config, store, tuple(file.axes), runs, tuple(file.attacks))


def read_yaml_as(path: Path, kind: type[_File]) -> _File:
    """Read a YAML file of this form. Raises SettingsError with file and place."""
    values = read_yaml(path)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise SettingsError(f"{path}: {'; '.join(_describe_errors(error))}") from None
    except (RecursionError, ValueError) as error:
        raise SettingsError(f"{path}: can't be read ({error or type(error).__name__})") from None


def _describe_errors(error: ValidationError) -> list[str]:
    """Say the fault at each place. An axis of neither kind is named once."""
    lines: dict[str, str] = {}
    for detail in error.errors():
        location = [str(part) for part in detail["loc"]]
        message = detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "extra_forbidden":
            message = "unknown key"
        if location[:1] == ["axes"] and len(location) > 2:
            message = "give a list of plain values, or a mapping of names to settings"
            location = location[:2]
        place = ".".join(location)
        lines.setdefault(place, f"{place}: {message}" if place else message)
    return list(lines.values())


def as_text(value: Value) -> str:
    """Write a value of an axis for the table: text as it is, others as in YAML."""
    return value if isinstance(value, str) else json.dumps(value)


def _named_values(axis: str, values: list[Value] | dict[str, PlainDict]) -> dict[str, PlainDict]:
    """Return by name the settings behind each value of an axis."""
    if isinstance(values, dict):
        return values
    return {as_text(value): {axis: value} for value in values}


Named = dict[str, tuple[str, PlainDict]]  # by axis, a value's name and its settings


def _combinations(file: SweepFile) -> Iterator[Named]:
    choices = [_named_values(axis, values).items() for axis, values in file.axes.items()]
    for combination in product(*choices):
        yield dict(zip(file.axes, combination, strict=True))


def _matches(combination: Named, left_out: Mapping[str, Value]) -> bool:
    return all(combination[axis][0] == as_text(value) for axis, value in left_out.items())


def _check_values(path: Path, file: SweepFile) -> None:
    for axis, values in file.axes.items():
        texts = [as_text(value) for value in values] if isinstance(values, list) else [*values]
        if twice := {text for text in texts if texts.count(text) > 1}:
            raise SettingsError(f"{path}: axes.{axis}: {', '.join(sorted(twice))} stands twice")
        if "" in texts:
            raise SettingsError(f"{path}: axes.{axis}: give the empty value a name")
    if (count := math.prod(len(values) for values in file.axes.values())) > MOST_RUNS:
        raise SettingsError(f"{path}: axes: {count:,} combinations, more than {MOST_RUNS:,}")


def _check_left_out(path: Path, key: str, entries: list[dict[str, Value]], file: SweepFile) -> None:
    for place, left_out in enumerate(entries):
        for axis, value in left_out.items():
            values = _named_values(axis, file.axes.get(axis, []))
            if as_text(value) not in values:
                detail = f"values are {', '.join(values)}" if values else "there is no such axis"
                raise SettingsError(f"{path}: {key}[{place}]: {axis}: {value!r}: {detail}")
        if not left_out:
            raise SettingsError(f"{path}: {key}[{place}]: names no value, so leaves out all")


def _plan_run(
    path: Path, file: SweepFile, config: str, combination: Named, more: tuple[str, ...]
) -> SweptRun:
    values = {axis: name for axis, (name, _) in combination.items()}
    values_text = ", ".join(f"{axis} {name}" for axis, name in values.items())
    run_name = "-".join([file.name, *map(_slug, values.values())])
    if not RUN_NAME.fullmatch(run_name):
        raise SettingsError(
            f"{path}: {values_text}: the run's name, {run_name!r}, is not one of at most 41 "
            "lower-case "
            "letters, digits and '-'; name the values of the axes shortly: {short: {setting: ...}}"
        )
    # One after the other, in the order of the file: of two that overlap the later one holds.
    changes = [
        *file.set.items(),
        *(c for _, of_value in combination.values() for c in of_value.items()),
    ]
    if file.run_store is not None:
        changes.append(("run_store", file.run_store))
    if "run_name" in dict(changes) or any(text.startswith("run_name=") for text in more):
        raise SettingsError(
            f"{path}: {values_text}: run_name follows from the sweep's name and values"
        )
    found_changes = [
        (setting, find_in_sweep(setting, value, str(path))) for setting, value in changes
    ]
    try:
        overrides = (
            *(
                f"{setting}={json.dumps(value, ensure_ascii=False)}"
                for setting, value in found_changes
            ),
            *more,
            f"run_name={json.dumps(run_name)}",
        )
    except TypeError as error:
        raise SettingsError(
            f"{path}: {values_text}: a value is neither text nor a number ({error}); write "
            "it in quotes"
        ) from None
    try:
        parameters = load_parameters(config, overrides)
    except SettingsError as error:
        raise SettingsError(f"{path}: {values_text}: {error}") from None
    return SweptRun(
        run_name,
        values,
        overrides,
        merge_settings(config, overrides),
        parameters,
        _plan_attacks(path, file, combination, parameters),
    )


def _plan_attacks(
    path: Path, file: SweepFile, combination: Named, attacked_parameters: HyperParameters
) -> tuple[SweptAttack, ...]:
    """Plan the attacks on a run, without those with this run in their `leave_out`."""
    attacks = [*_plan_each(path, file, combination, attacked_parameters)]
    try:
        order_attacks(attacks)
    except SettingsError as error:
        raise SettingsError(f"{path}: run {attacked_parameters.run_name!r}: {error}") from None
    return tuple(attacks)


def _plan_each(
    path: Path, file: SweepFile, combination: Named, attacked_parameters: HyperParameters
) -> Iterator[SweptAttack]:
    for label, entry in file.attacks.items():
        if any(_matches(combination, left_out) for left_out in entry.leave_out):
            continue
        try:
            yield plan_attack(label, entry, attacked_parameters, file.attacks, str(path))
        except SettingsError as error:
            raise SettingsError(
                f"{path}: attacks.{label}: run {attacked_parameters.run_name!r}: {error}"
            ) from None


def _slug(value: str) -> str:
    """Write a value as part of a run's name."""
    return re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-")


def _check_differences(path: Path, runs: tuple[SweptRun, ...]) -> None:
    names: dict[str, SweptRun] = {}
    settings: dict[str, SweptRun] = {}
    for run in runs:
        if (planned_run := names.setdefault(run.name, run)) is not run:
            raise SettingsError(
                f"{path}: {_describe_run(planned_run)} and {_describe_run(run)} would both be "
                f"called {run.name!r}; give the values of an axis other names"
            )
        # Under two names one run would be paid twice, and count as two.
        same = digest({**run.parameters.to_dict(), "run_name": ""})
        if (planned_run := settings.setdefault(same, run)) is not run:
            raise SettingsError(
                f"{path}: {_describe_run(planned_run)} and {_describe_run(run)} have the "
                "same settings"
            )
    for attack in [attack for run in runs for attack in run.attacks]:
        if attack.name in names:
            raise SettingsError(
                f"{path}: attacks.{attack.label}: two runs would be called {attack.name!r}; give "
                "the attack another name"
            )
        names[attack.name] = runs[0]


def _describe_run(run: SweptRun) -> str:
    return ", ".join(f"{axis} {value}" for axis, value in run.values.items())
