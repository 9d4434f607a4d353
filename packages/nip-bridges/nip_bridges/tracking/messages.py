"""The messages between a run's process and its feeders, as lines of JSON.

FeederTask  the first line to a feeder: its points and target; then come commands, LOOK and END
Report      a line of a feeder: its present act
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from nip_core.parameters.blocks.tracking import TrackerParameters

LOOK, END = "look", "end"
"""Something was committed; send it all, then end."""

State = Literal["idle", "starting", "asking", "answered", "trouble", "done"]


class FeederTask(BaseModel):
    """The run and the tracker of a feeder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_store: str
    """The address of the store."""
    run: str
    tracker: TrackerParameters
    in_background: bool
    """Whether it takes the processor only while nobody else needs it."""


class Report(BaseModel):
    """A feeder's present act."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: State
    received: int | None = None
    """Batches that the tracker has; None: as before."""
    batches: int | None = None
    """Batches that there are; None: as before."""
    error: str | None = None
    """Of `trouble`, in words."""
