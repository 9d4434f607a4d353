"""The common part of all trackers, and the list of them.

Tracker       the interface: open a run, send batches, close
RunToTrack    what a tracker is told of the run
TrackerError  a tracker refuses, or does not answer
make_tracker  the tracker that settings name; its package is imported by `open`
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel, ConfigDict, JsonValue

from nip_bridges.tracking.places import tensorboard_files, trackio_server, wandb_files, wandb_mode
from nip_bridges.tracking.point_log import Batch
from nip_core.errors import NipError
from nip_core.parameters.blocks.tracking import TrackerParameters


class TrackerError(NipError, RuntimeError):
    """A tracker refuses what it is sent, or does not answer. The run goes on."""


@dataclass(frozen=True)
class RunToTrack:
    """The run as trackers are to show it."""

    id: str
    """16 hex digits, the same whenever the run goes on."""
    name: str
    settings: Mapping[str, JsonValue]
    facts: Mapping[str, str]


class Cursor(BaseModel):
    """The document of a tracker's received points, ``cursor.json``; nothing, as it is made."""

    model_config = ConfigDict(frozen=True, extra="allow")

    format_version: int = 1
    run_id: str = ""
    """The id of the run in every tracker, see `RunToTrack`."""
    place: str = ""
    received: int = 0
    """Batches that were sent."""
    rows: int = 0
    """The rows of these."""
    mlflow_run_id: str | None = None
    """Of MLflow, its own name of the run."""


class Tracker(Protocol):
    """A run in one tracker. Every method may be called again after it has raised or was killed."""

    waits_s: float
    """How long points may wait to be sent together, in seconds; 0: not at all."""

    def load(self) -> None:
        """Import the tracker's package."""

    def open(self, run: RunToTrack, cursor: Cursor) -> int:
        """Find the run, or create it, and return the first batch it may lack.

        `cursor` says what was sent before.
        """

    def cursor(self) -> dict[str, str]:
        """Return what `open` needs of a `Cursor` besides to find the run again."""

    def send(self, batches: list[Batch]) -> None:
        """Send batches, in their order, and none of their rows twice."""

    def close(self) -> None:
        """Wait until everything has arrived."""


def make_tracker(tracker: TrackerParameters) -> Tracker:
    """Make the tracker of these settings; `load` and `open` import its package and ask it."""
    from nip_bridges.tracking.to_mlflow import MlflowTracker
    from nip_bridges.tracking.to_tensorboard import TensorboardTracker
    from nip_bridges.tracking.to_trackio import TrackioTracker
    from nip_bridges.tracking.to_wandb import WandbOffline, WandbOnline

    match tracker.kind:
        case "mlflow":
            return MlflowTracker(tracker.uri, tracker.project)
        case "tensorboard":
            return TensorboardTracker(tensorboard_files(tracker))
        case "trackio":
            return TrackioTracker(tracker.project, trackio_server(tracker), tracker.directory)
        case "wandb":
            kind = WandbOffline if wandb_mode(tracker) == "offline" else WandbOnline
            return kind(tracker.project, tracker.entity, wandb_files(tracker))
