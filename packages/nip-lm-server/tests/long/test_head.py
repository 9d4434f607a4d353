"""Log-probabilities of actions without the logits of all tokens: the same, in less memory."""

import pytest

pytest.importorskip("trl")

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)
from trl.trainer.utils import add_fused_lm_head

from nip_lm_server.training.methods import head
from nip_lm_server.training.methods.policy_gradient import token_logprobs

WORDS = 97
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SIZES, head_dim=16, final_logit_softcapping=0.5)
    ),
    "granite": lambda: GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=0.25)),
    "cohere": lambda: CohereForCausalLM(CohereConfig(**SIZES, logit_scale=3.0)),
}


def made(name):
    torch.manual_seed(0)
    return MODELS[name]()


def batch():
    torch.manual_seed(1)
    ids = torch.randint(1, WORDS, (3, 20))
    mask = torch.rand(3, 20) < 0.5
    mask[:, 0] = False
    return ids, mask


def scores_and_gradients(model, score):
    ids, mask = batch()
    model.zero_grad()
    scores = score(ids, mask)
    (scores * torch.linspace(-1, 2, scores.numel()).view_as(scores)).sum().backward()
    return scores.detach(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("at_a_time", [1000, 4])
def test_scores_and_gradients_are_those_of_the_logits(monkeypatch, name, at_a_time):
    model = made(name)
    assert head.is_scored_alike(model)
    usual = scores_and_gradients(
        model, lambda ids, mask: token_logprobs(model(input_ids=ids).logits, ids, mask)
    )
    head.add_scoring(model)
    monkeypatch.setattr(head, "CHUNK_LOGITS", WORDS * at_a_time)
    scored = scores_and_gradients(model, lambda ids, mask: model(input_ids=ids, scored=mask))
    torch.testing.assert_close(scored[0], usual[0], rtol=1e-5, atol=1e-5)
    for parameter, gradient in usual[1].items():
        torch.testing.assert_close(scored[1][parameter], gradient, rtol=1e-4, atol=1e-5)
    ids, _ = batch()
    assert model(input_ids=ids).logits.shape == (3, 20, WORDS)  # as before, without the argument


def test_a_model_that_does_something_else_to_its_logits_is_found_out():
    model = made("llama")
    usual = model.forward

    def bent(**inputs):
        out = usual(**inputs)
        out.logits = out.logits * 1.5
        return out

    model.forward = bent
    assert not head.is_scored_alike(model)


class Largest(TorchDispatchMode):
    """The largest tensor with the vocabulary as its last dimension, in numbers."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            shape = tuple(getattr(tensor, "shape", ()))
            if shape[-1:] == (WORDS,) and shape != (SIZES["hidden_size"], WORDS):  # the weights
                self.numbers = max(self.numbers, tensor.numel())
        return out


def test_no_tensor_of_a_step_has_the_logits_of_all_actions(monkeypatch):
    model = made("llama")
    head.add_scoring(model)
    monkeypatch.setattr(head, "CHUNK_LOGITS", WORDS * 4)
    with Largest() as largest:
        scores_and_gradients(model, lambda ids, mask: model(input_ids=ids, scored=mask))
    assert 0 < largest.numbers <= WORDS * 4


def test_nothing_to_score_gives_a_gradient_of_0():
    model = made("llama")
    head.add_scoring(model)
    ids, mask = batch()
    scores = model(input_ids=ids, scored=torch.zeros_like(mask))
    assert scores.shape == ids.shape and not scores.any()
    scores.sum().backward()
    assert not model.model.embed_tokens.weight.grad.any()


FIELDS = ("log_probs", "entropy", "mean_logits", "is_top1")


def labelled(name, *, alone):
    """TRL's answer, the scores and the gradients, of all tokens or of those with a label."""
    model, outputs = made(name), []
    add_fused_lm_head(model, outputs=FIELDS)
    if alone:
        assert head.score_labelled_alone(model)

    def score(ids, mask):
        labels = ids.masked_fill(~mask, head.IGNORED)
        outputs.append(model(input_ids=ids, labels=labels, fused_lm_head=True))
        return outputs[0].log_probs

    return outputs, *scores_and_gradients(model, score)


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("at_a_time", [1000, 4])
def test_tokens_with_a_label_alone_give_what_trls_head_gives(monkeypatch, name, at_a_time):
    monkeypatch.setattr(head, "CHUNK_LOGITS", WORDS * at_a_time)
    (usual,), usual_scores, usual_gradients = labelled(name, alone=False)
    (found,), scores, gradients = labelled(name, alone=True)
    torch.testing.assert_close(scores, usual_scores, rtol=1e-5, atol=1e-5)
    for field in (*FIELDS, "loss", "label_mask"):
        torch.testing.assert_close(found[field], usual[field], rtol=1e-5, atol=1e-5)
    for parameter, gradient in usual_gradients.items():
        torch.testing.assert_close(gradients[parameter], gradient, rtol=1e-4, atol=1e-5)
