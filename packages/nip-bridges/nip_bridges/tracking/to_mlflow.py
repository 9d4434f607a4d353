"""MLflow: a run of an experiment, on a server, in a database or in files.

MLflow names its runs itself. The run is found again by a tag that is given with its creation, so a
process that was killed before it wrote the name down makes no second one. MLflow's database takes a
metric of the same step, time and value once, but its files do not; so what a killed process or a
call without an answer may have sent is asked for before it is sent again.
"""

import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from pydantic import JsonValue

from nip_bridges.tracking.point_log import Batch
from nip_bridges.tracking.trackers import Cursor, RunToTrack, TrackerError

_TAG = "nip.run_id"
_METRICS_PER_CALL = 1000  # most that MLflow takes
_PARAMETERS_PER_CALL = 100  # the same
_VALUE_CHARACTERS = 6000  # the same, of a parameter
_PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "20", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}


class MlflowTracker:
    """A run of an MLflow experiment."""

    waits_s = 0.0

    def __init__(self, uri: str | None, experiment: str) -> None:
        """Connect to `uri`; None stands for that of the environment, or MLflow's default."""
        self._uri, self._experiment = uri, experiment
        self._client: Any = None
        self._run_id = ""
        self._in_doubt = True  # the next batch may be there, or a part of it

    def load(self) -> None:
        """Import MLflow, with limits on its waits: by default it waits minutes for an answer."""
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        import mlflow  # noqa: F401

    def open(self, run: RunToTrack, cursor: Cursor) -> int:
        """Find or create the run, and return the first batch it may lack."""
        from mlflow import MlflowClient

        self._client = MlflowClient(self._uri)
        self._in_doubt = True
        found_run = self._known(run, cursor)
        if found_run is None:
            self._run_id = self._create(run)
            found_run = self._client.get_run(self._run_id)
        self._run_id = found_run.info.run_id
        self._log_parameters(run, found_run.data.params)
        return cursor.received if self._run_id == cursor.mlflow_run_id else 0

    def cursor(self) -> dict[str, str]:
        """Return the run's name in MLflow."""
        return {"mlflow_run_id": self._run_id}

    def send(self, batches: list[Batch]) -> None:
        """Send the missing numbers, at most 1000 a call.

        After the first batch of which nothing is there, nothing of later ones is.
        """
        from mlflow.entities import Metric

        for batch in batches:
            metrics = [
                Metric(name, value, round(1000 * batch.time_of(row)), row.step)
                for row in batch.rows
                for name, value in row.values.items()
            ]
            lacking = metrics
            if self._in_doubt:
                known_steps = {
                    name: self._steps(name) for name in {metric.key for metric in metrics}
                }
                lacking = [m for m in metrics if m.step not in known_steps[m.key]]
            self._in_doubt = True  # until all of it was taken
            for part in _split(lacking, _METRICS_PER_CALL):
                self._client.log_batch(self._run_id, metrics=part)
            self._in_doubt = len(lacking) < len(metrics) or not metrics

    def close(self) -> None:
        """Do nothing: all was sent."""

    def _known(self, run: RunToTrack, cursor: Cursor) -> Any:
        """Look for the run; None without one. Raises TrackerError if it was deleted."""
        from mlflow.exceptions import MlflowException

        try:
            if cursor.mlflow_run_id is not None:
                mlflow_run = self._client.get_run(cursor.mlflow_run_id)
                if mlflow_run.info.lifecycle_stage == "deleted":
                    raise TrackerError(
                        f"MLflow's run {cursor.mlflow_run_id} was deleted: restore it (mlflow "
                        "runs restore), or leave mlflow out of tracking"
                    )
                return mlflow_run
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
        experiment = self._client.get_experiment_by_name(self._experiment)
        if experiment is None:
            return None
        runs = self._client.search_runs(
            [experiment.experiment_id],
            f"tags.`{_TAG}` = '{run.id}'",
            order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
        )
        return runs[0] if runs else None

    def _create(self, run: RunToTrack) -> str:
        from mlflow.exceptions import MlflowException

        experiment = self._client.get_experiment_by_name(self._experiment)
        if experiment is None:
            try:
                experiment_id = self._client.create_experiment(self._experiment)
            except MlflowException:  # another run was faster
                experiment_id = self._client.get_experiment_by_name(self._experiment).experiment_id
        elif experiment.lifecycle_stage == "deleted":
            raise TrackerError(
                f"MLflow's experiment {self._experiment!r} was deleted: restore it (mlflow "
                "experiments restore), or set another project"
            )
        else:
            experiment_id = experiment.experiment_id
        began = datetime.fromisoformat(run.facts["nip.created_at"]).timestamp()
        created = self._client.create_run(
            experiment_id,
            start_time=round(1000 * began),
            tags={**run.facts, _TAG: run.id},
            run_name=run.name,
        )
        return str(created.info.run_id)

    def _log_parameters(self, run: RunToTrack, parameters: Mapping[str, str]) -> None:
        """Log the settings MLflow lacks. It lets no client change one."""
        from mlflow.entities import Param

        lacking = [
            Param(name, value[:_VALUE_CHARACTERS])
            for name, value in _flatten(run.settings)
            if name not in parameters
        ]
        for part in _split(lacking, _PARAMETERS_PER_CALL):
            self._client.log_batch(self._run_id, params=part)

    def _steps(self, name: str) -> set[int]:
        return {m.step for m in self._client.get_metric_history(self._run_id, name)}


def _split(items: list[Any], size: int) -> Iterator[list[Any]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


def _flatten(settings: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Give settings by dotted name, without their classes and without unset ones."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif name != "_type" and value is not None:
            yield f"{prefix}{name}", str(value)
