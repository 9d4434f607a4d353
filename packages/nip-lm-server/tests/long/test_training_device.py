"""Where a job is trained, with how much at a time: decided, written down, and held to."""

import json
import sys
from contextlib import nullcontext

import pytest

pytest.importorskip("trl")

import torch
from tiny_model import make_model
from training_jobs import make_job, read_events, run_here

from nip_base.machine import devices
from nip_base.machine.allowed_memory import allowed_bytes
from nip_lm_server.training.job import TrainingError, read_job
from nip_lm_server.training.main import launch_command, launch_environment, main
from nip_lm_server.training.model import device, loading, memory


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "tiny")


def on_device(job_dir, name):
    path = job_dir / "job.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "device": name}))
    return job_dir


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_job_for_a_gpu_is_never_trained_on_the_processors(base, tmp_path, monkeypatch):
    version = tmp_path / "version"
    version.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\nGCC\n"
    )
    monkeypatch.setattr(devices, "_DRIVER", version)
    job_dir = on_device(make_job(base, tmp_path / "job"), "cuda")
    assert main(["--job-dir", str(job_dir)]) == 1
    error = read_events(job_dir)[-1]
    assert error["code"] == "gpu_required"
    assert f"torch {torch.__version__} (built " in error["message"]
    assert "the driver is 550.54.15" in error["message"]
    version.unlink()
    with pytest.raises(TrainingError, match="the driver is not there"):
        device.take(read_job(job_dir))


def test_a_job_for_the_processors_is_trained_there(base, tmp_path):
    job_dir = on_device(make_job(base, tmp_path / "job", n_epochs=1), "cpu")
    run_here(job_dir)
    assert any('"device": "cpu"' in event.get("message", "") for event in read_events(job_dir))


def test_a_batch_that_no_number_of_gpus_divides_is_trained_by_a_process_that_sees_one(tmp_path):
    job = read_job(make_job("model", tmp_path / "job", batch_size=7))
    command = launch_command(job, 4)
    assert command == [
        sys.executable, "-m", "nip_lm_server.training.main", "--job-dir", str(tmp_path / "job"),
    ]  # fmt: skip
    for visible, first in ({}, "0"), ({"CUDA_VISIBLE_DEVICES": "3,5"}, "3"):
        assert launch_environment(job, 4, visible)["CUDA_VISIBLE_DEVICES"] == first
    assert launch_command(job, 1) is None
    even = read_job(make_job("model", tmp_path / "even", batch_size=8))
    assert launch_environment(even, 2, {"A": "b"}) == {"A": "b"}


GB = 10**9


@pytest.mark.parametrize(
    ("free", "step_tokens", "asked", "checkpointing", "expected"),
    [
        (100 * GB, 60_000, None, None, (16_000, False)),  # 5 MB a token: kept
        (100 * GB, 60_000, None, True, (32_768, True)),
        (20 * GB, 60_000, None, None, (20_945, True)),  # 4,096 tokens would not fit
        (20 * GB, 3_000, None, None, (3_200, False)),  # the whole step does
        (20 * GB, 60_000, None, False, (3_200, False)),
        (100 * GB, 60_000, 8_192, None, (8_192, False)),
        (20 * GB, 60_000, 8_192, None, (8_192, True)),
        (0, 60_000, None, None, (2_000, True)),  # one example in any case
    ],
)
def test_activations_are_kept_where_they_fit(free, step_tokens, asked, checkpointing, expected):
    plan = memory.divide(
        free,
        5e6,
        5e6 / 36,
        step_tokens=step_tokens,
        longest=2_000,
        tokens_per_pass=asked,
        checkpointing=checkpointing,
    )
    assert (plan.tokens_per_pass, plan.gradient_checkpointing) == expected


def test_a_model_says_what_it_keeps_of_a_token(base, tmp_path):
    job = read_job(make_job(base, tmp_path / "job", lora_dropout=0.1))
    model = loading.load_start(job).eval()
    before = torch.get_rng_state()
    kept = memory.measure_kept_bytes(model, nullcontext)
    assert torch.equal(torch.get_rng_state(), before)
    assert not model.training
    config = model.config
    # At least the gated product and its factors, at most all that layers compute, in float32.
    width, inner = config.hidden_size, config.intermediate_size
    least, most = 3 * inner * 4, (40 * width + 16 * inner) * 4
    assert least < kept / config.num_hidden_layers < most


def test_every_weight_is_trained_where_it_fits_or_refused_with_the_sum(base, tmp_path, monkeypatch):
    full = {"use_lora": False, "result": "base", "lora_rank": None, "lora_alpha": None}
    job = read_job(make_job(base, tmp_path / "job", **full))
    count = sum(p.numel() for p in loading.load_base(job).parameters())
    assert memory.count_parameters(job) == count
    monkeypatch.setattr(memory, "total_bytes", lambda job: 16 * count)
    memory.check_full_training(job)
    monkeypatch.setattr(memory, "total_bytes", lambda job: 16 * count - 1)
    assert main(["--job-dir", str(job.job_dir)]) == 1
    error = read_events(job.job_dir)[-1]
    assert (error["code"], error["param"]) == ("out_of_memory", "use_lora")
    assert "4 for weights + 4 for gradients + 8 for the optimizer = 16 bytes" in error["message"]
    plain = read_job(make_job(base, tmp_path / "sgd", **full, optimizer="sgd"))
    memory.check_full_training(plain)  # 8 bytes each


@pytest.mark.parametrize(
    ("available", "expected"),
    [
        (20 * GB, 4 * GB),  # a quarter of the whole, however much of it is free
        (6 * GB, 4 * GB),
        (4 * GB, 2 * GB),  # the state takes its part
        (2 * GB, 1 * GB),
        (0, 4 * GB / 64),  # somebody has to give way, and the kernel says who
    ],
)
def test_on_processors_a_training_has_a_fixed_share_of_the_memory_or_half_of_it(
    available, expected
):
    assert memory.memory_on_processors(16 * GB, available, state=1 * GB) == expected


def test_a_containers_memory_is_the_whole(base, tmp_path, monkeypatch):
    job = read_job(on_device(make_job(base, tmp_path / "job"), "cpu"))
    assert memory.total_bytes(job) == allowed_bytes()
    monkeypatch.setattr(memory, "allowed_bytes", lambda: GB)
    assert memory.total_bytes(job) == GB


def test_a_large_model_has_few_tokens_in_a_pass_on_processors(base, tmp_path, monkeypatch):
    job = read_job(on_device(make_job(base, tmp_path / "job", batch_size=64), "cpu"))
    model = loading.load_start(job)
    kept = memory.measure_kept_bytes(model, nullcontext)
    lengths = [100] * 1000
    assert memory.plan_passes(job, model, lengths).tokens_per_pass == memory.MOST_TOKENS
    # As if each token took so much that 2,000 of them fill the share.
    share = 2000 * kept / memory._USED_SHARE
    monkeypatch.setattr(memory, "memory_on_processors", lambda *_: share)
    plan = memory.plan_passes(job, model, lengths)
    assert 1990 <= plan.tokens_per_pass <= 2000 and not plan.gradient_checkpointing
    # Where not even a small pass fits, activations are computed again.
    monkeypatch.setattr(memory, "memory_on_processors", lambda *_: share / 8)
    assert memory.plan_passes(job, model, lengths).gradient_checkpointing
