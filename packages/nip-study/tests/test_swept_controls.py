"""An attacked verifier of a sweep stands beside the untrained one under the same attack."""

import json
import math

import pyarrow as pa
import pytest

from nip_core.parameters import load_parameters
from nip_core.records.untrained_attack import digest_way
from nip_study.documents.swept_facts import (
    AttackFacts,
    RunFacts,
    SpentOnTest,
    SweepFacts,
    SweptGame,
)
from nip_study.facts_on_record import Collected
from nip_study.pages.page import render_results
from nip_study.plan.attacks import AttackEntry, plan_attack
from nip_study.results import compute_results

GAME = SweptGame(
    scenario="bags",
    dataset="lists",
    protocol="adp",
    kind=None,
    rate_alone=None,
    guaranteed=0.875,
    scripts=("tell-apart", "no-answer"),
)
QUESTIONS = 200


def attack(run, label, iteration, way):
    return AttackFacts(
        label=label,
        name=f"{run}-{label}",
        status="finished",
        failure=None,
        iteration=0,
        n=1,
        attacked_iteration=iteration,
        is_lying_known=False,
        is_script=True,
        caution=None,
        way=way,
        script="no-answer",
    )


def collected(attacks, rejected, controls=(1,)):
    """A sweep of two seeds; `rejected` has of each attack how many false claims of 200.

    `controls` are the seeds with attacks on the untrained models."""
    runs, rows = [], []
    for seed in (1, 2):
        name = f"small-{seed}"
        made = tuple(attack(name, *one) for one in attacks if seed in controls or one[1])
        runs.append(
            RunFacts(
                name=name,
                values={"seed": str(seed)},
                seed=seed,
                game=GAME,
                status="finished",
                failure=None,
                tests=(SpentOnTest(iteration=1, prompt_tokens=1, generated_tokens=1),),
                attacks=made,
            )
        )
        for label in (None, *(one.label for one in made)):
            n = None if label is None else 1
            for number in range(2 * QUESTIONS):
                question, y = f"q{number}", number // QUESTIONS
                is_rejected = (number * 7 + seed) % QUESTIONS < rejected.get(label, 180)
                decision = 0 if y == 0 and is_rejected else 1
                where = (name, label, 1 if label is None else 0, n)
                rows.append((*where, question, question, y, decision, None))
    facts = SweepFacts(
        format=2,
        name="small",
        axes=("seed",),
        attacks=tuple(label for label, *_ in attacks),
        runs=tuple(runs),
        left_out=(),
        declaration=None,
        departures=(),
        intervals="calibrated",
    )
    names = ("run", "attack", "iteration", "n", "question", "problem", "y", "decision", "believed")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    return Collected(facts, pa.table(columns), None)


def test_an_attack_on_the_untrained_models_is_the_control_of_the_same_one():
    attacks = [("no-answer", 1, "a"), ("lies", 1, "b"), ("base", 0, "a"), ("other", 0, "c")]
    results = compute_results(collected(attacks, {"no-answer": 60, "lies": 176, "base": 100}))
    rows = results.controls.verifiers
    assert [(row.attack, row.verifier, row.runs) for row in rows] == [
        *(("no-answer", "trained", 2), ("base", "untrained", 1)),
        *(("lies", "trained", 2), ("other", "untrained", 1)),
    ]
    assert [row.soundness for row in rows] == [0.3, 0.5, 0.88, 0.9]
    assert results.controls.without_control == ("lies",)
    # One run is compared with the theorem by an exact test.
    tail = sum(math.comb(200, k) * 0.875**k * 0.125 ** (200 - k) for k in range(101))
    assert rows[1].p == pytest.approx(tail, rel=1e-9)
    assert rows[0].p_holm < 0.05 < rows[2].p_holm
    page = render_results(results)
    assert "| base | untrained | 1 | 50.0 [43.1, 56.9] |" in page
    assert "No untrained control: `lies`." in page
    assert (
        "Scripts that come with the scenario and were not played:\n\n- `small`: `tell-apart`"
        in page
    )


def test_an_arm_that_trains_nobody_is_the_control_of_the_same_attack_on_others():
    both = collected([("no-answer", 1, "a")], {"no-answer": 60})
    trained, untrained = both.facts.runs
    [untrained_attack] = untrained.attacks
    attacks = (untrained_attack.model_copy(update={"attacked_iteration": 0}),)
    runs = (
        trained.model_copy(update={"values": {"seed": "1", "arm": "played"}}),
        untrained.model_copy(
            update={"values": {"seed": "1", "arm": "untrained"}, "attacks": attacks}
        ),
    )
    facts = both.facts.model_copy(update={"axes": ("seed", "arm"), "runs": runs})
    controls = compute_results(Collected(facts, both.verdicts, None)).controls
    assert [(row.arm, row.verifier) for row in controls.verifiers] == [
        *(("played", "trained"), ("untrained", "untrained")),
    ]
    assert controls.without_control == ()
    # Models of another run may have been trained there.
    begun = runs[1].model_copy(update={"begins_with": "another run"})
    facts = facts.model_copy(update={"runs": (runs[0], begun)})
    controls = compute_results(Collected(facts, both.verdicts, None)).controls
    assert controls.without_control == ("played no-answer",)


def test_runs_of_one_base_model_are_plays_of_the_same_verifier():
    """Two seeds of sampling say as much as two plays of each question, and nothing of seeds."""
    attacks = [("no-answer", 1, "a"), ("base", 0, "a")]
    both = collected(attacks, {"base": 100}, controls=(1, 2))
    _, row = compute_results(both).controls.verifiers
    low, high = row.soundness_ci95
    assert (row.runs, row.questions, row.soundness) == (2, QUESTIONS, 0.5)
    assert 0.43 <= low < 0.47 and 0.53 < high <= 0.57


def test_attacks_of_earlier_versions_are_said_to_have_no_control():
    page = render_results(compute_results(collected([("lies", 1, None)], {"lies": 60})))
    assert "No untrained control of these attacks is among these results." in page
    assert "Attacked verifiers beside" not in page


def test_a_control_is_no_attack_on_the_trained_verifier():
    """After the worst attack counts what trained verifiers were attacked by."""
    [run, _] = collected([("lies", 1, "a"), ("base", 0, "a")], {}).facts.runs
    assert run.tested_by == ("lies",)
    [run, _] = collected([("base", 0, "a")], {}).facts.runs
    assert run.tested_by == ("base",)


def test_two_attacks_are_the_same_whatever_models_they_attack():
    run = load_parameters("bags-tiny", ["run_name=a"])
    other = load_parameters("bags-tiny", ["run_name=b", "seed=7"])

    def way(attacked=run, **entry):
        return digest_way(plan_attack("x", AttackEntry(**entry), attacked).settings)

    script = {"by": "script", "script": "no-answer"}
    assert way(**script) == way(**script, iteration=0) == way(other, **script, problems=7)
    assert way(**script) != way(by="script", script="guess")
    sneaky = {"by": "sneaky", "set": {"rl.lr": 0.001}}
    assert way(**sneaky) == way(**sneaky, iteration=0) != way(by="sneaky")
    assert way(**sneaky, steps=5) != way(**sneaky)


def test_the_pages_columns_are_json():
    attacks = [("lies", 1, "a"), ("base", 0, "a")]
    document = compute_results(collected(attacks, {"lies": 90})).as_json()
    assert json.loads(json.dumps(document))["controls"]["verifiers"][0]["questions"] == QUESTIONS
