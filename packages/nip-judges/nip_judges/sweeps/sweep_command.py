"""`nip declare` and `nip sweep` for a plan of judges: their words and exit codes.

declare_judges    the declaration of a plan, shown
sweep_judges      its attacks, its table, and the exit code
recompute_judges  the table of a folder again
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nip_cli.printing.options import Shown
from nip_cli.printing.terminal import say
from nip_core.errors import NipError
from nip_core.evaluation.figures_in_words import amount
from nip_core.redaction import printable
from nip_judges.sweeps.sweep_declaration import (
    JudgeDeclaration,
    PlannedComparison,
    declare_sweep,
    find_departures,
    list_tries,
    plan_comparison,
    read_declaration,
)
from nip_judges.sweeps.sweep_files import make_facts, recompute_sweep, write_sweep
from nip_judges.sweeps.sweep_page import write_claims
from nip_judges.sweeps.sweep_plan import JudgeSweep, SweepHypothesis, read_sweep_plan
from nip_judges.sweeps.sweep_play import SurveyedAttack, play_sweep, survey_sweep


def declare_judges(
    path: Path, overrides: Sequence[str], *, as_json: bool
) -> tuple[JudgeDeclaration, str]:
    """Declare a comparison of judges, print it, and return it with its run store.

    Nothing is asked.

    Raises RunConflictError once an attack of the sweep has begun.
    """
    plan = read_sweep_plan(path, overrides)
    surveyed = asyncio.run(survey_sweep(plan))
    declaration, is_new = declare_sweep(plan, surveyed, datetime.now(UTC))
    if as_json:
        _say_json(declaration.model_dump(mode="json"))
        return declaration, plan.run_store
    for one in declaration.plan.hypotheses:
        say(_say_hypothesis(one))
    for line in _say_power(declaration.power, declaration.plan.held_out):
        say(line)
    _say_tries(declaration.earlier)
    say(f"{amount(len(declaration.plan.runs), 'attack')}; nothing was started")
    state = "declared" if is_new else f"was declared at {declaration.declared_at}"
    say(f"{state}: {declaration.sha256}")
    return declaration, plan.run_store


def sweep_judges(
    path: Path, overrides: Sequence[str], *, dry_run: bool, as_json: bool, shown: Shown
) -> int:
    """Play the attacks of a plan that are left, write its table, and return 0.

    Raises the first error by which an attack was stopped, after the table is written.
    """
    plan = read_sweep_plan(path, overrides)
    surveyed = asyncio.run(survey_sweep(plan))
    declaration = read_declaration(plan.folder)  # one that is damaged is said before any call
    if dry_run:
        _show_plan(plan, surveyed, as_json)
        return 0
    if declaration is not None:
        for line in find_departures(declaration, plan, surveyed):
            say(f"nip: departure: {line}", file=sys.stderr)
    quiet = shown in (Shown.none, Shown.json)

    def tell(name: str, texts: int) -> None:
        if not quiet:
            say(f"nip: {name}: {texts} texts", file=sys.stderr, flush=True)

    outcome = asyncio.run(play_sweep(plan, tell))
    facts = make_facts(plan, surveyed, outcome, declaration)
    results = write_sweep(plan.folder, facts, outcome.cells, declaration)
    if as_json:
        _say_json(results)
    else:
        for judge in results["judges"]:
            words = ", ".join(one["verdict"] for one in judge["seeds"])
            say(f"{judge['judge']}: {words}")
        for line in write_claims(results):
            say(printable(line))
        if declaration is None and plan.file.hypotheses:
            say("Not declared before the first attack: the plan's hypotheses are not tested.")
        say(f"{plan.folder}: README.md, results.json, cells.parquet, facts.json")
    if outcome.errors:
        raise _name_first(outcome.errors, outcome.failures)
    return 0


def recompute_judges(folder: Path, *, as_json: bool) -> None:
    """Compute the results in a folder again; a difference is a CorruptionError."""
    recomputed = recompute_sweep(folder)
    if recomputed.is_declared_code is False:
        say(
            f"{folder}: analysis code other than declared: figures are those of the code at hand",
            file=sys.stderr if as_json else sys.stdout,
        )
    if as_json:
        _say_json(recomputed.results)
        return
    say(
        f"{folder}: results.json and README.md are as computed from "
        f"{amount(recomputed.verdicts, 'verdict')}, byte for byte "
        f"({amount(recomputed.numbers, 'number')})"
    )


def _name_first(errors: Sequence[NipError], failures: dict[str, str]) -> NipError:
    """Name the attack of the first error, which decides the exit code."""
    error = errors[0]
    name = next(name for name, words in failures.items() if words == str(error))
    return type(error)(f"{name}: {error}")


def _show_plan(plan: JudgeSweep, surveyed: Sequence[SurveyedAttack], as_json: bool) -> None:
    power = plan_comparison(surveyed, plan.file.hypotheses)
    earlier = list_tries(plan, surveyed)
    if as_json:
        attacks = [
            {
                "name": attack.attack.name,
                "judge": attack.attack.judge,
                "seed": attack.attack.seed,
                "calls": dict(attack.calls),
                "is_paid": attack.is_paid,
                "prompt_tokens": attack.prompt_tokens,
                "prompt_usd": attack.prompt_usd,
                "has_begun": attack.has_begun,
            }
            for attack in surveyed
        ]
        power_words = power.model_dump(mode="json")
        _say_json(
            {"sweep": plan.name, "attacks": attacks, "power": power_words} | {"earlier": earlier}
        )
        return
    for attack in surveyed:
        state = "begun" if attack.has_begun else "not begun"
        paid = f", {attack.prompt_tokens:,} tokens of prompts" if attack.is_paid else ", no model"
        usd = (
            f", ${attack.prompt_usd:,.2f}"
            if attack.is_paid and attack.prompt_usd is not None
            else ""
        )
        texts = amount(sum(attack.calls.values()), "text")
        say(
            f"{attack.attack.name}: at most {texts}{paid}{usd} ({state}; {printable(attack.label)})"
        )
    total = sum(sum(attack.calls.values()) for attack in surveyed)
    say(f"{amount(len(surveyed), 'attack')}, at most {amount(total, 'text')}; nothing was asked")
    for line in _say_power(power, surveyed[0].held_out):
        say(line)
    _say_tries(earlier)


def _say_power(power: PlannedComparison, held_out: Sequence[str]) -> list[str]:
    falls = [
        "none" if fall is None else f"{100 * fall:.1f} points"
        for fall in (power.fall_steady, power.fall_changing)
    ]
    lines = [f"held out: {', '.join(held_out)}"] if held_out else []
    lines.append(
        f"{power.wrong_questions} wrong questions in a test: found in 4 of 5 cases is a fall of "
        f"{falls[0]}; {falls[1]} where 2 % of verdicts change by themselves each way (5 %, before "
        "Holm; further seeds are no further questions)"
    )
    for margin, needed in power.gates.items():
        words = ", ".join(
            f"{rows} where {100 * float(share):g} % of verdicts differ"
            for share, rows in needed.items()
        )
        lines.append(
            f"{power.right_questions} right questions; a gate of {100 * float(margin):g} points "
            f"needs {words}"
        )
    return lines


def _say_hypothesis(one: SweepHypothesis) -> str:
    if one.gate is not None:
        limit = f"{100 * one.limit:g} points"
        return f"gate: {one.judge} less {one.against}: {one.gate}, bound at most {limit}"
    return f"claim: {one.judge} {one.direction} {one.against}: {one.figure}"


def _say_tries(earlier: Sequence[str]) -> None:
    if earlier:
        say(f"try {len(earlier) + 1} on these rows; before it: {', '.join(earlier)}")


def _say_json(value: Any) -> None:
    say(json.dumps(value, indent=2, ensure_ascii=False))
