"""TensorBoard: one event file for each batch, which appears whole or not at all.

The files of a run are ``<directory>/<run>-<start of its id>/events.out.tfevents.<batch>.nip``, in
the order in which TensorBoard reads them. Which are there says what it has.
"""

import os
import shutil
import tempfile
from pathlib import Path

from nip_bridges.tracking.point_log import Batch
from nip_bridges.tracking.trackers import Cursor, RunToTrack

_UNFINISHED = ".unfinished-"


class TensorboardTracker:
    """Event files in a directory."""

    waits_s = 0.0

    def __init__(self, directory: Path) -> None:
        """Keep a directory for each run below `directory`."""
        self._directory = directory
        self._run_directory = directory

    def load(self) -> None:
        """Import tensorboardX."""
        import tensorboardX  # noqa: F401

    def open(self, run: RunToTrack, cursor: Cursor) -> int:
        """Make the run's directory, and return the first batch without a file."""
        self._run_directory = self._directory / f"{run.name}-{run.id[:6]}"
        self._run_directory.mkdir(parents=True, exist_ok=True)
        for leftover in self._run_directory.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(leftover)  # of a process that was killed
        first = 0
        while self._file(first).exists():
            first += 1
        return first

    def cursor(self) -> dict[str, str]:
        """Return nothing: the files say which batches are there."""
        return {}

    def send(self, batches: list[Batch]) -> None:
        """Write the missing files of batches."""
        for batch in batches:
            if not self._file(batch.number).exists():
                self._write(batch)

    def close(self) -> None:
        """Do nothing: all was written."""

    def _file(self, number: int) -> Path:
        return self._run_directory / f"events.out.tfevents.{number:010d}.nip"

    def _write(self, batch: Batch) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        place = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self._run_directory))
        writer = EventsWriter(str(place / "events"))
        for row in batch.rows:
            for name, value in row.values.items():
                writer.write_event(
                    Event(wall_time=batch.time_of(row), step=row.step, summary=scalar(name, value))
                )
        writer.close()
        [written] = place.iterdir()
        with written.open("rb") as file:
            os.fsync(file.fileno())
        written.rename(self._file(batch.number))
        place.rmdir()
