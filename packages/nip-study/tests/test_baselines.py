"""A sweep says in words where its baselines explain what its arms show, and only there."""

import asyncio
import dataclasses
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from leaking_players import answers
from scripted_server import scripted_server

from nip_core import loop
from nip_core.evaluation.baseline_words import remarks
from nip_core.evaluation.split_metrics import SplitMetrics
from nip_core.parameters import load_parameters
from nip_core.protocols import NO_DECISION
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.showing.reports import write_report
from nip_study.compute.arm_baselines import ByMajority, baseline_lines
from nip_study.compute.asked_again import compare_attacked
from nip_study.documents.results_document import ArmAttack
from nip_study.facts_on_record import baseline_kind, collect_sweep, digest_rules
from nip_study.pages.page import render_results
from nip_study.parts.counted import LastTest, Play, Verdicts
from nip_study.parts.document_parts import OverRuns
from nip_study.plan.swept_runs import read_sweep
from nip_study.results import compute_results

ARMS = ("adp", "alone", "random")


def written(folder, url, scenario, count=3, plays=1):
    """Two seeds of a game, of its verifier alone, and of random text in the prover's place.

    The verifier alone plays each problem so many times.
    """
    verifier, prover = (
        {"model_provider": "OpenAI", "base_url": url, "model_name": name, "freeze_agent": True}
        for name in ("verifier", "prover")
    )
    alone = {"interaction_protocol": "solo_verifier", "agents": {"verifier": verifier}}
    alone |= {"rl.num_test_iterations": plays} if plays > 1 else {}
    random = {"agents": {"verifier": verifier, "prover": {"is_random": True}}}
    config = {
        "run_name": "scripted",
        "run_store": str(folder / "runs"),
        "scenario": scenario,
        "scenario_settings": {"train_size": 4, "validation_size": 4, "test_size": 24},
        "dataset": "chains",
        "interaction_protocol": "adp",
        "agents": {"verifier": verifier, "prover": prover},
        "rl": {"num_iterations": 0},
        "rollouts": {"transport_retries": 0},
    }
    arms = dict(zip(ARMS[:count], ({}, alone, random), strict=False))
    sweep = {"name": "leak", "config": "config.yaml", "axes": {"arm": arms, "seed": [1, 2]}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
    return read_sweep(folder / "sweep.yaml")


def results_of(folder, monkeypatch, verifier, *game):
    """What came of the sweep, its honest provers included; no report is written, which takes long."""
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.setattr("nip_core.stages.publishing.write_report", lambda *_: None)

    async def play():
        async with scripted_server(answers(verifier, "honest")) as server:
            sweep = written(folder, server.url, *game)
            for run in sweep.runs:
                await loop.train(run.parameters)
        return sweep

    sweep = asyncio.run(play())
    store = open_store(sweep.run_store)
    return store, compute_results(collect_sweep(store, sweep))


def report_of(store, name):
    write_report(RunStore(store, name))
    return store.get(f"{name}/report.html").decode()


def test_arms_are_known_by_their_settings(tmp_path):
    sweep = written(tmp_path, "http://127.0.0.1:9/v1", "arithmetic")
    kinds = [baseline_kind(runs[0].parameters) for runs in sweep.arms.values()]
    assert kinds == [None, "alone", "random"]


@pytest.mark.long
def test_problems_that_give_the_label_away_are_told_of(tmp_path, monkeypatch):
    store, results = results_of(tmp_path, monkeypatch, "reads", "leaking_players:Leaky")
    lines = baseline_lines(results.baselines)
    assert [line.partition(":")[0] for line in lines] == ["`alone`", "`adp`", "`adp`", "`adp`"]
    assert "alone the verifier is right in 100.0 % (95 % interval 86.2 to 100.0 %)" in lines[0]
    assert "more than the 62.5 % that checking what it can check gives" in lines[0]
    assert "not shown to be more than `alone`, the verifier alone: 100.0 %" in lines[1]
    assert "not shown to be more than `random`, with random text" in lines[2]
    assert "in 2 of 2 runs the verifier is not shown to be right more often than" in lines[3]
    text = render_results(results)
    assert "## What the baselines say" in text and all(f"- {line}\n" in text for line in lines)
    assert "Alone the verifier is right in 100.0 %" in report_of(store, "leak-alone-1")


@pytest.mark.long
def test_a_page_says_one_interval_of_a_figure(tmp_path, monkeypatch):
    _, results = results_of(tmp_path, monkeypatch, "checks", "arithmetic", 3, 3)
    _, alone, _ = results.arms
    # One play of a verifier alone is its figure in the arms' table, and its own majority.
    once, twice, _ = alone.any_of[-1].rows
    assert alone.soundness.ci95 and once.soundness == alone.soundness == once.majority_soundness
    assert once.completeness == alone.completeness == once.majority_completeness
    # Of two plays both must accept, for either.
    assert twice.completeness == twice.majority_completeness
    # `adp` is the first arm: what stands there with the sign turned is the same difference.
    [row] = [row for row in results.baselines.compared if row.baseline == "random"]
    [other] = [
        row
        for row in results.differences.compared
        if (row.arm, row.figure, row.attack) == ("random", "accuracy", None)
    ]
    assert row.ci95 == (-other.ci95[1], -other.ci95[0])


def test_a_baseline_with_provers_is_one_of_the_same_game_alone(tmp_path, monkeypatch):
    store, results = results_of(tmp_path, monkeypatch, "checks", "arithmetic", 3, 3)
    both = [("adp", "alone"), ("adp", "random")]
    assert [(row.arm, row.baseline) for row in results.baselines.compared] == both
    collected = collect_sweep(store, read_sweep(tmp_path / "sweep.yaml"))
    facts = collected.facts
    [rules] = {run.game.rules for run in facts.runs}

    def compared(of_random, of_others=rules):
        runs = [
            run.model_copy(update={"game": run.game.model_copy(update={"rules": changed})})
            for run in facts.runs
            for changed in [of_random if run.game.kind == "random" else of_others]
        ]
        changed = facts.model_copy(update={"runs": tuple(runs)})
        found = compute_results(dataclasses.replace(collected, facts=changed)).baselines
        assert [row.baseline for row in found.any_of] == ["alone"]
        return [(row.arm, row.baseline) for row in found.compared]

    assert compared("of other settings") == both[:1]
    # In facts of earlier versions the names are all that is known.
    assert compared(None) == both and compared(None, None) == both


def test_a_verifier_asked_again_stands_beside_arms_on_its_problems_alone(tmp_path, monkeypatch):
    store, results = results_of(tmp_path, monkeypatch, "checks", "arithmetic", 2, 3)
    assert results.baselines.any_of
    collected = collect_sweep(store, read_sweep(tmp_path / "sweep.yaml"))
    table = collected.verdicts
    is_alone = pc.match_substring(table["run"], "alone")
    elsewhere = pc.binary_join_element_wise("other", table["problem"], "-")
    at = table.schema.get_field_index("problem")
    column = pc.if_else(is_alone, elsewhere, table["problem"])
    moved = table.set_column(at, table.schema.field(at), column)
    assert not compute_results(dataclasses.replace(collected, verdicts=moved)).baselines.any_of


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ("scenario_settings.steps=3", False),
        ("nip_protocol.max_message_rounds=5", False),
        ("protocol_common.shared_reward=true", False),
        ("tool.per_turn=1", False),
        ("rl.num_iterations=7", True),
        ("agents.prover.is_random=true", True),
        ("dataset_options.shuffle_train_labels=true", True),
    ],
)
def test_the_rules_of_a_game_are_settings_of_scenario_and_protocols(change, is_same):
    config = Path(__file__).parents[3] / "deployments" / "configs" / "arithmetic-tiny.yaml"
    at_first = ("protocol_common.shared_reward=false",)
    rules = [digest_rules(load_parameters(config, (*at_first, *more))) for more in ((), (change,))]
    assert (rules[0] == rules[1]) is is_same


def test_nothing_is_said_of_problems_that_tell_nothing(tmp_path, monkeypatch):
    store, results = results_of(tmp_path, monkeypatch, "checks", "arithmetic", 2)
    [compared] = results.baselines.compared
    assert compared.outcome == "shown"
    [alone] = results.baselines.alone
    assert alone.rate_alone == 0.625 and not alone.is_above
    # An honest prover may be believed, so the accuracy does not show who checks.
    [line] = baseline_lines(results.baselines)
    assert line.startswith("`adp`: in 2 of 2 runs the verifier is not shown to be right more often")
    tree = RunStore(store, "leak-alone-1")
    test = SplitMetrics.model_validate(tree.read_json(tree.metrics(0, "test")))
    assert remarks(test, 0.625) == []  # nor in its report
    run = RunStore(store, "leak-adp-1")
    assert run.read_json(run.metrics(0, "test"))["believe_the_prover"]["accuracy"] == 1.0


def test_an_arm_stands_beside_the_most_verdicts_that_were_played_and_take_no_more_tokens(
    tmp_path, monkeypatch
):
    store, results = results_of(tmp_path, monkeypatch, "checks", "arithmetic", 2, 3)
    [adp, alone] = results.arms
    [test] = alone.any_of  # untrained, as nothing is trained here
    assert test.iteration == 0 and [row.k for row in test.rows] == [1, 2, 3]
    assert adp.any_of == ()
    for k, row in enumerate(test.rows, 1):
        assert row.generated_tokens == pytest.approx(k * alone.generated_tokens.mean)
        seen = [run.tests[-1].any_of[k - 1] for run in results.runs[2:]]
        for mean, values in (
            (row.soundness, [one.soundness for one in seen]),
            (row.completeness, [one.completeness for one in seen]),
        ):
            assert mean.mean == pytest.approx(sum(values) / 2)
            low, high = mean.ci95 or (0, 1)
            assert low <= mean.mean <= high
    assert test.rows[0].soundness.mean == pytest.approx(alone.soundness.mean)
    [beside] = results.baselines.any_of
    own, theirs = beside.generated_tokens
    assert (beside.arm, beside.baseline) == ("adp", "alone")
    assert theirs <= own + 1 or beside.k == 1
    assert beside.soundness == adp.soundness
    [again] = beside.any_of
    assert again.as_json() == {"iteration": 0, **test.rows[beside.k - 1].as_json()}
    text = render_results(results)
    assert "## Asked again" in text and "| alone | untrained | 3 |" in text
    assert f"| alone, untrained | {beside.k} |" in text and "fit)" not in text
    # One verdict has no other majority; completeness and soundness can't both gain by voting.
    first, *_, last = test.rows
    assert first.majority_soundness.mean == pytest.approx(first.soundness.mean)
    assert last.majority_soundness.mean <= last.soundness.mean
    # Under an attack in which the verifier wrote as much as in two plays alone.
    tokens = OverRuns(mean=2 * alone.generated_tokens.mean + 0.2, lowest=0, highest=9)
    half = OverRuns(mean=0.5, lowest=0.5, highest=0.5)
    left = ArmAttack(runs=2, finished=2, soundness=half, verifier_tokens=tokens)
    arms = [adp.model_copy(update={"attacks": {"chosen": left}}), alone]
    [attacked] = compare_attacked(arms, [(0, 1)])
    assert (attacked.arm, attacked.attack, attacked.baseline, attacked.k) == (
        *("adp", "chosen", "alone"),
        2,
    )
    assert attacked.soundness == half and attacked.any_of[0].soundness == test.rows[1].soundness
    found = results.baselines.model_copy(update={"under_attack": (attacked,)})
    text = render_results(results.model_copy(update={"baselines": found}))
    assert "tokens of the verifier than" in text and "| adp | chosen |" in text
    assert "fit)" not in text
    # In which it wrote as much as in seven, of which three were played.
    tokens = tokens.model_copy(update={"mean": 7 * alone.generated_tokens.mean + 0.2})
    arms[0] = adp.model_copy(
        update={"attacks": {"chosen": left.model_copy(update={"verifier_tokens": tokens})}}
    )
    found = found.model_copy(update={"under_attack": tuple(compare_attacked(arms, [(0, 1)]))})
    text = render_results(results.model_copy(update={"baselines": found}))
    assert "| alone, untrained | 3 (7 fit) |" in text
    assert "(n fit): so many verdicts would take no more tokens" in text
    assert "Any of k plays" in report_of(store, "leak-alone-1")
    assert "Any of k plays" not in report_of(store, "leak-adp-1")


def test_a_verifier_alone_that_is_asked_again_counts_by_its_majority():
    rows = []
    for problem, decisions in enumerate(([1, 1, 0], [0, NO_DECISION, 1], [1, 0, 0])):
        for decision in decisions:  # on right solutions
            play = Play(f"p{problem}", "q", 1, decision)._asdict()
            rows.append({"run": "a", "attack": None, "iteration": 0, "n": None, **play})
    verdicts, tests = Verdicts(pa.Table.from_pylist(rows)), {"a": LastTest(0)}
    assert ByMajority(verdicts, tests, ["a"]).count("a", "accuracy") == {"q": (1.0, 3)}
    assert ByMajority(verdicts, tests, []).count("a", "accuracy") == {"q": (4.0, 9)}


@pytest.mark.parametrize(
    ("interval", "rate_alone", "believed", "count"),
    [
        ([0.63, 0.9], 0.625, None, 1),
        ([0.62, 0.9], 0.625, None, 0),
        ([0.63, 0.9], None, None, 0),
        ([0.63, 0.9], None, [0.4, 0.62], 0),
        ([0.63, 0.9], None, [0.4, 0.63], 1),
        (None, 0.625, None, 0),
    ],
)
def test_a_remark_follows_from_intervals(interval, rate_alone, believed, count):
    test = {"accuracy": 0.8, "accuracy_ci95": interval}
    if believed is not None:
        test["believe_the_prover"] = {"accuracy": 0.5, "accuracy_ci95": believed}
    assert len(remarks(SplitMetrics.model_validate(test), rate_alone)) == count
