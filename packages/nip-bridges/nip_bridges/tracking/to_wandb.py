"""Weights & Biases, online or into files for ``wandb sync``.

The step of a row in W&B is its number in the run's list of points. Online, W&B says with which step
a run that is resumed goes on: rows before that are there. Offline, no server can be asked, so each
lot of batches is an offline run of its own with the same id, written aside and moved to its place
when it is whole; ``wandb sync`` puts them together. The names of these directories say what is
there.
"""

import re
import shutil
from pathlib import Path
from typing import Any

from nip_bridges.tracking.point_log import Batch
from nip_bridges.tracking.points import ITERATION, PointRow
from nip_bridges.tracking.trackers import Cursor, RunToTrack, TrackerError

_BY_ITERATION = ("test", "train", "validation", "candidate", "attack", "jobs", "seconds")
_TOGETHER_S = 600.0  # an offline run costs a directory and a second, and waits for a sync
_OFFLINE = re.compile(r"offline-run-\d+_\d+-(?P<id>[0-9a-f]{16})-(?P<first>\d+)-(?P<next>\d+)")


class _WandbRun:
    """An open run of W&B, and how rows are logged to it."""

    def __init__(self, run: RunToTrack, mode: str, directory: Path, **where: Any) -> None:
        import wandb

        directory.mkdir(parents=True, exist_ok=True)
        quiet = wandb.Settings(
            console="off",
            silent=True,
            disable_code=True,
            disable_git=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        self._run = wandb.init(
            id=run.id,
            name=run.name,
            config={**run.settings, **run.facts},
            resume="allow",
            mode=mode,
            dir=str(directory),
            settings=quiet,
            **where,
        )
        if self._run is None:
            raise TrackerError("W&B opened no run")
        self._run.define_metric(ITERATION)
        for place in _BY_ITERATION:
            self._run.define_metric(f"{place}/*", step_metric=ITERATION)
        self._groups: set[str] = set()

    @property
    def first_step(self) -> int:
        """The next step of the run, as W&B counts."""
        return int(self._run.starting_step)

    def log(self, number: int, row: PointRow) -> None:
        """Log a row as step `number`."""
        axis = ITERATION
        if row.axis != ITERATION:
            place = "/".join(next(iter(row.values)).split("/")[:2])
            axis = f"{place}/step"
            if place not in self._groups:
                self._groups.add(place)
                self._run.define_metric(axis)
                self._run.define_metric(f"{place}/*", step_metric=axis)
        self._run.log({axis: row.step, **row.values}, step=number, commit=True)

    def finish(self) -> None:
        """Wait until everything has arrived."""
        self._run.finish()


class WandbOnline:
    """A run on W&B's server."""

    waits_s = 0.0

    def __init__(self, project: str, entity: str | None, directory: Path) -> None:
        """W&B keeps its own files in `directory`."""
        self._project, self._entity, self._directory = project, entity, directory
        self._run: _WandbRun | None = None

    def load(self) -> None:
        """Import W&B."""
        import wandb  # noqa: F401

    def open(self, run: RunToTrack, cursor: Cursor) -> int:
        """Open the run, and return the first batch W&B may lack, as sent rows may be lost."""
        options = {"project": self._project, "entity": self._entity}
        self._run = _WandbRun(run, "online", self._directory, **options)
        return cursor.received if self._run.first_step >= cursor.rows else 0

    def cursor(self) -> dict[str, str]:
        """Return nothing: W&B says what it has."""
        return {}

    def send(self, batches: list[Batch]) -> None:
        """Log the rows W&B lacks; they are sent in the background."""
        assert self._run is not None  # it was opened
        for batch in batches:
            for number, row in enumerate(batch.rows, batch.first_row):
                if number >= self._run.first_step:
                    self._run.log(number, row)

    def close(self) -> None:
        """Wait until everything has arrived."""
        if self._run is not None:
            self._run.finish()


class WandbOffline:
    """Offline runs in ``<directory>/wandb``."""

    waits_s = _TOGETHER_S

    def __init__(self, project: str, entity: str | None, directory: Path) -> None:
        """Write into the folder ``wandb`` of `directory`."""
        self._project, self._entity = project, entity
        self._directory = directory / "wandb"
        self._run: RunToTrack | None = None

    def load(self) -> None:
        """Import W&B."""
        import wandb  # noqa: F401

    def open(self, run: RunToTrack, cursor: Cursor) -> int:
        """Return the first batch without a directory."""
        self._run = run
        shutil.rmtree(self._aside, ignore_errors=True)  # of a process that was killed
        return self._next()

    def cursor(self) -> dict[str, str]:
        """Return nothing: the names of directories say it."""
        return {}

    def send(self, batches: list[Batch]) -> None:
        """Write one offline run of all missing batches."""
        assert self._run is not None  # it was opened
        lacking = [batch for batch in batches if batch.number >= self._next()]
        if not lacking:
            return
        # 1. Aside, where no reader looks.
        options = {"project": self._project, "entity": self._entity}
        written = _WandbRun(self._run, "offline", self._aside, **options)
        for batch in lacking:
            for number, row in enumerate(batch.rows, batch.first_row):
                written.log(number, row)
        written.finish()
        # 2. All of it at once to its place.
        [directory] = (self._aside / "wandb").glob("offline-run-*")
        name = f"{directory.name}-{lacking[0].number}-{lacking[-1].number + 1}"
        directory.rename(self._directory / name)
        shutil.rmtree(self._aside, ignore_errors=True)

    def close(self) -> None:
        """Do nothing: all was written."""

    @property
    def _aside(self) -> Path:
        assert self._run is not None  # it was opened
        return self._directory / f".unfinished-{self._run.id}"

    def _next(self) -> int:
        """Find the first missing batch: up to it directories follow one another."""
        assert self._run is not None  # it was opened
        names = self._directory.iterdir() if self._directory.is_dir() else ()
        matches = (_OFFLINE.fullmatch(path.name) for path in names)
        spans = sorted(
            (int(m["first"]), int(m["next"])) for m in matches if m and m["id"] == self._run.id
        )
        reached = 0
        for first, following in spans:
            if first <= reached:
                reached = max(reached, following)
        return reached
