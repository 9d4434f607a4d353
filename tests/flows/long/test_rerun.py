"""Doing part of a run again: what comes after a point is set aside, and trained anew as new jobs."""

import asyncio
import itertools
import json
import os
import shutil

import pytest
import typer
from prefect import get_client
from prefect.artifacts import Artifact
from prefect.flow_engine import run_flow
from prefect.states import Scheduled
from small_game import FEW, rerun_here, train_here, write_config

from nip_cli.commands.show import show
from nip_core.errors import CorruptionError, LeaseError, SettingsError, StoreError
from nip_core.parameters import load_parameters
from nip_core.records.rewinds import STAGES, cancel_jobs, finish_rewinds, list_paths_from, rewind
from nip_core.run_store.lease import acquire
from nip_core.run_store.manifest import read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import list_files, open_store
from nip_core.session.opening import open_session
from nip_core.session.prepare import fork_run, prepare
from nip_core.showing.finished import find_finished_run, find_finished_test
from nip_core.stages.publishing import check_store, describe_state
from nip_prefect.flows.train import continue_run, train
from nip_prefect.tasks.publish import published_state
from nip_verify.verify import verify
from nip_verify.whole import verify_all

pytestmark = pytest.mark.usefixtures("server_in_thread")
TWO = {**FEW, "num_iterations": 2}
PLAYED = ("/test/", "/train/", "metrics-t", "intervals-t", "transcripts-t")
"""In the paths of what an iteration plays, and of what is made of that."""
RUN = {"run_name": "by-name", "rl": TWO, "text_rl": {"save_transcripts": True}}


def run_in(folder, name="by-name"):
    return RunStore(open_store(folder / "runs"), name)


@pytest.fixture(scope="module")
async def finished(tmp_path_factory):
    """A folder with a finished run, which is only read."""
    folder = tmp_path_factory.mktemp("finished")
    await train_here(write_config(folder, **RUN))
    return folder


@pytest.fixture
def config(finished, tmp_path):
    """The configuration of a copy of that run, in `tmp_path`."""
    shutil.copytree(finished / "runs", tmp_path / "runs")
    return write_config(tmp_path, **RUN)


def digests(run):
    return {
        (i, split): read_manifest(run.store, run.rollouts(i, split)).extra["canonical_digest"]
        for i, split in ((0, "test"), (0, "train"), (1, "test"), (1, "train"), (2, "test"))
    }


def contents(run, top="iterations"):
    return {p: run.store.get(p) for p in list_files(run.store, f"{run.root}/{top}")}


def job(run, iteration, group="prover", root=None):
    path = run.job(iteration, group)
    return run.read_json(path if root is None else path.replace(run.root, root, 1))


async def test_from_the_dataset_on_keeps_what_was_played_and_trains_a_new_model(config, tmp_path):
    run = run_in(tmp_path)
    before, played = contents(run), digests(run)
    models = {i: run.read_json(run.models(i)) for i in (0, 1)}

    result = await rerun_here(config, 1, "dataset")

    assert result["status"] == "finished"
    aside = f"{run.root}/superseded/0001"
    expected = {
        path
        for path in before
        if "/0002/" in path or ("/0001/" in path and not any(part in path for part in PLAYED))
    }
    moved = {p.replace(aside, run.root, 1): d for p, d in contents(run, "superseded/0001").items()}
    assert {p: d for p, d in moved.items() if "/iterations/" in p} == {
        path: before[path] for path in expected
    }
    assert {p: d for p, d in contents(run).items() if p in set(before) - expected} == {
        path: before[path] for path in set(before) - expected
    }
    assert job(run, 1, root=aside)["attempt"] == 0 and job(run, 1)["attempt"] == 1
    assert job(run, 1)["key"] != job(run, 1, root=aside)["key"]
    assert job(run, 0)["attempt"] == 0
    assert run.read_json(run.models(0)) == models[0]
    assert run.read_json(run.models(1)) != models[1]
    plan = run.read_json(f"{aside}/plan.json")
    assert (plan["iteration"], plan["stage"]) == (1, "dataset") and plan["files"]
    now = digests(run)
    assert {k: v for k, v in now.items() if k != (2, "test")} == {
        k: v for k, v in played.items() if k != (2, "test")
    }
    served = {group: model["model"] for group, model in models[1]["groups"].items()}
    assert not set(served.values()) & set(result["iterations"][2]["models"].values())


async def test_a_retried_flow_run_does_not_go_back_twice(
    config, tmp_path, monkeypatch, prefect_server
):
    run = run_in(tmp_path)
    asked: list[str] = []

    async def watched(run, parameters, control, among):
        asked.extend(among)
        return await cancel_jobs(run, parameters, control, among)

    monkeypatch.setattr("nip_core.upkeep.rerun.cancel_jobs", watched)
    state = await train(
        str(config), rerun_from_iteration=1, rerun_from_stage="swap", return_state=True
    )
    assert state.is_completed()
    after = contents(run)
    async with get_client() as client:
        flow_run = await client.read_flow_run(state.state_details.flow_run_id)
        await client.set_flow_run_state(flow_run.id, Scheduled(), force=True)
        flow_run = await client.read_flow_run(flow_run.id)
    await run_flow(train, flow_run=flow_run, parameters=flow_run.parameters)
    assert run.store.list(f"{run.root}/superseded") == ["0001/"]
    assert contents(run) == after
    # Neither jobs of before the point were cancelled, nor, the second time, those of after.
    assert asked and not any("/jobs/" in path for path in asked)
    assert len(asked) == len(set(asked))


async def test_a_scheduled_flow_run_adds_its_iterations_once_however_often_it_is_retried(
    config, tmp_path, prefect_server
):
    run = run_in(tmp_path)
    before = run.finished_iterations()
    state = await train(str(config), more_iterations=1, return_state=True)
    assert state.is_completed() and run.finished_iterations() == before + 1
    async with get_client() as client:
        flow_run = await client.read_flow_run(state.state_details.flow_run_id)
        await client.set_flow_run_state(flow_run.id, Scheduled(), force=True)
        flow_run = await client.read_flow_run(flow_run.id)
    await run_flow(train, flow_run=flow_run, parameters=flow_run.parameters)
    assert run.finished_iterations() == before + 1
    with pytest.raises(SettingsError, match="num_iterations and more_iterations: set one"):
        await train(str(config), more_iterations=1, num_iterations=9)


@pytest.mark.parametrize(
    "moved", [1, *(pytest.param(n, marks=pytest.mark.kill_matrix) for n in (0, 3))]
)
async def test_a_rewind_that_was_killed_is_completed_before_anything_else(moved, config, tmp_path):
    run = run_in(tmp_path)
    files = list_paths_from(run, 1, "train")
    assert len(files) > 3
    plan = {"token": "t", "iteration": 1, "stage": "train", "files": files}
    run.write_json_once(f"{run.root}/superseded/0001/plan.json", plan)
    for relative in files[:moved]:
        run.store.put(
            f"{run.root}/superseded/0001/{relative}", run.store.get(f"{run.root}/{relative}")
        )
        run.store.delete(f"{run.root}/{relative}")
    async with open_session(load_parameters(config)):
        assert [f for f in files if run.store.exists(f"{run.root}/{f}")] == []
    aside = contents(run, "superseded/0001/iterations")
    assert sorted(aside) == sorted(f"{run.root}/superseded/0001/{f}" for f in files)


@pytest.mark.usefixtures("config")
async def test_a_replaced_runner_sets_nothing_aside(tmp_path):
    run = run_in(tmp_path)
    before = contents(run)
    lease = acquire(run.store, run.root)
    lease.release()
    with acquire(run.store, run.root), pytest.raises(LeaseError):
        rewind(run, lease, 0, "play", token="late")
    path = next(iter(before))
    with pytest.raises(LeaseError):
        run.store.delete(path, fence=lease.fence)
    assert contents(run) == before


@pytest.mark.usefixtures("config")
async def test_stages_follow_each_other_and_take_along_what_comes_later(tmp_path):
    run = run_in(tmp_path)
    sets = [set(list_paths_from(run, 1, stage)) for stage in STAGES]
    assert all(later < earlier for earlier, later in itertools.pairwise(sets))
    everything = {
        p.removeprefix(f"{run.root}/") for p in list_files(run.store, f"{run.root}/iterations")
    }
    assert sets[0] == {p for p in everything if not p.startswith("iterations/0000/")}
    second = {p.removeprefix("iterations/0001/") for p in sets[-1] if "/0001/" in p}
    assert second == {"models.json", "times.json"}
    with acquire(run.store, run.root) as lease, pytest.raises(SettingsError, match="iteration 5"):
        rewind(run, lease, 5, "play", token="t")


async def test_a_damaged_job_document_stops_it_before_anything_is_set_aside(config, tmp_path):
    run = run_in(tmp_path)
    path = run.job(1, "prover")
    for damaged in (b"{}", b"garbage"):
        run.store.put(path, damaged)
        before = contents(run)
        with pytest.raises(CorruptionError, match=f"{path}: damaged.*remove it and run again"):
            await rerun_here(config, 1, "train")
        assert contents(run) == before
    run.store.delete(path)
    result = await rerun_here(config, 1, "train")
    assert result["status"] == "finished"


async def test_what_comes_after_the_last_test_is_refused(config):
    for iteration, stage in ((2, "play"), (3, "test")):
        with pytest.raises(SettingsError, match=rf"from {iteration}:{stage}.*the last test 2:test"):
            await rerun_here(config, iteration, stage)


async def test_a_fork_does_again_what_it_inherited(config, tmp_path):
    changes = ["run_name=forked", "rl.lr=0.0005"]
    fork_run(load_parameters(config), load_parameters(config, changes))
    fork = run_in(tmp_path, "forked")
    played = {path: content for path, content in contents(fork).items() if "/rollouts/" in path}
    result = await rerun_here(config, 0, "dataset", changes)
    assert result["status"] == "finished"
    after = contents(fork)
    first = "iterations/0000/rollouts"
    kept = {path: content for path, content in played.items() if first in path}
    assert kept and {path: after[path] for path in kept} == kept
    jobs = result["iterations"][0]["jobs"]
    assert {job["status"] for job in jobs.values()} == {"succeeded"}
    assert result["iterations"][1]["models"]["prover"].startswith("ft:deterministic:forked-0000")


async def test_a_fork_may_test_what_its_source_did_not(tmp_path):
    config = write_config(
        tmp_path, rl={**TWO, "num_iterations": 1}, text_rl={"test_scheme": "none"}
    )
    await train_here(config)
    changes = ["run_name=forked", "text_rl.test_scheme=all"]
    fork_run(load_parameters(config), load_parameters(config, changes))
    result = await train_here(config, changes)
    assert [one["test"] is not None for one in result["iterations"]] == [True, True]
    source, fork = (run_in(tmp_path, name) for name in ("small", "forked"))
    assert fork.read_json(fork.models(0)) == source.read_json(source.models(0))


async def test_a_worker_that_knows_the_name_alone_goes_on(
    finished, tmp_path, monkeypatch, prefect_server
):
    stopped, elsewhere = tmp_path / "stopped", tmp_path / "elsewhere"
    stopped.mkdir(), elsewhere.mkdir()
    config = write_config(stopped, **RUN)
    await train_here(config, ["rl.num_iterations=1"])
    await train(str(config), num_iterations=1)  # finished: it only publishes
    config.unlink()
    monkeypatch.chdir(elsewhere)
    result = await continue_run("by-name", num_iterations=2)
    assert result["status"] == "finished"
    runs = [run_in(folder) for folder in (finished, stopped)]
    assert digests(runs[0]) == digests(runs[1])
    assert os.listdir(elsewhere) == []


async def test_a_store_that_is_behind_what_was_published_is_refused_and_nothing_is_played(
    config, tmp_path, prefect_server
):
    """As a backup that was brought back in the place of the store."""
    await train(str(config))  # finished: it only publishes
    run, state = run_in(tmp_path), await published_state("by-name")
    check_store(run, state)
    shutil.copytree(tmp_path / "runs", tmp_path / "newer")
    for later in ("0001", "0002"):
        shutil.rmtree(tmp_path / "runs" / "by-name" / "iterations" / later)
    before = contents(run)
    for going_on in (lambda: continue_run("by-name"), lambda: train(str(config))):
        with pytest.raises(
            CorruptionError, match="is behind the artifact nip-by-name-st"
        ) as caught:
            await going_on()
        message = str(caught.value)
        assert "iterations/0001/datasets/prover/manifest.json is missing" in message
        assert "prefect artifact delete nip-by-name-state" in message
    assert contents(run) == before
    # Another run of the name may begin, and what is ahead of the artifact is right.
    check_store(run, {**state, "created_at": "2001-01-01"})
    newer = RunStore(open_store(tmp_path / "newer"), "by-name")
    check_store(newer, describe_state(run, "play"))
    with pytest.raises(CorruptionError, match="models after iteration 0 is another"):
        check_store(newer, {**state, "swaps": {"0": {"prover": "m"}}})


async def test_a_name_that_nobody_published_is_an_error_that_says_so(prefect_server):
    with pytest.raises(SettingsError, match="nip-nobody-state"):
        await continue_run("nobody")
    with pytest.raises(StoreError):
        await continue_run("nobody", run_store="/nonexistent")


async def test_common_settings_need_no_overrides(tmp_path, prefect_server):
    config = write_config(tmp_path, rl=TWO, text_rl={"test_scheme": "none"})
    result = await train(str(config), run_name="0123", num_iterations=1, rollouts_per_iteration=30)
    assert result["run"] == "0123"
    stored = run_in(tmp_path, "0123").open().parameters
    assert stored["rl"]["num_iterations"] == 1
    assert stored["rl"]["rollouts_per_iteration"] == 30
    state = await Artifact.aget("nip-0123-state")
    assert json.loads(state.data.split("```json\n")[1].split("\n```")[0])["run"] == "0123"


def test_finishing_where_nothing_was_begun_changes_nothing(tmp_path):
    run = run_in(tmp_path)
    with acquire(run.store, run.root) as lease:
        finish_rewinds(run, lease)
    assert run.store.list(f"{run.root}/superseded") == []


def test_one_that_found_nothing_counts_all_the_same(tmp_path):
    run = run_in(tmp_path)
    with acquire(run.store, run.root) as lease:
        assert rewind(run, lease, 0, "test", token="t") is not None
        run.store.put(run.job(0, "prover"), b"a paid job")
        assert rewind(run, lease, 0, "test", token="t") is None
    assert run.store.get(run.job(0, "prover")) == b"a paid job"


def test_a_rewind_that_was_killed_before_its_plan_stands_leaves_a_run_that_opens(tmp_path):
    run = run_in(tmp_path)
    (tmp_path / "runs" / run.root / "superseded" / "0001").mkdir(parents=True)
    with acquire(run.store, run.root) as lease:
        finish_rewinds(run, lease)
        assert rewind(run, lease, 0, "test", token="t") is not None


# What was committed is checked --------------------------------------------------------------------

NO_DIGEST = ("api_key", "lock", "owner.lock", "server.log", "log.jsonl", "responses.sqlite3")
"""In a server's state, what nothing says the digest of."""


def problems_of(run):
    """Paths of problems, and of what may be missing."""
    findings = asyncio.run(verify_all(run))
    missing = {note.partition(": not there")[0] for note in findings.notes if "not there" in note}
    return set(findings.problems) | missing


def in_batches(run):
    """Every file that is checked, in batches with at most one of each directory.

    By themselves are those without which others can't be checked.
    """
    folders = {}
    for path in list_files(run.store, run.root):
        folder, _, name = path.rpartition("/")
        if name not in NO_DIGEST:
            alone = name in ("run.json", "jobs.sqlite3", "report.html")
            folders.setdefault(path if alone else folder, []).append(path)
    alone = [folders.pop(path) for path in list(folders) if path in folders[path]]
    batches = itertools.zip_longest(*folders.values())
    return alone + [[path for path in batch if path] for batch in batches]


def flip(file):
    # Of a page of SQLite's only the header is sure to be in use.
    content = bytearray(file.read_bytes())
    content[5 if file.suffix == ".sqlite3" else len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("change", [flip, os.unlink])
def test_every_file_that_is_changed_or_deleted_is_named_and_no_other(config, tmp_path, change):
    run = run_in(tmp_path)
    assert problems_of(run) == set()
    batches = in_batches(run)
    assert sum(map(len, batches)) > 80
    for batch in batches:
        files = [run.store.local_path(path) for path in batch]
        contents = [file.read_bytes() for file in files]
        for file in files:
            change(file)
        # Of a file and its checksum nobody can say which of them was flipped, unless the checksum
        # is none any more.
        expected, found = set(batch), problems_of(run)
        if change is flip:
            expected, found = ({p.removesuffix(".sha256") for p in of} for of in (expected, found))
        if change is os.unlink:  # runs of earlier versions have none, and nothing else needs them
            expected.discard(f"{run.root}/estimate.json")
            expected -= {p for p in batch if p.endswith("/times-so-far.json")}  # of the last test
        assert found == expected
        for file, content in zip(files, contents, strict=True):
            file.write_bytes(content)


@pytest.mark.parametrize(
    ("pattern", "change"),
    [
        *itertools.product(
            ("train/plan.json", "train/timings-0001.*", "datasets/prover/examples.*"),
            (flip, os.unlink),
        ),
        ("test/manifest-0000.json", os.unlink),
        ("datasets/prover/manifest.json", os.unlink),
        ("jobs/prover.json", os.unlink),
    ],
)
def test_a_finished_run_is_not_taken_for_whole_without_a_look(config, tmp_path, pattern, change):
    run, prepared = run_in(tmp_path), prepare(load_parameters(str(config)))
    (file,) = (tmp_path / "runs" / run.root / "iterations" / "0001").glob(f"**/{pattern}")
    change(file)
    for command in (find_finished_run, find_finished_test):
        with pytest.raises(CorruptionError, match=file.name):
            command(prepared)
    if change is not flip or file.suffix == ".json":  # to show it nobody reads the tables
        with pytest.raises(CorruptionError, match=file.name):
            show(run.name, run_store=str(tmp_path / "runs"))


def test_verify_says_each_problem_in_a_line_and_writes_nothing(config, tmp_path, capsys):
    run = run_in(tmp_path)
    stray = run.store.local_path(f"{run.rollouts(0, 'train')}/episodes-0009.00000000.parquet")
    stray.write_bytes(b"")
    run.store.local_path(f"{run.root}/notes.txt").write_text("mine")
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in files_below(tmp_path)}
    with pytest.raises(typer.Exit) as ended:
        verify(run.name, run_store=str(tmp_path / "runs"))
    assert ended.value.exit_code == 5
    problem, unknown, total = capsys.readouterr().out.splitlines()
    assert "episodes-0009.00000000.parquet: " in problem and "nip clean" in problem
    assert unknown.startswith(f"unknown: {run.root}/notes.txt")
    assert "1 problem, 1 unknown" in total
    stray.unlink()
    verify(run.name, run_store=str(tmp_path / "runs"), as_json=True)
    assert json.loads(capsys.readouterr().out)["problems"] == []
    del before[stray]
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in files_below(tmp_path)} == before


def files_below(folder):
    return [path for path in folder.rglob("*") if path.is_file()]
