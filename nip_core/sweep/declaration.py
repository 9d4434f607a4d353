"""What a study will show is said before it is run, and what was done otherwise is listed.

read_plan        a YAML file -> StudyPlan: a sweep and hypotheses about its arms
declare          the plan's declaration, put beside the sweep's results before its first run
list_departures  what of a sweep is not as it was declared

    sweep: rounds.yaml
    stopping: all runs of the sweep, and no others
    hypotheses:
      - says: asking twice keeps more soundness than one message
        figure: soundness
        arm: {protocol: nip5}
        against: {protocol: adp}
        expected: higher
        where: {completeness: 0.9}      # of both arms, at least
        primary: true
      - says: asking costs no completeness
        figure: completeness
        arm: {protocol: nip5}
        against: {protocol: adp}
        expected: equal
        margin: 0.05
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nip_core.errors import CorruptionError, RunConflictError, SettingsError
from nip_core.evaluation import attack_figures, statistics
from nip_core.hashing import digest
from nip_core.run_store.run import RunStore, list_runs
from nip_core.run_store.store import Store
from nip_core.session.contents import code_version
from nip_core.sweep.counted import Figure
from nip_core.sweep.swept_runs import Sweep, SweptRun, as_text, read_sweep, read_yaml_as
from nip_lm_server.client import parse_json

DAMAGED = "damaged"
"""The status of a run that can't be read."""

Rate = Annotated[float, Field(ge=0, le=1)]
Arm = Annotated[dict[str, str | int | float | bool | None], Field(min_length=1)]


class Hypothesis(BaseModel):
    """A statement about the difference between two arms, and how it is tested."""

    model_config = ConfigDict(extra="forbid", strict=True)

    says: Annotated[str, Field(min_length=1)]
    """In words."""
    figure: Figure
    """Of the last test of each run."""
    after: str | None = None
    """The attack after which the figure and `where` are measured; None: the runs' own tests."""
    arm: Arm
    """Values of axes: all runs that have them."""
    against: Arm
    """The runs that they are compared with, each with the one that has all other values alike."""
    expected: Literal["higher", "lower", "equal"]
    """Of `arm`, as against `against`."""
    margin: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Of a rate: a difference that is smaller counts as none. For "equal" alone."""
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """Of all hypotheses of its kind (primary or not) together, by Holm's method."""
    where: dict[Figure, Rate] = Field(default_factory=dict)
    """What both arms must have at least, or nothing is said of the hypothesis."""
    primary: bool = False
    """Exactly one of a plan is."""

    @model_validator(mode="after")
    def _check_margin(self) -> "Hypothesis":
        if (self.expected == "equal") != (self.margin is not None):
            raise ValueError('a margin belongs to expected: "equal", and to nothing else')
        return self


class PlanFile(BaseModel):
    """The content of a plan's file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    sweep: str
    """The sweep's file, seen from this one."""
    stopping: Annotated[str, Field(min_length=1)]
    """When it ends: in words, for the reader."""
    hypotheses: Annotated[list[Hypothesis], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_primary(self) -> "PlanFile":
        if (count := sum(hypothesis.primary for hypothesis in self.hypotheses)) != 1:
            raise ValueError(f"exactly one hypothesis is primary (got {count})")
        return self


@dataclass(frozen=True)
class StudyPlan:
    """A sweep, and what is expected of it."""

    sweep: Sweep
    file: PlanFile

    @property
    def contents(self) -> dict[str, Any]:
        """All that is declared: a change of any of it is another declaration."""
        return {
            **self.file.model_dump(mode="json"),
            "sweep": self.sweep.name,
            "runs": settings_digests(self.sweep),
        }


def settings_digests(sweep: Sweep) -> dict[str, str]:
    """By name, the digest of the settings of each run and of each attack on one."""
    played = {run.name: run.parameters for run in sweep.runs}
    played |= {attack.name: attack.parameters for run in sweep.runs for attack in run.attacks}
    return {name: settings_digest(parameters.to_dict()) for name, parameters in played.items()}


def settings_digest(settings: Mapping[str, Any]) -> str:
    """SHA-256 of a run's settings, but for where it is kept."""
    return digest({key: value for key, value in settings.items() if key != "run_store"})


def analysis_digest() -> str:
    """SHA-256 of the code that makes a figure, its interval and its test of what was played."""
    assert statistics.__file__ is not None
    here = Path(__file__).parent
    assert attack_figures.__file__ is not None
    files = [
        here / "counted.py",
        here / "outcomes.py",
        Path(attack_figures.__file__),
        *Path(statistics.__file__).parent.glob("*.py"),
    ]
    hashed = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return digest(hashed)


def read_plan(path: Path, overrides: tuple[str, ...] = ()) -> StudyPlan:
    """The plan of a file, its sweep read and every arm looked up in it.

    Raises SettingsError for what is wrong; the message names file and place.
    """
    file = read_yaml_as(path, PlanFile)
    sweep = read_sweep(path.parent / file.sweep, overrides)
    for place, hypothesis in enumerate(file.hypotheses):
        try:
            both = pair_runs(sweep, hypothesis)
            _check_attacked(sweep, hypothesis, both)
            if len(both) < 2:
                raise SettingsError("one pair of runs shows no spread; give the sweep more seeds")
        except SettingsError as error:
            raise SettingsError(f"{path}: hypotheses[{place}]: {error}") from None
    return StudyPlan(sweep, file)


def pair_runs(sweep: Sweep, hypothesis: Hypothesis) -> list[tuple[SweptRun, SweptRun]]:
    """The runs of both arms that differ in nothing but what the hypothesis is about.

    Raises SettingsError for an arm that no run has, or a run without its counterpart.
    """
    compared = {*hypothesis.arm, *hypothesis.against}
    arms = [_runs_with(sweep, arm) for arm in (hypothesis.arm, hypothesis.against)]
    by_rest = [
        {tuple(v for axis, v in run.values.items() if axis not in compared): run for run in runs}
        for runs in arms
    ]
    if any(len(rests) < len(runs) for rests, runs in zip(by_rest, arms, strict=True)):
        raise SettingsError(
            f"name the same axes in arm and against (got {', '.join(hypothesis.arm)} and "
            f"{', '.join(hypothesis.against)})"
        )
    if by_rest[0].keys() != by_rest[1].keys():
        alone = by_rest[0].keys() ^ by_rest[1].keys()
        told = ", ".join(sorted(" ".join(rest) for rest in alone))
        raise SettingsError(f"arm and against must have the same other values (unpaired: {told})")
    if arms[0] == arms[1]:
        raise SettingsError("arm and against are the same runs")
    return [(by_rest[0][rest], by_rest[1][rest]) for rest in by_rest[0]]


def _check_attacked(
    sweep: Sweep, hypothesis: Hypothesis, both: Sequence[tuple[SweptRun, SweptRun]]
) -> None:
    after = hypothesis.after
    if after is not None and after not in sweep.attacks:
        there = ", ".join(sweep.attacks) or "none"
        raise SettingsError(f"after: {after!r}: the sweep has no such attack; it has {there}")
    for run in (run for pair in both for run in pair):
        if run.name_after(after) is None:
            raise SettingsError(f"after: {after!r} leaves out {run.name}")


def _runs_with(sweep: Sweep, arm: Mapping[str, Any]) -> list[SweptRun]:
    for axis, value in arm.items():
        values = list(dict.fromkeys(run.values.get(axis) for run in sweep.runs))
        if as_text(value) not in values:
            what = f"values are {', '.join(map(str, values))}" if any(values) else "no such axis"
            raise SettingsError(f"{axis}: {value!r}: {what}")
    texts = {axis: as_text(value) for axis, value in arm.items()}
    return [run for run in sweep.runs if texts.items() <= run.values.items()]


def declare(store: Store, plan: StudyPlan) -> tuple[dict[str, Any], bool]:
    """The declaration of a plan, and whether it is new.

    One that is there already and says the same stays.

    Raises:
        RunConflictError: a run of the sweep has begun before anything was declared, or with another
            declaration.
    """
    before, contents = read_declaration(store, plan.sweep.name), plan.contents
    if before is not None and before["plan"] == contents:
        return before, False
    if store.exists(f"sweeps/{plan.sweep.name}/results.json"):
        raise RunConflictError(
            f"sweep {plan.sweep.name!r} has results already, so nothing can be declared of it; "
            "give it another name"
        )
    begun = sorted({*contents["runs"]} & {*list_runs(store)})
    if begun:
        what = "another plan is declared" if before is not None else "nothing was declared"
        raise RunConflictError(
            f"sweep {plan.sweep.name!r}: {what}, and {len(begun)} of its runs have begun (as "
            f"{begun[0]!r}): a plan is declared before its first run. Give the sweep another name"
            + (", or put the plan back" if before is not None else "")
        )
    declaration = {
        "plan": contents,
        "plan_sha256": digest(contents),
        "analysis_sha256": analysis_digest(),
        "code_version": code_version(),
        "declared_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    declaration["sha256"] = digest(declaration)
    store.put(_path(plan.sweep.name), json.dumps(declaration, indent=2).encode())
    return declaration, True


def read_declaration(store: Store, sweep: str) -> dict[str, Any] | None:
    """The declaration of a sweep, None without one. Raises CorruptionError for a changed one."""
    path = _path(sweep)
    if not store.exists(path):
        return None
    try:
        declaration: dict[str, Any] = parse_json(store.get(path))
        sha256 = declaration.pop("sha256")
        is_whole = sha256 == digest(declaration)
    except (ValueError, KeyError, TypeError, AttributeError):
        is_whole = False
    if not is_whole:
        raise CorruptionError(f"{path}: damaged, or changed by hand after it was declared")
    return {**declaration, "sha256": sha256}


def _path(sweep: str) -> str:
    return f"sweeps/{sweep}/declaration.json"


def list_departures(
    store: Store, sweep: Sweep, declaration: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]
) -> list[str]:
    """List what is not as declared: runs, their settings, when they began, and code."""
    declared: Mapping[str, str] = declaration["plan"]["runs"]
    now = settings_digests(sweep)
    played = [entry for run in runs for entry in (run, *run.get("attacks", {}).values())]
    status = {entry["run"]: entry["status"] for entry in played}
    lines = [f"{name}: not declared" for name in sorted(now.keys() - declared.keys())]
    lines += [f"{name}: declared, and not in the sweep" for name in declared if name not in now]
    for name in sorted(now.keys() & declared.keys()):
        if now[name] != declared[name]:
            lines.append(f"{name}: other settings than declared")
        if status[name] != "finished":
            lines.append(f"{name}: {status[name]}")
    for name in [name for name in now if status[name] not in ("not begun", DAMAGED)]:
        record = RunStore(store, name).open()
        if settings_digest(record.parameters) != now[name]:
            lines.append(f"{name}: begun with other settings than the sweep's")
        if str(record.created_at) < declaration["declared_at"]:
            lines.append(f"{name}: begun before the declaration")
        if record.code_version != declaration["code_version"]:
            lines.append(f"{name}: played with code {record.code_version}")
    if analysis_digest() != declaration["analysis_sha256"]:
        lines.append("the code of the analysis has changed")
    return lines
