"""Training in its own process: what is asked reaches TRL and PEFT, and failures are clear."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("trl")

from nip_core.lm_server.training.job import Events, TrainingError
from nip_core.lm_server.training.sft import read_job, train

sys.path.append(str(Path(__file__).parent))
from tiny_model import make_model

SETTINGS = {"n_epochs": 2, "batch_size": 4, "learning_rate": 0.01, "lora_rank": 4, "lora_alpha": 8}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "tiny")


def write_examples(path, count=16, text="yes"):
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"is {i} right"},
                {"role": "assistant", "content": f"{text} {i}"},
            ]
        }
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make_job(base, directory, *, seed=3, data=None, **changes):
    """Write a job directory; `changes` are settings, or fields of the job where it has them."""
    directory.mkdir()
    fields = {
        "method": "supervised",
        "base_model_path": str(base),
        "parent_adapter_path": None,
        "training_file": str(data or write_examples(directory / "train.jsonl")),
        "validation_file": None,
        "seed": seed,
        "output_dir": str(directory / "out"),
    }
    fields.update({key: changes.pop(key) for key in list(changes) if key in fields})
    job = {**fields, "hyperparameters": {**SETTINGS, **changes}}
    (directory / "job.json").write_text(json.dumps(job))
    return directory


def run_here(job_dir):
    """Train in this process, which spares the start of another; returns the events."""
    events = Events(job_dir / "events.jsonl")
    try:
        train(read_job(job_dir), events)
    finally:
        events.close()
    return read_events(job_dir)


def run_process(job_dir):
    return subprocess.run(
        [sys.executable, "-m", "nip_core.lm_server.training.sft", "--job-dir", str(job_dir)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )


def read_events(job_dir):
    return [json.loads(line) for line in (job_dir / "events.jsonl").read_text().splitlines()]


def weights(job_dir):
    return (job_dir / "out" / "adapter_model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def trained(base, tmp_path_factory):
    """A job trained in a process of its own."""
    job_dir = make_job(base, tmp_path_factory.mktemp("jobs") / "job")
    assert run_process(job_dir).returncode == 0
    return job_dir


def test_the_process_writes_adapter_result_and_events(trained):
    assert {p.name for p in (trained / "out").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "training_result.json",
    }
    result = json.loads((trained / "out" / "training_result.json").read_text())
    assert result["steps"] == 8
    assert result["trainable_parameters"] == 3 * 4 * (2 * 128 + 2 * 96 + 3 * 192)
    assert result["wall_s"] > 0
    progress = [e for e in read_events(trained) if e["type"] == "progress"]
    assert progress[-1]["step"] == progress[-1]["total_steps"] == 8
    assert progress[-1]["loss"] == result["final_loss"] < progress[0]["loss"]
    assert result["tokens"] > progress[0]["tokens"] > 0


def test_every_b_matrix_learned_something(trained):
    from safetensors.torch import load

    ups = {key: value for key, value in load(weights(trained)).items() if "lora_B" in key}
    assert len(ups) == 21
    assert all(bool(value.any()) for value in ups.values())


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(base, trained, tmp_path):
    import torch

    torch.set_num_threads(1)
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
    from nip_core.lm_server import chat_template
    from nip_core.lm_server.training.sft import encode_file

    tokenizer = chat_template.load_tokenizer(str(base))
    file = write_examples(tmp_path / "a.jsonl", count=3, text="no")
    examples = encode_file(file, tokenizer, frozenset({1}), 512, "training_file")
    texts = [tokenizer.decode([t for t in e.labels if t >= 0]) for e in examples]
    assert texts == ["no 0<|end|>", "no 1<|end|>", "no 2<|end|>"]


def test_the_first_loss_is_that_of_the_assistant_tokens_alone(base, tmp_path):
    from tiny_model import peft_logprobs

    from nip_core.lm_server import chat_template
    from nip_core.lm_server.training.sft import encode_file

    job_dir = make_job(base, tmp_path / "job", batch_size=16, n_epochs=1)
    events = run_here(job_dir)
    tokenizer = chat_template.load_tokenizer(str(base))
    examples = encode_file(job_dir / "train.jsonl", tokenizer, frozenset({1}), 512, "x")
    total = 0.0
    for example in examples:
        scores = peft_logprobs(base, None, list(example.input_ids))
        total -= sum(s for s, label in zip(scores, example.labels[1:], strict=True) if label >= 0)
    expected = total / sum(e.learned for e in examples)
    first = next(e for e in events if e["type"] == "progress")
    assert first["loss"] == pytest.approx(expected, rel=1e-3)


def test_training_continues_from_the_parent(base, trained, tmp_path):
    parent = trained / "out"
    still = make_job(
        base, tmp_path / "still", parent_adapter_path=str(parent), learning_rate=0.0, n_epochs=1
    )
    run_here(still)
    assert weights(still) == weights(trained)  # nothing learned: the parent's own weights
    more = make_job(base, tmp_path / "more", parent_adapter_path=str(parent))
    events = run_here(more)
    first = next(e for e in events if e["type"] == "progress")
    untrained = next(e for e in read_events(trained) if e["type"] == "progress")
    assert first["loss"] < untrained["loss"] * 0.8
    differing = make_job(base, tmp_path / "differing", parent_adapter_path=str(parent), lora_rank=8)
    with pytest.raises(TrainingError, match=r"lora_rank is 8, but .* has 4"):
        run_here(differing)


def test_a_validation_file_gives_a_validation_loss(base, tmp_path):
    held_out = write_examples(tmp_path / "valid.jsonl", count=4)
    job_dir = make_job(base, tmp_path / "job", validation_file=str(held_out), n_epochs=1)
    run_here(job_dir)
    result = json.loads((job_dir / "out" / "training_result.json").read_text())
    assert 0 < result["validation_loss"] < 20


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"learning_rate": 1e30, "max_grad_norm": 0.0}, "loss_not_finite", "became (nan|inf)"),
        ({"max_length": 20}, "example_too_long", "line 11: the example has 21 tokens"),
        ({"lora_rank": 0}, "invalid_job", "hyperparameters.lora_rank"),
        ({"colour": "red"}, "invalid_job", "colour: Extra inputs"),
        ({"base_model_path": "/no/such/model"}, "base_model_unusable", "no such directory"),
        ({"training_file": "/no/such/file"}, "invalid_file", "No such file"),
        ({"lora_target_modules": ["nothing"]}, "training_failed", "nothing"),
    ],
)
def test_what_can_not_be_trained_is_refused(base, tmp_path, changes, code, message):
    from nip_core.lm_server.training.sft import main

    job_dir = make_job(base, tmp_path / "job", **changes)
    assert main(["--job-dir", str(job_dir)]) == 1
    error = read_events(job_dir)[-1]
    assert (error["type"], error["code"]) == ("error", code), error
    import re

    assert re.search(message, error["message"]), error
    assert not (job_dir / "out" / "adapter_model.safetensors").exists()


def test_an_example_with_an_unknown_role_names_its_line(base, tmp_path):
    data = write_examples(tmp_path / "bad.jsonl")
    lines = data.read_text().splitlines()
    lines[4] = lines[4].replace('"user"', '"wizard"')
    data.write_text("\n".join(lines) + "\n")
    with pytest.raises(TrainingError, match="line 5") as caught:
        run_here(make_job(base, tmp_path / "job", data=data))
    assert caught.value.code == "invalid_role"


def test_the_child_dies_with_its_parent(base, tmp_path):
    data = write_examples(tmp_path / "long.jsonl", count=2000)
    job_dir = make_job(base, tmp_path / "job", data=data, n_epochs=50)
    command = [sys.executable, "-m", "nip_core.lm_server.training.sft", "--job-dir", str(job_dir)]
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, time\n"
            f"child = subprocess.Popen({command!r})\n"
            "print(child.pid, flush=True)\n"
            "time.sleep(100)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    child = int(parent.stdout.readline())
    deadline = time.monotonic() + 60
    while not (job_dir / "events.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (job_dir / "events.jsonl").exists()
    parent.send_signal(signal.SIGKILL)
    parent.wait(10)
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{child}").exists()


def test_a_trained_adapter_is_served_as_peft_computes_it(base, trained):
    import asyncio

    from nip_core.lm_server.engines.embedded import EmbeddedEngine

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
