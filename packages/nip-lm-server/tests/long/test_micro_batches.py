"""A step in several passes is the step in one: its gradients, its losses, its weights."""

import importlib
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("trl")

import torch
from tiny_model import make_model
from training_jobs import make_job, progress, result, run_here, write_lines

from nip_lm_server.training import job as job_module
from nip_lm_server.training.job import Events, read_job
from nip_lm_server.training.main import _METHODS
from nip_lm_server.training.methods.micro_batches import split
from nip_lm_server.training.model import loading


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "tiny")


def asked(i):
    """Prompts and answers of very different lengths."""
    return {"role": "user", "content": "why? " * (i * i % 13 + 1)}


def answer(i, word="because"):
    return {"role": "assistant", "content": f"{word} {i} " * (i % 4 + 1)}


ROWS = {
    "supervised": [{"messages": [asked(i), answer(i)]} for i in range(16)],
    "dpo": [
        {
            "input": {"messages": [asked(i)]},
            "preferred_output": [answer(i)],
            "non_preferred_output": [answer(i * 3 + 1, "no")],
        }
        for i in range(16)
    ],
    "trajectories": [
        {"messages": [asked(i), answer(i)], "group_id": str(i // 4), "reward": i % 3 / 2}
        for i in range(16)
    ],
}


def make(base, directory, method, **settings):
    directory.mkdir(parents=True)
    data = write_lines(directory / "data.jsonl", ROWS[method])
    return make_job(base, directory / "job", method=method, data=data, **settings)


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=12),
    st.integers(1, 120),
    st.booleans(),
    st.integers(1, 5),
)
def test_every_example_is_in_one_pass_and_no_pass_is_over_the_budget(
    lengths, budget, packed, least
):
    groups = split(lengths, budget, packed=packed, min_groups=least)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        sizes = [lengths[index] for index in group]
        cost = sum(sizes) if packed else max(sizes) * len(sizes)
        assert cost <= budget or len(group) == 1
    assert len(groups) >= min(least, len(lengths))
    whole = sum(lengths) if packed else max(lengths) * len(lengths)
    if whole <= budget and least == 1:
        assert groups == [list(range(len(lengths)))]  # as if there was no budget
    elif least == 1:
        assert all(min(lengths[i] for i in a) >= max(lengths[i] for i in b)
                   for a, b in pairwise(groups))  # fmt: skip


def prepared(base, directory, method, **settings):
    """The trainer of a job, its adapter moved off 0 so that every matrix has a gradient."""
    job_dir = make(base, directory, method, **settings)
    job = read_job(job_dir)
    events = Events(job_dir / "events.jsonl")
    module = importlib.import_module(_METHODS[method])
    trainer = module.prepare(job, loading.load_text(job), events).trainer
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def step(trainer, tokens):
    """Loss, gradients and passes of one step over eight examples."""
    trainer.tokens_per_pass = tokens
    passes = []
    original = trainer.compute_loss
    trainer.compute_loss = lambda *a, **k: passes.append(1) or original(*a, **k)
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(3, 11)])
    count = trainer._get_num_items_in_batch([batch], trainer.args.device)
    loss = trainer.training_step(trainer.model, batch, count)
    trainer.compute_loss = original
    gradients = {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.requires_grad}
    trainer.model.zero_grad()
    return float(loss), gradients, len(passes)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("supervised", {}),
        ("supervised", {"packing": True}),
        ("dpo", {}),
        ("dpo", {"dpo_sft_weight": 0.7}),
        ("trajectories", {"kl_penalty": 0.3}),
    ],
)
def test_the_gradients_of_the_passes_add_up_to_those_of_the_step(base, tmp_path, method, settings):
    trainer = prepared(base, tmp_path / "job", method, batch_size=8, **settings)
    loss, whole, passes = step(trainer, None)
    assert passes == 1
    counts = set()
    for tokens in (400, 150, 1):
        other, gradients, passes = step(trainer, tokens)
        counts.add(passes)
        assert other == pytest.approx(loss, rel=1e-5, abs=1e-6)
        largest = max(float(value.abs().max()) for value in whole.values())
        assert largest > 0
        for name, value in whole.items():
            torch.testing.assert_close(
                gradients[name], value, rtol=0, atol=1e-5 * largest, msg=name
            )
    assert len(counts) > 1 and max(counts) == 8


@pytest.mark.parametrize("method", ["supervised", "trajectories"])
def test_a_job_learns_the_same_whatever_goes_through_the_model_at_a_time(
    base, tmp_path, monkeypatch, method
):
    monkeypatch.setattr(job_module, "PROGRESS_INTERVAL_S", 0.0)
    settings = {"batch_size": 7, "learning_rate": 0.001}  # 16 examples: the last step has 2
    jobs = {n: make(base, tmp_path / str(n), method, tokens_per_pass=n, **settings)
            for n in (None, 90)}  # fmt: skip
    for job_dir in jobs.values():
        run_here(job_dir)
    losses = [[e["loss"] for e in progress(job_dir)] for job_dir in jobs.values()]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3, abs=1e-5)
    assert len(losses[0]) == 6
    assert len({result(job_dir)["tokens"] for job_dir in jobs.values()}) == 1


def test_processes_go_through_the_model_equally_often(base, tmp_path, monkeypatch):
    from nip_lm_server.training.methods import micro_batches

    trainer = prepared(base, tmp_path / "job", "supervised", batch_size=8)
    trainer.tokens_per_pass = 10**6
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(8)])
    monkeypatch.setattr(
        micro_batches, "_largest_count", lambda count, accelerator: 3
    )  # another one's
    assert len(trainer._parts(batch)) == 3
    assert micro_batches._largest_count(1, SimpleNamespace(num_processes=1)) == 3
