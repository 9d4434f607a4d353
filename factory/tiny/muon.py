"""Muon in float32; torch's own calculates in bfloat16, which is slow on many processors."""

from collections.abc import Iterable
from typing import Any

import torch

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_MOMENTUM = 0.95


class Muon(torch.optim.Optimizer):  # type: ignore[misc]
    """As `torch.optim.Muon` with Nesterov's momentum and ``match_rms_adamw``, for matrices."""

    def __init__(self, matrices: Iterable[Any], lr: float, weight_decay: float):
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})

    def step(self, closure: None = None) -> None:
        """Change each matrix by the orthogonal one nearest to its momentum."""
        with torch.no_grad():
            for group in self.param_groups:
                for matrix in group["params"]:
                    self._change(matrix, group["lr"], group["weight_decay"])

    def _change(self, matrix: Any, lr: float, weight_decay: float) -> None:
        state = self.state[matrix]
        momentum = state.setdefault("momentum", torch.zeros_like(matrix))
        momentum.lerp_(matrix.grad, 1 - _MOMENTUM)
        update = _orthogonal(matrix.grad.lerp(momentum, _MOMENTUM))
        matrix.mul_(1 - lr * weight_decay)
        matrix.add_(update, alpha=-lr * 0.2 * max(matrix.shape) ** 0.5)


def _orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / (wide.norm() + 1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(5):
        square = wide @ wide.T
        wide = a * wide + (b * square + c * square @ square) @ wide
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T
