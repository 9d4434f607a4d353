"""Evidence of a model's answering with its own weights: engines give it, the store keeps it."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Proof:
    """Evidence of an adapter's answering with its own weights.

    `matches` says whether what the served model gave on the probe is what the saved weights
    give; `detail` carries the figures (distance, tolerance, nearest other adapter). It has
    ``unchanged: true`` where the adapter changes nothing over the base model.
    """

    matches: bool
    detail: dict[str, Any] = field(default_factory=dict)
