"""trackio: its SQLite files on this machine, or a server of it.

Every row has an id that derives from the run's and its number. trackio's table takes an id once,
so a row that is sent again changes nothing.
"""

import os
from datetime import UTC, datetime
from typing import Any

from nip_bridges.tracking.point_log import Batch
from nip_bridges.tracking.trackers import Cursor, RunToTrack, TrackerError
from nip_core.redaction import read_key

_TIMEOUT_S = 20.0


class TrackioTracker:
    """A run of a trackio project."""

    waits_s = 0.0

    def __init__(self, project: str, server: str | None, directory: str | None) -> None:
        """`server`: its address; None: the files in `directory`, by default trackio's own."""
        self._project, self._server, self._directory = project, server, directory
        self._run: RunToTrack | None = None
        self._client: Any = None

    def load(self) -> None:
        """Set the place of trackio's files, then import it: the import reads the place."""
        if self._directory is not None:
            os.environ["TRACKIO_DIR"] = self._directory
        import trackio  # noqa: F401

    def open(self, run: RunToTrack, cursor: Cursor) -> int:
        """Return the first batch trackio may lack: 0 if its files have too few rows."""
        self._run = run
        if self._server is not None:
            from trackio.remote_client import RemoteClient

            token = read_key(os.environ, "TRACKIO_WRITE_TOKEN")
            timeout = {"timeout": _TIMEOUT_S}
            self._client = RemoteClient(
                self._server.partition("?")[0],
                write_token=token or None,
                httpx_kwargs=timeout,
                verbose=False,
            )
            return cursor.received
        from trackio import SQLiteStorage

        SQLiteStorage.validate_project_name(self._project)
        rows = SQLiteStorage.get_log_count(self._project, run.name, run_id=run.id)
        return cursor.received if rows >= cursor.rows else 0

    def cursor(self) -> dict[str, str]:
        """Return nothing: counting batches and rows is enough."""
        return {}

    def send(self, batches: list[Batch]) -> None:
        """Send the rows of each batch, in one transaction."""
        for batch in batches:
            self._send(batch)

    def close(self) -> None:
        """Do nothing: all was sent."""

    def _send(self, batch: Batch) -> None:
        assert self._run is not None  # it was opened
        run, numbers = self._run, range(batch.first_row, batch.next_row)
        if not batch.rows:
            return
        ids = [f"{run.id}-{number}" for number in numbers]
        config = {**run.facts, **run.settings}
        if self._server is None:
            from trackio import SQLiteStorage

            times = [datetime.fromtimestamp(batch.time_of(row), UTC) for row in batch.rows]
            SQLiteStorage.bulk_log(
                project=self._project,
                run=run.name,
                run_id=run.id,
                metrics_list=[dict(row.values) for row in batch.rows],
                steps=[row.step for row in batch.rows],
                timestamps=[time.isoformat() for time in times],
                log_ids=ids,
                config=config,
            )
            return
        entries = [
            {
                "project": self._project,
                "run": run.name,
                "run_id": run.id,
                "metrics": dict(row.values),
                "step": row.step,
                "config": config if number == batch.first_row else None,
                "log_id": id,
            }
            for row, number, id in zip(batch.rows, numbers, ids, strict=True)
        ]
        try:
            self._client.predict(api_name="/bulk_log", logs=entries, hf_token=None)
        except RuntimeError as error:
            raise TrackerError(f"trackio: {error}") from error
