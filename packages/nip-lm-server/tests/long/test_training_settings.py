"""What a configuration says of training is what the trainer does: by the loop's path, by an adapter."""

import json
import os
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from made_examples import made
from served_here import KEY, serve
from submitted import pairs, sampled_episodes, talks
from trained_here import TrainerHere, tiny

from nip_base.machine.devices import has_cuda
from nip_by_hand.fine_tuning import (
    OpenAITrainerAdapter,
    OpenAITrainerAdapterConfig,
    TrainingStatusEnum,
)
from nip_core.jobs.job import JobSpec
from nip_core.jobs.ledger import Ledger
from nip_core.jobs.openai_backend import NipBackend
from nip_core.parameters import load_parameters
from nip_core.run_store.local_store import LocalStore
from nip_core.run_store.run import RunStore
from nip_core.trainers.dataset import FILES, Dataset, write_examples
from nip_core.trainers.group_job import training_settings
from nip_core.trainers.lines import read_held_out, write_payloads
from nip_lm_server import placement as slots

RATE = 1.23e-5
CONFIGURATION = {
    "run_name": "rate",
    "dataset": "x",
    "rl": {"lr": RATE, "num_epochs": 1, "max_grad_norm": 0.25},
    "fine_tuning": {
        "tokens_per_pass": 512,
        "lr_scheduler": "constant",
        "warmup_ratio": 0.25,
        "weight_decay": 0.03,
        "validation_fraction": 0.3,
        "max_length": 64,
    },
    "pure_text_grpo": {"clip_low": 0.11, "clip_high": 0.22, "kl_penalty": 0.33},
    "agents": {
        "_default": {
            "model_provider": "SelfHosted",
            "model_name": "tiny",
            "per_device_train_batch_size": 5,
            "lora_rank": 4,
            "dpo_beta": 0.44,
            "dpo_sft_weight": 0.6,
            "dpo_label_smoothing": 0.2,
            "shared_model_group": "all",
        }
    },
}
OF_METHOD: dict[str, dict[str, Any]] = {
    "supervised": {},
    "dpo": {"beta": 0.44},
    "trajectories": {
        "advantage": "given",
        "clip_low": 0.11,
        "clip_high": 0.22,
        "kl_penalty": 0.33,
    },
}


@pytest.mark.parametrize("method", list(OF_METHOD))
async def test_the_configured_hyper_parameters_are_those_of_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Any
) -> None:
    pytest.importorskip("trl")
    monkeypatch.setattr(slots, "SubprocessTrainer", TrainerHere)
    parameters = load_parameters(CONFIGURATION)
    file = tmp_path / FILES[method]
    digest = write_examples(file, method, made(method, 20)).digest
    dataset = Dataset(file, method, "it")
    out = read_held_out(parameters, dataset)
    training, validation = write_payloads(dataset, out, tmp_path, "it")
    examples = len(training.read_bytes().splitlines())
    assert validation is not None and 10 <= examples < 20
    hyper_parameters, nip = training_settings(parameters, "all", from_base=True, method=method)
    assert {name: hyper_parameters.get(name) for name in OF_METHOD[method]} == OF_METHOD[method]
    spec = JobSpec(
        run="rate",
        iteration=0,
        group="all",
        dataset_digest=digest,
        parent_model="tiny",
        parent_model_digest="m",
        seed=7,
        examples=examples,
        method=method,
        hyper_parameters=hyper_parameters,
        nip=nip,
        validation_examples=20 - examples,
        validation_digest="v",
    )
    run = RunStore(LocalStore(tmp_path / "runs"), "rate")
    async with (
        serve(tmp_path / "server", spec=tiny()) as here,
        aclosing(NipBackend(f"{here.url}/v1", KEY)) as backend,
    ):
        ledger = Ledger(run, backend, settle_s=0)
        record = await ledger.ensure_job(spec, training, validation)
        record = await ledger.poll(record, interval_s=0.1, deadline_s=60)
    assert record.outcome == "succeeded", record.reason
    assert record.effective is not None
    assert record.effective["nip"]["effective_learning_rate"] == RATE
    asked = OF_METHOD[method]
    assert {name: record.effective[name] for name in asked} == asked
    assert record.effective["nip"]["dpo_sft_weight"] == (0.6 if method == "dpo" else None)
    smoothing = record.effective["nip"].get("dpo_label_smoothing")
    assert smoothing == (0.2 if method == "dpo" else None)
    words = "effective arguments "
    [told] = [e["message"] for e in record.backend_events if e["message"].startswith(words)]
    used = json.loads(told.removeprefix(words))
    assert (used["learning_rate"], used["max_grad_norm"]) == (RATE, 0.25)
    assert (used["lr_scheduler"], used["weight_decay"]) in {
        ("constant", 0.03),
        ("constant_with_warmup", 0.03),
    }
    assert (used["n_epochs"], used["batch_size"], used["lora_rank"]) == (1, 5, 4)
    assert used["tokens_per_pass"] == record.effective["nip"]["tokens_per_pass"] == 512
    assert any("validation loss" in e["message"] for e in record.backend_events)


@pytest.mark.parametrize("method", list(OF_METHOD))
async def test_the_learning_rate_of_an_adapter_is_the_one_that_the_trainer_gets_and_steps_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    pytest.importorskip("trl")
    monkeypatch.setattr(slots, "SubprocessTrainer", TrainerHere)
    monkeypatch.setenv("KEY_OF_TEST_SERVER", KEY)
    settings = {
        "learning_rate": RATE,
        "lr_scheduler": "constant",
        "max_grad_norm": 0.25,
        "n_epochs": 1,
        "batch_size": 5,
        "lora_rank": 4,
        "max_length": 64,
    }
    async with serve(tmp_path / "server", spec=tiny()) as here:
        trainer = OpenAITrainerAdapter(
            OpenAITrainerAdapterConfig(
                base_url=here.url,
                model="tiny",
                method=method,
                state_dir=str(tmp_path / "state"),
                api_key_variable="KEY_OF_TEST_SERVER",
                hyperparameters=settings,
            )
        )
        if method == "trajectories":
            collection = await sampled_episodes(here.url, KEY, "tiny", method)
        else:
            collection = {"supervised": talks, "dpo": pairs}[method](method)
        ref = await trainer.submit(collection)
        end = await trainer.wait_until_complete(ref, poll_interval=0.1)
    assert end.status is TrainingStatusEnum.COMPLETED, end.message
    assert end.metadata is not None
    used = end.metadata["hyperparameters"]
    assert {name: used[name] for name in settings} == settings
    (job,) = (tmp_path / "server").rglob("job.json")
    written = json.loads(job.read_text())
    assert written["device"] == ("cuda" if has_cuda(os.environ) else "cpu")
    given = written["hyperparameters"]
    assert {name: given[name] for name in settings} == settings
    (record,) = (tmp_path / "state").rglob("jobs/*.json")
    events = json.loads(record.read_text())["backend_events"]
    rates = [event["data"]["learning_rate"] for event in events if event["type"] == "metrics"]
    assert rates and set(rates) == {RATE}


def test_a_norm_that_was_not_set_is_not_sent_so_that_jobs_made_before_it_keep_their_keys() -> None:
    def nip(**rl: float) -> dict[str, Any]:
        parameters = load_parameters({**CONFIGURATION, "rl": rl})
        return training_settings(parameters, "all", from_base=True)[1].model_dump(
            exclude_unset=True
        )

    assert "max_grad_norm" not in nip()
    assert nip() == nip(max_grad_norm=1.0)
    assert nip(max_grad_norm=0.25) == nip() | {"max_grad_norm": 0.25}
