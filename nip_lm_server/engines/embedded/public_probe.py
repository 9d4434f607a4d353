"""A probe without any training data, for an adapter about to be published.

compute_public_probe   log-probabilities of an adapter and of its base on a fixed text

It is what `probes.Probe` reads. A training writes a better one, with text that its model has
learned; but that text is somebody's data.
"""

from pathlib import Path
from typing import Any


def compute_public_probe(base_model: str, adapter: Path) -> dict[str, Any]:
    """Compute the probe from the files of both, in the precision of the base model's.

    `base_model` is a directory or a name on the Hub. Raises OSError,
    ValueError or EngineError if they can't be read.
    """
    from nip_lm_server.engines.embedded.lora import read_lora
    from nip_lm_server.engines.embedded.prove_weights import apply_adapter, probe_tokens
    from nip_lm_server.formats.chat_template import context_length, load_model, load_tokenizer

    tokenizer = load_tokenizer(base_model)
    model = load_model(base_model, "auto").eval()
    # A model that says nothing of its context is probed by all tokens: they are few.
    tokens = probe_tokens(tokenizer, context_length(tokenizer, model.config) or 2**31)
    base_logprobs = _logprobs(model, tokens)
    with apply_adapter(model, read_lora(adapter)):
        logprobs = _logprobs(model, tokens)
    return {
        "tokens": tokens,
        "logprobs": logprobs,
        "base_logprobs": base_logprobs,
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantization": "none",
    }


def _logprobs(model: Any, tokens: list[int]) -> list[float]:
    """Log-probability of each token but the first, in nats."""
    import torch

    with torch.inference_mode():
        ids = torch.tensor([tokens], device=model.device)
        scores = model(ids).logits[0, :-1].float().log_softmax(-1)
        values: list[float] = scores.gather(1, ids[0, 1:, None])[:, 0].tolist()
    return values
