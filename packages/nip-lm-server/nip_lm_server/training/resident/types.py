"""The requests and answers of a resident trainer. This module does not import torch.

Datum          one sequence with the inputs of its loss   SparseRows   a matrix of few values
Output         log-probabilities and metrics of a call
LoraConfig     a new adapter                              AdamParams   one step of AdamW
Facts          the base model's limits
ResidentError  a refused call, by the user's fault or the server's
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Category = Literal["user", "server"]

ALPHA = 32.0
"""LoRA's scale is alpha / rank. No client can send another alpha."""
UNUSABLE_GRADIENT = "gradient_unusable"
"""The code of a step that is refused for its gradient: no step can be taken with this gradient."""


class ResidentError(Exception):
    """A call that did nothing. `category` is "user" if the user can correct the call."""

    def __init__(self, category: Category, code: str, message: str):
        super().__init__(category, code, message)
        self.category, self.code, self.message = category, code, message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@dataclass(frozen=True)
class SparseRows:
    """A matrix in compressed rows: values that are not listed are 0."""

    values: Array
    crow_indices: Array
    """The index in `values` at which each row begins, and last their number: [rows + 1]."""
    col_indices: Array
    shape: tuple[int, int]


@dataclass(frozen=True)
class Datum:
    """A sequence of N tokens and the inputs of a loss, aligned with them.

    Position i of `tokens` predicts ``inputs["target_tokens"][i]``: the caller has shifted them.
    Inputs are [N]; `target_tokens` and `weights` of soft targets are [N, K], dense or sparse.
    """

    tokens: Array
    inputs: Mapping[str, Array | SparseRows]


@dataclass(frozen=True)
class Output:
    """`logprobs` has one float32 array per datum, in the shape of its `target_tokens`."""

    logprobs: tuple[npt.NDArray[np.float32], ...]
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class LoraConfig:
    """A new adapter. Without a `seed`, its values depend on the model's id."""

    rank: int
    alpha: float = ALPHA
    seed: int | None = None
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True
    """LoRA on the output layer; the input embedding stays, even if both share their weights."""


@dataclass(frozen=True)
class AdamParams:
    """One step of AdamW, with decoupled weight decay; `grad_clip_norm` 0 doesn't cut."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@dataclass(frozen=True)
class Facts:
    """The base model's limits, and the sizes of its passes."""

    context: int
    vocabulary: int
    max_rank: int
    layers: dict[str, int]
    """Linear layers of each kind: ``attn``, ``mlp``, ``unembed``."""
    tokens_per_pass: int
    """Tokens that go through the model together; a longer sequence goes alone."""
    tokens_kept: int
    """In a pass of more tokens, activations are computed a second time instead of kept."""
