"""A study declares its hypotheses before it is run; later, departures are listed.

docs/study.md has the file of a plan.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from nip_base.formats.bounds import parse_json
from nip_core.errors import CorruptionError, RunConflictError, SettingsError, StoreError
from nip_core.hashing import digest
from nip_core.parameters.checks import find_attackers
from nip_core.run_store.documents import first_fault
from nip_core.run_store.run import RunStore, list_runs
from nip_core.run_store.store import Store
from nip_core.session.contents import read_code_version
from nip_study.declare.declared_digests import analysis_digest, file_digests, settings_digests
from nip_study.declare.hypotheses import Hypothesis, list_compared
from nip_study.parts.counted import WORST, After, Definitions
from nip_study.parts.document_parts import is_none
from nip_study.parts.two_way import Spread
from nip_study.plan.attacks import HELD_OUT
from nip_study.plan.planned import PlannedRun, find_attack
from nip_study.plan.swept_runs import Sweep, SweptRun, read_sweep, read_yaml_as

FORMAT = 2
"""Of declarations from now on."""


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

    @model_validator(mode="after")
    def _check_gate(self) -> "PlanFile":
        gates = [place for place, hypothesis in enumerate(self.hypotheses) if hypothesis.gate]
        if len(gates) > 1:
            places = " and ".join(f"hypotheses[{place}]" for place in gates)
            raise ValueError(f"gate: at most one hypothesis is the gate (got {places})")
        for place in gates:
            if not self.hypotheses[place].primary:
                raise ValueError(
                    f"hypotheses[{place}].gate: the gate is the primary hypothesis; any other "
                    "would wait for itself"
                )
            if len(self.hypotheses) == 1:
                raise ValueError(
                    f"hypotheses[{place}].gate: nothing waits for it but itself; leave gate out"
                )
        return self


class DeclaredPlan(BaseModel):
    """The declared part of a declaration; with any change of it, it is another one."""

    model_config = ConfigDict(frozen=True, extra="allow")

    sweep: str
    """Its name."""
    stopping: str
    hypotheses: tuple[Hypothesis, ...]
    runs: dict[str, str]
    """By the names of runs and of attacks, the digests of their settings."""
    files: dict[str, str] | None = Field(default=None, exclude_if=is_none)
    """By name, the SHA-256 of the user's files that these settings name; no key in declarations of
    versions that did not look."""


class StudyDeclaration(BaseModel):
    """The document ``declaration.json`` of a sweep."""

    model_config = ConfigDict(frozen=True, extra="allow")

    format: int = 1
    """From 2 on each run that its sweep begins has the declaration on record."""
    plan: DeclaredPlan
    plan_sha256: str
    analysis_sha256: str
    """Of the code that makes figures, intervals and tests."""
    intervals: Spread = "robust"
    """How intervals over seeds and questions are computed; no key in declarations of versions that
    knew "robust" only."""
    definitions: Definitions = Field(default=1, exclude_if=lambda value: value == 1)
    """By which attacked figures and baselines are counted; no key in declarations of versions that
    knew 1 only."""
    code_version: str
    declared_at: str
    """UTC, ISO 8601."""
    sha256: str
    """Of all other keys: a change by hand is noticed."""

    def as_json(self) -> dict[str, Any]:
        """Encode the declaration as it stands in its file."""
        return self.model_dump(mode="json", exclude_unset=True)


@dataclass(frozen=True)
class StudyPlan:
    """A sweep, and the expectations of it."""

    sweep: Sweep
    file: PlanFile

    @property
    def contents(self) -> DeclaredPlan:
        """Return the plan as it is declared."""
        return DeclaredPlan(
            sweep=self.sweep.name,
            stopping=self.file.stopping,
            hypotheses=tuple(self.file.hypotheses),
            runs=settings_digests(self.sweep),
            files=file_digests(self.sweep),
        )


def read_plan(path: Path, overrides: tuple[str, ...] = ()) -> StudyPlan:
    """Read a plan from its file, with its sweep, and look every arm up in it.

    Raises SettingsError for a fault; the message names file and place.
    """
    file = read_yaml_as(path, PlanFile)
    # Spelled as in the command that plays it: settings name files by the sweep's path.
    sweep = read_sweep(Path(os.path.normpath(path.parent / file.sweep)), overrides)
    for place, hypothesis in enumerate(file.hypotheses):
        try:
            hypothesis.after = _name_attacks(sweep, hypothesis.after)
            compared = list_compared(sweep, hypothesis)
            _check_attacked(sweep, hypothesis, compared)
            if len(compared) < 2:
                one = "one pair of runs" if hypothesis.number is None else "one run"
                raise SettingsError(f"{one} shows no spread; give the sweep more seeds")
        except SettingsError as error:
            raise SettingsError(f"{path}: hypotheses[{place}]: {error}") from None
    return StudyPlan(sweep, file)


def _check_attacked(
    sweep: Sweep, hypothesis: Hypothesis, compared: Sequence[tuple[PlannedRun, ...]]
) -> None:
    """Raise SettingsError unless each run has the attack of the hypothesis, if it names one."""
    attack, attacked_runs = hypothesis.after, compared
    if hypothesis.any_of is not None:
        names = {against.name for _, against in compared}
        asked_runs = [run for run in sweep.runs if run.name in names]
        _check_asked_again(hypothesis.any_of, attack, asked_runs)
        attacked_runs = [runs[:1] for runs in compared]
    if attack == WORST:
        _check_worst(sweep, [run for runs in attacked_runs for run in runs])
        return
    for name in attack if isinstance(attack, list) else [attack] if attack else []:
        if name not in sweep.attacks:
            attack_names = ", ".join(sweep.attacks) or "none"
            raise SettingsError(
                f"after: {name!r}: the sweep has no such attack; it has {attack_names}"
            )
        for run in (run for runs in attacked_runs for run in runs):
            if find_attack(run, name) is None:
                raise SettingsError(f"after: {name!r} leaves out {run.name}")
            if isinstance(attack, list) and name not in run.tested_by:
                raise SettingsError(
                    f"after: {name!r} plays other problems than the own tests of {run.name}, or "
                    "against its untrained verifier; take it off the list"
                )


def _name_attacks(sweep: Sweep, after: After) -> str | list[str] | None:
    """Put the names of all attacks that are held out in the place of this word.

    So a declaration says which they are. Raises SettingsError where there is none.
    """
    if after is None or (isinstance(after, str) and after != HELD_OUT):
        return after
    marked = {a.label for run in sweep.runs for a in run.attacks if a.is_held_out}
    held_out = [label for label in sweep.attacks if label in marked]
    if HELD_OUT in after and not held_out:
        raise SettingsError(f"after: {HELD_OUT}: the sweep has no attacks that are held out")
    names = [after] if isinstance(after, str) else after
    each = (held_out if name == HELD_OUT else [name] for name in names)
    return [*dict.fromkeys(name for some in each for name in some)]


def _check_asked_again(k: int, attack: After, runs: Sequence[SweptRun]) -> None:
    """Raise SettingsError unless problems are played often enough, and no agent could attack."""
    for run in runs:
        plays = run.parameters.rl.num_test_iterations
        if plays < k:
            raise SettingsError(
                f"any_of: {run.name} plays each test problem {plays} times, not {k}; raise its "
                "rl.num_test_iterations"
            )
        if attack is not None and (attackers := find_attackers(run.parameters)):
            raise SettingsError(
                f"any_of: {run.name} has {', '.join(attackers)}, who could attack it as well; "
                f"after: {attack!r} would spare it, so compare with a verifier alone"
            )


def _check_worst(sweep: Sweep, runs: Sequence[PlannedRun]) -> None:
    """Raise SettingsError unless all runs have the same attacks, and none of them this name."""
    if WORST in sweep.attacks:
        raise SettingsError(
            "after: 'worst' is the lowest of all attacks, and the sweep has an attack of this "
            "name; give that one another"
        )
    first, *other_runs = runs
    if not first.tested_by:
        raise SettingsError(
            f"after: 'worst': no attack is made on {first.name} on its test problems"
        )
    for run in other_runs:
        if run.tested_by != first.tested_by:
            names = [", ".join(one.tested_by) or "none" for one in (first, run)]
            raise SettingsError(
                f"after: 'worst': {first.name} has the attacks {names[0]}, and {run.name} "
                f"{names[1]}; the lowest of more is lower, so give both the same"
            )


def declare(store: Store, plan: StudyPlan) -> tuple[StudyDeclaration, bool]:
    """Put the declaration of a plan into the store; return it, and whether it is new.

    One that is there already and says the same stays.

    Raises:
        RunConflictError: a run of the sweep has begun before anything was declared, or under
            another declaration.
        SettingsError: a file that settings name can't be used.
    """
    earlier, contents = read_declaration(store, plan.sweep.name), plan.contents
    begun_runs = sorted({*contents.runs} & {*list_runs(store)})
    if earlier is not None and earlier.plan_sha256 == _digest_plan(contents, earlier):
        _check_begun_under(store, plan.sweep.name, begun_runs, earlier)
        return earlier, False
    _check_undeclared(store, plan.sweep.name, begun_runs, earlier, _list_edited(contents, earlier))
    # With all defaults: a later version may have others, and they must not change the plan.
    in_full = contents.model_dump(mode="json")
    plan_sha256 = digest(in_full)
    document = {
        "format": FORMAT,
        "plan": in_full,
        "plan_sha256": plan_sha256,
        "analysis_sha256": analysis_digest(),
        "intervals": "calibrated",
        "definitions": 2,
        "code_version": read_code_version(),
        "declared_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    document["sha256"] = digest(document)
    # Of another declaration; first, so that a stamp never lies beside another declaration.
    if store.exists(stamp := timestamp_path(plan.sweep.name)):
        store.delete(stamp)
    store.put(declaration_path(plan.sweep.name), json.dumps(document, indent=2).encode())
    return StudyDeclaration.model_validate(document), True


def _digest_plan(contents: DeclaredPlan, earlier: StudyDeclaration) -> str:
    """Digest a plan as the version that made the declaration `earlier` did."""
    looked = earlier.plan.files is not None
    return digest(contents.model_dump(mode="json", exclude=None if looked else {"files"}))


def _list_edited(contents: DeclaredPlan, earlier: StudyDeclaration | None) -> list[str]:
    """List the files that are other than declared, where nothing else of the plan is."""
    if earlier is None or earlier.plan.files is None or contents.files is None:
        return []
    as_before = contents.model_copy(update={"files": earlier.plan.files})
    if _digest_plan(as_before, earlier) != earlier.plan_sha256:
        return []
    now, declared_files = contents.files, earlier.plan.files
    return sorted(
        name for name in {*now, *declared_files} if now.get(name) != declared_files.get(name)
    )


def _check_begun_under(
    store: Store, sweep: str, begun_runs: Sequence[str], declaration: StudyDeclaration
) -> None:
    """Raise RunConflictError if a run has another declaration on record."""
    for name in begun_runs:
        try:
            under = RunStore(store, name).open().declaration
        except StoreError:  # a damaged run is named wherever it is used
            continue
        if under is not None and under.sha256 != declaration.sha256:
            raise RunConflictError(
                f"sweep {sweep!r}: {name} was begun under another declaration "
                f"({under.sha256[:16]}) than {declaration_path(sweep)} has now "
                f"({declaration.sha256[:16]}); put that one back, or give the sweep another name"
            )


def _check_undeclared(
    store: Store,
    sweep: str,
    begun_runs: Sequence[str],
    earlier: StudyDeclaration | None,
    edited: Sequence[str],
) -> None:
    """Raise RunConflictError if anything is known of the sweep already.

    `edited` are files that settings name, where nothing else is other than declared `earlier`.
    """
    # Results can be had of runs that were deleted since, so they count beside the runs.
    if store.exists(f"sweeps/{sweep}/results.json"):
        raise RunConflictError(
            f"sweep {sweep!r} has results already, so nothing can be declared of it; "
            "give it another name"
        )
    # A plan may be changed until the first of its runs begins: there is no result before.
    if begun_runs:
        state = "another plan is declared" if earlier is not None else "nothing was declared"
        back = ", or put the plan back" if earlier is not None else ""
        if edited:
            state, back = f"{', '.join(edited)} is not what was declared", ", or put the file back"
        raise RunConflictError(
            f"sweep {sweep!r}: {state}, and {len(begun_runs)} of its runs have begun (as "
            f"{begun_runs[0]!r}): a plan is declared before its first run. Give the sweep "
            "another name" + back
        )


def read_declaration(store: Store, sweep: str) -> StudyDeclaration | None:
    """Read the declaration of a sweep; None where nothing was declared.

    Raises CorruptionError for one that was changed, or that this version can't read.
    """
    path = declaration_path(sweep)
    return parse_declaration(store.get(path), path) if store.exists(path) else None


def find_declared(store: Store, sweep: str) -> str | None:
    """Return the SHA-256 of the declaration of a sweep; None where nothing was declared.

    Raises CorruptionError, as `read_declaration`.
    """
    declaration = read_declaration(store, sweep)
    return None if declaration is None else declaration.sha256


def parse_declaration(content: bytes, path: str) -> StudyDeclaration:
    """Read a declaration from the content of the file at `path`.

    Raises CorruptionError for one that was changed, or that this version can't read.
    """
    try:
        document: dict[str, Any] = parse_json(content)
        sha256 = document.pop("sha256")
        is_whole = sha256 == digest(document)
    except (ValueError, KeyError, TypeError, AttributeError):
        is_whole = False
    if not is_whole:
        raise CorruptionError(f"{path}: damaged, or changed by hand after it was declared")
    try:
        return StudyDeclaration.model_validate({**document, "sha256": sha256})
    except ValidationError as error:
        raise CorruptionError(
            f"{path}: not a declaration that this version reads ({first_fault(error)})"
        ) from None


def declaration_path(sweep: str) -> str:
    """Return where in the store the declaration of a sweep is."""
    return f"sweeps/{sweep}/declaration.json"


def timestamp_path(sweep: str) -> str:
    """Return where in the store a third party's token over that declaration is."""
    return f"sweeps/{sweep}/declaration.tsr"
