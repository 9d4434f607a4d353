"""Adapters over adapters, whole models, and that what is saved is what was trained."""

import json

import pytest

pytest.importorskip("trl")

import torch
from tiny_model import make_adapter, make_model, peft_logprobs
from training_jobs import make_job, progress, result, run_here

from nip_lm_server.lora.rowwise_lora import read_lora
from nip_lm_server.training.job import read_job
from nip_lm_server.training.model import loading, output

PARENT = {"rank": 3, "lora_alpha": 12, "target_modules": ["q_proj", "v_proj"]}
FULL = {"use_lora": False, "result": "base", "lora_rank": None, "lora_alpha": None}
PROBE = [3, 40, 41, 42, 1, 4, 77, 78, 79, 90, 91, 1]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def parent(base, tmp_path_factory):
    return make_adapter(base, tmp_path_factory.mktemp("adapters") / "parent", seed=5, **PARENT)


def composition_logprobs(base, parent, new):
    """By PEFT alone: the parent merged, the new adapter over it."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base)
    model = PeftModel.from_pretrained(model, parent).merge_and_unload()
    model = PeftModel.from_pretrained(model, new).eval()
    with torch.inference_mode():
        scores = model(torch.tensor([PROBE])).logits[0, :-1].log_softmax(-1)
    return scores.gather(1, torch.tensor(PROBE[1:])[:, None])[:, 0].tolist()


@pytest.mark.parametrize(
    "new",
    [
        {"rank": 2, "lora_alpha": 7},  # all linear layers: more than the parent has
        {"rank": 2, "lora_alpha": 7, "target_modules": ["v_proj", "o_proj"]},
        {"rank": 5, "lora_alpha": 3, "use_rslora": True, "target_modules": ["q_proj"]},
    ],
)
def test_concatenated_ranks_are_the_sum_of_both_adapters(base, parent, tmp_path, new):
    other = make_adapter(base, tmp_path / "new", seed=6, **new)
    both = output.concatenate(read_lora(parent), read_lora(other))
    assert {down.shape[0] for down, _ in both.pairs.values()} == {3 + new["rank"]}
    assert {both.scale(name) for name in both.pairs} == {1.0}
    for name, (down, up) in both.pairs.items():
        expected = sum(
            files.scale(name) * (files.pairs[name][1] @ files.pairs[name][0])
            for files in (read_lora(parent), read_lora(other))
            if name in files.pairs
        )
        assert torch.allclose(up @ down, expected, atol=1e-6)


def test_a_stacked_adapter_answers_like_the_composition_that_was_trained(base, parent, tmp_path):
    start = {"parent_adapter_path": parent, "start_from": "stack", "lora_rank": 2}
    job_dir = make_job(base, tmp_path / "job", **start)
    kept = tmp_path / "kept"
    keep(kept, lambda: run_here(job_dir))
    config = json.loads((job_dir / "out" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (5, 5)
    assert not config["alpha_pattern"]
    assert not config["rank_pattern"]
    served = peft_logprobs(base, job_dir / "out", PROBE)
    assert served == pytest.approx(composition_logprobs(base, parent, kept), abs=1e-4)
    assert result(job_dir)["unchanged"] is False
    for other in (None, parent):
        others = peft_logprobs(base, other, PROBE)
        assert max(abs(a - b) for a, b in zip(served, others, strict=True)) > 0.05
    # Everything else of it is gone: what is left is one adapter.
    assert not (job_dir / "trained_adapter").exists()


def keep(directory, run):
    """Run a training and keep a copy of the adapter that it trained, before it is stacked."""
    import shutil

    original = output.write_output

    def copying(job, *rest):
        shutil.copytree(output._adapter_dir(job), directory)
        original(job, *rest)

    output.write_output = copying
    try:
        run()
    finally:
        output.write_output = original


def test_a_stack_that_learned_nothing_is_the_parent(base, parent, tmp_path):
    job_dir = make_job(
        base, tmp_path / "job", parent_adapter_path=parent, start_from="stack",
        learning_rate=0.0, n_epochs=1,
    )  # fmt: skip
    run_here(job_dir)
    assert result(job_dir)["unchanged"] is True
    served = peft_logprobs(base, job_dir / "out", PROBE)
    assert served == pytest.approx(peft_logprobs(base, parent, PROBE), abs=1e-5)


def test_a_stacked_adapter_can_be_stacked_on_and_continued(base, parent, tmp_path):
    first = make_job(base, tmp_path / "first", parent_adapter_path=parent, start_from="stack")
    run_here(first)
    again = make_job(
        base, tmp_path / "again", parent_adapter_path=first / "out", start_from="stack"
    )
    run_here(again)
    assert json.loads((again / "out" / "adapter_config.json").read_text())["r"] == 3 + 4 + 4
    more = make_job(
        base, tmp_path / "more", parent_adapter_path=again / "out", start_from="continue",
        lora_rank=11, lora_alpha=11.0,
    )  # fmt: skip
    run_here(more)
    losses = [progress(job_dir)[0]["loss"] for job_dir in (first, again, more)]
    assert losses[0] > losses[1] > losses[2]


def test_a_stack_that_is_too_high_becomes_a_base_like_the_composition(base, parent, tmp_path):
    start = {"parent_adapter_path": parent, "start_from": "stack"}
    job_dir = make_job(base, tmp_path / "job", **start, result="base")
    kept = tmp_path / "kept"
    keep(kept, lambda: run_here(job_dir))
    merged = peft_logprobs(job_dir / "out", None, PROBE)
    assert merged == pytest.approx(composition_logprobs(base, parent, kept), abs=1e-4)
    check_base(job_dir, base)


def test_full_training_writes_a_base_that_goes_on_where_it_stood(base, tmp_path):
    job_dir = make_job(base, tmp_path / "job", **FULL, learning_rate=1e-3)
    run_here(job_dir)
    steps = progress(job_dir)
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert result(job_dir)["unchanged"] is False
    assert result(job_dir)["trainable_parameters"] > 100_000
    check_base(job_dir, base)
    more = make_job(job_dir / "out", tmp_path / "more", n_epochs=1)
    run_here(more)
    assert progress(more)[0]["loss"] < steps[0]["loss"] - 0.5


def test_full_training_with_preferences_writes_a_base(base, tmp_path):
    job_dir = make_job(base, tmp_path / "job", method="dpo", **FULL, learning_rate=1e-3)
    run_here(job_dir)
    steps = progress(job_dir)
    assert steps[-1]["rewards/margins"] > steps[0]["rewards/margins"]
    check_base(job_dir, base)


def check_base(job_dir, base):
    out = job_dir / "out"
    names = {path.name for path in out.iterdir()}
    assert names >= {
        "model.safetensors", "config.json", "generation_config.json", "tokenizer.json",
        "tokenizer_config.json", "chat_template.jinja", "probe.json", "training_result.json",
    }  # fmt: skip
    assert not names & {"adapter_model.safetensors", "pytorch_model.bin", "training_args.bin"}
    assert (out / "chat_template.jinja").read_text() == (base / "chat_template.jinja").read_text()
    probe = json.loads((out / "probe.json").read_text())
    assert probe["logprobs"] == pytest.approx(peft_logprobs(out, None, probe["tokens"]), abs=1e-4)
    assert probe["base_logprobs"] == pytest.approx(
        peft_logprobs(base, None, probe["tokens"]), abs=1e-4
    )
    difference = (a - b for a, b in zip(probe["logprobs"], probe["base_logprobs"], strict=True))
    assert max(map(abs, difference)) > 0.01


def test_full_training_that_changed_nothing_says_so(base, parent, tmp_path):
    still = {**FULL, "learning_rate": 0.0, "n_epochs": 1}
    job_dir = make_job(base, tmp_path / "job", **still)
    run_here(job_dir)
    assert result(job_dir)["unchanged"] is True
    over = make_job(
        base, tmp_path / "over", **still, parent_adapter_path=parent, start_from="continue"
    )
    run_here(over)
    assert result(over)["unchanged"] is True
    merged = peft_logprobs(over / "out", None, PROBE)
    assert merged == pytest.approx(peft_logprobs(base, parent, PROBE), abs=1e-4)


def test_a_base_is_written_in_the_precision_of_its_base(base, parent, tmp_path):
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    half = tmp_path / "half"
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(half)
    AutoTokenizer.from_pretrained(base).save_pretrained(half)
    start = {"parent_adapter_path": parent, "start_from": "stack"}
    job_dir = make_job(half, tmp_path / "job", **start, result="base")
    run_here(job_dir)
    saved = load_file(job_dir / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.bfloat16}
    config = json.loads((job_dir / "out" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert json.loads((job_dir / "out" / "probe.json").read_text())["dtype"] == "float32"


def test_merging_an_adapter_of_another_base_is_refused(parent, tmp_path):
    from nip_lm_server.training.job import TrainingError

    other = make_model(tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    job = read_job(
        make_job(other, tmp_path / "job", parent_adapter_path=parent, start_from="stack")
    )
    model = loading.load_base(job)
    model.model.layers[2].self_attn.q_proj = torch.nn.Linear(config["hidden_size"], 10, bias=False)
    before = model.model.layers[0].self_attn.q_proj.weight.clone()
    with pytest.raises(
        TrainingError, match=r"has 64 -> 64 for .*layers\.2.*, the base model 64 -> 10"
    ):
        loading.merge(model, read_lora(parent))
    assert torch.equal(model.model.layers[0].self_attn.q_proj.weight, before)
