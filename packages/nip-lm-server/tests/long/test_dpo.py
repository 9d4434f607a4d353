"""DPO: our token ids, a reference that is a stated choice, and learning what is preferred."""

import json
import math
import shutil

import pytest

pytest.importorskip("trl")

import torch
from tiny_model import make_adapter, make_model
from training_jobs import (
    make_job,
    messages,
    progress,
    read_events,
    result,
    run_here,
    weights,
    write_lines,
    write_pairs,
)

from nip_base import disk
from nip_lm_server.training.job import TrainingError, read_job
from nip_lm_server.training.main import main
from nip_lm_server.training.methods import dpo
from nip_lm_server.training.model import loading

LN2 = math.log(2)
# One step over all pairs, which changes nothing: its loss is that of the start.
STILL = {"method": "dpo", "n_epochs": 1, "batch_size": 16, "learning_rate": 0.0, "beta": 0.3}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def parent(base, tmp_path_factory):
    return make_adapter(base, tmp_path_factory.mktemp("adapters") / "parent", seed=5)


def encoded(job_dir):
    return dpo.encode_file(
        job_dir / "train.jsonl", loading.load_text(read_job(job_dir)), "training_file"
    )


def loss_by_hand(base, policy, reference, pairs, beta):
    """Mean of -log sigmoid(beta (margin of the policy - margin of the reference))."""
    total = 0.0
    for own, other in zip(
        margins(base, policy, pairs), margins(base, reference, pairs), strict=True
    ):
        total += math.log1p(math.exp(-beta * (own - other)))
    return total / len(pairs)


def margins(base, adapter, pairs):
    """Log-probability of the preferred answer less that of the other."""
    own, other = (log_likelihoods(base, adapter, pairs, a) for a in ("preferred", "rejected"))
    return [sum(mine) - sum(theirs) for mine, theirs in zip(own, other, strict=True)]


def log_likelihoods(base, adapter, pairs, answer):
    """Log-probability of each token of the answers, by transformers and PEFT."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base)
    model = (PeftModel.from_pretrained(model, adapter) if adapter else model).eval()

    def of_answer(pair):
        ids = torch.tensor([[*pair.prompt, *getattr(pair, answer)]])
        with torch.inference_mode():
            scores = model(ids).logits[0, :-1].log_softmax(-1)
        return scores.gather(1, ids[0, 1:, None])[len(pair.prompt) - 1 :].flatten().tolist()

    return [of_answer(pair) for pair in pairs]


def test_both_answers_follow_the_prompt_that_is_served_and_end_with_the_stop_token(base, tmp_path):
    from nip_lm_server.chats import chat_template

    job_dir = make_job(base, tmp_path / "job", **STILL)
    text = loading.load_text(read_job(job_dir))
    pair = encoded(job_dir)[5]
    prompt = [{"role": "user", "content": "is 5 right"}]
    assert list(pair.prompt) == chat_template.encode_prompt(text.tokenizer, prompt)
    assert text.tokenizer.decode(pair.preferred) == "yes 5<|end|>"
    assert text.tokenizer.decode(pair.rejected) == "nonono<|end|>"


def test_trl_gets_these_ids_and_no_others(base, tmp_path):
    job_dir = make_job(base, tmp_path / "job", **STILL)
    job = read_job(job_dir)
    text, pairs = loading.load_text(job), encoded(job_dir)
    trainer = dpo.build_trainer(job, loading.load_start(job), text, pairs, [])
    batch = trainer.data_collator([trainer.train_dataset[0], trainer.train_dataset[1]])
    for row, (pair, answer) in enumerate(
        [(p, "preferred") for p in pairs[:2]] + [(p, "rejected") for p in pairs[:2]]
    ):
        ids = [*pair.prompt, *getattr(pair, answer)]
        assert batch["input_ids"][row, : len(ids)].tolist() == ids
        learned = batch["completion_mask"][row].tolist()
        assert learned == [0] * len(pair.prompt) + [1] * (len(ids) - len(pair.prompt)) + [0] * (
            len(learned) - len(ids)
        )


@pytest.mark.parametrize("start_from", ["base", "continue", "stack"])
def test_against_its_start_the_loss_begins_at_ln_2(base, parent, tmp_path, start_from):
    start = {} if start_from == "base" else {"parent_adapter_path": parent}
    job_dir = make_job(
        base, tmp_path / "job", **STILL, **start, start_from=start_from, dpo_reference="start"
    )
    run_here(job_dir)
    (step,) = progress(job_dir)
    assert step["loss"] == pytest.approx(LN2, abs=1e-6)
    assert step["rewards/margins"] == pytest.approx(0, abs=1e-6)
    assert result(job_dir)["unchanged"] is True


@pytest.mark.parametrize("start_from", ["continue", "stack"])
def test_against_the_base_the_loss_begins_where_the_parent_is(base, parent, tmp_path, start_from):
    job_dir = make_job(
        base, tmp_path / "job", **STILL, parent_adapter_path=parent, start_from=start_from,
        dpo_reference="base",
    )  # fmt: skip
    run_here(job_dir)
    expected = loss_by_hand(base, parent, None, encoded(job_dir), 0.3)
    assert abs(expected - LN2) > 0.01
    assert progress(job_dir)[0]["loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("reference", ["start", "base"])
def test_without_lora_the_reference_is_a_model_of_its_own(base, parent, tmp_path, reference):
    job_dir = make_job(
        base, tmp_path / "job", **STILL, parent_adapter_path=parent, start_from="continue",
        dpo_reference=reference, use_lora=False, result="base", lora_rank=None, lora_alpha=None,
    )  # fmt: skip
    run_here(job_dir)
    start = parent if reference == "start" else None
    expected = loss_by_hand(base, parent, start, encoded(job_dir), 0.3)
    assert progress(job_dir)[0]["loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("start_from", ["base", "continue", "stack"])
def test_imitating_the_preferred_answers_adds_their_mean_loss_per_token(
    base, parent, tmp_path, start_from
):
    start = {} if start_from == "base" else {"parent_adapter_path": parent}
    job_dir = make_job(
        base, tmp_path / "job", **STILL, **start, start_from=start_from, dpo_reference="start",
        dpo_sft_weight=0.7,
    )  # fmt: skip
    run_here(job_dir)
    scores = log_likelihoods(base, start.get("parent_adapter_path"), encoded(job_dir), "preferred")
    imitated = -sum(map(sum, scores)) / sum(map(len, scores))
    assert imitated > 0.1
    (step,) = progress(job_dir)
    assert step["loss"] == pytest.approx(LN2 + 0.7 * imitated, rel=1e-4)


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_pairs_that_may_be_the_wrong_way_round_are_taken_out_of_the_loss(
    base, parent, tmp_path, share
):
    still = {**STILL, "parent_adapter_path": parent, "start_from": "continue"}
    job_dir = make_job(
        base, tmp_path / "job", **still, dpo_reference="base", dpo_label_smoothing=share
    )
    run_here(job_dir)
    right, wrong = (
        loss_by_hand(base, parent, None, encoded(job_dir), beta) for beta in (0.3, -0.3)
    )
    expected = ((1 - share) * right - share * wrong) / (1 - 2 * share)
    assert expected != pytest.approx(right, rel=1e-2)
    assert progress(job_dir)[0]["loss"] == pytest.approx(expected, rel=1e-4)


def test_the_loss_after_a_step_is_the_one_computed_by_hand(base, parent, tmp_path):
    step = {**STILL, "learning_rate": 0.02, "lr_scheduler": "constant", "weight_decay": 0.0}
    start = {"parent_adapter_path": parent, "start_from": "continue", "dpo_reference": "start"}
    one = make_job(base, tmp_path / "one", **step, **start)
    run_here(one)
    two = make_job(base, tmp_path / "two", **{**step, "n_epochs": 2}, **start)
    run_here(two)
    expected = loss_by_hand(base, one / "out", parent, encoded(one), 0.3)
    assert expected < LN2
    assert progress(two)[-1]["loss"] == pytest.approx(expected, rel=1e-3)


def test_what_is_preferred_becomes_likelier_also_on_other_pairs(base, tmp_path):
    held_out = write_pairs(tmp_path / "held_out.jsonl", count=24)
    job_dir = make_job(
        base, tmp_path / "job", method="dpo", n_epochs=4, learning_rate=0.02, beta=0.3,
        validation_file=held_out,
    )  # fmt: skip
    run_here(job_dir)
    first, last = progress(job_dir)[0], progress(job_dir)[-1]
    assert first["loss"] == pytest.approx(LN2, abs=1e-6)
    assert last["loss"] < 0.3
    assert last["rewards/accuracies"] == 1.0
    assert last["rewards/margins"] > 1 > 1e-6 > abs(first["rewards/margins"])
    figures = result(job_dir)
    assert figures["validation_loss"] < 0.3
    assert figures["validation_rewards/accuracies"] == 1.0
    assert figures["tokens"] == 4 * sum(pair.tokens for pair in encoded(job_dir))


def test_a_job_that_continues_an_adapter_goes_on_from_a_checkpoint(base, parent, tmp_path):
    settings = {
        "method": "dpo", "n_epochs": 1, "checkpoint_steps": 1, "beta": 0.3,
        "parent_adapter_path": parent, "start_from": "continue",
    }  # fmt: skip
    whole = make_job(base, tmp_path / "whole", **settings)
    run_here(whole)
    job_dir = make_job(base, tmp_path / "job", **settings)
    path = sorted((whole / "checkpoints").iterdir())[-2]
    shutil.copytree(path, job_dir / "checkpoints" / path.name)
    assert disk.find_damage(path) is None
    run_here(job_dir)
    assert "continues from step 2" in messages(job_dir)
    assert weights(job_dir) == weights(whole)


def test_only_the_trained_adapter_is_saved(base, parent, tmp_path):
    job_dir = make_job(
        base, tmp_path / "job", **STILL, parent_adapter_path=parent, start_from="continue"
    )
    run_here(job_dir)
    assert {path.name for path in (job_dir / "out").iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "probe.json", "training_result.json",
    }  # fmt: skip


def test_a_pair_that_is_too_long_or_equal_names_its_line(base, tmp_path):
    job_dir = make_job(base, tmp_path / "job", **STILL, max_length=20)
    with pytest.raises(TrainingError, match=r"line 11: prompt and answer have 21 tokens") as caught:
        encoded(job_dir)
    assert (caught.value.code, caught.value.param) == ("example_too_long", "training_file")
    rows = [json.loads(line) for line in (job_dir / "train.jsonl").read_text().splitlines()]
    rows[3]["non_preferred_output"] = rows[3]["preferred_output"]
    write_lines(job_dir / "train.jsonl", rows)
    assert main(["--job-dir", str(job_dir)]) == 1
    error = read_events(job_dir)[-1]
    assert error["code"] == "equal_outputs"
    assert "line 4" in error["message"]
