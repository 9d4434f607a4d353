"""Evidence of a model's answering with its own weights: engines give it, the store keeps it."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Proof:
    """Evidence of an adapter's answering with its own weights.

    `matches` says whether the served model answers the probe as the saved weights do; `detail`
    carries the figures (distance, tolerance, nearest other adapter). It has ``unchanged: true``
    where the adapter changes nothing over the base model.
    """

    matches: bool
    detail: dict[str, Any] = field(default_factory=dict)
