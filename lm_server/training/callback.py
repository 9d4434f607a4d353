"""What the trainer tells while it runs: progress as events, and a stop when the loss breaks.

ProgressCallback    told of every step by the trainer
step_figures        what is told of a step
"""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from transformers import TrainerCallback

from nip_lm_server.training.job import Events, TrainingError

_PASSED_ON = ("rewards/", "logps/", "policy/", "kl", "mean_token_accuracy", "entropy")
"""Beginnings of the names of a method's own figures that go into progress events."""


class ProgressCallback(TrainerCallback):  # type: ignore[misc]
    """Writes `events`, and raises TrainingError at a loss that is not finite."""

    def __init__(self, events: Events, clock: Callable[[], float] = time.monotonic):
        self._events, self._clock = events, clock
        self._first: tuple[int, float] = (0, clock())

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called once; a continued training begins at the step of its checkpoint."""
        self._first = (state.global_step, self._clock())

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Called after every step with its loss."""
        if not logs or "loss" not in logs:
            return
        for name in ("loss", "grad_norm"):
            value = float(logs.get(name, 0.0))
            if not math.isfinite(value):
                raise TrainingError(
                    "loss_not_finite",
                    f"the {name} became {value} at step {state.global_step} of {state.max_steps}: "
                    "lower the learning rate, or look for broken examples",
                    "learning_rate",
                )
        step, since_s = self._first
        per_step_s = (self._clock() - since_s) / max(1, state.global_step - step)
        self._events.progress(
            state.global_step,
            state.max_steps,
            {
                **step_figures(logs),
                "remaining_s": round(per_step_s * (state.max_steps - state.global_step), 1),
            },
        )


def step_figures(logs: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one step, from what the trainer logged of it."""
    return {
        "loss": float(logs["loss"]),
        "learning_rate": float(logs.get("learning_rate", 0.0)),
        "epoch": logs.get("epoch"),
        "tokens": int(logs.get("num_tokens", 0)),
        **{k: float(v) for k, v in logs.items() if k.startswith(_PASSED_ON)},
    }
