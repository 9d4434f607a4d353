"""Training in its own process: what is asked reaches TRL and PEFT, and failures are clear."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")

from tiny_model import make_model, peft_logprobs
from training_jobs import (
    command,
    make_job,
    progress,
    read_events,
    result,
    run_here,
    run_process,
    wait_for,
    weights,
    write_examples,
)

from nip_lm_server.training.job import read_job
from nip_lm_server.training.main import main
from nip_lm_server.training.methods.sft import encode_file
from nip_lm_server.training.model import loading


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def trained(base, tmp_path_factory):
    """A job trained in a process of its own."""
    job_dir = make_job(base, tmp_path_factory.mktemp("jobs") / "job")
    assert run_process(job_dir) == 0
    return job_dir


def test_the_process_writes_adapter_result_and_events(trained):
    assert {p.name for p in (trained / "out").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "probe.json",
        "training_result.json",
    }
    figures, steps = result(trained), progress(trained)
    assert figures["steps"] == 8
    assert figures["unchanged"] is False
    assert figures["trainable_parameters"] == 3 * 4 * (2 * 128 + 2 * 96 + 3 * 192)
    assert figures["wall_s"] > figures["startup_s"] > 0
    assert steps[-1]["step"] == steps[-1]["total_steps"] == 8
    assert steps[-1]["loss"] == figures["final_loss"] < steps[0]["loss"]
    assert steps[-1]["remaining_s"] == 0
    assert figures["tokens"] == steps[-1]["tokens"] > steps[0]["tokens"] > 0
    lines = (trained / "metrics.jsonl").read_text().splitlines()
    every = {row["step"]: row for row in map(json.loads, lines)}
    assert list(every) == list(range(1, 9))
    for told in steps:
        figures = {k: v for k, v in told.items() if k in every[1]}
        assert every[told["step"]] == figures and "learning_rate" in figures


def test_the_probe_is_what_transformers_and_peft_compute_from_the_saved_files(base, trained):
    probe = json.loads((trained / "out" / "probe.json").read_text())
    assert (probe["dtype"], probe["quantization"]) == ("float32", "none")
    assert probe["base_logprobs"] == pytest.approx(
        peft_logprobs(base, None, probe["tokens"]), abs=1e-4
    )
    own = peft_logprobs(base, trained / "out", probe["tokens"])
    assert probe["logprobs"] == pytest.approx(own, abs=1e-4)
    assert max(abs(a - b) for a, b in zip(own, probe["base_logprobs"], strict=True)) > 0.1


def test_every_b_matrix_learned_something(trained):
    from safetensors.torch import load

    ups = {key: value for key, value in load(weights(trained)).items() if "lora_B" in key}
    assert len(ups) == 21
    assert all(bool(value.any()) for value in ups.values())


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(base, trained, tmp_path):
    again, other = make_job(base, tmp_path / "again"), make_job(base, tmp_path / "other", seed=4)
    run_here(again)
    run_here(other)
    assert weights(again) == weights(trained)
    assert weights(other) != weights(trained)


def test_every_setting_reaches_trl_and_peft(base, tmp_path):
    asked = {
        "learning_rate": 1.23e-5,
        "lora_rank": 3,
        "lora_alpha": 7.0,
        "lora_dropout": 0.25,
        "lora_target_modules": ["q_proj", "v_proj"],
        "lr_scheduler": "cosine",
        "warmup_ratio": 0.5,
        "weight_decay": 0.125,
        "n_epochs": 1,
        "batch_size": 16,
    }
    job_dir = make_job(base, tmp_path / "job", **asked, seed=11)
    events = run_here(job_dir)
    text = next(e["message"] for e in events if "effective" in e.get("message", ""))
    effective = json.loads(text.removeprefix("effective arguments "))
    assert effective["warmup_steps"] == asked.pop("warmup_ratio")
    assert {key: effective[key] for key in asked} == asked
    assert effective["seed"] == 11
    assert (effective["bf16"], effective["gradient_checkpointing"]) == (False, False)
    config = json.loads((job_dir / "out" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (3, 7.0, 0.25)
    assert sorted(config["target_modules"]) == ["q_proj", "v_proj"]


def test_the_learning_rate_is_the_one_that_the_optimizer_uses(base, tmp_path):
    settings = {"learning_rate": 1.23e-5, "lr_scheduler": "constant"}
    events = run_here(make_job(base, tmp_path / "job", **settings))
    rates = {e["learning_rate"] for e in events if e["type"] == "progress"}
    assert rates == {1.23e-5}


def test_only_assistant_tokens_are_learned(base, tmp_path):
    job_dir = make_job(base, tmp_path / "job", data=write_examples(tmp_path / "a", 3, "no"))
    text = loading.load_text(read_job(job_dir))
    examples = encode_file(tmp_path / "a", text, "training_file")
    texts = [text.tokenizer.decode([t for t in e.labels if t >= 0]) for e in examples]
    assert texts == ["no 0<|end|>", "no 1<|end|>", "no 2<|end|>"]


def test_the_first_loss_is_that_of_the_assistant_tokens_alone(base, tmp_path):
    job_dir = make_job(base, tmp_path / "job", batch_size=16, n_epochs=1)
    run_here(job_dir)
    examples = encode_file(
        job_dir / "train.jsonl", loading.load_text(read_job(job_dir)), "training_file"
    )
    total = 0.0
    for example in examples:
        scores = peft_logprobs(base, None, list(example.input_ids))
        total -= sum(s for s, label in zip(scores, example.labels[1:], strict=True) if label >= 0)
    expected = total / sum(e.learned for e in examples)
    assert progress(job_dir)[0]["loss"] == pytest.approx(expected, rel=1e-3)


def test_training_continues_from_the_parent(base, trained, tmp_path):
    start = {"parent_adapter_path": trained / "out", "start_from": "continue"}
    still = make_job(base, tmp_path / "still", **start, learning_rate=0.0, n_epochs=1)
    run_here(still)
    assert weights(still) == weights(trained)  # nothing learned: the parent's own weights
    assert result(still)["unchanged"] is True
    more = make_job(base, tmp_path / "more", **start)
    run_here(more)
    assert progress(more)[0]["loss"] < progress(trained)[0]["loss"] * 0.8
    assert result(more)["unchanged"] is False


def test_training_from_the_base_takes_nothing_of_the_parent(base, trained, tmp_path):
    job_dir = make_job(
        base, tmp_path / "job", parent_adapter_path=trained / "out", start_from="base"
    )
    run_here(job_dir)
    assert weights(job_dir) == weights(trained)


@pytest.mark.parametrize(
    "asked",
    [
        {"gradient_checkpointing": True},
        {"optimizer": "sgd", "learning_rate": 0.3},
        {"precision": "bfloat16"},
    ],
)
def test_what_a_cpu_does_only_when_asked(base, trained, tmp_path, asked):
    job_dir = make_job(base, tmp_path / "job", **asked)
    events = run_here(job_dir)
    text = next(e["message"] for e in events if "effective" in e.get("message", ""))
    effective = json.loads(text.removeprefix("effective arguments "))
    used = {
        "gradient_checkpointing": effective["gradient_checkpointing"] or None,
        "optimizer": effective["optimizer"] if effective["optimizer"] == "sgd" else None,
        "precision": "bfloat16" if effective["bf16"] else None,
    }
    expected = {key: asked.get(key) for key in used}
    assert used == expected
    assert progress(job_dir)[-1]["loss"] < progress(job_dir)[0]["loss"]
    if asked == {"gradient_checkpointing": True}:
        assert weights(job_dir) == weights(trained)  # it only saves memory
    if "precision" in asked:
        assert json.loads((job_dir / "out" / "probe.json").read_text())["dtype"] == "bfloat16"


def test_a_learning_rate_of_0_is_unchanged(base, tmp_path):
    job_dir = make_job(base, tmp_path / "job", learning_rate=0.0, n_epochs=1)
    run_here(job_dir)
    assert result(job_dir)["unchanged"] is True
    probe = json.loads((job_dir / "out" / "probe.json").read_text())
    assert probe["logprobs"] == probe["base_logprobs"]


def test_a_validation_file_gives_a_validation_loss(base, tmp_path):
    held_out = write_examples(tmp_path / "valid.jsonl", count=4)
    job_dir = make_job(base, tmp_path / "job", validation_file=str(held_out), n_epochs=1)
    events = run_here(job_dir)
    loss = result(job_dir)["validation_loss"]
    assert 0 < loss < 20
    assert f"validation loss {loss:.4f}" in [e.get("message") for e in events]


@pytest.mark.parametrize(
    ("changes", "code", "param", "message"),
    [
        (
            {"learning_rate": 1e30, "max_grad_norm": 1000.0},
            "loss_not_finite",
            "learning_rate",
            "became (nan|inf)",
        ),
        (
            {"max_length": 20},
            "example_too_long",
            "training_file",
            "line 11: the example has 21 tokens",
        ),
        ({"lora_rank": 0}, "invalid_job", "hyperparameters.lora_rank", "greater than or equal"),
        ({"colour": "red"}, "invalid_job", "hyperparameters.colour", "colour: Extra inputs"),
        ({"base_model_path": "/no/model"}, "base_model_unusable", "model", "no such directory"),
        ({"training_file": "/no/such/file"}, "invalid_file", "training_file", "No such file"),
        (
            {"lora_target_modules": ["q_proj", "nothing"]},
            "invalid_target_modules",
            "lora_target_modules",
            "^'nothing' is not in the model; the linear layers that can be adapted are down_proj, "
            "gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj$",
        ),
        (
            {"lora_target_modules": ["q_proj", "lm_head"]},
            "invalid_target_modules",
            "lora_target_modules",
            "^'lm_head' can't be adapted",
        ),
        (
            {"lora_target_modules": ["embed_tokens"]},
            "invalid_target_modules",
            "lora_target_modules",
            "^'embed_tokens' can't be adapted",
        ),
        (
            {"lora_target_modules": []},
            "invalid_job",
            "hyperparameters.lora_target_modules",
            "expected a list of names, or all-linear, got",
        ),
        (
            {"lora_target_modules": ".*_proj"},
            "invalid_job",
            "hyperparameters.lora_target_modules",
            "expected a list of names, or all-linear",
        ),
        ({"lora_rank": None}, "invalid_job", "hyperparameters", "with LoRA its rank"),
        (
            {"parent_adapter_path": "/no/adapter", "start_from": "continue"},
            "parent_adapter_unreadable",
            "model",
            "adapter_model.safetensors is missing",
        ),
        ({"precision": "float16"}, "precision_unsupported", "precision", "needs a CUDA device"),
        ({"quantization": "4bit"}, "gpu_required", "quantization", "'4bit' needs a CUDA device"),
        ({"optimizer": "adamw_8bit"}, "gpu_required", "optimizer", "needs a CUDA device"),
        ({"method": "dpo", "packing": True}, "packing_unsupported", "packing", "dpo"),
    ],
)
def test_what_can_not_be_trained_is_refused(base, tmp_path, changes, code, param, message):
    job_dir = make_job(base, tmp_path / "job", **changes)
    assert main(["--job-dir", str(job_dir)]) == 1
    error = read_events(job_dir)[-1]
    assert (error["type"], error["code"], error["param"]) == ("error", code, param), error
    assert re.search(message, error["message"]), error
    assert not (job_dir / "out" / "training_result.json").exists()


def test_an_adapter_of_another_shape_or_base_is_refused(base, trained, tmp_path):
    import json as json_module

    from transformers import LlamaConfig, LlamaForCausalLM

    start = {"parent_adapter_path": trained / "out", "start_from": "continue"}
    other = tmp_path / "other"
    config = json_module.loads((base / "config.json").read_text())
    config["num_hidden_layers"] = 2
    LlamaForCausalLM(LlamaConfig(**config)).save_pretrained(other)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (other / name).write_bytes((base / name).read_bytes())
    refused = {
        "parent_adapter_differs": make_job(base, tmp_path / "rank", **start, lora_rank=8),
        "base_model_differs": make_job(other, tmp_path / "base", **start),
    }
    for code, job_dir in refused.items():
        assert main(["--job-dir", str(job_dir)]) == 1
        assert read_events(job_dir)[-1]["code"] == code, read_events(job_dir)[-1]


def test_an_example_with_an_unknown_role_names_its_line(base, tmp_path):
    data = write_examples(tmp_path / "bad.jsonl")
    lines = data.read_text().splitlines()
    lines[4] = lines[4].replace('"user"', '"wizard"')
    data.write_text("\n".join(lines) + "\n")
    job_dir = make_job(base, tmp_path / "job", data=data)
    assert main(["--job-dir", str(job_dir)]) == 1
    error = read_events(job_dir)[-1]
    assert error["code"] == "invalid_role"
    assert "line 5" in error["message"]


def test_the_child_dies_with_its_parent(base, tmp_path):
    data = write_examples(tmp_path / "long.jsonl", count=2000)
    job_dir = make_job(base, tmp_path / "job", data=data, n_epochs=50)
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, time\n"
            f"child = subprocess.Popen({command(job_dir)!r})\n"
            "print(child.pid, flush=True)\n"
            "time.sleep(100)",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    child = int(parent.stdout.readline())
    wait_for((job_dir / "events.jsonl").exists, "the child never began")
    parent.send_signal(signal.SIGKILL)
    parent.wait(10)

    def gone():
        try:
            stat = Path(f"/proc/{child}/stat").read_text()
        except OSError:
            return True
        return stat.rpartition(")")[2].split()[0] == "Z"

    wait_for(gone, "the child outlived its parent")


def test_a_trained_adapter_is_served_as_peft_computes_it(base, trained):
    import asyncio

    from nip_lm_server.engines.embedded.embedded_engine import EmbeddedEngine

    async def check():
        engine = EmbeddedEngine(str(base), threads=1)
        await engine.start()
        await engine.load_adapter("trained", trained / "out")
        proof = await engine.prove("trained", trained / "out")
        await engine.stop()
        return proof

    proof = asyncio.run(check())
    assert proof.matches
    assert proof.detail["distance_max"] < 1e-3 < proof.detail["base_distance_mean"]
