"""A run of the loop that trains every weight of a real small model: it is served, proved, played."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from served_here import KEY, serve
from trained_here import TrainerHere, tiny

pytest.importorskip("trl")

from nip_core import loop
from nip_core.models import resolve_model
from nip_core.parameters import load_parameters
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_lm_server import placement


async def test_a_run_plays_on_with_the_base_model_that_it_has_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "SubprocessTrainer", TrainerHere)
    monkeypatch.setenv("NIP_API_KEY", KEY)
    agent = {
        "model_provider": "SelfHosted",
        "model_name": "tiny",
        "shared_model_group": "both",
        "use_lora": False,
        "max_tokens_per_message": 16,
        "num_invalid_generation_retries": 0,
        "per_device_train_batch_size": 10,
    }
    settings = {
        "run_name": "full",
        "run_store": str(tmp_path / "runs"),
        "dataset": "families",
        "agents": {"_default": agent},
        "nip_protocol": {"max_message_rounds": 3, "min_message_rounds": 3},
        "rl": {"num_iterations": 1, "rollouts_per_iteration": 12, "num_epochs": 1, "lr": 0.001},
        "rollouts": {"failure_threshold": 1.0},
        "pure_text_ei": {"reward_threshold": -100.0},
        "text_rl": {"test_scheme": "last"},
        "dataset_options": {"max_train_size": 12, "max_test_size": 2},
        "fine_tuning": {"poll_interval_s": 0.05, "settle_s": 0},
    }
    async with serve(tmp_path / "server", spec=tiny()) as here:
        parameters = load_parameters({**settings, "lm_server": {"url": here.url}})
        result = await loop.train(parameters)
        assert result["status"] == "finished"
        model = result["iterations"][-1]["models"]["both"]
        async with here.http.get(f"/v1/models/{model}") as answer:
            nip = (await answer.json())["nip"]
    assert (nip["kind"], nip["served"], nip["proof"]["matches"]) == ("base", True, True)
    run = RunStore(open_store(tmp_path / "runs"), "full")
    rows = read_rollouts(run.store, run.rollouts(1, "test")).generations
    assert set(rows["model_served"].to_pylist()) == {model}
    (file,) = (tmp_path / "server" / "models" / nip["digest"]).glob("*.safetensors")
    before, after = load_file(f"{resolve_model('tiny')}/model.safetensors"), load_file(file)
    assert sum(not np.array_equal(before[name], after[name]) for name in after) > 0.9 * len(after)
