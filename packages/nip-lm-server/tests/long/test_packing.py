"""Several sequences in a row without padding: the same loss, and none sees another."""

import pytest

pytest.importorskip("trl")

from tiny_model import make_model
from training_jobs import make_job, messages, progress, read_events, run_here, weights, write_lines

from nip_lm_server.training import job
from nip_lm_server.training.job import read_job
from nip_lm_server.training.main import main
from nip_lm_server.training.methods import sft
from nip_lm_server.training.model import loading


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Conversations of very different lengths."""
    return write_lines(
        tmp_path_factory.mktemp("data") / "train.jsonl",
        [
            {
                "messages": [
                    {"role": "user", "content": "why? " * (i * i % 13 + 1)},
                    {"role": "assistant", "content": f"because {i} " * (i % 4 + 1)},
                ]
            }
            for i in range(16)
        ],
    )


def test_the_loss_of_every_step_is_the_one_without_packing(base, data, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "PROGRESS_INTERVAL_S", 0.0)
    packed = make_job(base, tmp_path / "packed", data=data, packing=True)
    padded = make_job(base, tmp_path / "padded", data=data, packing=False)
    for job_dir in (packed, padded):
        run_here(job_dir)
    losses = [[step["loss"] for step in progress(job_dir)] for job_dir in (packed, padded)]
    assert len(losses[0]) == 8
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    tokens = [progress(job_dir)[-1]["tokens"] for job_dir in (packed, padded)]
    assert tokens[0] == tokens[1]
    assert any('"packing": true' in message for message in messages(packed))
    assert any('"packing": false' in message for message in messages(padded))


def test_a_batch_is_one_row_without_padding(base, data, tmp_path):
    read = read_job(make_job(base, tmp_path / "job", data=data, packing=True))
    text = loading.load_text(read)
    examples = sft.encode_file(data, text, "training_file")
    trainer = sft.build_trainer(read, loading.load_start(read), text, examples, [])
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(4)])
    assert batch["input_ids"].shape == (1, sum(len(e.input_ids) for e in examples[:4]))
    assert "attention_mask" not in batch


def test_the_model_itself_says_whether_it_keeps_sequences_apart(base, data, tmp_path):
    job_dir = make_job(base, tmp_path / "job", data=data, packing=True)
    model = loading.load_base(read_job(job_dir))
    assert sft.keeps_apart(model)
    assert not model.training
    # One whose attention ignores where sequences begin.
    whole = model.forward
    model.forward = lambda input_ids, position_ids, **other: whole(
        input_ids=input_ids, attention_mask=input_ids.new_ones(input_ids.shape), **other
    )
    assert not sft.keeps_apart(model)
    model.forward = lambda input_ids: whole(input_ids=input_ids)
    assert not sft.keeps_apart(model)


def test_packing_is_refused_where_sequences_would_see_each_other(base, data, tmp_path, monkeypatch):
    from transformers import LlamaForCausalLM

    forward = LlamaForCausalLM.forward

    def blind(self, input_ids=None, position_ids=None, attention_mask=None, **other):
        mask = input_ids.new_ones(input_ids.shape)
        return forward(self, input_ids=input_ids, attention_mask=mask, **other)

    monkeypatch.setattr(LlamaForCausalLM, "forward", blind)
    job_dir = make_job(base, tmp_path / "job", data=data, packing=True)
    assert main(["--job-dir", str(job_dir)]) == 1
    error = read_events(job_dir)[-1]
    assert (error["code"], error["param"]) == ("packing_unsupported", "packing")


def test_on_a_cpu_nothing_is_packed_unless_asked(base, data, tmp_path):
    import torch

    job_dir = make_job(base, tmp_path / "job", data=data, n_epochs=1)
    run_here(job_dir)
    packed = any('"packing": true' in message for message in messages(job_dir))
    assert packed is torch.cuda.is_available()
    assert weights(job_dir)
