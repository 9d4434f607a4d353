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
from nip_core.records.intervals import (
    combine_metrics,
    find_split_columns,
    measure_baselines,
    measure_intervals,
    read_shown_metrics,
)
from nip_core.rollouts.plan import TEST
from nip_core.rollouts.storage.row_tables import RolloutTables
from nip_core.rollouts.storage.schema import EPISODES
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.scenarios import find_scenario


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


def test_a_test_with_variants_is_shown_by_question(rollouts):
    metrics = SplitMetrics(**dict(evaluate(rollouts.episodes, None, seed=3)))
    assert metrics.completeness_ci95 == wilson(28, 40)
    document = measure_intervals(rollouts, metrics, 3, ())
    shown = combine_metrics(metrics, document)
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
    shown = read_shown_metrics(run, 0, TEST, metrics)
    known = {"accuracy": 0.5, "accuracy_ci95": [0.1, 0.9], "questions": 3, "bounds": {}}
    assert shown.as_json() == known
    run.store.put(path, b"{")
    with pytest.raises(CorruptionError, match=r"0000/intervals-test\.json"):
        read_shown_metrics(run, 0, TEST, metrics)


def test_baselines_of_the_metrics_give_way_to_those_of_the_document():
    """The prover spoke in four of six plays, and was right in three of these."""
    rows = Rollouts("a")
    for i, said in enumerate(["They differ.", "They match.", "They differ.", "They differ."]):
        rows.add(i, 0, ["Question: why?", f"Answer: {said}", REJECT], (0, 0))
    rows.add(4, 0, [REJECT], (0, 0)).add(5, 0, [REJECT], (0, 0))
    for row in rows.episodes[-2:]:
        row |= {"problem": "p0", "question_id": "q0"}  # so one is played three times
    tables = typed_tables(rows.episodes, rows.generations)
    both = RolloutTables(tables.episodes, tables.generations)
    claims = find_scenario("code_validation").claims
    counted = believe_the_prover(both.episodes, both.generations, claims, counts_silence=True)
    beside = {"believe_the_prover": counted, "majority": majority(tables.episodes)}
    metrics = SplitMetrics(**dict(evaluate(both.episodes, both.generations)), **beside)
    assert counted.accuracy == 0.5
    baselines = measure_baselines(both, metrics, 0, (), claims, ("prover",))
    document = measure_intervals(both, metrics, 0, ()).model_copy(update={"baselines": baselines})
    shown = combine_metrics(metrics, document)
    believed = shown.believe_the_prover
    assert believed.accuracy == 0.75 and believed.without_prover == 2
    assert [row.k for row in shown.any_of] == [1] and shown.majority == metrics.majority


def test_a_scenario_that_is_not_here_splits_by_questions_alone():
    assert find_split_columns({"scenario": "reading"}) == ("article_id", "article", "passage")
    assert find_split_columns({"scenario": "chess"}) == find_split_columns({}) == ()
