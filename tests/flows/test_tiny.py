"""The quick start's game in small: a real model plays, is really trained and really served.

In one process, which loads torch once; that each part is one of its own: packages/nip-lm-server/tests/long.
"""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from safetensors.numpy import load_file
from small_game import train_here
from trained_here import TrainerHere

from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store

CONFIG = Path(__file__).parents[2] / "deployments" / "configs" / "quickstart.yaml"


@pytest.fixture(scope="module")
async def trained(tmp_path_factory):
    store = tmp_path_factory.mktemp("tiny")
    changes = [
        f"run_store={store}",
        "rl.num_iterations=2",
        "rl.rollouts_per_iteration=24",
        "agents.verifier.num_epochs=1",
        "agents._default.shared_model_group=both",
        "dataset_options.max_test_size=4",
    ]
    with mock.patch("nip_lm_server.placement.SubprocessTrainer", TrainerHere):
        result = await train_here(CONFIG, changes)
    return result, RunStore(open_store(store), "quickstart"), store / "quickstart"


def adapter(folder: Path, model: str) -> dict[str, np.ndarray]:
    digest = model.rpartition(":")[2]
    return load_file(folder / "lm_server" / "models" / digest / "adapter_model.safetensors")


async def test_every_job_made_a_proved_model_and_the_next_iteration_plays_with_it(trained):
    result, run, _ = trained
    assert result["status"] == "finished"
    for iteration in (0, 1):
        jobs = result["iterations"][iteration]["jobs"]
        assert {job["status"] for job in jobs.values()} == {"succeeded"}
        models = run.read_json(run.models(iteration))["groups"]
        assert all(model["proof"]["matches"] for model in models.values())
        served = result["iterations"][iteration + 1]["models"]
        assert served == {group: model["model"] for group, model in models.items()}
    rows = read_rollouts(run.store, run.rollouts(1, "train")).generations.to_pylist()
    [model] = result["iterations"][1]["models"].values()
    assert {(row["agent"], row["model_served"]) for row in rows} == {
        ("prover", model),
        ("verifier", model),
    }
    assert model.startswith("ft:tiny:quickstart-0000-")


async def test_the_b_matrices_are_trained_and_differ_between_iterations(trained):
    result, _, folder = trained
    first, second = (adapter(folder, result["iterations"][i]["models"]["both"]) for i in (1, 2))
    names = [name for name in first if "lora_B" in name]
    assert names and all(np.abs(first[name]).max() > 0 for name in names)
    assert any(not np.array_equal(first[name], second[name]) for name in names)


async def test_the_report_shows_losses_and_transcripts_of_the_real_run(trained):
    result, run, _ = trained
    job = run.read_json(run.job(0, "both"))
    losses = [e["data"]["train_loss"] for e in job["backend_events"] if e.get("type") == "metrics"]
    assert losses and all(loss > 0 for loss in losses)
    assert job["trained_tokens"] > 0
    assert job["effective"]["nip"]["effective_learning_rate"] == 0.002
    page = Path(result["report"]).read_text(encoding="utf-8")
    assert "Answer: asked" in page and "Decision:" in page
