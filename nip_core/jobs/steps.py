"""How far a job is, and the figures of its steps, from its back-end's events.

JobSteps            the newest step that a back-end has told of
read_progress       of a job as it is reported, where the server is ours; is_paused: by that server
find_newest_step    of a job's events, ours or OpenAI's
look_for_steps      of a job, wherever its back-end tells of it
StepFigures         the figures of one step
read_step_figures   the figures of all steps in a job's events
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, JsonValue

from nip_core.jobs.job import Backend, JobView

_MESSAGE = re.compile(r"Step (\d+)/(\d+)")


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _mapping(value: object) -> object:
    return value if isinstance(value, Mapping) else {}


# A back-end may send anything: no number means not known, no object means empty.
_Number = Annotated[float | None, BeforeValidator(_number)]
_Lenient = BeforeValidator(_mapping)


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
        """The share of steps done, in [0, 100]."""
        return round(min(100.0, max(0.0, 100.0 * self.step / self.total)), 2)


class _Data(BaseModel):
    """The figures of a step."""

    step: _Number = None
    total_steps: _Number = None
    train_loss: _Number = None
    tokens: _Number = None
    time_left_s: _Number = None

    def steps(self) -> JobSteps | None:
        """Give them as a `JobSteps`; None if the step or the number of steps is missing."""
        if self.step is None or self.total_steps is None or self.total_steps <= 0:
            return None
        return JobSteps(
            int(self.step),
            int(self.total_steps),
            loss=self.train_loss,
            tokens=int(self.tokens or 0),
            left_s=self.time_left_s,
        )


class _Event(BaseModel):
    """An event of a job, ours or OpenAI's."""

    type: object = None
    message: object = None
    created_at: _Number = None
    data: Annotated[_Data, _Lenient] = _Data()

    def steps(self) -> JobSteps | None:
        """Read the step from its data, or from words like OpenAI's "Step 8/90: ..."."""
        if (steps := self.data.steps()) is not None:
            return steps
        match = _MESSAGE.match(str(self.message))
        if match is None:
            return None
        step = {"step": float(match[1]), "total_steps": float(match[2])}
        return self.data.model_copy(update=step).steps()


class _Report(BaseModel):
    """The report of a server of ours on a job, beside the words of OpenAI's API."""

    progress: Annotated[_Data, _Lenient] = _Data()
    paused: object = None


Events = Sequence[Mapping[str, JsonValue]]
"""The events of a job by its back-end, oldest first, as the job's document keeps them."""


@dataclass(frozen=True)
class StepFigures:
    """The figures of one step of a training, as an event of its job tells them."""

    loss: float | None
    told_at: float | None
    """Seconds since the epoch, by the back-end's clock."""
    figures: Mapping[str, JsonValue]
    """All of them by name, the loss and the number of the step among them."""


def read_progress(view: JobView) -> JobSteps | None:
    """Read the newest step of a job on a server of ours; None where none was told of."""
    return _Report.model_validate(view.effective.get("nip") or {}).progress.steps()


def is_paused(view: JobView) -> bool:
    """Tell whether a job on a server of ours stands still for now."""
    return bool(_Report.model_validate(view.effective.get("nip") or {}).paused)


def find_newest_step(events: Events) -> JobSteps | None:
    """Find the newest step in a job's events; None where none tells of one."""
    steps = (_Event.model_validate(event).steps() for event in reversed(events))
    return next(filter(None, steps), None)


async def look_for_steps(backend: Backend, view: JobView) -> JobSteps | None:
    """Find the newest step of a job that goes on; None where none was told of.

    A server of nip says it in the job itself; elsewhere it stands in the events, which is one more
    request. Raises what that raises.
    """
    steps = read_progress(view)
    if steps is None and not backend.tells_steps and view.status == "running":
        steps = find_newest_step(await backend.job_events(view.id))
    return steps


def read_step_figures(events: Events) -> dict[int, StepFigures]:
    """Read the figures in a job's events by step, in order."""
    figures = {}
    for raw in events:
        event, data = _Event.model_validate(raw), raw.get("data")
        if event.type == "metrics" and event.data.step is not None and isinstance(data, dict):
            # A training that was begun again tells of a step again: the last report counts.
            step = int(event.data.step)
            figures[step] = StepFigures(event.data.train_loss, event.created_at, data)
    return dict(sorted(figures.items()))
