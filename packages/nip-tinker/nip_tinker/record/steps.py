"""The plan of a job: which examples each optimizer step has, and how fast it learns.

Plan            the settings of a job as the service gets them
Steps           the steps of a plan over a number of examples
"""

import math
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

Method = Literal["supervised", "dpo", "trajectories"]
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # torch's and nip's; the SDK's own are others


class Plan(BaseModel):
    """The settings of a job. All stand in the digest of its blocks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Method
    seed: int
    n_epochs: int
    batch_size: int
    learning_rate: float
    lr_scheduler: Literal["linear", "cosine", "constant"] = "linear"
    warmup_ratio: float = 0.0
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    lora_rank: int
    max_length: int | None = None
    beta: float = 0.1
    clip_low: float = 0.2
    clip_high: float | None = None
    continues: bool = False
    """Whether it trains the parent's adapter on, and not a new one over the base model."""


class Steps:
    """The optimizer steps of a plan; the same plan and number of examples give the same steps."""

    def __init__(self, plan: Plan, examples: int) -> None:
        self._plan = plan
        self._per_epoch = math.ceil(examples / plan.batch_size)
        self._examples = examples
        self.total = plan.n_epochs * self._per_epoch
        self._warmup = math.ceil(plan.warmup_ratio * self.total)

    def list_examples(self, step: int) -> list[int]:
        """List the indices of a step's examples. Every epoch has its own order."""
        epoch, place = divmod(step, self._per_epoch)
        order = np.random.default_rng([self._plan.seed, epoch]).permutation(self._examples)
        size = self._plan.batch_size
        return [int(index) for index in order[place * size : (place + 1) * size]]

    def find_rate(self, step: int) -> float:
        """Compute the learning rate of a step, counted from 0, as transformers' schedules do."""
        return self._plan.learning_rate * self._factor(step)

    def _factor(self, step: int) -> float:
        if self._plan.lr_scheduler == "constant":
            return 1.0
        if step < self._warmup:
            return step / max(1, self._warmup)
        rest = max(1, self.total - self._warmup)
        if self._plan.lr_scheduler == "linear":
            return max(0.0, (self.total - step) / rest)
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * (step - self._warmup) / rest)))
