"""The gate in the loop: better models are swapped in, worse ones are not, and a kill changes nothing."""

import logging
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from prefect import get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.sorting import LogSort
from prefect.logging.handlers import APILogWorker
from small_game import train_here, write_config

from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.manifest import read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_lm_server.engines.scripted.reply_rules import DEFAULT_FILE
from nip_prefect.flows.train import train


def dataset(folder: Path) -> str:
    """Problems whose solutions say whether they are right."""
    target = folder / "data"
    target.mkdir()
    for split in ("train", "validation", "test"):
        rows = [
            {
                "id": f"{split}-{i}",
                "question": f"Return {i} ({split}).",
                "solution": f"return {i}  # {'right' if i % 2 else 'wrong'}",
                "y": i % 2,
            }
            for i in range(40)
        ]
        pq.write_table(pa.Table.from_pylist(rows), target / f"{split}.parquet")
    return str(target)


def replies(folder: Path, latency_s: float = 0.0) -> str:
    """Untrained, the verifier tosses a coin; trained once, it is right; twice, it babbles."""
    rules = yaml.safe_load(DEFAULT_FILE.read_text())
    decides = rules["rules"][0]["when"]["system_contains"]
    own = [
        {"when": {place: decides, **when}, "replies": [{"text": text}]}
        for place in ("system_contains", "last_contains")
        for when, text in (
            ({"min_generation": 2}, "gulp"),
            ({"min_generation": 1, "any_contains": "# right"}, "Decision: accept"),
            ({"min_generation": 1, "any_contains": "# wrong"}, "Decision: reject"),
        )
    ]
    rules |= {"rules": own + rules["rules"], "latency_s": {"mean": latency_s}}
    path = folder / "replies.yaml"
    path.write_text(yaml.safe_dump(rules))
    return str(path)


def config_in(folder: Path, data: str, rules: str, **changes) -> Path:
    agent = {
        "model_provider": "SelfHosted",
        "model_name": "deterministic",
        "max_tokens_per_message": 32,
        "fine_tune_from_scratch": False,
        "num_invalid_generation_retries": 0,
    }
    settings = {
        "dataset": data,
        # Of the verifier every weight is trained, so that old and new base models play, too.
        "agents": {"_default": agent, "verifier": {"use_lora": False}},
        "lm_server": {"engine": "deterministic", "replies": rules},
        "nip_protocol": {"max_message_rounds": 3, "min_message_rounds": 3},
        "rl": {"num_iterations": 3, "rollouts_per_iteration": 40, "num_epochs": 1},
        "promotion": {"enabled": True, "episodes": 12},
        "text_rl": {"test_interval": 2},
        "dataset_options": {"max_test_size": 12},
    }
    return write_config(folder, **(settings | changes))


def run_in(folder: Path) -> RunStore:
    return RunStore(open_store(folder / "runs"), "small")


@pytest.fixture(scope="module")
async def logged(prefect_server, tmp_path_factory):
    """What it returned, its flow run and its run."""
    folder = tmp_path_factory.mktemp("gated")
    log = logging.getLogger("prefect.flow_runs")
    log.setLevel(logging.INFO)  # as Prefect's default is
    config = config_in(folder, dataset(folder), replies(folder))
    state = await train(str(config), return_state=True)
    log.setLevel(logging.NOTSET)
    return await state.aresult(), state.state_details.flow_run_id, run_in(folder)


@pytest.fixture(scope="module")
def trained(logged):
    result, _, run = logged
    return result, run


async def test_models_that_play_better_are_taken_and_worse_ones_are_not(trained):
    result, _ = trained
    assert result["status"] == "finished"
    first, second, third, _ = (entry["promotion"] for entry in result["iterations"])
    assert first["promoted"] and first["candidate"] == 1.0 > first["validation"]
    assert first["difference"] == pytest.approx(1.0 - first["validation"])
    # Eight problems are few: by the exact test the change may be chance, and then 0 is inside.
    assert 0 <= first["ci95"][0] < first["difference"] and first["metric"] == "accuracy"
    for refused in (second, third):  # every episode fails, and that does not stop the run
        assert not refused["promoted"]
        assert (refused["validation"], refused["candidate"]) == (1.0, 0.0)
        assert (refused["difference"], refused["ci95"], refused["problems"]) == (-1, [-1, -1], 12)
    served = [entry["models"] for entry in result["iterations"]]
    assert served[0] != served[1] == served[2] == served[3]
    assert served[1] == {group: m["model"] for group, m in first["candidates"].items()}


async def test_the_log_of_the_flow_run_tells_what_happened_in_few_lines(logged):
    result, flow_run, _ = logged
    await APILogWorker.drain_all(at_exit=False)
    of_this = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run]))
    async with get_client() as client:
        logs = await client.read_logs(of_this, sort=LogSort.TIMESTAMP_ASC)
    lines = [log.message for log in logs if log.level == logging.INFO and ": " in log.message]
    jobs, models = result["iterations"][0]["jobs"], result["iterations"][1]["models"]
    for expected in (
        "run small: plays 3 iterations of 40 episodes, trains prover and verifier; 3 tests of 12",
        "iteration 0: playing test problems, 12 episodes",
        "iteration 0: played train problems: accuracy",
        "iteration 0: verifier has ",
        f"iteration 0: verifier trains as job {jobs['verifier']['id']}",
        f"iteration 0: job {jobs['prover']['id']} of prover: succeeded, model {models['prover']}",
        f"iteration 0: the models from here on are prover: {models['prover']}",
        "run small: finished",
    ):
        assert [line for line in lines if line.startswith(expected)], (expected, lines)
    assert sum("difference" in line for line in lines) == 3  # what the gate decided
    assert len(lines) < 20 * 3


async def test_training_goes_on_from_what_is_served(trained):
    result, run = trained
    for iteration, parents in ((0, {"deterministic"}), (1, None), (2, None)):
        parents = parents or set(result["iterations"][1]["models"].values())
        jobs = [run.read_json(run.job(iteration, g)) for g in ("prover", "verifier")]
        assert {job["parent_model"] for job in jobs} == parents
        candidates = run.read_json(run.models(iteration))["promotion"]["candidates"]
        assert {job["model"] for job in jobs} == {m["model"] for m in candidates.values()}
        assert all(m["proof"]["matches"] and m["digest"] for m in candidates.values())
        kinds = {group: model["kind"] for group, model in candidates.items()}
        assert kinds == {"prover": "adapter", "verifier": "base"}


async def test_each_side_plays_with_its_own_models_on_validation_problems_alone(trained):
    result, run = trained
    played = {s: read_rollouts(run.store, run.rollouts(0, s)) for s in ("validation", "candidate")}
    assert played["validation"].generations.num_rows == played["candidate"].generations.num_rows
    for split, iteration in (("validation", 0), ("candidate", 1)):
        rows = played[split].generations.to_pylist()
        for agent, model in result["iterations"][iteration]["models"].items():
            assert {r["model_served"] for r in rows if r["agent"] == agent} == {model}
        episodes = played[split].episodes
        assert {p.partition("-")[0] for p in episodes["problem"].to_pylist()} == {"validation"}
        assert set(episodes["split"].to_pylist()) == {split}
    seeds = [table.episodes["seed"].to_pylist() for table in played.values()]
    assert seeds[0] == seeds[1]


async def test_the_first_and_the_last_models_are_tested_and_every_second_between(trained):
    result, _ = trained
    tested = [entry["test"] is not None for entry in result["iterations"]]
    assert tested == [True, False, True, True]
    assert result["iterations"][3]["test"]["accuracy"] == 1.0


async def test_the_report_shows_the_decisions(trained):
    result, _ = trained
    page = Path(result["report"]).read_text(encoding="utf-8")
    assert page.count("<strong>refused</strong>") == 2 and "<strong>taken</strong>" in page


async def test_without_the_gate_nothing_more_is_played(tmp_path):
    config = config_in(tmp_path, dataset(tmp_path), replies(tmp_path), promotion={})
    result = await train_here(config, ["rl.num_iterations=1", "text_rl.test_scheme=none"])
    run = run_in(tmp_path)
    assert run.store.list(f"{run.iteration(0)}/rollouts") == ["train/"]
    assert set(run.read_json(run.models(0))) == {"groups", "not_scheduled"}
    assert result["iterations"][0]["promotion"] is None


@pytest.mark.timeout(600)
@pytest.mark.kill_matrix
def test_a_run_killed_in_the_gate_decides_the_same(trained, command_environment, tmp_path):
    _, straight = trained
    changes = {"rollouts": {"concurrency": 4, "episodes_per_shard": 5}}
    config = config_in(tmp_path, dataset(tmp_path), replies(tmp_path, latency_s=0.05), **changes)
    command = [sys.executable, "-m", "nip_cli.cli", "train", str(config)]
    command += ["--set", "rl.num_iterations=1", "--set", "text_rl.test_scheme=none"]
    process = subprocess.Popen(command, env=command_environment, stdout=subprocess.DEVNULL)
    shard = run_in(tmp_path).rollouts(0, "candidate") + "/manifest-0001.json"
    while not (tmp_path / "runs" / shard).exists():
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.wait(timeout=30)
    killed = run_in(tmp_path)
    assert not killed.finished_iterations()
    subprocess.run(command, env=command_environment, stdout=subprocess.DEVNULL, check=True)
    for split in ("train", "validation", "candidate"):
        whole, resumed = (
            read_manifest(r.store, r.rollouts(0, split)).extra["canonical_digest"]
            for r in (straight, killed)
        )
        assert whole == resumed, split
    decisions = [run.read_json(run.models(0))["promotion"] for run in (straight, killed)]
    for decision in decisions:
        for model in decision["candidates"].values():
            del model["job_id"]  # which the server draws
            assert model.pop("proof")["matches"]  # and by which life of the server
    assert decisions[0] == decisions[1]
