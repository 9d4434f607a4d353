"""The declaration of a comparison of judges, before the first of its attacks.

declare_sweep     the declaration of a plan, put beside the sweep's results
JudgeDeclaration  it, as it stands in declaration.json
read_declaration  a folder -> JudgeDeclaration, or None
find_departures   how the attacks at hand are other than declared
list_tries        the sweeps and attacks on the same rows that came before
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

import nip_core
from nip_base.formats.bounds import ReadError, parse_json
from nip_core.errors import CorruptionError, RunConflictError
from nip_core.hashing import digest
from nip_core.session.contents import read_code_version
from nip_judges.figures.planned_power import detectable_rise, gate_rows
from nip_judges.sweeps.sweep_plan import JudgeSweep, SweepHypothesis
from nip_judges.sweeps.sweep_play import SurveyedAttack
from nip_judges.whole_files import write_whole

DECLARATION = "declaration.json"
FACTS = "facts.json"
KIND = "judges"
_CHANGING = 0.02
_GATE_CHANGING = (0.04, 0.10)
"""Shares of verdicts that differ, for which the rows of a gate are planned."""


class DeclaredJudge(BaseModel):
    """A judge as it was declared."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    digest: str


class DeclaredComparison(BaseModel):
    """The declared part; with any change of it, it is another declaration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sweep: str
    judges: dict[str, DeclaredJudge]
    """The baseline first."""
    order: tuple[str, ...]
    """Of their names: JSON's objects have none."""
    rows: dict[str, str]
    """By seed the digest of the rows and their parts."""
    all_rows: str
    kinds: tuple[str, ...]
    held_out: tuple[str, ...]
    check: str | None
    no_verdict: str
    hypotheses: tuple[SweepHypothesis, ...]
    runs: dict[str, str]
    """By the name of an attack the digest of all that decides its texts."""


class PlannedComparison(BaseModel):
    """How much the rows of a declaration can show, as fractions of 1, at 5 % and 4 of 5 cases."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    wrong_questions: int
    """In the test of one seed, at least."""
    right_questions: int
    fall_steady: float | None
    """The smallest fall that is found; None where none is."""
    fall_changing: float | None
    """The same where 2 % of verdicts change by themselves each way."""
    gates: dict[str, dict[str, int]]
    """By margin and share of verdicts that differ, the right questions that a gate needs."""


class JudgeDeclaration(BaseModel):
    """The document declaration.json of a sweep of judges."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = 1
    kind: str = KIND
    plan: DeclaredComparison
    plan_sha256: str
    power: PlannedComparison
    earlier: tuple[str, ...]
    """Sweeps and attacks on the same rows that had begun before."""
    analysis_sha256: str
    code_version: str
    declared_at: str
    """UTC, ISO 8601."""
    sha256: str
    """Of all other keys: a change by hand is noticed."""


def describe_plan(plan: JudgeSweep, surveyed: Sequence[SurveyedAttack]) -> DeclaredComparison:
    """Describe a plan as it is declared."""
    first = surveyed[0]
    return DeclaredComparison(
        sweep=plan.name,
        judges={
            attack.attack.judge: DeclaredJudge(label=attack.label, digest=attack.judge_digest)
            for attack in surveyed
            if attack.attack.seed == first.attack.seed and not attack.attack.way
        },
        order=plan.judges,
        rows={str(attack.attack.seed): attack.rows_digest for attack in surveyed},
        all_rows=first.all_rows,
        kinds=first.kinds,
        held_out=first.held_out,
        check=first.check,
        no_verdict=first.no_verdict,
        hypotheses=tuple(plan.file.hypotheses),
        runs={attack.attack.name: attack.identity for attack in surveyed},
    )


def plan_comparison(
    surveyed: Sequence[SurveyedAttack], hypotheses: Sequence[SweepHypothesis]
) -> PlannedComparison:
    """Compute how much the rows can show. Further seeds are no further questions."""
    wrong = min(one.wrong_questions for one in surveyed)
    margins = sorted({one.limit for one in hypotheses if one.gate is not None})
    return PlannedComparison(
        wrong_questions=wrong,
        right_questions=min(one.right_questions for one in surveyed),
        fall_steady=detectable_rise(wrong, 0.0),
        fall_changing=detectable_rise(wrong, _CHANGING),
        gates={
            f"{margin:g}": {
                "0": _count_steady(margin),
                **{f"{share:g}": gate_rows(share, margin) for share in _GATE_CHANGING},
            }
            for margin in margins
        },
    )


def _count_steady(margin: float) -> int:
    """Count the right questions by which a gate is met where no verdict differs."""
    return math.ceil(math.log(0.05) / math.log1p(-margin))


def declare_sweep(
    plan: JudgeSweep, surveyed: Sequence[SurveyedAttack], now: datetime
) -> tuple[JudgeDeclaration, bool]:
    """Put the declaration of a plan into its folder; return it, and whether it is new.

    One that is there already and says the same stays. Raises RunConflictError where an attack of
    the sweep has begun, or results are there, and something else or nothing was declared.
    """
    contents = describe_plan(plan, surveyed).model_dump(mode="json")
    plan_sha256 = digest(contents)
    earlier = read_declaration(plan.folder)
    if earlier is not None and earlier.plan_sha256 == plan_sha256:
        return earlier, False
    begun_names = [one.attack.name for one in surveyed if one.has_begun]
    if (plan.folder / "results.json").exists() or begun_names:
        begin = f"{begun_names[0]} has begun" if begun_names else "it has results"
        state = "nothing was declared" if earlier is None else "something else is declared"
        raise RunConflictError(
            f"sweep {plan.name!r}: {state}, and {begin}: a comparison is declared before its first "
            "attack. Give the sweep another name"
        )
    document: dict[str, Any] = {
        "format": 1,
        "kind": KIND,
        "plan": contents,
        "plan_sha256": plan_sha256,
        "power": plan_comparison(surveyed, plan.file.hypotheses).model_dump(mode="json"),
        "earlier": list_tries(plan, surveyed),
        "analysis_sha256": digest_analysis(),
        "code_version": read_code_version(),
        "declared_at": now.isoformat(timespec="seconds"),
    }
    document["sha256"] = digest(document)
    plan.folder.mkdir(parents=True, exist_ok=True)
    path = plan.folder / DECLARATION
    path.with_suffix(".tsr").unlink(missing_ok=True)  # a stamp is of one declaration
    write_whole(path, json.dumps(document, indent=2, ensure_ascii=False))
    return JudgeDeclaration.model_validate(document), True


def read_declaration(folder: Path) -> JudgeDeclaration | None:
    """Read the declaration in a folder; None where there is none.

    Raises CorruptionError for one that was changed, or that is about runs and not judges.
    """
    path = folder / DECLARATION
    if not path.exists():
        return None
    try:
        document = parse_json(path.read_bytes())
        is_whole = isinstance(document, dict) and document.get("sha256") == digest(
            {key: value for key, value in document.items() if key != "sha256"}
        )
    except (ReadError, ValueError):
        is_whole = False
    if not is_whole:
        raise CorruptionError(f"{path}: damaged, or changed by hand after it was declared")
    try:
        return JudgeDeclaration.model_validate(document)
    except ValidationError:
        raise CorruptionError(f"{path}: no declaration of judges that this version reads") from None


def find_departures(
    declaration: JudgeDeclaration, plan: JudgeSweep, surveyed: Sequence[SurveyedAttack]
) -> list[str]:
    """Describe how a plan and its files are other than declared, a line each."""
    expected, actual = declaration.plan, describe_plan(plan, surveyed)
    lines = []
    for name in (*expected.order, *(one for one in actual.order if one not in expected.judges)):
        if name not in actual.judges:
            lines.append(f"judge {name} was declared, and is not played")
        elif name not in expected.judges:
            lines.append(f"judge {name} was not declared")
        elif expected.judges[name].digest != actual.judges[name].digest:
            lines.append(f"judge {name} is other than declared: its file or its prompt was changed")
    for seed in {**expected.rows, **actual.rows}:
        if seed not in actual.rows:
            lines.append(f"seed {seed} was declared, and is not played")
        elif seed not in expected.rows:
            lines.append(f"seed {seed} was not declared")
        elif expected.rows[seed] != actual.rows[seed]:
            lines.append(f"the rows of seed {seed} are other than declared")
    shared: Mapping[str, str] = {
        "kinds": "the kinds of wordings are",
        "held_out": "the kinds held out are",
        "check": "the check is",
        "no_verdict": "no_verdict is",
    }
    lines += [
        f"{words} other than declared"
        for key, words in shared.items()
        if getattr(expected, key) != getattr(actual, key)
    ]
    lines += _compare_ways(expected, actual)
    if expected.hypotheses != actual.hypotheses:
        lines.append("the plan has other hypotheses now; those that were declared are tested")
    if not lines and expected.order != actual.order:
        lines.append("the judges stand in another order, so that another one is the baseline")
    return lines


def _compare_ways(expected: DeclaredComparison, actual: DeclaredComparison) -> list[str]:
    """Describe how attacks by models are other than declared."""
    of_both = [
        {
            name: identity
            for name, identity in plan.runs.items()
            if name not in {f"{plan.sweep}-{j}-{seed}" for j in plan.judges for seed in plan.rows}
        }
        for plan in (expected, actual)
    ]
    lines = []
    for name in {**of_both[0], **of_both[1]}:
        if name not in of_both[1]:
            lines.append(f"attack {name} was declared, and is not played")
        elif name not in of_both[0]:
            lines.append(f"attack {name} was not declared")
        elif of_both[0][name] != of_both[1][name]:
            lines.append(f"attack {name} is other than declared")
    return lines


def list_tries(plan: JudgeSweep, surveyed: Sequence[SurveyedAttack]) -> list[str]:
    """List the sweeps of judges, and the attacks by themselves, on the same rows in the store."""
    rows = {one.rows_digest for one in surveyed}
    of_sweeps = {one.attack.name for one in surveyed}
    names = []
    for folder in sorted((Path(plan.run_store) / "sweeps").glob("*/")):
        if folder.name == plan.name:
            continue
        for document in (_read(folder / DECLARATION).get("plan"), _read(folder / FACTS)):
            if isinstance(document, dict) and document.get("all_rows") == surveyed[0].all_rows:
                of_sweeps |= {*(document.get("runs") or ())}
                names.append(folder.name)
    for settings in sorted((Path(plan.run_store) / "judges").glob("*/settings.json")):
        name = settings.parent.name
        if name not in of_sweeps and _read(settings).get("rows") in rows:
            names.append(f"judges/{name}")
    return list(dict.fromkeys(names))


def digest_analysis() -> str:
    """Digest by SHA-256 the code behind rates, intervals and tests."""
    judges, core = Path(__file__).parents[1], Path(nip_core.__file__).parent
    # Whole rooms: a departure too many misleads no reader, and a list would miss the next file.
    files = {"sweeps/sweep_figures.py": judges / "sweeps" / "sweep_figures.py"}
    for folder in (judges / "figures", core / "evaluation"):
        files |= {f"{folder.name}/{p.relative_to(folder)}": p for p in sorted(folder.rglob("*.py"))}
    return digest({name: hashlib.sha256(p.read_bytes()).hexdigest() for name, p in files.items()})


def _read(path: Path) -> dict[str, Any]:
    """Read a JSON object; {} where there is none."""
    try:
        value = parse_json(path.read_bytes())
    except (OSError, ReadError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
