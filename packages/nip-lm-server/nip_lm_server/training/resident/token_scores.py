"""The log-probabilities of K targets for each token, by a model with its adapter switched on.

score_targets   hidden states [T, width] and targets [T, K] -> [T, K], in pieces
pad             sequences -> one batch, padded on the right
without_dropout take all dropout out of a model
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from nip_lm_server.training.methods.head import chunk_size, output_layer


def score_targets(model: Any, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Compute the targets' log-probabilities in float32. Logits of many tokens are computed twice.

    It works as `head` does, for several targets per token.
    """
    layer, size = output_layer(model), chunk_size(model)

    def score(rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        logits = layer(rows).float()
        return logits.gather(1, ids) - logits.logsumexp(1, keepdim=True)

    if len(targets) <= size:
        return score(hidden, targets)
    pieces: list[torch.Tensor] = []
    for rows, ids in zip(hidden.split(size), targets.split(size), strict=True):
        if torch.is_grad_enabled():
            pieces.append(checkpoint(score, rows, ids, use_reentrant=False))
        else:
            pieces.append(score(rows, ids))
    return torch.cat(pieces)


def pad(sequences: Sequence[Any], device: Any) -> torch.Tensor:
    """Pad token ids to [batch, longest]. A causal model's tokens don't see later ones, so padding
    needs no mask."""
    batch = np.zeros((len(sequences), max(map(len, sequences))), dtype=np.int64)
    for row, tokens in zip(batch, sequences, strict=True):
        row[: len(tokens)] = tokens
    return torch.from_numpy(batch).to(device)


def without_dropout(model: Any) -> None:
    """Let a model compute the same in training mode as in evaluation."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
