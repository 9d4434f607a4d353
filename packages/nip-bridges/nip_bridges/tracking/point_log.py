"""The points of a run in the order in which trackers are sent them, written down in the run.

Batch     points that were written down together
PointLog  all batches of a run: read, and extended by later commits

``<run>/tracking/points/<rewinds>/000000.json`` is the first batch. None ever changes: a
batch is sent again as it was, with its times. A run that is done again from some place
begins a new list, and trackers a new run: a point that was shown is not taken back.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from nip_bridges.tracking.points import (
    PointRow,
    Spans,
    Steps,
    add_part,
    is_logged,
    list_parts,
    read_rows,
)
from nip_core.errors import CorruptionError
from nip_core.hashing import digest
from nip_core.records.iterations import Records
from nip_core.run_store.documents import encode, first_fault
from nip_core.run_store.run import RunStore


class PointsDocument(BaseModel):
    """The document of a batch."""

    model_config = ConfigDict(frozen=True, extra="allow")

    format_version: Literal[1] = 1
    first_row: int
    at: float
    rows: tuple[PointRow, ...]
    spans: Spans
    steps: Steps


@dataclass(frozen=True)
class Batch:
    """Rows with their times; `first_row` counts those of all batches before."""

    number: int
    first_row: int
    rows: tuple[PointRow, ...]
    at: float
    """When it was written, in seconds since the epoch."""
    spans: Spans = field(default_factory=dict)
    """What is in this batch and those before."""
    steps: Steps = field(default_factory=dict)
    """The steps of jobs in this batch and those before."""

    def to_document(self) -> PointsDocument:
        """Give the batch as it is written down; its number is the name of the file."""
        return PointsDocument(
            first_row=self.first_row,
            at=self.at,
            rows=self.rows,
            spans=self.spans,
            steps=self.steps,
        )

    @property
    def next_row(self) -> int:
        """The number of the first row of the next batch."""
        return self.first_row + len(self.rows)

    def time_of(self, row: PointRow) -> float:
        """Return the time of a row, in seconds since the epoch."""
        return self.at if row.at is None else row.at


class PointLog:
    """The batches of one run. `extend` alone looks at the commits."""

    def __init__(
        self, run: RunStore, records: Records | None = None, now: Callable[[], float] = time.time
    ) -> None:
        """Reads nothing yet."""
        self._run, self._now = run, now
        self._records = records or Records(run)
        self._rewinds: int | None = None
        self._last: Batch | None = None

    @property
    def rewinds(self) -> int:
        """The count of rewinds: each did the run again from some place."""
        return self._records.rewinds

    @property
    def run_id(self) -> str:
        """The id of the run in every tracker: 16 hex digits, the same for as long as its points
        stay."""
        record = self._records.shown.record
        return digest(["tracker run", self._run.name, record.created_at, self.rewinds])[:16]

    @property
    def run_name(self) -> str:
        """The name of the run in trackers."""
        return self._run.name + (f"-again-{self.rewinds}" if self.rewinds else "")

    @property
    def settings(self) -> dict[str, JsonValue]:
        """The settings of the run, as trackers show them."""
        return dict(self._records.shown.record.parameters)

    @property
    def facts(self) -> dict[str, str]:
        """Further facts of the run, by name."""
        record = self._records.shown.record
        return {
            "nip.run": self._run.name,
            "nip.run_id": self.run_id,
            "nip.store": f"{self._run.store.url}/{self._run.root}",
            "nip.code_version": record.code_version,
            "nip.created_at": record.created_at,
        }

    def extend(self) -> int:
        """Write all points committed since as a new batch, and return the count of batches."""
        while True:
            self._records.look_again()
            if self._rewinds != self.rewinds:
                self._rewinds, self._last = self.rewinds, None
            self._catch_up()
            batch = self._next()
            if batch is None:
                return self._count()
            path, document = self._path(batch.number), encode(batch.to_document().model_dump())
            # Another process may write the same number: its file is read then.
            if self._run.store.put_if_absent(path, document):
                self._last = batch

    def read(self, number: int) -> Batch:
        """Read a batch. Raises MissingFileError or CorruptionError."""
        path = self._path(number)
        try:
            points = PointsDocument.model_validate(self._run.read_json(path))
        except ValidationError as error:
            raise CorruptionError(
                f"{path}: damaged, not a list of points ({first_fault(error)}); restore it from a "
                "copy, or delete the run's directory tracking: trackers then begin a new run"
            ) from error
        return Batch(number, points.first_row, points.rows, points.at, points.spans, points.steps)

    def _count(self) -> int:
        return 0 if self._last is None else self._last.number + 1

    def _catch_up(self) -> None:
        if self._last is None:
            names = self._run.store.list(f"{self._run.root}/tracking/points/{self.rewinds:04d}")
            numbers = [int(name.partition(".")[0]) for name in names if name[0].isdigit()]
            self._last = self.read(max(numbers)) if numbers else None
        while self._run.store.exists(self._path(self._count())):
            self._last = self.read(self._count())

    def _next(self) -> Batch | None:
        """Make the batch of all points not logged yet; None if there are none."""
        spans = {} if self._last is None else self._last.spans
        steps = {} if self._last is None else self._last.steps
        rows: list[PointRow] = []
        rewinds = self.rewinds
        is_new = False
        for record in self._records.all():
            for part in list_parts(record):
                if is_logged(spans, part, record.iteration):
                    continue
                of_part, steps = read_rows(self._run, self._records, record.iteration, part, steps)
                rows += of_part
                spans = add_part(spans, part, record.iteration)
                is_new = True
        # No point may be told of an iteration that was set aside meanwhile.
        self._records.look_again()
        if not is_new or self.rewinds != rewinds:
            return None
        first = 0 if self._last is None else self._last.next_row
        return Batch(self._count(), first, tuple(rows), round(self._now(), 3), spans, steps)

    def _path(self, number: int) -> str:
        return f"{self._run.root}/tracking/points/{self.rewinds:04d}/{number:06d}.json"
