"""Hypotheses of a plan: what waits for a gate, what lies within a margin, what the worst left."""

import re

import pyarrow as pa
import pytest
import yaml
from planned_plays import CHOSEN, GATE, QUESTIONS, SEEDS, SNEAKY, planned, plays

from nip_core.errors import SettingsError
from nip_study.compute.outcomes import judge_hypotheses
from nip_study.declare.declaration import DeclaredPlan, read_plan
from nip_study.declare.hypotheses import Hypothesis
from nip_study.documents.results_document import DeclaredResults
from nip_study.pages.page import _declared_page
from nip_study.parts.counted import Counted, LastTest, Verdicts

COMPLETE = {**GATE, "says": "as complete", "figure": "completeness", "primary": False}
COMPLETE = {**COMPLETE, "gate": False, "expected": "equal", "margin": 0.1}


def judged(plan, tests, last, hypotheses=None):
    """Judge hypotheses, the plan's or others; `tests` has plays by run, attack, iteration and n."""
    rows = [
        {"run": run, "attack": attack, "iteration": iteration, "n": n, **play._asdict()}
        for (run, attack, iteration, n), of_test in tests.items()
        for play in of_test
    ]
    counted = Counted(Verdicts(pa.Table.from_pylist(rows)), last)
    return judge_hypotheses(counted, plan.sweep, hypotheses or plan.file.hypotheses)


def outcomes(plan, rates, *hypotheses):
    """What comes of hypotheses where the arms are as complete and as sound as `rates` say."""
    names = {f"asked-{arm}-{seed}": of for arm, of in rates.items() for seed in SEEDS}
    tests = {(name, None, 1, None): plays(name, *of) for name, of in names.items()}
    asked = [Hypothesis.model_validate(hypothesis) for hypothesis in hypotheses]
    return judged(plan, tests, dict.fromkeys(names, LastTest(1)), asked)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return planned(tmp_path_factory.mktemp("plan"), GATE, COMPLETE)


def page(rows):
    declared = DeclaredResults(
        sha256="0" * 64, declared_at="", code_version="", stopping="", outcomes=rows, departures=()
    )
    return _declared_page(declared)


def test_the_others_are_tested_only_if_the_gate_is_shown(plan):
    again = {**GATE, "gate": False, "primary": False, "says": "again"}
    shown = outcomes(plan, {"nip": (1, 0.9), "adp": (1, 0.2)}, GATE, again)
    assert [row.outcome for row in shown] == ["shown", "shown"]
    # A difference that would be shown by itself, behind a gate that is not.
    equal = {**GATE, "figure": "completeness"}
    closed = outcomes(plan, {"nip": (0.9, 0.9), "adp": (0.9, 0.2)}, equal, again)
    assert [row.outcome for row in closed] == ["not shown", "not tested"]
    assert closed[1].because == "the gate is not shown (asking keeps soundness)"
    assert closed[1].p is closed[1].p_holm is None and closed[1].difference > 0.5
    text = page(tuple(closed))
    assert "(primary, gate)" in text and "The others wait for the gate" in text
    # Without a gate it is tested, as ever.
    [_, alone] = outcomes(
        plan, {"nip": (0.9, 0.9), "adp": (0.9, 0.2)}, {**equal, "gate": False}, again
    )
    assert alone.outcome == "shown"


def test_an_equality_is_shown_exactly_where_its_interval_lies_within_the_margin(plan):
    rates = {"nip": (0.9, 0.9), "adp": (0.9, 0.2)}
    words = set()
    for margin in (0.01, 0.03, 0.05, 0.1, 0.2):
        [_, row] = outcomes(plan, rates, GATE, {**COMPLETE, "margin": margin})
        low, high = row.interval_of_tests
        assert (row.outcome == "shown") == (-margin <= low and high <= margin)
        assert low <= row.difference <= high and row.p_holm == row.p
        assert low > row.ci95[0] - 0.02 and high < row.ci95[1] + 0.02  # 90 % of it, not 95
        within = f"within ± {100 * margin:g} |"
        expected = within if row.outcome == "shown" else f"not shown to be {within}"
        assert f"| {expected}" in page((row,)) and "(90 %)" in page((row,))
        words.add(row.outcome)
    assert words == {"shown", "not shown"}


def test_the_worst_is_of_each_run_the_test_of_an_attack_that_left_the_least(tmp_path):
    attacks = {"chosen": CHOSEN, "sneaky": SNEAKY}
    plan = planned(tmp_path, {**GATE, "gate": False, "after": "worst"}, attacks=attacks)
    tests, last = {}, {}
    for run in plan.sweep.runs:
        # The lowest of nip is a choice among 4, on half of the questions; of adp an early step.
        left = {("chosen", 0, 1): 0.9, ("chosen", 0, 4): 0.4, ("sneaky", 0, None): 0.9}
        left |= {("sneaky", 2, None): 0.8, ("sneaky", 4, None): 0.9}
        if run.values["protocol"] == "adp":
            left |= {("chosen", 0, 4): 0.5, ("sneaky", 2, None): 0.1}
        for (attack, iteration, n), rate in left.items():
            count = QUESTIONS // 2 if attack == "chosen" else QUESTIONS
            place = run.name, attack, iteration, n
            tests[place] = plays(str(place), 1, rate, count)
        last |= {f"{run.name}-chosen": LastTest(0, 4), f"{run.name}-sneaky": LastTest(4)}
    [row] = judged(plan, tests, last)
    assert row.outcome == "shown" and row.pairs == 4 and row.questions == QUESTIONS // 2
    assert row.rates[0] == pytest.approx(0.4, abs=0.1)
    assert row.rates[1] == pytest.approx(0.1, abs=0.1)
    assert "asked-nip-1: chosen, n 4" in row.worst and "asked-adp-1: sneaky, step 2" in row.worst
    text = page((row,))
    assert "a minimum over tests" in text and "- `asked-adp-4: sneaky, step 2`" in text
    # An attack that is not finished may have been the worst.
    del last["asked-nip-3-sneaky"]
    assert judged(plan, tests, last)[0].pairs == 3


LIST_C = "silent.py:list_c"
ATTACKS = {"chosen": CHOSEN, "held_out": [LIST_C, "silent.py:nothing"], "sneaky": SNEAKY}
ATTACKS |= {"apart": {**CHOSEN, "set": {"test_dataset_split": "validation"}}}
SCRIPTS = "def list_c(turn): return 'C'\n\ndef nothing(turn): return '.'\n"


def planned_after(tmp_path, after, attacks=ATTACKS):
    (tmp_path / "silent.py").write_text(SCRIPTS)
    return planned(tmp_path, {**GATE, "gate": False, "after": after}, attacks=attacks)


def test_a_declaration_names_the_attacks_that_are_held_out(tmp_path):
    for after, names in (
        ("held_out", ["list-c", "nothing"]),
        (["sneaky", "held_out", "list-c"], ["sneaky", "list-c", "nothing"]),
        (["sneaky"], ["sneaky"]),
        ("sneaky", "sneaky"),
    ):
        plan = planned_after(tmp_path, after)
        [declared] = plan.contents.model_dump(mode="json")["hypotheses"]
        assert declared["after"] == names
        # As the declaration is read again.
        again = DeclaredPlan.model_validate(plan.contents.model_dump(mode="json"))
        assert again.hypotheses[0].after == names


def test_the_worst_of_some_attacks_is_not_the_worst_of_all(tmp_path):
    """The first of equals counts, every n too; the attacks that are not named count for nothing."""
    plan = planned_after(tmp_path, ["held_out", "chosen"])
    tests, last = {}, {}
    for run in plan.sweep.runs:
        more = 0.2 if run.values["protocol"] == "nip" else 0.0
        left = {("chosen", 0, 1): 0.3, ("chosen", 0, 4): 0.9, ("list-c", 1, 1): 0.8}
        left |= {("nothing", 1, 1): 0.6, ("sneaky", 2, None): 0.0, ("sneaky", 4, None): 0.0}
        if run.name == "asked-adp-2":
            left |= {("list-c", 1, 1): 0.0, ("nothing", 1, 1): 0.0}
        for (attack, iteration, n), rate in left.items():
            place = run.name, attack, iteration, n
            tests[place] = plays(str(place), 0.5, rate + more if rate else 0)
        tests[run.name, None, 1, None] = plays(run.name, 0.97, 0.9)
        last |= {f"{run.name}-{name}": LastTest(1, 1) for name in ("list-c", "nothing")}
        last |= {f"{run.name}-chosen": LastTest(0, 4), f"{run.name}-sneaky": LastTest(4)}
        last[run.name] = LastTest(1)
    named, held_out, all_of_them = (
        {**GATE, "gate": False, "after": after, "where": {"completeness": 0.95}}
        for after in (["list-c", "nothing", "chosen"], ["nothing", "list-c"], "worst")
    )
    asked = [Hypothesis.model_validate(one) for one in (named, held_out, all_of_them)]
    of_three, of_two, worst = judged(plan, tests, last, asked)
    assert of_three.rates == pytest.approx((0.5, 0.22), abs=0.1)
    assert "asked-nip-1: chosen, n 1" in of_three.worst
    assert "asked-adp-2: list-c, n 1" in of_three.worst
    # The order of the list decides between equals, and what is not in it counts for nothing.
    assert of_two.rates == pytest.approx((0.8, 0.45), abs=0.1)
    assert "asked-adp-2: nothing, n 1" in of_two.worst and "asked-nip-1: nothing" in str(of_two)
    assert worst.attack == "worst" and worst.rates == (0, 0)
    # What is asked of completeness is the honest prover's, as after any attack.
    assert of_three.outcome == "not shown" and of_three.because is None
    document = of_three.as_json()
    assert document["after"] == ("list-c", "nothing", "chosen")
    text = page((of_three, of_two))
    assert "| soundness after the worst of nothing, list-c |" in text
    assert re.search(r"- the worst of list-c, nothing, chosen: .*`asked-adp-2: list-c, n 1`", text)
    # One of them that is not finished may have been the worst; another one is not waited for.
    del last["asked-nip-3-nothing"], last["asked-nip-4-sneaky"]
    assert [row.pairs for row in judged(plan, tests, last, asked)] == [3, 3, 2]


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (["list-c", "silent"], "after: 'silent': the sweep has no such attack; it has chosen, lis"),
        (["held_out", "worst"], "after: 'worst': the sweep has no such attack"),
        ([], "hypotheses.0.after"),
        (["held_out", "apart"], "after: 'apart' plays other problems than the own tests of asked-"),
    ],
)
def test_the_worst_of_attacks_that_are_not_there_is_refused(tmp_path, after, message):
    with pytest.raises(SettingsError) as raised:
        planned_after(tmp_path, after)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_the_worst_of_a_group_needs_all_of_it_in_both_arms(tmp_path):
    with pytest.raises(SettingsError, match="after: held_out: the sweep has no attacks that are"):
        planned_after(tmp_path, "held_out", {"chosen": CHOSEN})
    left_out = {"script": LIST_C, "leave_out": [{"protocol": "adp"}]}
    with pytest.raises(SettingsError, match="after: 'list-c' leaves out asked-adp-1"):
        planned_after(tmp_path, ["held_out"], {"held_out": [left_out]})


def test_a_plan_without_a_gate_is_the_plan_that_it_was():
    hypothesis = Hypothesis.model_validate({**GATE, "gate": False})
    plan = DeclaredPlan(sweep="asked", stopping="all", hypotheses=(hypothesis,), runs={})
    assert "gate" not in plan.model_dump(mode="json")["hypotheses"][0]


@pytest.mark.parametrize(
    ("hypotheses", "message"),
    [
        ([GATE], "hypotheses[0].gate: nothing waits for it but itself"),
        (
            [{**GATE, "gate": False}, {**GATE, "primary": False}],
            "hypotheses[1].gate: the gate is the primary hypothesis; any other would wait",
        ),
        (
            [GATE, {**GATE, "primary": False}],
            "at most one hypothesis is the gate (got hypotheses[0] and hypotheses[1])",
        ),
        ([{**GATE, "gate": "asking"}, COMPLETE], "hypotheses.0.gate: "),
        ([{**GATE, "gate": False, "after": "worst"}], "no attack is made on asked-nip-1"),
    ],
)
def test_a_gate_that_none_can_pass_is_refused(tmp_path, hypotheses, message):
    with pytest.raises(SettingsError) as raised:
        planned(tmp_path, *hypotheses)
    assert message in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("attacks", "message"),
    [
        ({"worst": CHOSEN}, "the sweep has an attack of this name"),
        (
            {"chosen": CHOSEN, "sneaky": {**SNEAKY, "leave_out": [{"protocol": "adp"}]}},
            "asked-nip-1 has the attacks chosen, sneaky, and asked-adp-1 chosen",
        ),
    ],
)
def test_the_lowest_of_other_attacks_is_refused(tmp_path, attacks, message):
    with pytest.raises(SettingsError) as raised:
        planned(tmp_path, {**GATE, "gate": False, "after": "worst"}, attacks=attacks)
    assert message in str(raised.value)


NUMBER = {**GATE, "gate": False, "says": "as the theorem says", "against": 0.5}
EQUAL = {**NUMBER, "expected": "equal", "margin": 0.1}
LOWER = {**NUMBER, "expected": "lower", "against": 0.05}


def test_an_arm_is_compared_with_a_number(plan):
    [near] = outcomes(plan, {"nip": (1, 0.5)}, EQUAL)
    low, high = near.interval_of_tests
    assert near.outcome == "shown" and -0.1 <= low < near.difference < high <= 0.1
    assert near.rates == (pytest.approx(0.5 + near.difference), 0.5) and near.pairs == 4
    text = page((near,))
    assert "| 50.0 % (given) |" in text and "| within ± 10 |" in text
    assert f"- as the theorem says: {near.trials:,.0f} trials, from 4 runs" in text
    # The interval of the tests lies within the margin exactly where it is shown.
    for margin in (0.01, 0.04, 0.07, 0.3):
        [row] = outcomes(plan, {"nip": (1, 0.5)}, {**EQUAL, "margin": margin})
        low, high = row.interval_of_tests
        assert (row.outcome == "shown") == (-margin <= low and high <= margin)
    [far] = outcomes(plan, {"nip": (1, 0.9)}, EQUAL)
    assert far.outcome == "not shown" and far.p > 0.5
    [higher] = outcomes(plan, {"nip": (1, 0.9)}, NUMBER)
    assert higher.outcome == "shown" and 0.5 < higher.at_least < higher.rates[0]
    # Its `where` is of the one arm: who tosses a coin is right in half of the cases, too.
    [coin] = outcomes(plan, {"nip": (0.5, 0.5)}, {**EQUAL, "where": {"completeness": 0.9}})
    assert coin.outcome == "not tested" and coin.because.startswith("completeness of arm is 0.")
    [none] = outcomes(plan, {"adp": (1, 1)}, EQUAL)
    assert none.because == "no run is finished and tested"


def test_a_figure_of_0_in_all_runs_is_bound_by_the_rule_of_three_by_question(plan):
    [row] = outcomes(plan, {"nip": (1, 0)}, LOWER)
    # 40 questions without one: at most 7.2 %, which is no evidence of less than 5.
    assert row.trials == QUESTIONS and row.at_most == pytest.approx(1 - 0.05 ** (1 / 40))
    assert (row.outcome, row.p) == ("not shown", pytest.approx(0.95**40))
    [row] = outcomes(plan, {"nip": (1, 0)}, {**LOWER, "against": 0.08})
    assert row.outcome == "shown" and row.difference == -0.08
    text = page((row,))
    assert "| shown (at most 7.2) |" in text
    assert "4 equal runs leave possible that up to 53 % of all runs are otherwise" in text
    # An exception makes nothing surer.
    [some] = outcomes(plan, {"nip": (1, 0.01)}, LOWER)
    assert 0 < some.rates[0] < 0.05 and some.at_most >= row.at_most


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"against": 87.5}, "against: a rate is from 0 to 1, as 0.875 for 87.5 %"),
        ({"against": "half"}, "give values of axes, or a number from 0 to 1 (got 'half')"),
        ({"against": True}, "give values of axes, or a number from 0 to 1 (got True)"),
        ({"expected": "equal"}, 'a margin belongs to expected: "equal"'),
        ({"margin": 0.1}, 'a margin belongs to expected: "equal"'),
        ({"against": 0, "expected": "lower"}, "no rate is lower than 0"),
        ({"where": 0.9}, "hypotheses.0.where: "),
        ({"arm": {"protocol": "nip", "seed": 1}}, "one run shows no spread"),
        ({"arm": {"protocol": "mnip"}}, "protocol: 'mnip': values are adp, nip"),
        ({"after": "sneaky"}, "the sweep has no such attack; it has none"),
    ],
)
def test_a_number_that_no_rate_can_be_compared_with_is_refused(tmp_path, changes, message):
    with pytest.raises(SettingsError) as raised:
        planned(tmp_path, {**NUMBER, **changes})
    assert message in str(raised.value) and "\n" not in str(raised.value)


ALONE = {
    "says": "no more than asking the verifier alone three times",
    "figure": "soundness",
    "after": "worst",
    "arm": {"protocol": "nip"},
    "against": {"protocol": "alone"},
    "any_of": 3,
    "expected": "equal",
    "margin": 0.07,
    "primary": True,
}


def planned_alone(tmp_path, hypothesis, plays=3):
    alone = {"interaction_protocol": "solo_verifier", "rl.num_test_iterations": plays}
    axes = {"protocol": {"alone": alone, "nip": {}, "adp": {"interaction_protocol": "adp"}}}
    sweep = {"name": "asked", "config": "deterministic", "axes": {**axes, "seed": [*SEEDS]}}
    sweep |= {"run_store": str(tmp_path / "runs")}
    sweep |= {"attacks": {"chosen": {**CHOSEN, "leave_out": [{"protocol": "alone"}]}}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
    plan = {"sweep": "sweep.yaml", "stopping": "all runs", "hypotheses": [hypothesis]}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    return read_plan(tmp_path / "plan.yaml")


def test_an_attacked_arm_is_compared_with_a_verifier_alone_that_is_asked_as_often(tmp_path):
    """One check of four finds a mistake in 1 of 4 plays, any of three in 37 of 64."""
    plan = planned_alone(tmp_path, ALONE)
    questions, once, thrice = 400, 0.25, 37 / 64
    tests, last = {}, {}
    for seed in SEEDS:
        alone, nip = f"asked-alone-{seed}", f"asked-nip-{seed}"
        asked = [play for k in range(3) for play in plays(f"{alone} {k}", 1.0, once, questions)]
        tests[alone, None, 1, None] = asked
        tests[nip, None, 1, None] = plays(nip, 1.0, 0.9, questions)
        tests[nip, "chosen", 0, 1] = plays(f"{nip} 1", 1.0, 0.8, questions)
        tests[nip, "chosen", 0, 4] = plays(f"{nip} 4", 1.0, thrice, questions)
        last |= {name: LastTest(1) for name in (alone, nip)}
        last[f"{nip}-chosen"] = LastTest(0, 4)
    (row,) = judged(plan, tests, last)
    assert row.rates == pytest.approx((thrice, thrice), abs=0.03)
    assert (row.outcome, row.any_of) == ("shown", 3)
    assert "% (any of 3); untrained -, trained " in page([row])
    # Asked once, or counted as usual, it is far from that.
    for k in (1, 2):
        (asked_less,) = judged(
            plan, tests, last, [plan.file.hypotheses[0].model_copy(update={"any_of": k})]
        )
        assert asked_less.rates[1] == pytest.approx(1 - (1 - once) ** k, abs=0.03)
        assert asked_less.outcome == "not shown"
        assert ("% (one verdict);" in page([asked_less])) == (k == 1)


@pytest.mark.parametrize(
    ("change", "plays", "said"),
    [
        ({}, 2, "plays each test problem 2 times, not 3; raise its rl.num_test_iterations"),
        ({"against": 0.5}, 3, "a number is not asked again"),
        ({"any_of": 0}, 3, "greater than or equal to 1"),
        ({"against": {"protocol": "adp"}, "after": "chosen"}, 3, "1 times, not 3"),
    ],
)
def test_who_can_not_be_asked_again_is_refused(tmp_path, change, plays, said):
    with pytest.raises(SettingsError, match=said):
        planned_alone(tmp_path, {**ALONE, **change}, plays)


def test_an_arm_that_could_be_attacked_is_not_spared(tmp_path):
    swapped = {**ALONE, "arm": {"protocol": "adp"}, "against": {"protocol": "nip"}, "any_of": 2}
    text = (tmp_path / "sweep.yaml").write_text
    with pytest.raises(SettingsError, match="times, not 2"):
        planned_alone(tmp_path, swapped)
    sweep = yaml.safe_load((tmp_path / "sweep.yaml").read_text())
    text(yaml.safe_dump(sweep | {"set": {"rl.num_test_iterations": 2}}, sort_keys=False))
    with pytest.raises(SettingsError, match="has prover, who could attack it as well"):
        read_plan(tmp_path / "plan.yaml")
