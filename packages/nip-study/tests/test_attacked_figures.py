"""Completeness with the honest prover, the better verifier alone, means over runs, lone runs."""

import numpy as np
import pyarrow as pa
import pytest
from planned_plays import CHOSEN, GATE, SNEAKY, planned, plays
from pydantic import ValidationError

from nip_study.compute import outcomes as outcomes_module
from nip_study.compute.arm_baselines import baseline_lines
from nip_study.compute.needed import seeds_needed
from nip_study.compute.outcomes import judge_hypotheses
from nip_study.declare.hypotheses import Hypothesis
from nip_study.documents.swept_facts import AttackFacts, RunFacts, SweepFacts, SweptGame
from nip_study.facts_on_record import Collected
from nip_study.pages.lone_runs import find_lone
from nip_study.pages.page import render_results
from nip_study.parts.counted import Counted, LastTest, Verdicts
from nip_study.parts.two_way import TwoWay, two_sided_p, two_way
from nip_study.results import compute_results

ATTACKS = {"chosen": CHOSEN, "sneaky": SNEAKY}
AFTER = {**GATE, "gate": False, "after": "worst"}


def judge(plan, tests, last, hypotheses, definitions=2):
    rows = [
        {"run": run, "attack": attack, "iteration": iteration, "n": n, **play._asdict()}
        for (run, attack, iteration, n), of_test in tests.items()
        for play in of_test
    ]
    counted = Counted(Verdicts(pa.Table.from_pylist(rows)), last, definitions)
    asked = [Hypothesis.model_validate(one) for one in hypotheses]
    return judge_hypotheses(counted, plan.sweep, asked)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """Verifiers that are complete with their own prover, and not with an attacker's right claims."""
    plan = planned(tmp_path_factory.mktemp("plan"), AFTER, attacks=ATTACKS)
    tests, last = {}, {}
    for run in plan.sweep.runs:
        sound = 0.7 if run.values["protocol"] == "nip" else 0.3
        tests[run.name, None, 1, None] = plays(run.name, 0.95, 0.9)
        for attack, place in (("chosen", (0, 4)), ("sneaky", (4, None))):
            # Best of n was played on half of the questions.
            count = 20 if attack == "chosen" else 40
            less = 0.02 if attack == "sneaky" else 0.2
            key = run.name, attack, *place
            tests[key] = plays(str(key), 0.4, sound - less, count)
        last |= {run.name: LastTest(1)}
        last |= {f"{run.name}-chosen": LastTest(0, 4), f"{run.name}-sneaky": LastTest(4)}
    return plan, tests, last


def test_completeness_after_an_attack_is_that_with_the_honest_prover(attacked):
    where = {**AFTER, "where": {"completeness": 0.9}}
    accuracy = {**AFTER, "figure": "accuracy"}
    attackers = {**where, "balanced": "attacked"}
    honest, balanced, by_attacker = judge(*attacked, [where, accuracy, attackers])
    assert honest.outcome == "shown" and honest.because is None
    assert by_attacker.outcome == "not tested" and "completeness of arm is 0.4" in (
        by_attacker.because or ""
    )
    sound = honest.rates[0]
    assert balanced.rates[0] == pytest.approx((sound + 0.95) / 2, abs=0.04)


def test_right_and_wrong_problems_are_half_each_where_attacks_share_a_part_of_the_wrong_ones(
    tmp_path,
):
    plan = planned(tmp_path, AFTER, attacks=ATTACKS)
    tests, last = {}, {}
    for run in plan.sweep.runs:
        is_nip = run.values["protocol"] == "nip"
        tests[run.name, None, 1, None] = plays(run.name, 1.0, 1.0)
        # Of one arm the worst test has the first 20 questions, of the other one all 40.
        tests[run.name, "chosen", 0, 4] = plays("all wrong", 0.5, 0.0 if is_nip else 1.0, 20)
        tests[run.name, "sneaky", 4, None] = plays("half", 0.5, 1.0 if is_nip else 0.0)
        last |= {run.name: LastTest(1)}
        last |= {f"{run.name}-chosen": LastTest(0, 4), f"{run.name}-sneaky": LastTest(4)}
    # A question has a right solution or a wrong one.
    apart = {
        test: [play._replace(question=play.problem) for play in of_test]
        for test, of_test in tests.items()
    }
    [row] = judge(plan, apart, last, [{**AFTER, "figure": "accuracy"}])
    assert row.rates == pytest.approx((0.5, 0.5))


def test_a_declaration_of_before_keeps_its_figures(attacked):
    where = {**AFTER, "where": {"completeness": 0.9}}
    [before] = judge(*attacked, [where], definitions=1)
    assert before.outcome == "not tested" and "completeness of arm is 0.4" in before.because
    by_hand = {**where, "balanced": "honest"}
    assert judge(*attacked, [by_hand], definitions=1)[0].outcome == "shown"


def test_a_rate_is_the_mean_over_runs_however_many_problems_each_was_tested_on(tmp_path):
    plan = planned(tmp_path, {**GATE, "gate": False})
    tests, last = {}, {}
    for run in plan.sweep.runs:
        is_large = run.values["seed"] == "1"
        tests[run.name, None, 1, None] = plays(
            run.name, 1, 0.0 if is_large else 1.0, 120 if is_large else 40
        )
        last[run.name] = LastTest(1)
    [mean] = judge(plan, tests, last, [GATE])
    [pooled] = judge(plan, tests, last, [GATE], definitions=1)
    assert mean.rates[0] == pytest.approx(0.75) and pooled.rates[0] == pytest.approx(0.5)


def test_a_verifier_alone_is_the_better_of_untrained_and_trained(tmp_path, monkeypatch):
    """Both are shown; what was declared before is compared with the trained one."""
    monkeypatch.setattr(
        outcomes_module, "_plays_alone", lambda run: run.values["protocol"] == "adp"
    )
    plan = planned(tmp_path, {**GATE, "gate": False})
    tests, last = {}, {}
    for run in plan.sweep.runs:
        is_alone = run.values["protocol"] == "adp"
        tests[run.name, None, 0, None] = plays(run.name + "0", 1, 0.8 if is_alone else 0.1)
        tests[run.name, None, 1, None] = plays(run.name, 1, 0.5 if is_alone else 0.65)
        last[run.name] = LastTest(1)
    [row] = judge(plan, tests, last, [GATE])
    untrained, trained = row.alone
    assert row.rates[1] == untrained > 0.7 and trained < 0.6 and row.difference < 0
    # Without a test of the untrained one it is said that there is none.
    trained_only = {key: value for key, value in tests.items() if key[2] == 1}
    [row] = judge(plan, trained_only, last, [GATE])
    assert row.alone == (None, pytest.approx(trained))
    [before] = judge(plan, tests, last, [GATE], definitions=1)
    assert before.alone is None and before.rates[1] == pytest.approx(trained)
    assert before.difference > 0


def sweep_with_a_verifier_alone(definitions):
    """An arm with a prover, and a verifier alone that training has made worse."""
    rows, runs = [], []
    for arm, kind, rates in (("nip", None, (0.5, 0.7)), ("solo", "alone", (0.8, 0.5))):
        game = SweptGame(scenario="s", dataset="d", protocol=arm, kind=kind, rate_alone=None)
        spent = [{"iteration": i, "prompt_tokens": 1, "generated_tokens": 1} for i in (0, 1)]
        for seed in (1, 2, 3):
            name = f"{arm}-{seed}"
            run = {"name": name, "values": {"arm": arm, "seed": str(seed)}, "seed": seed}
            run |= {"game": game, "status": "finished", "failure": None, "attacks": ()}
            runs.append(RunFacts(**run, tests=spent))
            for i, rate in enumerate(rates):
                of_test = {"run": name, "attack": None, "iteration": i, "n": None}
                rows += [of_test | play._asdict() for play in plays(f"{name}{i}", rate, rate)]
    none = {"attacks": (), "left_out": (), "declaration": None, "departures": ()}
    made = {"format": 2, "name": "s", "axes": ("arm", "seed"), "intervals": "calibrated"}
    facts = SweepFacts(**made, **none, runs=runs, definitions=definitions)
    return compute_results(Collected(facts, pa.Table.from_pylist(rows), None))


def test_an_arm_is_held_against_the_untrained_verifier_alone_where_that_is_the_better_one():
    """The page names it, with an interval of that difference and of no other one."""
    results = sweep_with_a_verifier_alone(2)
    [row] = results.baselines.compared
    untrained, trained = row.alone
    assert row.rates[1] == untrained > row.rates[0] > trained
    assert row.ci95[0] < row.difference < row.ci95[1] and row.difference < 0
    [line] = baseline_lines(results.baselines)
    assert "`solo`, the verifier alone, untrained: " in line
    [before] = sweep_with_a_verifier_alone(1).baselines.compared
    assert before.rates[1] == pytest.approx(trained) and before.alone is None
    assert before.outcome == "shown"


def test_the_page_marks_attacks_that_are_held_out():
    names = {"list-c": True, "no-answer": False}
    game = SweptGame(scenario="s", dataset="d", protocol="p", kind=None, rate_alone=None)
    run = {"name": "s-1", "values": {"arm": "p", "seed": "1"}, "seed": 1, "game": game, "tests": ()}
    ended = {"status": "finished", "failure": None, "iteration": 1, "n": None, "caution": None}
    ended |= {"attacked_iteration": 1, "is_lying_known": False, "is_script": True}
    attacks = [
        AttackFacts(label=label, name=f"s-1-{label}", is_held_out=is_held_out, **ended)
        for label, is_held_out in names.items()
    ]
    runs = (RunFacts(**run, status="finished", failure=None, attacks=attacks),)
    made = {"format": 2, "name": "s", "axes": ("arm", "seed"), "intervals": "calibrated"}
    made |= {"attacks": (*names,), "left_out": (), "declaration": None, "departures": ()}
    rows = [
        {"run": "s-1", "attack": label, "iteration": 1, "n": None} | play._asdict()
        for label in names
        for play in plays(label, 1, 0.5)
    ]
    facts = SweepFacts(**made, runs=runs, definitions=2)
    results = compute_results(Collected(facts, pa.Table.from_pylist(rows), None))
    on_record = results.as_json()["runs"][0]["attacks"]
    assert on_record["list-c"]["is_held_out"] and "is_held_out" not in on_record["no-answer"]
    text = render_results(results)
    assert "| list-c (held out): soundness |" in text and "| no-answer: soundness |" in text
    assert "Held out: scripts that no attacked run was trained against" in text


def test_balanced_is_for_attacked_figures_alone():
    with pytest.raises(ValidationError, match="name the attack in after, or leave balanced out"):
        Hypothesis.model_validate({**GATE, "balanced": "honest"})


def test_so_many_seeds_as_are_needed_find_the_difference_as_often_as_is_said():
    """The study of soundness said "about 2" of a difference that 2 of 10 pairs of its seeds show."""
    generator = np.random.default_rng(0)
    questions, difference, of_seeds = 60, 0.18, 0.04

    def draw(seeds: int, number: int) -> TwoWay:
        by_seed = difference + of_seeds * generator.standard_normal((seeds, 1))
        sums = by_seed + 0.6 * generator.standard_normal((seeds, questions))
        mean = two_way(sums, np.ones_like(sums), number)
        assert mean is not None
        return mean

    seen = draw(40, 0)
    needed = seeds_needed(difference, seen)
    assert needed is not None and needed >= 3
    found = sum((two_sided_p(draw(needed, i)) or 1) < 0.05 for i in range(60))
    assert found >= 42  # of 60; 80 % are 48, less three standard deviations' luck
    assert seeds_needed(10.0, seen) == 3


def test_one_run_far_from_the_others_is_found():
    assert find_lone([0.52, 0.52, 0.003, 0.32, 0.47]) == 0.003
    assert find_lone([0.1, 0.12, 0.9]) == 0.9
    for values in ([0.52, 0.45, 0.11, 0.34, 0.23], [0.8, 0.9, 0.7], [0.1, 0.9], []):
        assert find_lone(values) is None
