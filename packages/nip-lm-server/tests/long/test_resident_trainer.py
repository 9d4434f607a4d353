"""The resident trainer: losses, gradients, steps and files are what plain torch and PEFT give."""

import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("peft")

import torch
from peft import PeftModel
from tiny_model import make_adapter, make_model
from transformers import AutoModelForCausalLM

from nip_core.models import resolve_model
from nip_lm_server.engines.base import GenerationRequest
from nip_lm_server.engines.embedded.embedded_engine import EmbeddedEngine
from nip_lm_server.training.resident import losses
from nip_lm_server.training.resident.trainer import ResidentTrainer
from nip_lm_server.training.resident.types import (
    AdamParams,
    Datum,
    LoraConfig,
    ResidentError,
    SparseRows,
)


def digest_files(folder):
    """Every file of a checkpoint, by the digests that its manifest has."""
    return json.loads((folder / "manifest.json").read_text())["files"]


ADAM = AdamParams(learning_rate=0.02, eps=1e-8)
WORDS = 261


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("base"), context=64)


def started(base):
    return ResidentTrainer(base, device="cpu", dtype="float32", threads=1)


@pytest.fixture(scope="module")
def trainer(base):
    """With a model `a` whose adapter has an effect."""
    trainer = started(base)
    trainer.create_model("a", LoraConfig(rank=4, seed=1))
    trainer.forward_backward("a", supervised(0), "cross_entropy", {}, forward_only=False)
    trainer.optim_step("a", ADAM)
    return trainer


def random_data(seed, inputs):
    """Sequences of several lengths; `inputs(rng, n)` is what their loss needs."""
    rng = np.random.default_rng(seed)
    data = []
    for n in (5, 17, 9, 30, 17, 3):
        ids = rng.integers(0, WORDS, n + 1)
        data.append(Datum(ids[:-1], {"target_tokens": ids[1:], **inputs(rng, n)}))
    return data


def supervised(seed):
    return random_data(seed, lambda rng, n: {"weights": rng.uniform(0, 2, n) * (np.arange(n) > 1)})


def played(seed, *more):
    def inputs(rng, n):
        values = {
            "logprobs": rng.normal(-5.5, 0.5, n).astype(np.float32),
            "advantages": (rng.normal(0, 1, n) * (np.arange(n) > 1)).astype(np.float32),
        }
        if "mask" in more:
            values["sequence_ratio_mask"] = (np.arange(n) > 1).astype(np.float32)
        if "thresholds" in more:
            values["clip_low_threshold"] = rng.uniform(0, 0.9, n)
            values["clip_high_threshold"] = rng.uniform(1, 3, n)
        return values

    return random_data(seed, inputs)


def soft(seed):
    def inputs(rng, n):
        weights = rng.dirichlet(np.ones(5), n) * (np.arange(n) > 1)[:, None]
        return {
            "target_tokens": rng.integers(0, WORDS, (n, 5)) * (weights > 0),
            "weights": weights.astype(np.float32),
        }

    return random_data(seed, inputs)


def sparse(matrix):
    rows, columns = np.nonzero(matrix)
    starts = np.concatenate([[0], np.cumsum((matrix != 0).sum(1))])
    return SparseRows(matrix[rows, columns], starts, columns, matrix.shape)


# What a loss is, once more and by itself: log-probabilities p and inputs x of one datum.

LOSSES = {
    "cross_entropy": lambda p, x, c: -(p * x["weights"]).sum(),
    "importance_sampling": lambda p, x, c: -((p - x["logprobs"]).exp() * x["advantages"]).sum(),
    "ppo": lambda p, x, c: clipped((p - x["logprobs"]).exp(), x, c),
    "cispo": lambda p, x, c: (
        -(
            (p - x["logprobs"]).exp().clamp(c["clip_low_threshold"], c["clip_high_threshold"])
        ).detach()
        * p
        * x["advantages"]
    ).sum(),
    "dro": lambda p, x, c: (
        -(p * x["advantages"] - 0.5 * c["beta"] * (p - x["logprobs"]) ** 2).sum()
    ),
    "gspo": lambda p, x, c: clipped(
        ((p.detach() - x["logprobs"])[x["sequence_ratio_mask"] != 0].mean() + p - p.detach()).exp(),
        x,
        c,
    ),
}
DEFAULTS = {
    "ppo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
    "cispo": {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0},
    "dro": {"beta": 0.05},
    "gspo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
}


def clipped(ratio, x, c):
    low = x.get("clip_low_threshold", torch.tensor(c["clip_low_threshold"]))
    high = x.get("clip_high_threshold", torch.tensor(c["clip_high_threshold"]))
    cut = torch.maximum(torch.minimum(ratio, high), low)
    return -torch.minimum(ratio * x["advantages"], cut * x["advantages"]).sum()


def plain_gradient(base, saved, data, loss_fn, config):
    """Loss, log-probabilities and gradients by PEFT and autograd, one sequence after the other."""
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), saved, is_trainable=True
    )
    numbers = {**DEFAULTS.get(loss_fn, {}), **config}
    total, logprobs = 0.0, []
    for one in data:
        x = {k: torch.tensor(np.asarray(v), dtype=torch.float32) for k, v in one.inputs.items()}
        targets = torch.tensor(one.inputs["target_tokens"])
        scores = model(torch.tensor(one.tokens)[None]).logits[0].log_softmax(-1)
        wide = targets if targets.dim() == 2 else targets[:, None]
        p = scores.gather(1, wide).view(targets.shape)
        logprobs.append(p.detach().numpy())
        loss = LOSSES[loss_fn](p, x, numbers)
        loss.backward()
        total += float(loss)
    return total, logprobs, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def gradients_of(trainer, model="a"):
    """By PEFT's names."""
    adapter = trainer._models[model]
    names = [
        f"base_model.model.{name}.lora_{half}.default.weight"
        for name in adapter.pairs
        for half in "AB"
    ]
    return dict(zip(names, adapter.gradients, strict=True))


def forget_gradients(trainer, model="a"):
    trainer._models[model].gradients = None


def assert_near(got, expected):
    assert got.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(got[name] / scale, gradient / scale, rtol=1e-5, atol=1e-5)


CASES = [
    ("cross_entropy", supervised(1), {}),
    ("cross_entropy", soft(1), {}),
    ("importance_sampling", played(2), {}),
    ("ppo", played(3), {}),
    ("ppo", played(3, "thresholds"), {}),
    ("cispo", played(4), {"clip_low_threshold": 0.7, "clip_high_threshold": 1.5}),
    ("dro", played(5), {"beta": 0.3}),
    ("dro", played(5), {}),
    ("gspo", played(6, "mask"), {"clip_low_threshold": 0.5, "clip_high_threshold": 1.5}),
    ("gspo", played(6, "mask", "thresholds"), {}),
]


@pytest.mark.parametrize("loss_fn,data,config", CASES)
def test_a_loss_and_its_gradient_are_those_of_a_few_lines_of_torch(
    base, trainer, tmp_path, loss_fn, data, config
):
    trainer.save("a", tmp_path / "a", optimizer=False)
    total, logprobs, gradients = plain_gradient(base, tmp_path / "a", data, loss_fn, config)
    forget_gradients(trainer)
    only = trainer.forward_backward("a", data, loss_fn, config, forward_only=True)
    assert trainer._models["a"].gradients is None
    output = trainer.forward_backward("a", data, loss_fn, config, forward_only=False)
    assert output.metrics["loss:sum"] == pytest.approx(total, rel=1e-5)
    assert only.metrics["loss:sum"] == pytest.approx(total, rel=1e-5)
    for got, expected in zip(output.logprobs, logprobs, strict=True):
        assert got.dtype == np.float32 and got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert_near(gradients_of(trainer), gradients)


def test_sparse_targets_are_the_dense_ones(trainer):
    dense = soft(7)
    thin = [
        Datum(one.tokens, {name: sparse(value) for name, value in one.inputs.items()})
        for one in dense
    ]
    results = []
    for data in (dense, thin):
        forget_gradients(trainer)
        output = trainer.forward_backward("a", data, "cross_entropy", {}, forward_only=False)
        results.append((output, gradients_of(trainer)))
    assert results[0][0].metrics == results[1][0].metrics
    for name, gradient in results[0][1].items():
        assert torch.equal(gradient, results[1][1][name])


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("at_once", [20, 1024])
def test_chunks_in_any_order_have_the_gradient_of_one_batch(trainer, order, at_once):
    data = supervised(8)
    forget_gradients(trainer)
    whole = trainer.forward_backward("a", data, "cross_entropy", {}, forward_only=False)
    expected = gradients_of(trainer)
    forget_gradients(trainer)
    facts = trainer.facts
    trainer.facts = dataclasses.replace(facts, tokens_per_pass=at_once)
    chunks = [data[:1], data[1:4], data[4:]]
    losses = [
        trainer.forward_backward("a", chunks[i], "cross_entropy", {}, forward_only=False)
        for i in order
    ]
    trainer.facts = facts
    total = sum(one.metrics["loss:sum"] for one in losses)
    assert total == pytest.approx(whole.metrics["loss:sum"], rel=1e-6)
    assert_near(gradients_of(trainer), expected)


def test_activations_that_are_computed_again_give_the_same_gradient(trainer):
    data = supervised(9)
    results = []
    for kept in (trainer.facts.tokens_kept, 0):
        facts = trainer.facts
        trainer.facts = dataclasses.replace(facts, tokens_kept=kept)
        forget_gradients(trainer)
        trainer.forward_backward("a", data, "cross_entropy", {}, forward_only=False)
        results.append(gradients_of(trainer))
        trainer.facts = facts
    assert_near(results[1], results[0])


def test_steps_are_those_of_torchs_adamw_with_the_numbers_given(base, tmp_path):
    trainer = started(base)
    trainer.create_model("a", LoraConfig(rank=4, seed=1))
    trainer.save("a", tmp_path / "a", optimizer=True)
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), tmp_path / "a", is_trainable=True
    )
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    steps = [
        AdamParams(0.01, 0.8, 0.9, 1e-6, 0.1),
        AdamParams(0.02, 0.9, 0.95, 1e-8, 0.0, grad_clip_norm=1.0),
    ]
    for seed, adam in enumerate(steps):
        data = supervised(seed)
        trainer.forward_backward("a", data, "cross_entropy", {}, forward_only=False)
        got = trainer.optim_step("a", adam)
        for one in data:
            scores = model(torch.tensor(one.tokens)[None]).logits[0].log_softmax(-1)
            p = scores.gather(1, torch.tensor(one.inputs["target_tokens"])[:, None])[:, 0]
            (-(p * torch.tensor(one.inputs["weights"])).sum()).backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, adam.grad_clip_norm or math.inf)
        assert got["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
        (group,) = optimizer.param_groups
        group.update(
            lr=adam.learning_rate,
            betas=(adam.beta1, adam.beta2),
            eps=adam.eps,
            weight_decay=adam.weight_decay,
        )
        optimizer.step()
        optimizer.zero_grad()
    held = [half for pair in trainer._models["a"].pairs.values() for half in pair]
    for one, expected in zip(held, trained, strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-3, atol=1e-4)


def test_a_call_in_which_nothing_is_learned_has_a_gradient_of_zeros(trainer):
    data = [
        Datum(one.tokens, {**one.inputs, "weights": np.zeros(len(one.tokens))})
        for one in supervised(1)
    ]
    forget_gradients(trainer)
    assert trainer.optim_step("a", ADAM) == {"grad_norm": 0.0}
    output = trainer.forward_backward("a", data, "cross_entropy", {}, forward_only=False)
    assert output.metrics == {"loss:sum": 0.0}
    assert [one.shape for one in output.logprobs] == [one.tokens.shape for one in data]
    assert not any(gradient.any() for gradient in gradients_of(trainer).values())


def test_two_models_in_one_trainer_do_not_touch_each_other(base, tmp_path):
    def train(trainer, model, seed):
        data = supervised(seed)
        trainer.forward_backward(model, data, "cross_entropy", {}, forward_only=False)
        trainer.optim_step(model, ADAM)

    alone, both = started(base), started(base)
    for trainer in (alone, both):
        trainer.create_model("a", LoraConfig(rank=4, seed=1))
    both.create_model("b", LoraConfig(rank=8, seed=2, train_unembed=False))
    for seed in range(3):
        train(alone, "a", seed)
        both.forward_backward("b", supervised(seed + 10), "cross_entropy", {}, forward_only=False)
        train(both, "a", seed)
        train(both, "b", seed + 20)
    both.drop_model("b")
    alone.save("a", tmp_path / "alone", optimizer=True)
    both.save("a", tmp_path / "both", optimizer=True)
    assert digest_files(tmp_path / "alone") == digest_files(tmp_path / "both")
    with pytest.raises(ResidentError, match="there is no model 'b'"):
        both.optim_step("b", ADAM)


def test_a_model_that_is_loaded_goes_on_with_the_same_bits(base, tmp_path):
    first = started(base)
    lora = LoraConfig(rank=4, seed=1)
    first.create_model("a", lora)
    for seed in range(2):
        first.forward_backward("a", supervised(seed), "cross_entropy", {}, forward_only=False)
        first.optim_step("a", ADAM)
    first.save("a", tmp_path / "half", optimizer=True)
    second = started(base)
    second.load("again", tmp_path / "half", lora, optimizer=True)
    outputs = []
    for trainer, model in ((first, "a"), (second, "again")):
        data = played(5)
        outputs.append(trainer.forward_backward(model, data, "ppo", {}, forward_only=False))
        trainer.optim_step(model, ADAM)
        trainer.save(model, tmp_path / model, optimizer=True)
    assert digest_files(tmp_path / "a") == digest_files(tmp_path / "again")
    for one, other in zip(outputs[0].logprobs, outputs[1].logprobs, strict=True):
        assert one.tobytes() == other.tobytes()
    # Without the optimizer it is another step.
    second.load("again", tmp_path / "half", None, optimizer=False)
    second.forward_backward("again", played(5), "ppo", {}, forward_only=False)
    second.optim_step("again", ADAM)
    second.save("again", tmp_path / "fresh", optimizer=True)
    assert digest_files(tmp_path / "a") != digest_files(tmp_path / "fresh")


def test_a_new_model_is_drawn_by_its_seed_or_else_by_its_name(base, tmp_path):
    trainer = started(base)
    names = {"s:train:0": None, "s:train:1": None, "x": 3, "y": 3}
    for name, seed in names.items():
        trainer.create_model(name, LoraConfig(rank=2, seed=seed))
        trainer.save(name, tmp_path / name, optimizer=False)
    weights = {name: (tmp_path / name / "adapter_model.safetensors").read_bytes() for name in names}
    assert weights["x"] == weights["y"] and len(set(weights.values())) == 3
    again = started(base)
    again.create_model("s:train:1", LoraConfig(rank=2))
    again.save("s:train:1", tmp_path / "again", optimizer=False)
    assert digest_files(tmp_path / "again") == digest_files(tmp_path / "s:train:1")


def test_an_adapter_of_plain_peft_is_trained_on_where_it_has_one_rank(base, tmp_path):
    trainer = started(base)
    make_adapter(base, tmp_path / "peft", seed=1, target_modules=["q_proj", "down_proj"])
    trainer.load("p", tmp_path / "peft", None, optimizer=False)
    data = supervised(1)
    total, _, gradients = plain_gradient(base, tmp_path / "peft", data, "cross_entropy", {})
    output = trainer.forward_backward("p", data, "cross_entropy", {}, forward_only=False)
    assert output.metrics["loss:sum"] == pytest.approx(total, rel=1e-5)
    assert_near(gradients_of(trainer, "p"), gradients)
    with pytest.raises(ResidentError, match="saved without the optimizer"):
        trainer.load("q", tmp_path / "peft", None, optimizer=True)
    make_adapter(base, tmp_path / "ranks", seed=1, rank_pattern={"q_proj": 2})
    with pytest.raises(ResidentError, match="only adapters of one rank"):
        trainer.load("q", tmp_path / "ranks", None, optimizer=False)


def one_datum(**changes):
    (_, datum, *_rest) = supervised(1)
    tokens = changes.pop("tokens", datum.tokens)
    return [Datum(tokens, {**datum.inputs, **changes})]


IDS = np.arange(17)
BAD_CALLS = {
    "there is no loss 'stable_reinforce'; there are cispo": (one_datum(), "stable_reinforce", {}),
    "cross_entropy has no 'beta'; it has none": (one_datum(), "cross_entropy", {"beta": 1.0}),
    "ppo has no 'beta'; it has clip_low": (played(1), "ppo", {"beta": 1.0}),
    "clip_low_threshold is nan": (played(1), "ppo", {"clip_low_threshold": math.nan}),
    "is above clip_high": (played(1), "ppo", {"clip_low_threshold": 2.0}),
    "no datum": ([], "cross_entropy", {}),
    "datum 0: cross_entropy needs 'weights'": (
        [Datum(IDS, {"target_tokens": IDS})],
        "cross_entropy",
        {},
    ),
    "datum 0: cross_entropy takes no 'mask'": (one_datum(mask=IDS), "cross_entropy", {}),
    r"weights have shape \(3,\), expected": (one_datum(weights=np.ones(3)), "cross_entropy", {}),
    r"target_tokens have shape \(3,\)": (one_datum(target_tokens=IDS[:3]), "cross_entropy", {}),
    r"weights have nan at \[4\]": (
        one_datum(weights=np.where(IDS == 4, math.nan, 1.0)),
        "cross_entropy",
        {},
    ),
    r"datum 0: weights have 1e\+25 at \[4\], expected -1.84e\+19 to": (
        one_datum(weights=np.where(IDS == 4, 1e25, 1.0)),
        "cross_entropy",
        {},
    ),
    r"datum 0: advantages have -1e\+25 at \[0\]": (
        [
            Datum(one.tokens, {**one.inputs, "advantages": np.full(len(one.tokens), -1e25)})
            for one in played(1)
        ],
        "importance_sampling",
        {},
    ),
    "tokens have 261, the vocabulary goes from 0 to 260": (
        one_datum(tokens=IDS + 245),
        "cross_entropy",
        {},
    ),
    "target_tokens have -1": (one_datum(target_tokens=IDS - 1), "cross_entropy", {}),
    "tokens are float64, expected integers": (one_datum(tokens=IDS * 1.0), "cross_entropy", {}),
    "has 65 tokens, the model's context is 64": (
        [Datum(np.zeros(65, int), {"target_tokens": np.zeros(65, int), "weights": np.ones(65)})],
        "cross_entropy",
        {},
    ),
    "expected .N,., N >= 1": (one_datum(tokens=IDS[:0]), "cross_entropy", {}),
    "takes one target per token": (
        [
            Datum(one.tokens, {**played(1)[i].inputs, "target_tokens": one.inputs["target_tokens"]})
            for i, one in enumerate(soft(1))
        ],
        "ppo",
        {},
    ),
    "sparse rows don't fit": (
        one_datum(
            target_tokens=SparseRows(IDS, np.arange(18), IDS * 99, (17, 5)),
        ),
        "cross_entropy",
        {},
    ),
    r"shape \(17, 1099511627776\)": (
        one_datum(target_tokens=SparseRows(IDS, np.arange(18), IDS, (17, 2**40))),
        "cross_entropy",
        {},
    ),
    "marks no token": (
        [
            Datum(one.tokens, {**one.inputs, "sequence_ratio_mask": np.zeros(len(one.tokens))})
            for one in played(1)
        ],
        "gspo",
        {},
    ),
    "datum 1: the loss of token 2 is not finite": (
        [
            played(1)[0],
            Datum(
                IDS,
                {
                    "target_tokens": IDS,
                    "logprobs": np.where(IDS == 2, -1e6, -1.0),
                    "advantages": np.ones(17),
                },
            ),
        ],
        "importance_sampling",
        {},
    ),
}


@pytest.mark.parametrize("told", list(BAD_CALLS))
def test_a_bad_call_is_one_clear_error_and_changes_nothing(trainer, tmp_path, told):
    data, loss_fn, config = BAD_CALLS[told]
    forget_gradients(trainer)
    trainer.forward_backward("a", supervised(3), "cross_entropy", {}, forward_only=False)
    before = {name: gradient.clone() for name, gradient in gradients_of(trainer).items()}
    trainer.save("a", tmp_path / "before", optimizer=True)
    with pytest.raises(ResidentError, match=told) as error:
        trainer.forward_backward("a", data, loss_fn, config, forward_only=False)
    assert error.value.category == "user" and "\n" not in error.value.message
    trainer.save("a", tmp_path / "after", optimizer=True)
    assert digest_files(tmp_path / "before") == digest_files(tmp_path / "after")
    after = gradients_of(trainer)
    assert all(torch.equal(gradient, after[name]) for name, gradient in before.items())


@pytest.mark.parametrize(
    "lora,told",
    [
        (LoraConfig(rank=0), "rank is 0, expected 1 to 64"),
        (LoraConfig(rank=65), "rank is 65, expected 1 to 64"),
        (LoraConfig(rank=4, train_attn=False, train_mlp=False, train_unembed=False), "none of"),
    ],
)
def test_a_model_that_can_not_be_made_is_refused(trainer, lora, told):
    with pytest.raises(ResidentError, match=told):
        trainer.create_model("new", lora)
    with pytest.raises(ResidentError, match="no model 'new'"):
        trainer.drop_model("new")
    with pytest.raises(ResidentError, match="in training already"):
        trainer.create_model("a", LoraConfig(rank=4))


@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": math.nan},
        {"learning_rate": 1e300},
        {"beta1": 1.0},
        {"eps": 0.0},
        {"weight_decay": -1.0},
    ],
)
def test_a_step_that_can_not_be_made_keeps_the_gradient(trainer, changes):
    forget_gradients(trainer)
    trainer.forward_backward("a", supervised(3), "cross_entropy", {}, forward_only=False)
    with pytest.raises(ResidentError, match=next(iter(changes))):
        trainer.optim_step("a", dataclasses.replace(ADAM, **changes))
    assert trainer._models["a"].gradients is not None


def test_a_gradient_whose_squares_are_infinite_is_not_stepped_with(trainer, tmp_path):
    forget_gradients(trainer)
    data = one_datum(weights=np.full(17, 1.8e19))
    for _ in range(3):
        trainer.forward_backward("a", data, "cross_entropy", {}, forward_only=False)
    trainer.save("a", tmp_path / "before", optimizer=True)
    with pytest.raises(ResidentError, match=r"the norm of the gradient is .*, at most") as error:
        trainer.optim_step("a", ADAM)
    assert error.value.category == "user" and trainer._models["a"].gradients is not None
    trainer.save("a", tmp_path / "after", optimizer=True)
    assert digest_files(tmp_path / "before") == digest_files(tmp_path / "after")


def test_weights_of_another_shape_or_base_or_damaged_are_not_loaded(base, trainer, tmp_path):
    trainer.save("a", tmp_path / "a", optimizer=True)
    with pytest.raises(ResidentError, match="rank is 8, but the weights to load have 4"):
        trainer.load("b", tmp_path / "a", LoraConfig(rank=8), optimizer=False)
    with pytest.raises(ResidentError, match="train_unembed is False"):
        trainer.load("b", tmp_path / "a", LoraConfig(4, train_unembed=False), optimizer=False)
    with pytest.raises(ResidentError, match="safetensors is missing"):
        trainer.load("b", tmp_path, None, optimizer=False)
    state = tmp_path / "a" / "training_state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "steps": 99}))
    with pytest.raises(ResidentError, match="checkpoint_damaged"):
        trainer.load("b", tmp_path / "a", None, optimizer=True)
    with pytest.raises(ResidentError, match="no model 'b'"):
        trainer.drop_model("b")


async def test_what_was_trained_is_what_the_embedded_engine_serves(tmp_path):
    """The output layer's part, too, in a model whose input embedding has the same weights."""
    base = resolve_model("tiny")
    trainer = started(base)
    trainer.create_model("a", LoraConfig(rank=4, seed=1))
    trainer.forward_backward("a", supervised(0), "cross_entropy", {}, forward_only=False)
    trainer.optim_step("a", ADAM)
    trainer.save("a", tmp_path / "a", optimizer=False)
    assert "lm_head" in trainer._models["a"].pairs
    engine = EmbeddedEngine(str(base), threads=1)
    await engine.start()
    try:
        await engine.load_adapter("ft:a", tmp_path / "a")
        proof = await engine.prove("ft:a", tmp_path / "a")
        request = GenerationRequest(
            model="ft:a",
            messages=({"role": "user", "content": "hello"},),
            max_tokens=10,
            seed=7,
            return_token_ids=True,
            logprobs=True,
        )
        result = await engine.generate(request)
    finally:
        await engine.stop()
    assert proof.matches, proof.detail
    (choice,) = result.choices
    ids = np.array([*result.prompt_token_ids, *choice.token_ids])
    datum = Datum(ids[:-1], {"target_tokens": ids[1:], "weights": np.ones(len(ids) - 1)})
    output = trainer.forward_backward("a", [datum], "cross_entropy", {}, forward_only=True)
    scored = output.logprobs[0][-len(choice.token_ids) :]
    np.testing.assert_allclose(scored, choice.logprobs, atol=1e-4)
    # Where that layer is not served by its name, the difference is far larger.
    del trainer._models["a"].pairs["lm_head"]
    without = trainer.forward_backward("a", [datum], "cross_entropy", {}, forward_only=True)
    assert np.abs(without.logprobs[0] - output.logprobs[0]).max() > 1e-2


def test_docs_training_has_the_thresholds_of_each_loss_that_is_clipped():
    page = " ".join((Path(__file__).parents[4] / "docs" / "training.md").read_text().split())
    named = re.search(
        r"`loss_fn_config`: `(\w+)` and `(\w+)`, ([\d.]+) and ([\d.]+) for `(\w+)` and `(\w+)`, "
        r"([\d.]+) and ([\d.]+) for `(\w+)`",
        page,
    )
    *keys, low, high, one, other, low_of_last, high_of_last, last = named.groups()
    bounds = {(one, low, high), (other, low, high), (last, low_of_last, high_of_last)}
    clipped = {name: loss.config for name, loss in losses.LOSSES.items() if keys[0] in loss.config}
    assert {
        (name, *(f"{config[key]:g}" for key in keys)) for name, config in clipped.items()
    } == bounds
