"""What a study will show is declared before it is run, and what came of it follows from that."""

import json
import random
from pathlib import Path

import pytest
import yaml
from handmade import ACCEPT, REJECT, Rollouts
from stored_rows import typed_tables

from nip_core.errors import CorruptionError, RunConflictError, SettingsError
from nip_core.rollouts.plan import TEST
from nip_core.rollouts.storage.tables import commit_shard, join_shards
from nip_core.run_store.run import Identity, RunStore
from nip_core.run_store.store import open_store
from nip_study.compute.cells import read_verdicts
from nip_study.compute.departures import list_departures
from nip_study.compute.outcomes import judge_hypotheses
from nip_study.declare.declaration import declare, read_declaration, read_plan
from nip_study.declare.hypotheses import Hypothesis
from nip_study.parts.counted import Counted, LastTest, Verdicts, average_runs
from nip_study.plan.swept_runs import read_sweep

SWEEP = {
    "name": "asked",
    "config": "deterministic",
    "axes": {
        "protocol": {
            "adp": {"interaction_protocol": "adp"},
            "nip": {},
            "debate": {
                "interaction_protocol": "debate",
                "protocol_common.shared_reward": False,
            },
        },
        "seed": [1, 2, 3, 4, 5, 6],
    },
}
SOUNDER = {
    "says": "asking keeps soundness",
    "figure": "soundness",
    "arm": {"protocol": "nip"},
    "against": {"protocol": "adp"},
    "expected": "higher",
    "primary": True,
}
AS_COMPLETE = {
    "says": "asking costs no completeness",
    "figure": "completeness",
    "arm": {"protocol": "nip"},
    "against": {"protocol": "adp"},
    "expected": "equal",
    "margin": 0.1,
}
QUESTIONS = 60


def planned(tmp_path, *hypotheses, sweep=SWEEP, **changes):
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "sweep.yaml").write_text(
        yaml.safe_dump({**sweep, "run_store": str(tmp_path / "runs")}, sort_keys=False)
    )
    plan = {"sweep": "sweep.yaml", "stopping": "all runs", "hypotheses": [*hypotheses], **changes}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    return tmp_path / "plan.yaml"


def played(store, name, completeness, soundness, questions=range(QUESTIONS), plays=1):
    """The test of a run that is right so often: each question has one right and one wrong row."""
    draw, rows = random.Random(name), Rollouts(name)
    for i in questions:
        for y, rate in ((1, completeness), (0, soundness)) * plays:
            said = (ACCEPT if y else REJECT) if draw.random() < rate else (REJECT if y else ACCEPT)
            rows.add(len(rows.episodes), y, ["Question: why?", "Answer: so.", said], (0, 0))
            rows.episodes[-1] |= {"question_id": f"q{i}", "split": "test"}
    directory = RunStore(store, name).rollouts(1, TEST)
    commit_shard(store, directory, "0000", typed_tables(rows.episodes, rows.generations))
    join_shards(store, directory, ["0000"])


def outcome(tmp_path, rates, *hypotheses, runs=6, **of_adp):
    """What comes of the hypotheses where the arms are as complete and as sound as `rates` say."""
    plan = read_plan(planned(tmp_path, *hypotheses))
    store, tests = open_store(plan.sweep.run_store), {}
    for run in plan.sweep.runs:
        if run.values["protocol"] in rates and int(run.values["seed"]) <= runs:
            more = of_adp if run.values["protocol"] == "adp" else {}
            played(store, run.name, *rates[run.values["protocol"]], **more)
            tests[run.name] = LastTest(1)
    return judge_hypotheses(counted_in(plan.sweep, tests), plan.sweep, plan.file.hypotheses)


def counted_in(sweep, tests):
    return Counted(Verdicts(read_verdicts(open_store(sweep.run_store), sweep)[0]), tests)


def test_an_arm_is_a_mean_over_seeds_and_questions(tmp_path):
    sweep = read_plan(planned(tmp_path, SOUNDER)).sweep
    store, names = open_store(sweep.run_store), [f"asked-nip-{seed}" for seed in range(1, 7)]
    for name in names:
        played(store, name, 0.9, 0.5)
    counted = counted_in(sweep, dict.fromkeys(names, LastTest(1)))
    for figure, rate in (("completeness", 0.9), ("soundness", 0.5), ("accuracy", 0.7)):
        mean = average_runs([counted.count(name, figure) for name in names], figure, "calibrated")
        low, high = mean.ci95
        assert low < mean.value < high and abs(mean.value - rate) < 0.06
        assert (mean.seeds, mean.questions) == (6, QUESTIONS)
    assert counted.count("b", "accuracy") is None


def test_a_difference_that_is_there_is_shown_and_a_small_one_counts_as_none(tmp_path):
    [sound, complete] = outcome(
        tmp_path, {"nip": (0.95, 0.8), "adp": (0.95, 0.4)}, SOUNDER, AS_COMPLETE
    )
    assert (sound.outcome, complete.outcome) == ("shown", "shown")
    assert sound.difference == pytest.approx(sound.rates[0] - sound.rates[1])
    low, high = sound.ci95
    assert 0.25 < low < sound.difference < high < 0.55
    assert (sound.pairs, sound.questions) == (6, QUESTIONS)


def test_the_other_way_round_it_is_contradicted_and_without_one_nothing_is_shown(tmp_path):
    lower = {**SOUNDER, "expected": "lower"}
    level = {**SOUNDER, "figure": "completeness", "primary": False}
    rates = {"nip": (0.9, 0.8), "adp": (0.9, 0.4)}
    [sound, complete] = outcome(tmp_path, rates, lower, level)
    assert (sound.outcome, complete.outcome) == ("contradicted", "not shown")


def test_nothing_is_said_where_the_condition_fails_or_no_pair_is_finished(tmp_path):
    conditional = {**SOUNDER, "where": {"completeness": 0.9}}
    against_debate = {**SOUNDER, "against": {"protocol": "debate"}, "primary": False}
    rates = {"nip": (0.95, 0.8), "adp": (0.5, 0.9)}
    [sound, other] = outcome(tmp_path, rates, conditional, against_debate)
    assert sound.outcome == other.outcome == "not tested"
    assert sound.because.startswith("completeness of against is 0.")
    assert other.because == "no pair of runs is finished and tested"
    assert sound.p is other.p is None


def test_a_single_run_shows_no_spread(tmp_path):
    [sound] = outcome(tmp_path, {"nip": (1, 0.9), "adp": (1, 0.2)}, SOUNDER, runs=1)
    assert sound.outcome == "not tested" and "shows no spread" in sound.because


def test_arms_that_were_played_more_often_or_on_other_questions(tmp_path):
    rates = {"nip": (0.9, 0.8), "adp": (0.9, 0.3)}
    [sound] = outcome(tmp_path / "a", rates, SOUNDER, plays=3)
    assert sound.outcome == "shown"
    assert sound.difference == pytest.approx(sound.rates[0] - sound.rates[1])
    [sound] = outcome(tmp_path / "b", rates, SOUNDER, questions=range(5, QUESTIONS + 5))
    assert sound.because == "the arms were not tested on the same questions"


def test_where_all_say_the_same_the_number_of_runs_is_what_counts(tmp_path):
    [sound, complete] = outcome(tmp_path, {"nip": (1, 1), "adp": (1, 0)}, SOUNDER, AS_COMPLETE)
    assert (sound.outcome, sound.difference, sound.ci95) == ("shown", 1.0, None)
    assert sound.p == complete.p == 2 * 0.5**6
    assert complete.outcome == "shown"
    equal = {**SOUNDER, "expected": "equal", "margin": 0.5}
    [sound] = outcome(tmp_path / "b", {"nip": (1, 1), "adp": (1, 0)}, equal)
    assert (sound.outcome, sound.p) == ("not shown", 1.0)


def test_few_runs_give_wide_intervals_of_rates(tmp_path):
    [sound] = outcome(tmp_path, {"nip": (1, 0.9), "adp": (1, 0.2)}, SOUNDER, runs=2)
    low, high = sound.ci95
    assert -1 <= low <= sound.difference <= high <= 1


def test_a_hypothesis_about_attacks_is_tested_on_them(tmp_path):
    attacked = {**SWEEP, "attacks": {"chosen": {"by": "best-of-n", "n": [1]}}}
    after = {**SOUNDER, "after": "chosen", "where": {"completeness": 0.9}}
    plan = read_plan(planned(tmp_path, after, sweep=attacked))
    store, tests = open_store(plan.sweep.run_store), {}
    soundness = {"nip": 0.8, "adp": 0.4, "debate": 0.5}
    for run in plan.sweep.runs:
        played(store, run.name, 0.97, 0.5)  # as sound as each other, and complete
        [attack] = run.attacks
        played(store, attack.name, 0.5, soundness[run.values["protocol"]])
        tests |= {run.name: LastTest(1), attack.name: LastTest(1)}
    [shown] = judge_hypotheses(counted_in(plan.sweep, tests), plan.sweep, plan.file.hypotheses)
    assert (shown.outcome, shown.attack, shown.pairs) == ("shown", "chosen", 6)
    own = Hypothesis.model_validate({**after, "after": None})
    attackers = Hypothesis.model_validate({**after, "balanced": "attacked"})
    [equal] = judge_hypotheses(counted_in(plan.sweep, tests), plan.sweep, [own])
    assert equal.outcome == "not shown"
    [unmet] = judge_hypotheses(counted_in(plan.sweep, tests), plan.sweep, [attackers])
    assert unmet.outcome == "not tested" and "completeness of arm" in unmet.because


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ("told", "after: 'told': the sweep has no such attack; it has chosen"),
        ("chosen", "after: 'chosen' leaves out asked-nip-1"),
    ],
)
def test_a_hypothesis_about_no_attack_is_refused(tmp_path, after, message):
    entry = {"by": "best-of-n", "leave_out": [{"seed": 1}]}
    attacked = {**SWEEP, "attacks": {"chosen": entry}}
    with pytest.raises(SettingsError) as raised:
        read_plan(planned(tmp_path, {**SOUNDER, "after": after}, sweep=attacked))
    assert message in str(raised.value)


def test_an_arm_that_is_gone_from_the_sweep_is_not_tested(tmp_path):
    plan = read_plan(planned(tmp_path, SOUNDER))
    axes = {"protocol": {"nip": {}}, "seed": [1, 2]}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({**SWEEP, "axes": axes}))
    less = read_sweep(tmp_path / "sweep.yaml")
    [sound] = judge_hypotheses(counted_in(less, {}), less, plan.file.hypotheses)
    assert (sound.outcome, sound.because) == ("not tested", "protocol: 'adp': values are nip")


def test_further_hypotheses_are_adjusted_and_the_primary_one_is_not(tmp_path):
    others = [{**SOUNDER, "primary": False, "says": f"again {i}"} for i in range(3)]
    results = outcome(tmp_path, {"nip": (0.9, 0.6), "adp": (0.9, 0.5)}, SOUNDER, *others)
    assert results[0].p_holm == results[0].p > 0
    for other in results[1:]:
        assert other.p_holm == pytest.approx(min(1.0, 3 * other.p))


def test_a_plan_is_declared_once_and_before_its_first_run(tmp_path):
    plan = read_plan(planned(tmp_path, SOUNDER))
    store = open_store(plan.sweep.run_store)
    first, is_new = declare(store, plan)
    assert is_new and declare(store, plan) == (first, False)
    assert read_declaration(store, "asked") == first
    assert [*first.plan.runs] == [run.name for run in plan.sweep.runs]

    # Before the first run it may be changed, afterwards it may not.
    changed = read_plan(planned(tmp_path, {**SOUNDER, "expected": "lower"}))
    second, is_new = declare(store, changed)
    assert is_new and second.sha256 != first.sha256
    store.put("asked-nip-1/run.json", b"{}")
    with pytest.raises(RunConflictError, match=r"another plan is declared, and 1 of its runs"):
        declare(store, plan)
    assert declare(store, changed) == (second, False)
    # What is changed by hand is noticed.
    path = Path(plan.sweep.run_store) / "sweeps" / "asked" / "declaration.json"
    path.write_text(path.read_text().replace("lower", "higher"))
    with pytest.raises(CorruptionError, match="changed by hand"):
        declare(store, changed)


def test_nothing_can_be_declared_of_runs_that_have_begun(tmp_path):
    plan = read_plan(planned(tmp_path, SOUNDER))
    store = open_store(plan.sweep.run_store)
    store.put("asked-adp-2/run.json", b"{}")
    with pytest.raises(RunConflictError, match=r"nothing was declared, and 1 .*'asked-adp-2'"):
        declare(store, plan)
    store.put("sweeps/asked/results.json", b"{}")
    with pytest.raises(RunConflictError, match="has results already"):
        declare(store, plan)


def test_what_is_done_otherwise_is_listed(tmp_path):
    plan = read_plan(planned(tmp_path, SOUNDER))
    store = open_store(plan.sweep.run_store)
    declaration, _ = declare(store, plan)
    axes = {**SWEEP["axes"], "seed": [1, 2, 3, 4, 5, 7]}
    more = {**SWEEP, "axes": axes, "set": {"rl.lr": 0.5}}
    sweep = read_plan(planned(tmp_path, SOUNDER, sweep=more)).sweep
    status = {run.name: "not begun" for run in sweep.runs}
    begun = sweep.runs[0]
    RunStore(store, begun.name).create_or_open(
        Identity({**begun.parameters.to_dict(), "dataset": "problems"}, "0", 1)
    )
    status[begun.name] = "stopped"
    other_code = declaration.model_copy(update={"analysis_sha256": "0"})
    lines = list_departures(store, sweep, other_code, status)
    assert "asked-nip-7: not declared" in lines
    assert "asked-nip-6: declared, and not in the sweep" in lines
    assert "asked-nip-1: other settings than declared" in lines
    assert "asked-nip-1: not begun" in lines
    assert f"{begun.name}: begun with other settings than the sweep's" in lines
    assert f"{begun.name}: played with code 0" in lines
    assert lines[-1] == "the code of the analysis has changed"


@pytest.mark.parametrize(
    ("hypothesis", "message"),
    [
        ({"figure": "loss"}, "hypotheses.0.figure: "),
        ({"expect": "higher"}, "hypotheses.0.expect: unknown key"),
        ({"margin": 0.1}, "a margin belongs to"),
        ({"expected": "equal"}, "a margin belongs to"),
        ({"primary": False}, "exactly one hypothesis is primary (got 0)"),
        ({"arm": {"protocol": "mnip"}}, "protocol: 'mnip': values are adp, nip, debate"),
        ({"arm": {"trainer": "ei"}}, "trainer: 'ei': no such axis"),
        ({"against": {"protocol": "nip"}}, "arm and against are the same runs"),
        ({"against": {"seed": 1}}, "name the same axes in arm and against"),
        (
            {"arm": {"protocol": "nip", "seed": 1}, "against": {"protocol": "adp"}},
            "name the same axes in arm and against",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value)[:30],
)
def test_what_is_wrong_in_a_plan_is_named(tmp_path, hypothesis, message):
    with pytest.raises(SettingsError) as raised:
        read_plan(planned(tmp_path, {**SOUNDER, **hypothesis}))
    assert message in str(raised.value) and str(raised.value).startswith(str(tmp_path))


def test_arms_need_the_same_other_values(tmp_path):
    sweep = {**SWEEP, "leave_out": [{"protocol": "adp", "seed": 3}]}
    with pytest.raises(SettingsError, match="unpaired: 3"):
        read_plan(planned(tmp_path, SOUNDER, sweep=sweep))
