"""What is over is read once, however many iterations there are; what is derived is never trusted more
than the documents that it follows."""

import asyncio
import json
from copy import deepcopy
from types import SimpleNamespace

import pytest
from job_documents import job_document

from nip_core.errors import CorruptionError
from nip_core.loop import directly
from nip_core.parameters import load_parameters
from nip_core.records.blocks import BLOCK
from nip_core.records.iterations import Records
from nip_core.records.spent_in_all import add_up_set_aside
from nip_core.report.embedding import fair_share, thin_out
from nip_core.run_store.lease import acquire
from nip_core.run_store.local_store import LocalStore
from nip_core.run_store.run import Identity, RunStore
from nip_core.run_store.store import open_store
from nip_core.showing import transcripts
from nip_core.showing.summary import summarise_run
from nip_core.stages import playing
from nip_core.stages.publishing import check_store, describe_state
from nip_core.upkeep.verify import check_presence, verify_run

MODEL = {"model": "ft:m", "base_model": "m"}
JOB = job_document(id="j", outcome="succeeded", status="succeeded")
LAST = BLOCK + 5


def document(run: RunStore, path: str, value: object) -> None:
    run.store.put(path, json.dumps(value).encode())


def add_iteration(run: RunStore, iteration: int, accuracy: float = 0.5) -> None:
    document(run, run.metrics(iteration, "train"), {"accuracy": accuracy, "episodes": 2})
    beside = {"questions": 2, "bounds": {}, "intervals": {}}
    document(run, run.intervals(iteration, "train"), beside)
    document(run, run.job(iteration, "verifier"), JOB)
    document(run, run.models(iteration), {"groups": {"verifier": MODEL, "prover": MODEL}})


@pytest.fixture
def run(tmp_path):
    """A run of more iterations than a block has, with documents alone."""
    run = RunStore(open_store(tmp_path), "a")
    settings = load_parameters(
        {"run_name": "a", "dataset": "families"},
        [f"rl.num_iterations={LAST + 9}", "text_rl.test_scheme=none"],
    ).to_dict()
    run.create_or_open(Identity(settings, "1", 1))
    for iteration in range(LAST):
        add_iteration(run, iteration)
    return run


@pytest.fixture
def asked(monkeypatch):
    """The paths of files that were read."""
    paths: list[str] = []
    get = LocalStore.get

    def counted(store, path):
        paths.append(path)
        return get(store, path)

    monkeypatch.setattr(LocalStore, "get", counted)
    return paths


def with_blocks(run: RunStore) -> Records:
    records = Records(run)
    with acquire(run.store, run.root) as lease:
        records.write_blocks(lease)
    return records


def test_what_is_over_is_not_read_again(run, asked):
    records = Records(run)
    summarise_run(run, records), describe_state(run, "play", records)
    add_iteration(run, LAST)
    asked.clear()
    assert len(summarise_run(run, records)["iterations"]) == LAST + 1
    of_iterations = {path for path in asked if "/iterations/" in path}
    newest = run.iteration(LAST)
    assert all(path.startswith(newest) for path in of_iterations if "models" not in path)
    assert len(of_iterations) < 12


def test_what_was_read_before_an_iteration_was_over_is_read_again(run):
    document(run, run.job(LAST, "verifier"), JOB | {"outcome": None, "status": "running"})
    records = Records(run)
    assert records.of(LAST).jobs["verifier"].status == "running"
    add_iteration(run, LAST)
    assert records.of(LAST).swap is None  # until it looks again
    assert records.look_again().of(LAST).jobs["verifier"].status == "succeeded"


def test_a_block_says_what_the_documents_say(run, asked):
    expected, state = summarise_run(run), describe_state(run, "play")
    with_blocks(run)
    asked.clear()
    assert summarise_run(run) == expected
    of_iterations = [path for path in asked if path.startswith("a/iterations/")]
    assert min(of_iterations) > run.iteration(BLOCK)
    assert describe_state(run, "play") == state
    assert verify_run(run).unknown == []


@pytest.mark.parametrize("damage", ["cut", "version", "rewound", "gone"])
def test_a_block_that_does_not_count_costs_nothing(run, damage):
    with_blocks(run)
    path = "a/shown/0000.json"
    content = run.store.get(path)
    document(run, run.metrics(1, "train"), {"accuracy": 0.75, "episodes": 2})
    assert Records(run).of(1).metrics("train").accuracy == 0.5
    if damage == "cut":
        run.store.put(path, content[:-40])
    elif damage == "version":
        document(run, path, {**json.loads(content), "format_version": 99, "sha256": None})
    elif damage == "rewound":
        document(run, "a/superseded/0001/plan.json", {})
    else:
        run.store.delete(path)
    assert Records(run).of(1).metrics("train").accuracy == 0.75
    assert Records(run).finished() == LAST
    with_blocks(run)
    document(run, run.metrics(1, "train"), {"accuracy": 1.0, "episodes": 2})
    assert Records(run).of(1).metrics("train").accuracy == 0.75


def test_a_run_that_is_done_again_meanwhile_is_read_anew(run):
    records = with_blocks(run)
    document(run, run.metrics(1, "train"), {"accuracy": 0.75, "episodes": 2})
    assert records.look_again().of(1).metrics("train").accuracy == 0.5
    document(run, "a/superseded/0001/plan.json", {})
    assert records.look_again().of(1).metrics("train").accuracy == 0.75


def test_nothing_that_was_read_while_a_rewind_moved_files_is_kept(run):
    aside = "a/superseded/0001"
    document(run, f"{aside}/plan.json", {})
    records = Records(run).look_again()
    document(run, f"{aside}/iterations/0003/jobs/verifier.json", JOB | {"trained_tokens": 9})
    assert add_up_set_aside(records).trained == {"verifier": 9}
    assert records.over() == LAST
    document(run, f"{aside}/iterations/0004/jobs/verifier.json", JOB | {"trained_tokens": 9})
    run.store.delete(run.models(4))
    document(run, f"{aside}/done.json", {"files": 2})
    assert records.look_again().over() == 4
    assert add_up_set_aside(records).trained == {"verifier": 18}


def test_a_run_that_was_done_again_is_asked_once_whether_that_is_over(run, asked, monkeypatch):
    looked: list[str] = []
    exists = LocalStore.exists

    def noted(store, path):
        looked.append(path)
        return exists(store, path)

    monkeypatch.setattr(LocalStore, "exists", noted)
    for name in ("plan", "done"):
        document(run, f"a/superseded/0001/{name}.json", {})
    records = Records(run)
    for _ in range(3):
        assert records.look_again().over() == LAST
    assert looked.count("a/superseded/0001/done.json") == 1
    asked.clear()
    records.look_again().over()
    assert not [path for path in asked if path < run.iteration(LAST)]


def test_a_store_that_lacks_an_early_iteration_is_refused(run):
    state = describe_state(run, "play")
    assert [*state["blocks"]] == ["0"] and len(state["swaps"]) == LAST - BLOCK
    check_store(run, state)
    of_an_earlier_version = {**state, "swaps": {"0": {g: "ft:m" for g in ("verifier", "prover")}}}
    del of_an_earlier_version["blocks"]
    check_store(run, of_an_earlier_version)
    with_blocks(run)
    run.store.delete(run.models(3))
    with pytest.raises(CorruptionError, match="iterations from 0 is missing"):
        check_store(run, state)


def test_fewer_iterations_than_were_played_leave_no_store_behind(run):
    state = describe_state(run, "play")
    opened = run.open()
    opening = {"code_version": "1", "parameters": deepcopy(opened.parameters)}
    opening["parameters"]["rl"]["num_iterations"] = 3
    document(run, "a/openings/0001.json", opening)
    check_store(run, state)
    run.store.delete(run.models(2))
    for i in (4, LAST - 1):
        run.store.delete(run.models(i))
    of_an_earlier_version = {k: v for k, v in state.items() if k != "blocks"}
    of_an_earlier_version["swaps"] = {str(i): {"verifier": "ft:m"} for i in (2, 4)}
    with pytest.raises(
        CorruptionError, match=r"play\): models after iteration 2 is missing; going"
    ):
        check_store(run, of_an_earlier_version)


def test_showing_looks_at_the_newest_iterations(run):
    for iteration in range(LAST):  # which is too short for a real one
        run.store.delete(run.job(iteration, "verifier"))
    run.store.put(run.metrics(1, "train"), b"{")
    check_presence(run)
    run.store.put(run.metrics(LAST - 1, "train"), b"{")
    with pytest.raises(CorruptionError, match=f"a/iterations/{LAST - 1:04d}/metrics-train"):
        check_presence(run)
    assert len(verify_run(run).problems) == 2


def test_metrics_without_their_intervals_are_a_finding(run):
    path = run.intervals(1, "train")
    assert path not in verify_run(run).problems
    run.store.delete(path)
    assert verify_run(run).problems[path].what == "missing"


def test_an_iteration_that_is_shown_was_shown_ever_since():
    before = transcripts.choose_shown_iterations(0)
    for newest in range(1, 3000):
        now = transcripts.choose_shown_iterations(newest)
        assert now <= {*before, newest} and {0, newest} <= now and len(now) <= 16
        before = now


def test_what_little_needs_is_left_to_the_others():
    assert fair_share([10, 1, 10], 30) == 10
    assert fair_share([10, 1, 10], 13) == 6
    assert fair_share([], 13) == 0
    assert sum(min(size, fair_share([5, 9, 40], 20)) for size in (5, 9, 40)) <= 20


def test_a_long_list_keeps_its_ends():
    assert thin_out(range(5), 9) == [0, 1, 2, 3, 4]
    assert thin_out(range(100), 4) == [0, 33, 66, 99]


async def test_no_more_shards_are_under_way_than_fill_the_places(monkeypatch):
    under_way, most = 0, 0

    async def play_shard(session, iteration, split, shard):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    monkeypatch.setattr(playing, "play_shard", play_shard)
    # Of a run that goes on the settings may say another size than the shards have.
    rollouts = SimpleNamespace(concurrency=64, episodes_per_shard=1)
    played = SimpleNamespace(plan=SimpleNamespace(episodes_per_shard=200))
    session = SimpleNamespace(
        parameters=SimpleNamespace(rollouts=rollouts), splits={(0, "train"): played}
    )
    await playing.play_shards(session, 0, "train", [f"{i:04d}" for i in range(500)], directly)
    assert 2 <= most <= 8
