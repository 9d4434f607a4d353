"""How far a job is, and the figures of its steps, from what its back-end says.

JobSteps       the newest step that a back-end has told of
steps_of       of a job as it is reported, where the server is ours
newest_step    of a job's events, ours or OpenAI's
by_step        the figures of all steps in a job's events
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nip_core.jobs.job import JobView

_MESSAGE = re.compile(r"Step (\d+)/(\d+)")


@dataclass(frozen=True)
class JobSteps:
    """The newest step of a training."""

    step: int
    total: int
    loss: float | None = None
    tokens: int = 0
    """Trained on so far."""
    left_s: float | None = None
    """As the server expects it."""

    @property
    def percent(self) -> float:
        """Return the share of the steps that are done, in [0, 100]."""
        return round(min(100.0, max(0.0, 100.0 * self.step / self.total)), 2)


def steps_of(view: JobView) -> JobSteps | None:
    """The newest step of a job on a server of ours; None where none was told of."""
    return _steps((view.effective.get("nip") or {}).get("progress"))


def newest_step(events: Sequence[Mapping[str, Any]]) -> JobSteps | None:
    """The newest step of which the events tell, oldest first; None where none does."""
    return next(filter(None, map(_step_of_event, reversed(events))), None)


def by_step(events: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """By step the event that tells its figures, in order; of several attempts the last.

    The figures are the event's ``data``.
    """
    told = {
        int(event["data"]["step"]): event
        for event in events
        if event.get("type") == "metrics" and (event.get("data") or {}).get("step") is not None
    }
    return dict(sorted(told.items()))


def _step_of_event(event: Mapping[str, Any]) -> JobSteps | None:
    """The step that an event tells: in its data, or as in OpenAI's "Step 8/90: ..."."""
    data = event.get("data")
    if (steps := _steps(data)) is not None:
        return steps
    told = _MESSAGE.match(str(event.get("message")))
    if told is None:
        return None
    figures = data if isinstance(data, Mapping) else {}
    return _steps({**figures, "step": int(told[1]), "total_steps": int(told[2])})


def _steps(data: Any) -> JobSteps | None:
    if not isinstance(data, Mapping):
        return None
    step, total = _number(data.get("step")), _number(data.get("total_steps"))
    if step is None or total is None or total <= 0:
        return None
    return JobSteps(
        int(step),
        int(total),
        loss=_number(data.get("train_loss")),
        tokens=int(_number(data.get("tokens")) or 0),
        left_s=_number(data.get("time_left_s")),
    )


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if is_number else None
