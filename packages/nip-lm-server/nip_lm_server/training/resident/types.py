"""What a resident trainer is asked and what it answers. No torch is imported for it.

Datum          one sequence with what its loss needs      SparseRows   a matrix of few values
Output         log-probabilities and metrics of a call
LoraConfig     a new adapter                              AdamParams   one step of AdamW
Facts          the base model's limits
ResidentError  what can't be done, and whose fault it is
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Category = Literal["user", "server"]

ALPHA = 32.0
"""LoRA's scale is alpha / rank. No client can send another."""
UNUSABLE_GRADIENT = "gradient_unusable"
"""The code of a step that is refused for its gradient: with it no other step can be taken."""


class ResidentError(Exception):
    """A call that did nothing. `category` is "user" where another call would have been done."""

    def __init__(self, category: Category, code: str, message: str):
        super().__init__(category, code, message)
        self.category, self.code, self.message = category, code, message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@dataclass(frozen=True)
class SparseRows:
    """A matrix in compressed rows: what is not listed is 0."""

    values: Array
    crow_indices: Array
    """Where each row begins in `values`, and at last their number: [rows + 1]."""
    col_indices: Array
    shape: tuple[int, int]


@dataclass(frozen=True)
class Datum:
    """A sequence of N tokens and the inputs of a loss, aligned with them.

    Position i of `tokens` predicts ``inputs["target_tokens"][i]``: whoever makes it has shifted.
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
    """A new adapter. Without a `seed` it is drawn by the model's id."""

    rank: int
    alpha: float = ALPHA
    seed: int | None = None
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True
    """LoRA on the output layer; the input embedding stays, also where both share their weights."""


@dataclass(frozen=True)
class AdamParams:
    """One step of AdamW, weight decay decoupled; the gradient's norm is cut where one is given."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@dataclass(frozen=True)
class Facts:
    """The base model's limits, and how much of it is computed at once."""

    context: int
    vocabulary: int
    max_rank: int
    layers: dict[str, int]
    """Linear layers of each kind: ``attn``, ``mlp``, ``unembed``."""
    tokens_per_pass: int
    """How many go through the model together; a longer sequence goes alone."""
    tokens_kept: int
    """In a pass of more tokens, activations are computed a second time instead of kept."""
