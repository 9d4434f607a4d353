"""The loop end to end on the deterministic engine, through Prefect."""

import asyncio
import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from prefect import get_client
from prefect.artifacts import Artifact
from prefect.client.schemas.filters import FlowRunFilter, LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import StateType
from prefect.logging.handlers import APILogWorker
from small_game import FEW, train_here, write_config

from nip_cli.cli import main
from nip_core.errors import RunConflictError
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.manifest import read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_prefect.flows.evaluate import evaluate
from nip_prefect.flows.train import train
from nip_prefect.tasks.publish import published_state


@pytest.fixture(scope="module")
async def trained(prefect_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    config = write_config(folder)
    result = await train(str(config))
    return config, result, RunStore(open_store(folder / "runs"), "small")


@pytest.fixture(scope="module")
async def published(trained):
    """The artifacts as the first run left them; others of its name follow."""
    return {
        "state": await published_state("small"),
        **{
            name: (await Artifact.aget(f"nip-small-{name}")).data
            for name in ("metrics", "learning-curve", "samples", "progress")
        },
    }


@pytest.fixture(scope="module")
async def shorter(published, tmp_path_factory):
    """The first of its iterations once more, in other shards and one episode after another."""
    folder = tmp_path_factory.mktemp("shorter")
    config = write_config(
        folder,
        rl={"num_iterations": 1, "rollouts_per_iteration": 50, "num_epochs": 1},
        rollouts={"episodes_per_shard": 7, "concurrency": 1},
    )
    result = await train_here(config)
    return config, result, RunStore(open_store(folder / "runs"), "small")


async def test_the_summary_tests_every_model_that_plays(trained, published):
    _, result, _ = trained
    assert result["run"] == "small" and result["status"] == "finished"
    entries = result["iterations"]
    assert [entry["iteration"] for entry in entries] == [0, 1, 2]
    assert all(entry["test"]["episodes"] == 20 for entry in entries)
    assert entries[0]["models"] == {"prover": "deterministic", "verifier": "deterministic"}
    assert [set(entry["jobs"]) for entry in entries] == [{"prover", "verifier"}] * 2 + [set()]
    assert {j["status"] for entry in entries[:2] for j in entry["jobs"].values()} == {"succeeded"}


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_what_is_finished_is_shown_with_nothing_started(trained, command, monkeypatch, capsys):
    config, result, _ = trained
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")  # nobody is there
    monkeypatch.setattr(sys, "argv", ["nip", command, str(config), "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    shown = json.loads(capsys.readouterr().out)
    if command == "train":
        assert shown == result
    else:
        assert shown["iteration"] == 2
        assert shown["test"]["accuracy"] == result["iterations"][2]["test"]["accuracy"]


async def test_prefect_finds_a_run_by_its_tag_and_all_names_are_of_one_form(trained):
    tagged = FlowRunFilter.model_validate({"tags": {"all_": ["nip", "run:small"]}})
    async with get_client() as client:
        flow_runs = await client.read_flow_runs(flow_run_filter=tagged)
        assert {"train-small", "iteration-small-0", "iteration-small-1"} <= {
            flow_run.name for flow_run in flow_runs
        }
        for _ in range(100):  # the server writes task runs down somewhat later
            tasks = await client.read_task_runs(flow_run_filter=tagged)
            if "publish-test-2" in {task_run.name for task_run in tasks}:
                break
            await asyncio.sleep(0.1)
    names = {task_run.name for task_run in tasks}
    assert {"publish-play-0", "publish-train-0", "publish-test-2", "plan-train-1"} <= names
    wrong = {name for name in names if not re.fullmatch(r"[a-z]+(-[a-z0-9]+)+", name)}
    assert not wrong


async def test_each_iteration_plays_with_what_the_one_before_trained(trained):
    _, result, run = trained
    for iteration, entry in enumerate(result["iterations"][:2]):
        rows = read_rollouts(run.store, run.rollouts(iteration, "train")).generations.to_pylist()
        for agent in ("prover", "verifier"):
            served = {row["model_served"] for row in rows if row["agent"] == agent}
            assert served == {entry["models"][agent]}
            if iteration:
                job = run.read_json(run.job(iteration - 1, agent))
                assert served == {job["model"]} and job["model"].startswith("ft:deterministic:")


async def test_a_model_can_be_followed_back_to_its_rollouts(trained):
    _, _, run = trained
    models = run.read_json(run.models(1))["groups"]
    job = run.read_json(run.job(1, "verifier"))
    assert models["verifier"]["job_id"] == job["id"] and models["verifier"]["proof"]["matches"]
    dataset = read_manifest(run.store, run.dataset(1, "verifier"))
    assert job["dataset_digest"] == dataset.extra["digest"]
    played = read_manifest(run.store, run.rollouts(1, "train"))
    assert dataset.inputs == {"rollouts/0001": played.extra["canonical_digest"]}


async def test_training_again_changes_nothing_and_submits_nothing(trained):
    config, result, run = trained
    before = {p: run.store.get(p) for p in (run.models(1), run.job(1, "prover"))}
    log = logging.getLogger("prefect.flow_runs")
    log.setLevel(logging.WARNING)  # below the tests' own
    state = await train(str(config), return_state=True)
    log.setLevel(logging.NOTSET)
    again = await state.result()
    assert again["iterations"] == result["iterations"]
    assert {p: run.store.get(p) for p in before} == before
    # A schedule of such a run is green every night, so that its state and its log say why.
    words = "run small is finished: nothing was trained; it has its 2 iterations."
    assert state.type == StateType.COMPLETED and state.message.startswith(words)
    assert "more_iterations" in state.message
    async with get_client() as client:
        shown = await client.read_flow_run(state.state_details.flow_run_id)
        assert shown.state.message == state.message
        of_run = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[shown.id]))
        await APILogWorker.drain_all(at_exit=False)
        logs = await client.read_logs(of_run)
    assert state.message in {log.message for log in logs if log.level == logging.WARNING}


async def test_a_run_that_was_trained_has_no_word_of_a_schedule(trained, prefect_server):
    named = FlowRunFilter.model_validate({"name": {"any_": ["train-small"]}})
    async with get_client() as client:
        first = min(await client.read_flow_runs(flow_run_filter=named), key=lambda r: r.start_time)
    assert first.state.type == StateType.COMPLETED and "nothing" not in (first.state.message or "")


@pytest.mark.long
async def test_the_same_seed_gives_the_same_data_whatever_concurrency_and_shards(trained, shorter):
    (_, _, run), (_, _, other) = trained, shorter
    for iteration, split in ((0, "train"), (0, "test"), (1, "test")):
        digests = {
            read_manifest(r.store, r.rollouts(iteration, split)).extra["canonical_digest"]
            for r in (run, other)
        }
        assert len(digests) == 1, (iteration, split)


@pytest.mark.long
def test_the_loop_without_prefect_makes_what_the_flow_makes(trained, tmp_path):
    _, result, run = trained
    script = (
        "import asyncio, json, sys; sys.modules['prefect'] = None; "
        "from nip_core.loop import train; from nip_core.parameters import load_parameters; "
        "print(json.dumps(asyncio.run(train(load_parameters(sys.argv[1])))))"
    )
    command = [sys.executable, "-c", script, str(write_config(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    plain = RunStore(open_store(tmp_path / "runs"), "small")
    for iteration, entry in enumerate(json.loads(done.stdout)["iterations"]):
        assert entry["test"] == result["iterations"][iteration]["test"]
        for split in ("test", "train") if entry["jobs"] else ("test",):
            digests = {
                read_manifest(r.store, r.rollouts(iteration, split)).extra["canonical_digest"]
                for r in (run, plain)
            }
            assert len(digests) == 1, (iteration, split)
        for group in entry["jobs"]:
            datasets = {
                read_manifest(r.store, r.dataset(iteration, group)).extra["digest"]
                for r in (run, plain)
            }
            assert len(datasets) == 1, (iteration, group)


@pytest.mark.long
async def test_a_finished_run_can_be_extended(shorter):
    config, first, _ = shorter
    second = await train_here(config, ["rl.num_iterations=2"])
    assert len(first["iterations"]) == 2 and len(second["iterations"]) == 3
    assert second["iterations"][0] == first["iterations"][0]


async def test_other_settings_under_the_same_name_are_refused_with_the_difference(trained):
    config, _, _ = trained
    with pytest.raises(RunConflictError, match=r"rl\.lr: .* -> 0\.5"):
        await train(str(config), ["rl.lr=0.5"])


async def test_the_ui_gets_state_metrics_samples_curve_and_progress(trained, published):
    _, result, run = trained
    state = published["state"]
    assert state is not None and state["store"] == run.store.url
    assert state["models"] == result["iterations"][-1]["models"]
    directory = "iterations/0000/rollouts/train"
    assert (
        state["manifests"][f"{directory}/manifest.json"]
        == read_manifest(run.store, f"small/{directory}").digest
    )
    assert [row["iteration"] for row in json.loads(published["metrics"])] == [0, 1, 2]
    assert "95 %" in published["learning-curve"]
    assert "Question:" in published["samples"]
    assert published["progress"] == 100.0


async def test_the_report_stands_alone(trained):
    _, result, _ = trained
    page = Path(result["report"]).read_text(encoding="utf-8")
    assert "<svg" in page and "small" in page
    assert 'src="http' not in page and "@import" not in page


async def test_evaluation_tests_the_newest_models(trained):
    config, result, _ = trained
    tested = await evaluate(str(config))
    assert tested["iteration"] == 2
    assert tested["test"]["accuracy"] == result["iterations"][2]["test"]["accuracy"]


@pytest.mark.long
async def test_a_frozen_agent_keeps_its_model(tmp_path):
    result = await train_here(write_config(tmp_path, rl=FEW), ["agents.prover.freeze_agent=true"])
    assert set(result["iterations"][0]["jobs"]) == {"verifier"}
    assert result["iterations"][1]["models"]["prover"] == "deterministic"


@pytest.mark.long
async def test_too_few_examples_are_a_visible_outcome(tmp_path):
    config = write_config(tmp_path, rl={**FEW, "rollouts_per_iteration": 8})
    result = await train_here(config)
    assert result["iterations"][0]["jobs"]["verifier"]["status"] == "skipped"
    run = RunStore(open_store(tmp_path / "runs"), "small")
    assert "examples, 10 needed" in run.read_json(run.job(0, "verifier"))["reason"]
    assert result["iterations"][1]["models"]["verifier"] == "deterministic"
