"""What trackers are shown is written down once, from committed records, and never changes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_bridges.tracking.point_log import PointLog
from nip_bridges.tracking.points import add_part, is_logged
from nip_core.errors import CorruptionError
from nip_core.jobs.job import JobRecord
from nip_core.parameters import load_parameters
from nip_core.run_store.documents import encode
from nip_core.run_store.run import Identity, RunStore
from nip_core.run_store.store import open_store

MODEL = {"model": "ft:m", "base_model": "m"}
METRICS = {
    "episodes": 2,
    "accuracy": 0.5,
    "accuracy_ci95": [0.25, 0.75],
    "failed_rate_ci95": [0.0, 0.1],
    "agreement": None,
    "agents": {"verifier": {"mean_reward": 1.0, "mean_reward_ci95": [0, 1]}},
    "by_difficulty": {"easy": {"accuracy": 1.0}},
    "rollouts": "digest",
}


@pytest.fixture
def run(tmp_path):
    run = RunStore(open_store(tmp_path), "a")
    settings = load_parameters(
        {"run_name": "a", "dataset": "families"}, ["rl.num_iterations=9"]
    ).to_dict()
    run.create_or_open(Identity(settings, "1", 1))
    return run


def put(run: RunStore, path: str, value: object) -> None:
    run.store.put(path, encode(value))


def add_job(run: RunStore, iteration: int, events, **changes) -> None:
    job = {
        "state": "terminal",
        "key": "k",
        "run": "a",
        "iteration": iteration,
        "group": "verifier",
        "attempt": 0,
        "method": "supervised",
        "parent_model": "m",
        "parent_model_digest": "d",
        "dataset_digest": "d",
        "examples": 12,
        "seed": 1,
        "settings": {},
        "created_at": 1.0,
        "finished_at": 90.0,
        "outcome": "succeeded",
        "trained_tokens": 30,
        "backend_events": tuple(events),
        **changes,
    }
    put(run, run.job(iteration, "verifier"), JobRecord(**job).model_dump(mode="json"))


def step(number: int, loss: float | None, at: float | None = 10.0) -> dict:
    data = {"step": number, "total_steps": 3, "train_loss": loss, "time_left_s": 1.0, "epoch": 1}
    return {"type": "metrics", "created_at": at, "data": data}


def add_iteration(run: RunStore, iteration: int) -> None:
    put(run, run.metrics(iteration, "train"), METRICS)
    add_job(run, iteration, [step(1, 2.0), step(2, 1.5)])
    put(run, run.models(iteration), {"groups": {"verifier": MODEL, "prover": MODEL}})


def shown(log: PointLog) -> list[tuple[str, int, float]]:
    batches = [log.read(number) for number in range(log.extend())]
    return [(k, r.step, v) for b in batches for r in b.rows for k, v in r.values.items()]


def test_numbers_of_metrics_are_shown_and_breakdowns_are_not(run):
    put(run, run.metrics(0, "train"), METRICS)
    assert shown(PointLog(run)) == [
        ("train/episodes", 0, 2.0),
        ("train/accuracy", 0, 0.5),
        ("train/accuracy_ci95/low", 0, 0.25),
        ("train/accuracy_ci95/high", 0, 0.75),
        ("train/agents/verifier/mean_reward", 0, 1.0),
        ("train/agents/verifier/mean_reward_ci95/low", 0, 0.0),
        ("train/agents/verifier/mean_reward_ci95/high", 0, 1.0),
    ]


def test_steps_of_jobs_go_on_and_of_a_step_told_twice_the_last_counts(run):
    add_job(run, 0, [step(1, 2.0), step(2, 9.0), {"type": "message"}, step(2, 1.5, None)])
    put(run, run.metrics(1, "train"), METRICS)
    log = PointLog(run, now=lambda: 77.0)
    log.extend()
    add_job(run, 1, [step(1, 1.0), step(3, 0.5)])
    log.extend()
    rows = [row for number in range(2) for row in log.read(number).rows]
    losses = [
        (row.step, row.at, row.values["training/verifier/train_loss"])
        for row in rows
        if row.axis == "step"
    ]
    assert losses == [(1, 10.0, 2.0), (2, None, 1.5), (3, 10.0, 1.0), (5, 10.0, 0.5)]
    assert {name for row in rows if row.axis == "step" for name in row.values} == {
        "training/verifier/train_loss",
        "training/verifier/epoch",
    }
    assert log.read(0).time_of(rows[1]) == 77.0


def test_a_failed_job_is_shown_when_nobody_can_try_it_again(run):
    add_job(run, 0, [step(1, 2.0)], outcome="failed", reason="no")
    assert PointLog(run).extend() == 0
    put(run, run.models(0), {"groups": {"verifier": MODEL, "prover": MODEL}})
    assert PointLog(run).extend() == 1


def test_whoever_extends_the_list_and_however_often_each_point_is_in_it_once(run):
    logs = [PointLog(run), PointLog(run)]
    for iteration in range(4):
        add_iteration(run, iteration)
        for log in logs:
            log.extend()
        # A test that was asked for later is shown later.
        if iteration == 2:
            put(run, run.metrics(0, "test"), METRICS)
    points = shown(PointLog(run))
    assert len({(name, at) for name, at, _ in points}) == len(points)
    assert [at for name, at, _ in points if name == "train/accuracy"] == [0, 1, 2, 3]
    assert [at for name, at, _ in points if name == "test/accuracy"] == [0]
    steps = [at for name, at, _ in points if name == "training/verifier/train_loss"]
    assert steps == [*range(1, 9)]
    rows = [log.read(n) for n in range(log.extend())]
    assert [b.first_row for b in rows[1:]] == [b.next_row for b in rows[:-1]]


def test_the_id_is_that_of_the_run_until_it_is_done_again(run):
    add_iteration(run, 0)
    log = PointLog(run)
    log.extend()
    first = log.run_id
    assert PointLog(run).run_id == first
    assert (len(first), log.run_name) == (16, "a")
    put(run, f"{run.root}/superseded/0001/plan.json", {})
    assert shown(log)
    assert (log.run_id != first, log.run_name) == (True, "a-again-1")
    assert log.read(0).first_row == 0


@pytest.mark.parametrize("version", [1, 99])
def test_a_list_that_is_damaged_or_newer_says_what_to_do(run, version):
    add_iteration(run, 0)
    PointLog(run).extend()
    path = f"{run.root}/tracking/points/0000/000000.json"
    run.store.put(path, json.dumps({"format_version": version}).encode())
    with pytest.raises(CorruptionError, match="restore it from a copy, or delete"):
        PointLog(run).extend()


@given(st.lists(st.integers(0, 12), max_size=20))
def test_spans_have_what_was_put_in(numbers):
    spans: dict = {}
    for number in numbers:
        spans = add_part(spans, "test", number)
    assert [i for i in range(14) if is_logged(spans, "test", i)] == sorted({*numbers})
    firsts = [first for first, _ in spans.get("test", ())]
    lasts = [last for _, last in spans.get("test", ())]
    assert all(after > before + 1 for before, after in zip(lasts, firsts[1:], strict=False))
