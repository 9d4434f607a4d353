"""Training on CUDA: bfloat16, packing, quantization, several GPUs. ``make test-gpu``.

Without a CUDA device they fail. bitsandbytes (``pip install bitsandbytes``) and a second device
are not everywhere: the tests of these are skipped without them, and say so.
"""

import json
import os
import shutil
import subprocess

import pytest

# Trainings in this process take one device, also where there are more.
os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0")

import torch
from tiny_model import make_adapter, make_model
from training_jobs import (
    make_job,
    messages,
    progress,
    read_events,
    result,
    run_here,
    run_process,
    weights,
)

from nip_lm_server.training import job as job_module

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True, scope="module")
def cuda():
    assert torch.cuda.is_available(), "these tests need a CUDA device"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(autouse=True)
def every_step(monkeypatch):
    monkeypatch.setattr(job_module, "PROGRESS_INTERVAL_S", 0.0)


def effective(job_dir):
    text = next(m for m in messages(job_dir) if m.startswith("effective arguments "))
    return json.loads(text.removeprefix("effective arguments "))


def losses(job_dir):
    return [step["loss"] for step in progress(job_dir)]


def saved_dtypes(job_dir):
    from safetensors.torch import load

    return {tensor.dtype for tensor in load(weights(job_dir)).values()}


@pytest.mark.parametrize("method", ["supervised", "dpo"])
def test_lora_trains_in_bfloat16_with_float32_adapters(base, tmp_path, method):
    job_dir = make_job(base, tmp_path / "job", method=method)
    run_here(job_dir)
    used = effective(job_dir)
    assert (used["bf16"], used["model_dtype"]) == (True, "bfloat16")
    assert (used["gradient_checkpointing"], used["optimizer"]) == (False, "adamw_torch_fused")
    assert used["device"].startswith("cuda")
    assert saved_dtypes(job_dir) == {torch.float32}
    assert losses(job_dir)[-1] < losses(job_dir)[0] * 0.8
    probe = json.loads((job_dir / "out" / "probe.json").read_text())
    assert probe["dtype"] == "bfloat16"


def test_bfloat16_learns_like_float32(base, tmp_path):
    half = make_job(base, tmp_path / "half")
    full = make_job(base, tmp_path / "full", precision="float32")
    for job_dir in (half, full):
        run_here(job_dir)
    assert effective(full)["model_dtype"] == "float32"
    assert losses(half) == pytest.approx(losses(full), rel=0.05)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_packed_steps_have_the_loss_of_padded_ones(base, tmp_path, precision):
    packed = make_job(base, tmp_path / "packed", packing=True, precision=precision)
    padded = make_job(base, tmp_path / "padded", packing=False, precision=precision)
    for job_dir in (packed, padded):
        run_here(job_dir)
    near = 1e-3 if precision == "float32" else 0.05
    assert losses(packed) == pytest.approx(losses(padded), rel=near)


@pytest.mark.parametrize("quantization", ["8bit", "4bit"])
@pytest.mark.parametrize("method", ["supervised", "dpo"])
def test_adapters_train_over_a_quantized_base(base, tmp_path, quantization, method):
    pytest.importorskip("bitsandbytes")
    job_dir = make_job(base, tmp_path / "job", quantization=quantization, method=method)
    run_here(job_dir)
    assert losses(job_dir)[-1] < losses(job_dir)[0] * 0.9
    assert saved_dtypes(job_dir) == {torch.float32}
    probe = json.loads((job_dir / "out" / "probe.json").read_text())
    assert probe["quantization"] == "none"  # the base is served as it is


def test_a_quantized_training_continues_an_adapter(base, tmp_path):
    pytest.importorskip("bitsandbytes")
    parent = make_adapter(base, tmp_path / "parent", seed=1)
    start = {"parent_adapter_path": parent, "quantization": "8bit"}
    job_dir = make_job(base, tmp_path / "job", **start, start_from="continue")
    run_here(job_dir)
    assert losses(job_dir)[-1] < losses(job_dir)[0]
    from nip_lm_server.training.main import main

    stacked = make_job(base, tmp_path / "stacked", **start, start_from="stack")
    assert main(["--job-dir", str(stacked)]) == 1
    assert read_events(stacked)[-1]["code"] == "quantization_unsupported"


@pytest.mark.parametrize("optimizer", ["adamw_torch", "adamw_8bit", "paged_adamw_8bit", "sgd"])
def test_every_optimizer_goes_on_from_a_checkpoint(base, tmp_path, optimizer):
    if optimizer.endswith("8bit"):
        pytest.importorskip("bitsandbytes")
    settings = {"optimizer": optimizer, "checkpoint_steps": 1, "lora_dropout": 0.25}
    whole = make_job(base, tmp_path / "whole", **settings)
    run_here(whole)
    job_dir = make_job(base, tmp_path / "job", **settings)
    newest = sorted((whole / "checkpoints").iterdir())[-1]
    shutil.copytree(newest, job_dir / "checkpoints" / newest.name)
    run_here(job_dir)
    assert losses(job_dir)[-1] == pytest.approx(losses(whole)[-1], rel=1e-3)


def test_float16_scales_its_loss(base, tmp_path):
    job_dir = make_job(base, tmp_path / "job", precision="float16")
    run_here(job_dir)
    assert effective(job_dir)["fp16"] is True
    assert losses(job_dir)[-1] < losses(job_dir)[0] * 0.8


def test_every_weight_can_be_trained_in_bfloat16(base, tmp_path):
    job_dir = make_job(
        base, tmp_path / "job", use_lora=False, result="base", lora_rank=None, lora_alpha=None,
        learning_rate=1e-3,
    )  # fmt: skip
    run_here(job_dir)
    assert effective(job_dir)["model_dtype"] == "float32"
    assert losses(job_dir)[-1] < losses(job_dir)[0]
    assert result(job_dir)["unchanged"] is False


def test_two_gpus_train_like_one(base, tmp_path, monkeypatch):
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    if len(listed.stdout.splitlines()) < 2:
        pytest.skip("needs two CUDA devices")
    jobs = {devices: make_job(base, tmp_path / devices, precision="float32") for devices in
            ("0", "0,1")}  # fmt: skip
    for devices, job_dir in jobs.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
        assert run_process(job_dir) == 0
    assert [effective(job_dir)["processes"] for job_dir in jobs.values()] == [1, 2]
    one, two = (losses(job_dir)[-1] for job_dir in jobs.values())
    assert two == pytest.approx(one, rel=1e-2)
