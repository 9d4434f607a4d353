"""What is committed of a sweep follows from what lies beside it, and the pictures follow from it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nip_core.evaluation.figures_in_words import percent_cell
from nip_study.documents.results_document import SweepResults
from nip_study.facts_on_record import digest_rules
from nip_study.plan.swept_runs import read_sweep
from nip_study.recompute import recompute_results
from nip_study.results import render_files

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "docs" / "results"
# Of each kind one: each takes seconds.
LONG = ("equal_tokens", "looks", "scripts", "soundness", "strength")
SWEEPS = (*LONG, "asking", "asking_trained", "asking_untrained", "debate", "unanswered")
SWEEPS += ("unanswered_smollm2",)


def read_results(name):
    return SweepResults.model_validate(json.loads((RESULTS / name / "results.json").read_bytes()))


@pytest.mark.long  # seconds for each, of a processor that does nothing else
@pytest.mark.parametrize("name", LONG)
def test_every_figure_is_computed_from_the_verdicts_byte_for_byte(name):
    again = recompute_results(RESULTS / name)
    if name == "soundness":
        page = (RESULTS / "soundness.md").read_text(encoding="utf-8")
        assert f"{again.numbers:,} numbers anew from {again.verdicts // 1000:,},000 of" in page


@pytest.mark.parametrize("name", SWEEPS)
def test_page_and_figure_are_those_of_the_document(name):
    for file, content in render_files(read_results(name)).items():
        assert (RESULTS / name / file).read_bytes() == content, file


@pytest.mark.parametrize(
    "script", ["soundness_picture.py", "study_picture.py", "unanswered_picture.py"]
)
def test_the_picture_is_drawn_from_the_results(script):
    subprocess.run([sys.executable, ROOT / "scripts" / script, "--check"], check=True, timeout=120)


@pytest.mark.parametrize("name", SWEEPS)
def test_what_an_attack_left_has_one_interval(name):
    """Beside what it took it is the figure of the table of arms."""
    attacks = [attack for arm in read_results(name).arms for attack in arm.attacks.values()]
    last = [(attack, attack.by_effort[-1]) for attack in attacks if attack.by_effort]
    assert len(last) >= 4
    for attack, point in last:
        assert (point.soundness, point.completeness) == (attack.soundness, attack.completeness)


def test_the_page_has_the_untrained_verifier_beside_the_trained_ones():
    rows = {(row.arm, row.attack): row for row in read_results("scripts").controls.verifiers}
    page = (RESULTS / "soundness.md").read_text(encoding="utf-8")
    for attack in ("tell-apart", "base-tell-apart", "always-a", "no-answer", "base-no-answer"):
        row = rows["private3", attack]
        assert percent_cell(row.soundness, row.soundness_ci95) in page, attack
        assert row.guaranteed == 0.875


def test_the_page_has_every_declared_difference_with_its_interval():
    page = (RESULTS / "equal_tokens.md").read_text(encoding="utf-8")
    outcomes = read_results("equal_tokens").declared.outcomes
    assert len(outcomes) == 6
    for outcome in outcomes:
        low, high = (f"{100 * bound:.1f}" for bound in outcome.ci95)
        interval = "90 %: -8.9 to -5.3" if outcome.margin else f"{low} to {high}"
        difference = f"{100 * outcome.difference:+.1f}"
        lines = [line for line in page.split("\n") if line.startswith("- ") and difference in line]
        assert any(interval in line for line in lines), outcome.says
    assert [outcome.outcome for outcome in outcomes].count("shown") == 3


def test_another_program_finds_every_figure_of_the_page_in_the_verdicts():
    """It shares no code with nip, and fails where the page has another figure."""
    program = ROOT / "benchmarks" / "unanswered_smollm2_check.py"
    done = subprocess.run(
        [sys.executable, program, RESULTS / "unanswered_smollm2"], capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.count("same ") > 20, done.stdout + done.stderr


def test_the_games_in_the_facts_are_those_that_were_declared():
    """They were added to the facts afterwards, from the sweep's file."""
    sweep = read_sweep(ROOT / "deployments" / "sweeps" / "soundness.yaml")
    facts = json.loads((RESULTS / "soundness" / "facts.json").read_bytes())
    rules = {run["name"]: run["game"]["rules"] for run in facts["runs"]}
    now = {run.name: digest_rules(run.parameters) for run in sweep.runs}
    assert rules.keys() == now.keys()
    # Alike where they are alike now: another default would be another digest of the same game.
    pairs = {(rules[name], now[name]) for name in rules}
    assert len(pairs) == len({*rules.values()}) == len({*now.values()})
    games = {arm: rules[f"soundness-{arm}-41"] for arm in ("private3", "private1", "drawn")}
    assert games["drawn"] == games["private3"] != games["private1"]
