"""What the trainer tells while it runs: progress as events, and a stop when the loss breaks."""

import math
from typing import Any

from transformers import TrainerCallback

from nip_core.lm_server.training.job import Events, TrainingError


class _EventCallback(TrainerCallback):  # type: ignore[misc]
    def __init__(self, events: Events):
        self._events = events

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
        self._events.progress(
            state.global_step,
            state.max_steps,
            {
                "loss": float(logs["loss"]),
                "learning_rate": float(logs.get("learning_rate", 0.0)),
                "epoch": state.epoch,
                "tokens": int(logs.get("num_tokens", 0)),
            },
        )


def make_callback(events: Events) -> TrainerCallback:
    """A callback that writes `events` and raises TrainingError at a loss that is not finite."""
    return _EventCallback(events)
