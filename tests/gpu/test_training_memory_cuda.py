"""Training on CUDA within the card's memory: passes, scoring, checkpointing, attention, processes.

``make test-gpu``. Without a CUDA device they fail. Needs no model hub: models are made here. What
takes a second device, or a package that is not everywhere, is skipped without it.
"""

import importlib
import json
import os
import subprocess

import pytest

# Trainings in this process take one device, also where there are more.
os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0")

import torch
from tiny_model import make_model
from training_jobs import (
    make_job,
    messages,
    progress,
    read_events,
    run_here,
    run_process,
    write_lines,
)
from transformers import LlamaConfig, LlamaForCausalLM

from nip_lm_server.training import job as job_module
from nip_lm_server.training.job import Events, read_job
from nip_lm_server.training.main import _METHODS, main
from nip_lm_server.training.methods import head
from nip_lm_server.training.methods.policy_gradient import token_logprobs
from nip_lm_server.training.model import loading, memory
from nip_lm_server.training.model.device import take

pytestmark = pytest.mark.gpu
GB = 1e9


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


def episodes(path, count=16):
    answers = [{"role": "assistant", "content": f"{word} " * (i % 5 + 1)}
               for i in range(count) for word in ("yes", "no")]  # fmt: skip
    return write_lines(
        path,
        [
            {
                "messages": [{"role": "user", "content": f"is {i // 2} right"}, turn],
                "group_id": str(i // 2),
                "reward": float(i % 2 == 0),
            }
            for i, turn in enumerate(answers)
        ],
    )


def test_trajectories_train_in_bfloat16(base, tmp_path):
    data = episodes(tmp_path / "data.jsonl")
    job_dir = make_job(base, tmp_path / "job", method="trajectories", data=data, n_epochs=3)
    run_here(job_dir)
    assert effective(job_dir)["bf16"] is True
    first = progress(job_dir)[0]
    # The old log-probabilities are of the same weights by other kernels, so not exactly alike.
    assert first["policy/ratio"] == pytest.approx(1, abs=0.2)
    assert first["policy/ratio_max"] < 3
    assert losses(job_dir)[-1] < -0.01  # at the start it is 0, by its groups


@pytest.mark.parametrize("method", ["supervised", "dpo", "trajectories"])
def test_passes_add_up_to_the_step(base, tmp_path, method):
    rows = {"data": episodes(tmp_path / "data.jsonl")} if method == "trajectories" else {}
    jobs = {
        tokens: make_job(
            base, tmp_path / str(tokens), method=method, precision="float32",
            tokens_per_pass=tokens, learning_rate=0.001, **rows,
        )
        for tokens in (None, 1)
    }  # fmt: skip
    for job_dir in jobs.values():
        run_here(job_dir)
    whole, apart = (losses(job_dir) for job_dir in jobs.values())
    assert apart == pytest.approx(whole, rel=5e-3, abs=1e-3)


def test_no_logits_of_all_tokens_are_in_memory_at_128k_words():
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=128_256, hidden_size=512, intermediate_size=1024,
                         num_hidden_layers=2, num_attention_heads=8)  # fmt: skip
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.get_input_embeddings().weight.requires_grad_(False)
    model.lm_head.weight.requires_grad_(False)
    ids = torch.randint(0, 128_256, (4, 4096), device="cuda")
    mask = torch.rand(ids.shape, device="cuda") < 0.5
    mask[:, 0] = False
    assert head.is_scored_alike(model)
    head.add_scoring(model)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    scores = model(input_ids=ids, scored=mask, use_cache=False)
    scores.sum().backward()
    peak = torch.cuda.max_memory_allocated() - before
    logits = ids.numel() * 128_256 * 4
    assert logits > 8 * GB
    assert peak < 2 * GB, f"{peak / GB:.2f} GB"
    with torch.no_grad():
        few = model(input_ids=ids[:1, :64], use_cache=False).logits
        expected = token_logprobs(few, ids[:1, :64], mask[:1, :64])
    torch.testing.assert_close(scores[:1, :64].detach(), expected, rtol=0.02, atol=0.1)


def long_rows(path, count=16, words=300):
    return write_lines(
        path,
        [
            {
                "messages": [
                    {"role": "user", "content": "why? " * (words // 3)},
                    {"role": "assistant", "content": f"because {i} " * (words // 3)},
                ]
            }
            for i in range(count)
        ],
    )


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_pass_needs_the_memory_that_the_arithmetic_says(larger, tmp_path, checkpointing):
    data = long_rows(tmp_path / "data.jsonl")
    job = read_job(
        make_job(larger, tmp_path / "job", data=data, batch_size=16, n_epochs=1,
                 gradient_checkpointing=checkpointing, tokens_per_pass=8192)
    )  # fmt: skip
    take(job)
    module = importlib.import_module(_METHODS[job.method])
    trainer = module.prepare(job, loading.load_text(job), Events(tmp_path / "events.jsonl")).trainer
    kept = memory.measure_kept_bytes(trainer.model, memory._autocast(job))
    layer = kept / trainer.model.config.num_hidden_layers
    expected = 8192 * (kept / 8 + layer if checkpointing else kept)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    trainer.train()
    needed = torch.cuda.max_memory_allocated() - before - memory.training_bytes(job, trainer.model)
    # The output layer has a tile of logits beside it; what is allocated in passing is the rest.
    assert needed < expected / memory._USED_SHARE + 2 * GB, (needed / GB, expected / GB)


def test_running_out_of_memory_is_told_and_leaves_the_card_free(larger, tmp_path):
    data = long_rows(tmp_path / "data.jsonl")
    job_dir = make_job(larger, tmp_path / "job", data=data, batch_size=16,
                       gradient_checkpointing=False, tokens_per_pass=10**6)  # fmt: skip
    torch.cuda.empty_cache()
    # Of this process alone: whatever else is on the card goes on.
    most = torch.cuda.memory_reserved() + 2.5 * GB
    torch.cuda.set_per_process_memory_fraction(most / torch.cuda.mem_get_info()[1])
    try:
        assert main(["--job-dir", str(job_dir)]) == 1
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    error = read_events(job_dir)[-1]
    assert (error["code"], error["param"]) == ("out_of_memory", "tokens_per_pass")


def test_flex_attention_packs_by_itself_and_keeps_sequences_apart(base, tmp_path):
    # Passes of fewer than 128 tokens, for which torch's own choice of a kernel finds none.
    flex = {"attention": "flex_attention", "precision": "float32"}
    packed = make_job(base, tmp_path / "packed", **flex)
    padded = make_job(base, tmp_path / "padded", packing=False, **flex)
    for job_dir in (packed, padded):
        run_here(job_dir)
    assert [effective(job_dir)["packing"] for job_dir in (packed, padded)] == [True, False]
    assert losses(packed) == pytest.approx(losses(padded), rel=5e-3)


def test_sdpa_is_not_packed_unless_asked(base, tmp_path):
    job_dir = make_job(base, tmp_path / "job", n_epochs=1)
    run_here(job_dir)
    assert (effective(job_dir)["attention"], effective(job_dir)["packing"]) == ("sdpa", False)


def need_two_devices():
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    if len(listed.stdout.splitlines()) < 2:
        pytest.skip("needs two CUDA devices")


@pytest.mark.parametrize("quantization", ["8bit", "4bit"])
def test_two_gpus_train_over_a_quantized_base(base, tmp_path, monkeypatch, quantization):
    need_two_devices()
    pytest.importorskip("bitsandbytes")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    job_dir = make_job(base, tmp_path / "job", quantization=quantization)
    assert run_process(job_dir) == 0
    assert effective(job_dir)["processes"] == 2
    assert losses(job_dir)[-1] < losses(job_dir)[0]


@pytest.mark.parametrize("method", ["supervised", "dpo", "trajectories"])
def test_a_batch_that_two_gpus_do_not_share_is_trained_by_one(base, tmp_path, monkeypatch, method):
    need_two_devices()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    rows = {"data": episodes(tmp_path / "data.jsonl")} if method == "trajectories" else {}
    job_dir = make_job(base, tmp_path / "job", method=method, batch_size=5, n_epochs=1, **rows)
    assert run_process(job_dir) == 0
    assert (effective(job_dir)["processes"], effective(job_dir)["batch_size"]) == (1, 5)


def test_passes_of_two_gpus_add_up_to_the_step(base, tmp_path, monkeypatch):
    need_two_devices()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    settings = {"precision": "float32", "batch_size": 8, "learning_rate": 0.001}
    jobs = {
        tokens: make_job(base, tmp_path / str(tokens), tokens_per_pass=tokens, **settings)
        for tokens in (None, 30)
    }
    for job_dir in jobs.values():
        assert run_process(job_dir) == 0
    whole, apart = (losses(job_dir) for job_dir in jobs.values())
    assert apart == pytest.approx(whole, rel=5e-3)
