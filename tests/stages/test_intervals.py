"""What is shown of a split: its metrics, with the intervals of the document beside them."""

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from handmade import ACCEPT, REJECT, Rollouts
from in_memory import InMemory
from stored_rows import typed_tables

from nip_core.errors import CorruptionError
from nip_core.evaluation.acceptance_figures import measure_acceptance
from nip_core.evaluation.any_of import any_of
from nip_core.evaluation.baseline_verifiers import believe_the_prover, majority
from nip_core.evaluation.confidence_intervals import wilson
from nip_core.evaluation.invalid import invalid_answers
from nip_core.evaluation.metrics import evaluate
from nip_core.evaluation.split_metrics import SplitMetrics
from nip_core.records.intervals import (
    combine_metrics,
    find_split_columns,
    measure_baselines,
    measure_intervals,
    read_shown_metrics,
)
from nip_core.report.measured_rows import MeasuredRows
from nip_core.rollouts.plan import TEST
from nip_core.rollouts.storage.row_tables import RolloutTables
from nip_core.rollouts.storage.schema import EPISODES, GENERATIONS
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
    episodes = pa.Table.from_pylist(rows, EPISODES)
    tables = RolloutTables(episodes, GENERATIONS.empty_table())
    return MeasuredRows(InMemory((tables,)), {}, ())


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
    claims = find_scenario("code_validation").claims
    both = MeasuredRows(InMemory((tables,)), claims, ("prover",))
    counted = both.believe(counts_silence=True)
    beside = {"believe_the_prover": counted, "majority": majority(tables.episodes)}
    metrics = SplitMetrics(**dict(evaluate(both.episodes, both.read_generations())), **beside)
    assert counted.accuracy == 0.5
    baselines = measure_baselines(both, metrics, 0, ())
    document = measure_intervals(both, metrics, 0, ()).model_copy(update={"baselines": baselines})
    shown = combine_metrics(metrics, document)
    believed = shown.believe_the_prover
    assert believed.accuracy == 0.75 and believed.without_prover == 2
    assert [row.k for row in shown.any_of] == [1] and shown.majority == metrics.majority


def test_figures_of_rows_read_by_shard_are_those_of_whole_tables():
    rows = Rollouts("a")
    for i in range(40):
        said = [f"They {('match', 'differ')[(i * k) % 2]}." if k else "Well." for k in (1, i % 3)]
        texts = ["Question: a?", f"Answer: {said[0]}", "Question: b?", f"Answer: {said[1]}"]
        verdict = ACCEPT if i % 3 else REJECT
        rows.add(
            i % 15,
            i % 2,
            [*texts, verdict],
            (i % 2, 1 - i % 2),
            invalid=(i % 5, i % 4),
            iteration=i,
        )
    for row in rows.generations[::7]:
        row["p_accept"] = 0.25
    tables = typed_tables(rows.episodes, rows.generations)
    _compare_figures(tables)
    # 2. A tree, whose leaves share the first question and have an answer each.
    tree = Rollouts("a").add(0, 1, ["Question: a?", "Answer: They match.", ACCEPT], (1, 1))
    (leaf,), shared = tree.episodes, tree.generations
    for row, path in zip(shared, ("0", "0.0", "0.0.0"), strict=True):
        row["branch_path"] = path
    other = [
        row | {"key": f"{row['key']}-2", "episode": "b", "branch_path": path}
        for row, path in zip(shared[1:], ("0.1", "0.1.0"), strict=True)
    ]
    other[0]["text"] = "Answer: They differ."
    leaves = [leaf | {"branch_path": "0.0.0"}, leaf | {"key": "b", "branch_path": "0.1.0"}]
    _compare_figures(typed_tables(leaves, [*shared, *other]))


def _compare_figures(tables):
    """Compare figures of all rows with those of the rows that are read from two shards."""
    half = tables.episodes.num_rows // 2 if tables.episodes.num_rows > 2 else 0
    shards = []
    for episodes in (tables.episodes.slice(0, half), tables.episodes.slice(half)):
        mine = pc.is_in(tables.generations["episode"], value_set=episodes["key"])
        shards.append(RolloutTables(episodes, tables.generations.filter(mine)))
    claims, whole = find_scenario("code_validation").claims, (tables.episodes, tables.generations)
    rows = MeasuredRows(InMemory(tuple(shards)), claims, ("prover",))
    assert evaluate(rows.episodes, rows.read_generations()) == evaluate(*whole)
    assert measure_acceptance(rows.episodes, rows.read_verdicts()) == measure_acceptance(*whole)
    assert invalid_answers(rows.read_generations()) == invalid_answers(whole[1])
    assert any_of(rows.episodes, rows.read_generations()) == any_of(*whole)
    for counts_silence in (False, True):
        believed = rows.believe(counts_silence=counts_silence)
        assert believed == believe_the_prover(*whole, claims, counts_silence=counts_silence)


def test_a_scenario_that_is_not_here_splits_by_questions_alone():
    assert find_split_columns({"scenario": "reading"}) == ("article_id", "article", "passage")
    assert find_split_columns({"scenario": "chess"}) == find_split_columns({}) == ()
