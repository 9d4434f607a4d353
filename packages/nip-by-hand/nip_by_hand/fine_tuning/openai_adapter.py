"""The trainer adapter for servers that speak OpenAI's protocol: OpenAI's own, and lm_server.

OpenAITrainerAdapter         submit, status, wait_until_complete, cancel ... over them

Rows come from `conversion`, jobs are created by the ledger under numbers that `submissions` keeps
in the state directory. So a reference outlives its process, and asking twice changes nothing.
Every call has connections of its own: an adapter may be used from one event loop after another.

The key is read from the environment when it is needed. It is in no configuration, file, log line
or representation.
"""

import hashlib
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from nip_base.wire import NipSettings
from nip_by_hand.fine_tuning.conversion import to_jsonl_rows
from nip_by_hand.fine_tuning.interface import (
    FinetuneConfig,
    TrainerAdapter,
    TrainingJobRef,
    TrainingJobStatus,
    TrainingStatusEnum,
    TrajectoryCollection,
    UnhealthyError,
    as_ours,
)
from nip_by_hand.fine_tuning.job_data import JobSettings
from nip_by_hand.fine_tuning.openai_adapter_config import OpenAITrainerAdapterConfig
from nip_by_hand.fine_tuning.progress_log import append_progress
from nip_by_hand.fine_tuning.submissions import Submissions
from nip_core.errors import JobError, ServerError, SettingsError
from nip_core.jobs.job import Backend, BackendTrouble, JobRecord, JobSpec, JobView
from nip_core.jobs.server_calls import LmServer, version_problem
from nip_core.jobs.services import open_backend
from nip_core.jobs.steps import look_for_steps
from nip_core.parameters.services.providers import OpenAI, SelfHosted
from nip_core.rollouts.client.completions import Endpoint

__all__ = ["BACKEND", "OpenAITrainerAdapter", "OpenAITrainerAdapterConfig"]

BACKEND = "openai"
_HEALTH_TIMEOUT_S = 15.0
_STATUSES = {
    "validating_files": TrainingStatusEnum.PENDING,
    "queued": TrainingStatusEnum.PENDING,
    "succeeded": TrainingStatusEnum.COMPLETED,
    "cancelled": TrainingStatusEnum.CANCELED,
    "failed": TrainingStatusEnum.FAILED,
    "not_found": TrainingStatusEnum.FAILED,
    "refused": TrainingStatusEnum.FAILED,
    "skipped": TrainingStatusEnum.FAILED,
    "deadline": TrainingStatusEnum.FAILED,
}
"""Of jobs and outcomes; any other one goes on."""


class OpenAITrainerAdapter(TrainerAdapter):
    """Trains on a server that speaks OpenAI's protocol. See `OpenAITrainerAdapterConfig`."""

    def __init__(self, adapter_config: OpenAITrainerAdapterConfig) -> None:
        super().__init__(adapter_config)
        self.config = adapter_config
        server = adapter_config.server
        self._nip: bool | None = None if server == "auto" else server == "nip"

    async def initialize(self, run_config: FinetuneConfig) -> None:
        """Reach the server. Raises UnhealthyError, a ConnectionError, with the reason why not;
        SettingsError for settings unknown to the server.
        """
        await super().initialize(run_config)
        problem = await self._problem()
        if problem is not None:
            raise UnhealthyError(problem)
        await self._settings()

    async def is_healthy(self) -> bool:
        """True if the server knows the key and the model, fits this version, and shows its jobs."""
        return await self._problem() is None

    async def submit(self, trajectories: TrajectoryCollection) -> TrainingJobRef:
        """Train on `trajectories`, once.

        The same collection with the same settings under the same run id gives the same reference
        while it is under way. Another one raises LiveSubmission, a ValueError; after the end it is
        the next submission. Raises ValueError for data that can't be trained on, before anything is
        sent; JobError for a job that the server refuses.
        """
        # 1. Make the lines, by the settings that this server takes.
        trajectories = as_ours(TrajectoryCollection, trajectories)
        config, run_id = self.config, trajectories.run_id
        settings = await self._settings()
        data, examples = to_jsonl_rows(
            trajectories,
            config.method,
            reward_threshold=config.reward_threshold,
            advantage=config.advantage,
        )
        # 2. Describe the job, for the number that it gets.
        submissions = self._submissions()

        def make(number: int) -> JobSpec:
            last = None
            if config.train_from == "last_model":
                last = submissions.last_model(run_id, number)
            return submissions.spec(
                run_id,
                number,
                parent_model=last or config.model,
                dataset_digest=hashlib.sha256(data).hexdigest(),
                examples=examples,
                method=config.method,
                seed=config.seed,
                hyper_parameters=settings.hyper_parameters,
                nip=settings.nip,
                integrations=config.integrations,
            )

        # 3. Submit it, or find it.
        async with self._backend() as backend:
            number, record = await submissions.submit(run_id, make, data, backend)
        return TrainingJobRef(
            run_id=run_id, backend=BACKEND, metadata={"submission": number, "job_id": record.id}
        )

    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Tell where the job stands, from any process; after its end always the same.

        When the server can't be asked, it is the last known one, and the message says so.
        """
        number = self._number(ref)
        await self._learn_kind()
        submissions = self._submissions()
        async with self._backend() as backend:
            try:
                record, view = await submissions.look(ref.run_id, number, backend)
            except BackendTrouble as error:
                last_record = submissions.record(ref.run_id, number)
                if last_record is None:
                    raise _unknown_reference(ref, number) from None
                return self._status(
                    ref, number, last_record, None, f"The last look failed: {error}"
                )
            progress = None if view is None else await self._progress(backend, view)
        return self._status(ref, number, record, view, progress=progress)

    async def wait_until_complete(
        self, ref: TrainingJobRef, poll_interval: float = 10.0
    ) -> TrainingJobStatus:
        """Wait for the end of the job, looking every `poll_interval` seconds, above 0.

        While nothing changes it looks less often, up to every 30 s. Raises JobError when
        `deadline_s` after the submission has passed, or the server denies access; the job goes on,
        and waiting again is fine.
        """
        if not poll_interval > 0:
            raise ValueError(f"poll_interval must be above 0 seconds (got {poll_interval})")
        number = self._number(ref)
        await self._learn_kind()
        async with self._backend() as backend:
            record = await self._submissions().follow(
                ref.run_id,
                number,
                backend,
                interval_s=poll_interval,
                deadline_s=self.config.deadline_s,
            )
        return self._status(ref, number, record)

    async def cancel(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Ask the server to stop the job, and return where it stands then.

        Raises JobError if the server refuses.
        """
        number = self._number(ref)
        await self._learn_kind()
        async with self._backend() as backend:
            try:
                await self._submissions().cancel(ref.run_id, number, backend)
            except JobError:
                status = await self.status(ref)
                if status.status in (TrainingStatusEnum.PENDING, TrainingStatusEnum.RUNNING):
                    raise
                return status  # it had ended before
        return await self.status(ref)

    def log_progress(
        self, ref: TrainingJobRef, metrics: dict[str, Any], output_dir: str | None = None
    ) -> None:
        """Append one JSON line: timestamp, run_id, backend, trainer_config, and `metrics`.

        The file is ``trainer_adapter_<run id>.jsonl`` in `output_dir`, see `progress_log`.
        """
        config = self.config
        trainer_config = {
            "base_url": config.url,
            "model": config.model,
            "method": config.method,
            "hyperparameters": config.hyperparameters,
        }
        append_progress(ref, metrics, trainer_config, output_dir)

    # Inside -----------------------------------------------------------------------------------

    def _backend(self) -> AbstractAsyncContextManager[Backend]:
        # Connections belong to the event loop that opened them, and an adapter may be called from
        # one loop after another: each call opens its own.
        endpoint = Endpoint(self.config.url, self.config.key())
        return open_backend(SelfHosted if self._nip else OpenAI, endpoint)

    def _submissions(self) -> Submissions:
        config = self.config
        return Submissions(
            config.state_dir,
            BACKEND,
            settle_s=config.settle(is_nip=bool(self._nip)),
            patience_s=config.patience_s,
        )

    async def _problem(self) -> str | None:
        """Tell why the server would not take a job, or None."""
        config = self.config
        try:
            endpoint = Endpoint(config.url, config.key())
        except SettingsError as error:
            return str(error)
        # 1. The key must open the model and the list of jobs.
        async with open_backend(OpenAI, endpoint, timeout_s=_HEALTH_TIMEOUT_S) as backend:
            try:
                described = await backend.describe_model(config.model)
            except BackendTrouble as error:
                return f"{config.url}: model {config.model!r} can't be had: {error}"
            try:
                await backend.check_jobs()
            except BackendTrouble as error:
                return f"{config.url}: its jobs can't be listed: {error}"
        # 2. A server of ours describes its models as no other does, and must have our version.
        if config.server == "auto":
            self._nip = described.is_lm_servers
        if not self._nip:
            return None
        server = LmServer(endpoint, _HEALTH_TIMEOUT_S)
        try:
            _, version = await server.version()
        except ServerError as error:
            return str(error)
        problem = version_problem(version)
        return problem and f"{server.root}: the server has {problem}"

    async def _learn_kind(self) -> None:
        """Ask whether the server is ours; without an answer it stays open."""
        if self._nip is None:
            await self._problem()

    async def _settings(self) -> JobSettings:
        """The settings to send. Raises SettingsError where the server has no words for them."""
        if self._nip is None:
            problem = await self._problem()
            if self._nip is None:
                raise UnhealthyError(str(problem))
        config = self.config
        settings = config.settings()
        nip_settings = sorted(settings.nip.model_fields_set)
        wrong = None
        if self._nip and config.wandb_project is not None:
            wrong = "wandb_project: only OpenAI reports its jobs there"
        elif not self._nip and config.method == "trajectories":
            wrong = "method trajectories needs a server of nip"
        elif not self._nip and nip_settings:
            wrong = f"hyperparameters {nip_settings} need a server of nip"
        if wrong is not None:
            raise SettingsError(f"{config.url}: {wrong}")
        return settings

    def _number(self, ref: TrainingJobRef) -> int:
        """The number of the submission; of a reference without one, the newest."""
        submissions = self._submissions()
        number: Any = (ref.metadata or {}).get("submission")
        if number is None and (newest := submissions.newest(ref.run_id)) is not None:
            number = newest[0]
        is_number = isinstance(number, int) and not isinstance(number, bool)
        if ref.backend != BACKEND or not is_number:
            raise _unknown_reference(ref, number)
        if submissions.record(ref.run_id, number) is None:
            raise _unknown_reference(ref, number)
        return int(number)

    async def _progress(self, backend: Backend, view: JobView) -> float | None:
        """Tell the share of finished steps, in percent, where the server reports it."""
        try:
            steps = await look_for_steps(backend, view)
        except BackendTrouble:
            return None
        return None if steps is None else steps.percent

    def _status(
        self,
        ref: TrainingJobRef,
        number: int,
        record: JobRecord,
        view: JobView | None = None,
        trouble: str = "",
        progress: float | None = None,
    ) -> TrainingJobStatus:
        last = record.outcome or (view.status if view is not None else record.status)
        if record.state == "intent":
            status, message = TrainingStatusEnum.PENDING, "Being submitted, or cut short."
        else:
            status = _STATUSES.get(str(last), TrainingStatusEnum.RUNNING)
            message = {
                TrainingStatusEnum.PENDING: f"Training has not begun ({last}).",
                TrainingStatusEnum.RUNNING: f"Training is in progress ({last}).",
                TrainingStatusEnum.COMPLETED: "Training completed successfully.",
                TrainingStatusEnum.CANCELED: "Training was cancelled.",
                TrainingStatusEnum.FAILED: f"Training failed with error: {record.reason}",
            }[status]
        if status is TrainingStatusEnum.COMPLETED:
            progress = 100.0
        return TrainingJobStatus(
            run_id=ref.run_id,
            backend=ref.backend,
            status=status,
            progress=progress,
            message=f"{message} {trouble}".strip(),
            metadata={
                "submission": number,
                "job_id": record.id,
                "model": record.model,
                "parent_model": record.parent_model,
                "method": record.method,
                "examples": record.examples,
                "trained_tokens": record.trained_tokens,
                "last_status": last,
                "hyperparameters": _settings_used(view.effective if view else record.effective),
            },
        )


def _unknown_reference(ref: TrainingJobRef, number: Any) -> ValueError:
    return ValueError(
        f"No training job found with run_id {ref.run_id}. (backend {ref.backend!r}, submission "
        f"{number!r}; this adapter knows those of backend {BACKEND!r} in its state_dir)"
    )


def _settings_used(effective: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """List the settings of the training as the server reports them, ours among the rest."""
    if effective is None:
        return None
    ours = effective.get("nip") or {}
    known_names = {*NipSettings.model_fields, "effective_learning_rate"}
    plain = {name: value for name, value in effective.items() if name != "nip"}
    return plain | {name: value for name, value in ours.items() if name in known_names}
