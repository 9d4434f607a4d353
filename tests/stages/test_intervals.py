"""What is shown of a split: its metrics, with the intervals of the document beside them."""

import json

import pyarrow as pa
import pytest
from handmade import REJECT, Rollouts
from stored_rows import typed_tables

from nip_core.errors import CorruptionError
from nip_core.evaluation.baseline_verifiers import believe_the_prover, majority
from nip_core.evaluation.confidence_intervals import wilson
from nip_core.evaluation.metrics import evaluate
from nip_core.evaluation.split_metrics import SplitMetrics
from nip_core.parameters import load_parameters
from nip_core.records import intervals
from nip_core.records.intervals import find_split_columns, read_shown_metrics
from nip_core.rollouts.plan import TEST
from nip_core.rollouts.storage.row_tables import RolloutTables
from nip_core.rollouts.storage.schema import EPISODES
from nip_core.rollouts.storage.tables import commit_shard, join_shards
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.scenarios import find_scenario

SETTINGS = {"seed": 3, "scenario": "code_validation"}


@pytest.fixture
def rollouts():
    """Variants of ten questions, right in all buggy ones and in those of seven questions."""
    rows = [
        {
            "key": f"{question}-{k}", "run": "a", "split": "test", "iteration": 0, "problem": f"p{question}-{k}",
            "question_id": f"q{question}", "sample": 0, "branch_path": "", "protocol": "nip", "question": "q",
            "solution": "s", "y": k % 2, "seed": 0, "rounds": 1, "outcome": "finished", "rewards": [],
            "decision": int(k % 2 and question < 7),
        }
        for question in range(10) for k in range(8)
    ]  # fmt: skip
    return RolloutTables(pa.Table.from_pylist(rows, EPISODES), None)


def test_a_run_of_an_earlier_version_is_shown_by_question(tmp_path, monkeypatch, rollouts):
    run = RunStore(open_store(tmp_path), "a")
    metrics = SplitMetrics(**dict(evaluate(rollouts.episodes, None, seed=3)))
    assert metrics.completeness_ci95 == wilson(28, 40)
    assert read_shown_metrics(run, 0, TEST, metrics, SETTINGS) == metrics  # its rollouts are gone
    monkeypatch.setattr(intervals, "is_committed", lambda *_: True)
    monkeypatch.setattr("nip_core.rollouts.storage.tables.read_rollouts", lambda *_: rollouts)
    shown = read_shown_metrics(run, 0, TEST, metrics, SETTINGS)
    low, high = shown.completeness_ci95
    assert high - low > 1.5 * (metrics.completeness_ci95[1] - metrics.completeness_ci95[0])
    assert shown.soundness_ci95 == wilson(10, 10)
    assert shown.questions == 10
    assert [*shown.bounds] == ["soundness"]
    assert shown.bounds["soundness"].questions == 10
    assert shown.bounds["soundness"].at_most == pytest.approx(0.2589, abs=1e-4)
    # What is not an interval is the metrics'.
    assert (shown.accuracy, shown.episodes) == (metrics.accuracy, metrics.episodes)
    assert shown.retry_rate == metrics.retry_rate


def test_a_document_is_what_is_shown_and_a_damaged_one_is_named(tmp_path):
    run = RunStore(open_store(tmp_path), "a")
    metrics = SplitMetrics(accuracy=0.5, accuracy_ci95=(0.4, 0.6))
    document = {"questions": 3, "bounds": {}, "intervals": {"accuracy_ci95": [0.1, 0.9]}}
    path = run.intervals(0, TEST)
    run.store.put(path, json.dumps(document).encode())
    shown = read_shown_metrics(run, 0, TEST, metrics, SETTINGS)
    known = {"accuracy": 0.5, "accuracy_ci95": [0.1, 0.9], "questions": 3, "bounds": {}}
    assert shown.as_json() == known
    run.store.put(path, b"{")
    with pytest.raises(CorruptionError, match=r"0000/intervals-test\.json"):
        read_shown_metrics(run, 0, TEST, metrics, SETTINGS)


@pytest.fixture
def answered(tmp_path):
    """A committed test of six plays: the prover spoke in four, and was right in three of these."""
    rows, run = Rollouts("a"), RunStore(open_store(tmp_path), "a")
    for i, said in enumerate(["They differ.", "They match.", "They differ.", "They differ."]):
        rows.add(i, 0, ["Question: why?", f"Answer: {said}", REJECT], (0, 0))
    rows.add(4, 0, [REJECT], (0, 0)).add(5, 0, [REJECT], (0, 0))
    for row in rows.episodes[-2:]:
        row |= {"problem": "p0", "question_id": "q0"}  # so one is played three times
    tables = typed_tables(rows.episodes, rows.generations)
    commit_shard(run.store, run.rollouts(0, TEST), "0000", tables)
    join_shards(run.store, run.rollouts(0, TEST), ["0000"])
    return run, tables


@pytest.mark.parametrize("has_document", [False, True])
def test_baselines_that_an_earlier_version_did_not_write_are_made_anew(answered, has_document):
    run, tables = answered
    settings = {"run_name": "a", "dataset": "problems", "interaction_protocol": "nip"}
    settings = load_parameters(settings).to_dict()
    both = tables.episodes, tables.generations
    claims = find_scenario("code_validation").claims
    old = believe_the_prover(*both, claims, counts_silence=True)
    beside = {"believe_the_prover": old, "majority": majority(tables.episodes)}
    metrics = SplitMetrics(**dict(evaluate(*both)), **beside)
    document = {"questions": 4, "bounds": {}, "intervals": {}}
    if has_document:
        run.store.put(run.intervals(0, TEST), json.dumps(document).encode())
    assert old.accuracy == 0.5
    shown = read_shown_metrics(run, 0, TEST, metrics, settings)
    believed = shown.believe_the_prover
    assert believed.accuracy == 0.75 and believed.without_prover == 2
    assert [row.k for row in shown.any_of] == [1] and shown.majority == metrics.majority
    # Without the rollouts it is what is on record.
    gone = RunStore(run.store, "b")
    assert read_shown_metrics(gone, 0, TEST, metrics, settings).believe_the_prover == old


def test_a_scenario_that_is_not_here_splits_by_questions_alone():
    assert find_split_columns({"scenario": "reading"}) == ("article_id", "article", "passage")
    assert find_split_columns({"scenario": "chess"}) == find_split_columns({}) == ()
