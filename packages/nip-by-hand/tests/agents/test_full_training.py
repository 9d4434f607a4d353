"""A group of which every weight is trained: its new base model is served, proved and trained on."""

import asyncio
import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from served_here import KEY, serve
from trained_here import TrainerHere, tiny

from nip_by_hand.agents import (
    CodeValidationProtocolHandler,
    ExperimentSettings,
    OpenAiSharedModelGroup,
    OpenAiWholeAgent,
)
from nip_core.models import resolve_model
from nip_core.parameters import load_parameters
from nip_core.servers.own_server import make_server_spec
from nip_lm_server import placement as slots


def group_at(url, store):
    agent = {
        "model_provider": "SelfHosted",
        "model_name": "tiny",
        "shared_model_group": "both",
        "use_lora": False,
        "per_device_train_batch_size": 10,
        "fine_tune_from_scratch": False,
    }
    parameters = load_parameters(
        {
            "run_name": "full",
            "run_store": str(store),
            "dataset": "families",
            "lm_server": {"url": url},
            "rl": {"num_epochs": 1, "lr": 0.001},
            "fine_tuning": {"settle_s": 0, "max_length": 64, "poll_interval_s": 0.05},
            "agents": {"_default": agent},
        }
    )
    handler, settings = CodeValidationProtocolHandler(parameters), ExperimentSettings()
    agents = {n: OpenAiWholeAgent(parameters, settings, n, handler) for n in parameters.agents}
    return OpenAiSharedModelGroup(parameters, settings, handler, agents, "both")


def imitations(said):
    return [
        {
            "messages": [
                {"role": "user", "content": f"Question {i}?"},
                {"role": "assistant", "content": said},
            ]
        }
        for i in range(10)
    ]


def preferences(said):
    return [
        {
            "input": {"messages": [{"role": "user", "content": f"Question {i}?"}]},
            "preferred_output": [{"role": "assistant", "content": said}],
            "non_preferred_output": [{"role": "assistant", "content": "Answer: 7"}],
        }
        for i in range(10)
    ]


async def trained(group, dataset, method):
    """The name of the model that the group plays with after this job."""
    await group.train()
    await group._make_fine_tune_api_call(dataset, method)
    async with asyncio.timeout(120):
        while (status := await group.get_fine_tune_job_status()) in ("pending", "running"):
            await asyncio.sleep(0.05)
    assert status == "succeeded", await group.get_fine_tune_job_error_repr()
    await group.switch_to_next_model()
    await group.eval()
    return group.model_name


@pytest.mark.parametrize(
    ("agents", "promotion", "places", "engine"),
    [
        ({"_default": {"shared_model_group": "g", "use_lora": False}}, False, 1, "embedded"),
        ({"_default": {"shared_model_group": "g", "use_lora": False}}, True, 3, "embedded"),
        ({"verifier": {"use_lora": False}}, False, 3, "embedded"),
        ({"_default": {"use_lora": False}}, False, 5, "embedded"),
        ({"verifier": {"use_lora": False, "freeze_agent": True}}, True, 1, "embedded"),
        ({}, True, 1, "embedded"),
        # They take turns: its engine takes the device for itself.
        ({"_default": {"shared_model_group": "g", "use_lora": False}}, True, 1, "vllm"),
    ],
)
def test_a_run_gives_its_server_a_place_for_each_base_model_that_plays(
    agents, promotion, places, engine
):
    hosted = {"model_provider": "SelfHosted", "model_name": "tiny"}
    agents = {**agents, "_default": hosted | agents.get("_default", {})}
    values = {"run_name": "a", "dataset": "families", "promotion": {"enabled": promotion}}
    values["lm_server"] = {"engine": engine}
    spec = make_server_spec(load_parameters({**values, "agents": agents}))
    assert spec.bases_at_once == places


@pytest.mark.long
async def test_a_new_base_model_is_proved_plays_and_is_trained_on(tmp_path, monkeypatch):
    pytest.importorskip("trl")
    monkeypatch.setattr(slots, "SubprocessTrainer", TrainerHere)
    monkeypatch.setenv("NIP_API_KEY", KEY)
    weights = {}
    async with serve(tmp_path / "server", spec=tiny()) as here:
        group = group_at(here.url, tmp_path / "runs")
        names = [
            await trained(group, imitations("Answer: 4"), "supervised"),
            await trained(group, preferences("Answer: 5"), "dpo"),
        ]
        chat = [{"role": "user", "content": "Question 1?"}]
        for number, name in enumerate(names):
            async with here.http.get(f"/v1/models/{name}") as answer:
                nip = (await answer.json())["nip"]
            assert nip["kind"] == "base" and nip["proof"]["matches"]
            files = (tmp_path / "server/models" / nip["digest"]).glob("*.safetensors")
            weights[number] = load_file(next(iter(files)))
            assert group.get_state().fine_tuned_model_kind == "base"
        text, reason = await group.agent_wholes["prover"]._amake_generation_api_call(chat)
        assert text and reason in ("stop", "length")
        # The first one, which the second has replaced, is brought back where it is to play.
        async with here.http.get(f"/v1/models/{names[0]}") as answer:
            assert not (await answer.json())["nip"]["served"]
        brought = await group._jobs.prove_model(names[0], "tiny", "its-job")
        assert brought.kind == "base" and brought.proof["matches"]
    original = load_file(f"{resolve_model('tiny')}/model.safetensors")
    for before, after in ((original, weights[0]), (weights[0], weights[1])):
        moved = {name for name in after if not np.array_equal(before[name], after[name])}
        assert len(moved) > 0.9 * len(after)  # every layer, not an adapter's
    for iteration, parent in ((0, "tiny"), (1, names[0])):
        path = tmp_path / f"runs/full/iterations/{iteration:04d}/jobs/both.json"
        job = json.loads(path.read_text())
        assert job["parent_model"] == parent and job["model"] == names[iteration]
        nip = job["effective"]["nip"]
        assert (nip["use_lora"], nip["lora_rank"], nip["result_kind"]) == (False, None, "base")
