"""The history of a job: the events of the API, the metrics among them, and its own log.

JobEvents.add            append an event
JobEvents.add_new        ... unless it is the newest already
JobEvents.add_training   append a trainer's reports; progress becomes events of type `metrics`
JobEvents.list_page      a page of the events endpoint
JobEvents.read_metrics   the reported figures of steps
step_data                a trainer's report of a step -> its StepFigures
JobEvents.log            one JSON line in ``<job>/log.jsonl``, for the user who runs the server
"""

import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypedDict

from nip_base import wire
from nip_base.api_errors import not_found
from nip_lm_server.state.database import Database, dump, load
from nip_lm_server.state.rows import EventRow, read_row

StepFigures = dict[str, float | None]
"""The figures of a step by their names: `step`, `total_steps`, and the figures of its method."""

_log = logging.getLogger("nip.lm_server.jobs")
_RENAMED = {
    "loss": "train_loss",
    "validation_loss": "valid_loss",
    "remaining_s": "time_left_s",
}
"""A trainer's names of figures, and the names in an event."""


class JobError(TypedDict):
    """The end of a job that failed."""

    code: str
    message: str
    param: str | None


class Publication(TypedDict):
    """A new model that answers: the seconds until it did, and its `Proof`."""

    swap_s: float
    proof: dict[str, Any]


EventData = StepFigures | JobError | Publication
"""An event's data beside its message: a step's, a failure's or a new model's."""


class EventObject(TypedDict):
    """OpenAI's `fine_tuning.job.event`; `data` is an empty object where there is none."""

    object: str
    id: str
    created_at: int
    level: Literal["info", "warn", "error"]
    message: str
    type: Literal["message", "metrics"]
    data: EventData


class JobEvents:
    """The events of one server's jobs. `clock` tells the time in seconds since 1970."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time):
        self._database = database
        self._clock = clock
        self._directory: Path | None = None
        self._first_progress: dict[str, tuple[int, float]] = {}

    def log_into(self, directory: Path) -> None:
        """From now on `log` writes into ``<directory>/<job id>/log.jsonl``."""
        self._directory = directory

    def log(self, id: str, event: str, level: str = "info", **fields: Any) -> None:
        """Append one line {"time", "level", "event", ...}. It is no error if the disk refuses."""
        if self._directory is None:
            return
        time_text = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        line = json.dumps(
            {"time": time_text, "level": level, "event": event, "job": id, **fields},
            ensure_ascii=False,
            default=str,
        )
        try:
            (self._directory / id).mkdir(exist_ok=True)
            with (self._directory / id / "log.jsonl").open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            _log.warning("can't write the log of %s: %s", id, error)

    def add(
        self,
        id: str,
        message: str,
        *,
        level: str = "info",
        type: str = "message",
        data: EventData | None = None,
    ) -> None:
        """Append an event for the events endpoint."""
        self._database.insert(
            "events",
            id="ftevent-" + secrets.token_hex(12),
            job_id=id,
            created_at=self._clock(),
            level=level,
            type=type,
            message=message,
            data=dump(data),
        )

    def add_new(self, id: str, message: str, *, level: str = "info") -> None:
        """`add`, unless the newest event says this already."""
        newest = self._database.fetch_one(
            "SELECT message FROM events WHERE job_id = ? ORDER BY seq DESC LIMIT 1", id
        )
        if newest is None or newest["message"] != message:
            self.add(id, message, level=level)

    def begin_attempt(self, id: str) -> None:
        """Measure the pace anew: the job's training process starts."""
        self._first_progress.pop(id, None)

    def add_training(self, id: str, events: Sequence[Mapping[str, Any]]) -> None:
        """Enter a trainer's reports in one transaction."""
        messages: list[tuple[str, str]] = []
        with self._database.transaction():
            for event in events:
                if event.get("type") == "progress":
                    self._add_progress(id, event)
                    continue
                level = {"warning": "warn"}.get(str(event.get("level")), event.get("level"))
                level = level if level in ("info", "warn", "error") else "info"
                messages.append((level, str(event.get("message", ""))))
                self.add(id, messages[-1][1], level=level)
        # Logged once the transaction is committed.
        for level, message in messages:
            self.log(id, "training_message", level, message=message)

    def _add_progress(self, id: str, event: Mapping[str, Any]) -> None:
        now = self._clock()
        data = step_data(event)
        step, total = step_number(data), int(data["total_steps"] or 0)
        if "time_left_s" not in data:
            data["time_left_s"] = self._time_left_s(id, step, total, now)
        loss = data["train_loss"]
        loss_text = "" if loss is None else f": training loss={loss:.4f}"
        self.add(id, f"Step {step}/{total}{loss_text}", type="metrics", data=data)
        self._database.execute(
            "UPDATE jobs SET progress = ? WHERE id = ?", dump({**data, "at": now}), id
        )

    def _time_left_s(self, id: str, step: int, total: int, now: float) -> float | None:
        """Estimate the time left by the pace since the attempt's first reported step.

        Returns None before its second one.
        """
        if step >= total:
            return 0.0
        first_step, first_at = self._first_progress.setdefault(id, (step, now))
        if step <= first_step:
            return None
        return round((now - first_at) / (step - first_step) * (total - step), 1)

    def list_page(self, id: str, *, limit: int, after: str | None) -> wire.Page[EventObject]:
        """One page of a job's events, newest first. Raises ApiError 404 for an unknown `after`."""
        end_seq = None
        if after is not None:
            last = self._database.fetch_one(
                "SELECT seq FROM events WHERE id = ? AND job_id = ?", after, id
            )
            if last is None:
                raise not_found("event", after, "after")
            end_seq = last["seq"]
        rows = self._database.fetch_all(
            "SELECT * FROM events WHERE job_id = ? AND (? IS NULL OR seq < ?) "
            "ORDER BY seq DESC LIMIT ?",
            id,
            end_seq,
            end_seq,
            limit + 1,
        )
        data: list[EventObject] = [
            {
                "object": "fine_tuning.job.event",
                "id": row.id,
                "created_at": int(row.created_at),
                "level": row.level,
                "message": row.message,
                "type": row.type,
                "data": load(row.data) or {},
            }
            for row in (read_row(EventRow, cells) for cells in rows[:limit])
        ]
        return wire.list_object(data, len(rows) > limit)

    def read_metrics(self, id: str) -> list[StepFigures]:
        """Return the figures as they were reported; a step may be missing, or there twice."""
        rows = self._database.fetch_all(
            "SELECT data FROM events WHERE job_id = ? AND type = 'metrics' ORDER BY seq", id
        )
        return [load(row["data"]) for row in rows]


def step_data(event: Mapping[str, Any]) -> StepFigures:
    """The figures of one step, under their names in events and in the result file."""
    data: StepFigures = {
        "step": int(event.get("step") or 0),
        "total_steps": int(event.get("total_steps") or 0),
        "train_loss": None,
        "learning_rate": None,
        "epoch": None,
        "tokens": None,
    }
    # A method's own figures (margins, ratios ...) keep their names.
    for name, value in event.items():
        if isinstance(value, int | float) and name not in ("step", "total_steps"):
            data[_RENAMED.get(name, name)] = value
    return data


def step_number(figures: StepFigures) -> int:
    """Return the number of the step, from 1."""
    return int(figures["step"] or 0)
