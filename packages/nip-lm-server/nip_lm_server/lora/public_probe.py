"""A probe without training data, for an adapter whose own probe may not be shown or is missing.

PublicProbes   log-probabilities of adapters and of their base, loaded once, on a fixed text

`probes.parse_probe` reads it. A training writes a better one, with text that its model has
learned; but that text belongs to the data's owner.
"""

from pathlib import Path
from typing import Any


class PublicProbes:
    """Computes probes over a base model, in the precision of its files.

    `base_model` is a directory or a name on the Hub. Raises OSError, ValueError or EngineError if
    it can't be read.
    """

    def __init__(self, base_model: str):
        from nip_lm_server.chats.chat_template import context_length, load_model, load_tokenizer
        from nip_lm_server.lora.prove_weights import probe_tokens, token_logprobs

        tokenizer = load_tokenizer(base_model)
        self._model = load_model(base_model, "auto").eval()
        # Where the model gives no context, all tokens are scored: they are few.
        self._tokens = probe_tokens(
            tokenizer, context_length(tokenizer, self._model.config) or 2**31
        )
        self._base_logprobs = token_logprobs(self._model, self._tokens)

    def compute(self, adapter: Path) -> dict[str, Any]:
        """Compute the probe of an adapter. Raises the errors of the class."""
        from nip_lm_server.lora.prove_weights import apply_adapter, token_logprobs
        from nip_lm_server.lora.rowwise_lora import read_lora

        with apply_adapter(self._model, read_lora(adapter)):
            logprobs = token_logprobs(self._model, self._tokens)
        return {
            "tokens": self._tokens,
            "logprobs": logprobs,
            "base_logprobs": self._base_logprobs,
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "quantization": "none",
        }
