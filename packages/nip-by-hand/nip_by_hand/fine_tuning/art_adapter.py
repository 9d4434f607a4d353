"""The trainer adapter over OpenPipe ART: NeMo's `ARTTrainerAdapter`, for jobs that outlive it.

ARTTrainerAdapter   submit, status, wait_until_complete, cancel ... over an `art.Backend`

By default that is `LmServerBackend` at the configured address. Submissions are on record in
the state directory (`art_jobs`), a step's job in the backend's (`art_backend`): a reference
outlives its process, and asking twice changes nothing. Any other `art.Backend` trains in a task of
this process; then only the end is on record, and a job whose process died without one has failed.

Needs the package `art` (scripts/build_art.sh). Differences from NeMo's: docs/art.md.
"""

import asyncio
import logging
import time
from typing import Any

try:
    import art
except ImportError as error:
    raise ImportError(
        "nip_core.fine_tuning.art_adapter needs OpenPipe ART (openpipe-art): build an environment "
        "with it by scripts/build_art.sh and run there; see docs/art.md"
    ) from error

from nip_by_hand.fine_tuning.art.art_adapter_config import ARTBackendConfig, ARTTrainerAdapterConfig
from nip_by_hand.fine_tuning.art.art_backend import LmServerBackend
from nip_by_hand.fine_tuning.art.art_client import explain_unlisted
from nip_by_hand.fine_tuning.art.art_episodes import check_order, to_groups, trains_anything
from nip_by_hand.fine_tuning.art.art_jobs import (
    NOTHING_TRAINED,
    AdapterJob,
    AdapterJobs,
    make_status,
)
from nip_by_hand.fine_tuning.art.art_model_config import model_config
from nip_by_hand.fine_tuning.art.art_steps import JobFailed, StepJob
from nip_by_hand.fine_tuning.interface import (
    FinetuneConfig,
    TrainerAdapter,
    TrainingJobRef,
    TrainingJobStatus,
    TrainingStatusEnum,
    Trajectory,
    TrajectoryCollection,
    UnhealthyError,
    as_ours,
)
from nip_by_hand.fine_tuning.job_data import Setting
from nip_by_hand.fine_tuning.progress_log import append_progress
from nip_core.errors import JobError, NipError, StageError
from nip_core.hashing import digest
from nip_core.jobs.job import BackendTrouble, JobView
from nip_core.redaction import redact
from nip_core.run_store.lease import ThisMachine

__all__ = ["BACKEND", "ARTBackendConfig", "ARTTrainerAdapter", "ARTTrainerAdapterConfig"]

BACKEND = "openpipe-art"
_TRAINABLE = "data/step_num_groups_trainable"  # as ART counts them
_LOOK_S = 0.2
logger = logging.getLogger(__name__)


class JobExistsError(NipError, AssertionError, ValueError):
    """A job under this run id is under way."""


class ARTTrainerAdapter(TrainerAdapter):
    """Trains an ART model. `backend` replaces the one made of the configuration."""

    adapter_config: ARTTrainerAdapterConfig
    remote_backend: "art.Backend"
    model: "art.TrainableModel[Any, Any]"

    def __init__(
        self, adapter_config: ARTTrainerAdapterConfig, backend: "art.Backend | None" = None
    ) -> None:
        """Reach nothing. Raises SettingsError for impossible options."""
        adapter_config = ARTTrainerAdapterConfig.model_validate(adapter_config)  # or NeMo's own
        super().__init__(adapter_config)
        server = adapter_config.backend
        self.remote_backend = backend or LmServerBackend(
            server.url,
            api_key=server.key(),
            state_dir=adapter_config.state_dir,
            deadline_s=adapter_config.deadline_s,
            poll_interval_s=_LOOK_S,
            wait_at_register=False,
        )
        self._server: LmServerBackend | None = (
            self.remote_backend if isinstance(self.remote_backend, LmServerBackend) else None
        )
        self._model_internal_config = model_config(adapter_config, self.remote_backend)
        self.model = art.TrainableModel(
            name=server.name,
            project=server.project,
            base_model=server.base_model,
            base_path=f"{adapter_config.state_dir}/art",
            _internal_config=self._model_internal_config,
        )
        self._training_jobs: dict[str, asyncio.Task[None]] = {}
        self._jobs = AdapterJobs(adapter_config.state_dir)
        self._submitting = asyncio.Lock()

    @property
    def training_jobs(self) -> dict[str, asyncio.Task[None]]:
        """Give the tasks of this process by run id: each trains, or waits for a server."""
        return self._training_jobs

    async def initialize(self, run_config: FinetuneConfig) -> None:
        """Register the model. Raises UnhealthyError, a ConnectionError, if the back-end is not
        healthy; SettingsError for an impossible configuration.
        """
        await super().initialize(run_config)
        server_config = self.adapter_config.backend.server_config
        if self._server is not None:  # it runs already, and has been told
            server_config = None
            await self._check()
        await self.model.register(self.remote_backend, _openai_client_config=server_config)
        await self._check()

    async def is_healthy(self) -> bool:
        """Return True if the server at the configured port takes the key and has the model."""
        problem = await self._problem()
        if problem is not None:
            logger.warning("not healthy: %s", problem)
        return problem is None

    async def _validate_episode_order(self, traj: Trajectory) -> None:
        """Raise ValueError unless the episode's order keeps the rules, see `check_order`."""
        check_order(as_ours(Trajectory, traj), strict=self.adapter_config.strict)

    async def _construct_trajectory_groups(
        self, trajectory_lists: list[list[Trajectory]]
    ) -> "list[art.TrajectoryGroup]":
        """ART's groups, one for each example; see `to_groups`. Raises ValueError."""
        strict = self.adapter_config.strict
        return await to_groups(trajectory_lists, self._validate_episode_order, strict=strict)

    async def submit(self, trajectories: TrajectoryCollection) -> TrainingJobRef:
        """Train on `trajectories`, and return once a server has the job, or the task has begun.

        While a job under the run id is under way, another raises JobExistsError, an AssertionError
        and a ValueError; but the same collection, of a process that is gone, goes on and gives the
        same reference. After the end it is the next submission. Raises ValueError for data that
        can't be trained on, StageError, a RuntimeError, before `initialize`.
        """
        if self.model._backend is None:
            raise StageError("submit: no model is registered; await initialize(run_config) first")
        trajectories = as_ours(TrajectoryCollection, trajectories)
        options = self.adapter_config.options()
        # Two submissions at once would both find no job under way, and train two steps.
        async with self._submitting:
            # 1. Refuse data that can't be trained on before anything is on record.
            groups = await self._construct_trajectory_groups(trajectories.trajectories)
            without_logprobs = bool(options.get("allow_training_without_logprobs"))
            if not trains_anything(groups, without_logprobs=without_logprobs):
                raise ValueError(
                    f"No valid trajectory groups to submit. (run_id {trajectories.run_id!r}: no "
                    "message of the assistant's with log-probabilities is in any)"
                )
            # 2. Claim a place for it, or find its own of an earlier process.
            job = await self._begin_job(trajectories)
            if job.step is not None and job.submission is not None:
                return self._reference(job)  # of a process that is gone, and submitted
            # 3. Make room, then submit.
            if self.adapter_config.backend.delete_old_checkpoints:
                try:
                    await self.model.delete_checkpoints()
                except Exception as error:
                    logger.warning("old checkpoints can't be deleted: %s", error)
            try:
                job = await self._start(job, groups, options)
            except BaseException as error:
                # Where a job was created all the same, the next submission finds it.
                self._end(job, "failed", f"Training failed with error: {error!r}")
                raise
            return self._reference(job)

    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Tell where the job stands, from any process; after its end always the same.

        Raises ValueError for a reference that nothing is known of.
        """
        job = self._find_job(ref)
        view: JobView | None = None
        trouble = ""
        if job.state == "running":
            job, view, trouble = await self._refresh(job)
        return make_status(ref, job, view, trouble)

    async def wait_until_complete(
        self, ref: TrainingJobRef, poll_interval: float = 10.0
    ) -> TrainingJobStatus:
        """Wait for the end of the job, looking every `poll_interval` seconds, above 0.

        Raises JobError when `deadline_s` after the submission has passed; the job goes on, and
        waiting again is fine.
        """
        if not poll_interval > 0:
            raise ValueError(f"poll_interval must be above 0 seconds (got {poll_interval})")
        while (status := await self.status(ref)).status in (
            TrainingStatusEnum.PENDING,
            TrainingStatusEnum.RUNNING,
        ):
            deadline_s = self.adapter_config.deadline_s
            left_s = self._find_job(ref).created_at + deadline_s - time.time()
            if left_s <= 0:
                raise JobError(
                    f"run_id {ref.run_id!r}: not finished {deadline_s:g} s after its submission "
                    f"({status.message}); raise deadline_s to wait longer, or cancel it"
                )
            pause_s = min(poll_interval, left_s)
            task = self._training_jobs.get(ref.run_id)
            if task is not None and not task.done():
                await asyncio.wait([task], timeout=pause_s)
            else:
                await asyncio.sleep(pause_s)
        return status

    async def cancel(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Stop the job and return its status; an ended one stays as it is."""
        job = self._find_job(ref)
        if self._server is not None:
            await self._register()
            if job.state == "running" and job.step is not None:
                await self._server.cancel(self.model, StepJob(job.step, job.submission, {}))
            elif job.step is None:  # cut short, or being submitted by another process
                self._end(job, "canceled", None)
                await self._cancel_unclaimed(job.created_at)
        elif job.state == "running":
            if job.owner_is_me():
                task = self._training_jobs.get(job.run_id)
                if task is not None:
                    task.cancel()
                    await asyncio.wait([task])
                    if task.cancelled():  # perhaps before it had begun
                        self._end(job, "canceled", None)
            else:
                raise StageError(f"run_id {job.run_id!r}: it can be cancelled by its process only")
        return await self.status(ref)

    def log_progress(
        self, ref: TrainingJobRef, metrics: dict[str, Any], output_dir: str | None = None
    ) -> None:
        """Append one JSON line: timestamp, run_id, backend, trainer_config, and `metrics`.

        The file is ``trainer_adapter_<run id>.jsonl`` in `output_dir`, see `progress_log`.
        """
        backend = self.adapter_config.backend
        trainer_config = {
            "base_model": backend.base_model,
            "project": backend.project,
            "name": backend.name,
        }
        append_progress(ref, metrics, trainer_config, output_dir)

    # Inside -----------------------------------------------------------------------------------

    async def _check(self) -> None:
        if (problem := await self._problem()) is not None:
            raise UnhealthyError(f"Failed to connect to ART backend. {problem}")

    async def _problem(self) -> str | None:
        """Tell why the back-end would not take a job, or None."""
        backend = self.adapter_config.backend
        if self._server is not None:
            return await self._server.problem(backend.base_model)
        base = self.model.inference_base_url or f"{backend.url}/v1"
        key = self.model.inference_api_key or backend.key()
        return await explain_unlisted(base, key, (backend.base_model, backend.name))

    async def _begin_job(self, trajectories: TrajectoryCollection) -> AdapterJob:
        """Record a new submission, or find the record of an equal one whose process died."""
        # 1. Identify the submission by its content.
        run_id = trajectories.run_id
        plain = trajectories.model_dump(
            mode="json", include={"trajectories"}, fallback=lambda value: type(value).__qualname__
        )
        content = digest(plain)
        # 2. The same one, of a process that is gone, goes on.
        newest = self._jobs.newest(run_id)
        if newest is not None and newest.state == "running":
            same = newest.digest == content and newest.owner_is_gone()
            if same and newest.submission is not None:
                return newest
            newest, _, _ = await self._refresh(newest)
        # 3. While another one is under way there is no place for this.
        if newest is not None and newest.state == "running":
            raise JobExistsError(f"Training job with run_id {run_id} already exists.")
        # 4. Claim the next number; of several processes one gets it.
        backend = self.adapter_config.backend
        job = AdapterJob(
            run_id=run_id,
            number=0 if newest is None else newest.number + 1,
            project=backend.project,
            name=backend.name,
            digest=content,
            owner=vars(ThisMachine().owner()),
            created_at=time.time(),
        )
        if not self._jobs.add(job):
            raise JobExistsError(f"Training job with run_id {run_id} already exists.")
        return job

    async def _start(
        self, job: AdapterJob, groups: "list[art.TrajectoryGroup]", options: dict[str, Setting]
    ) -> AdapterJob:
        """Submit to the server, or begin a training task here."""
        if self._server is None:
            work = self._train(job, groups, options)
        else:
            # 1. Count the step of a job that no caller waited for, so that this one is the next.
            await self._settle()
            # 2. Submit, and put the job on record.
            step = await self._server.begin(self.model, groups, **options)
            server_job = self._server.job(self.model, step)
            job_id = None if server_job is None else server_job.id
            job = self._jobs.update(
                job,
                step=step.step,
                submission=step.submission,
                job_id=job_id,
                metrics=step.counted,
            )
            # 3. Another process may have cancelled it meanwhile, or it has nothing to train.
            if job.state != "running":
                await self._server.cancel(self.model, step)
                return job
            if step.submission is None:
                return self._end(job, "canceled", NOTHING_TRAINED, metrics=step.counted)
            work = self._follow(job, step)
        # 4. Wait for its end in the background, so that it is on record.
        task = asyncio.create_task(work, name=f"art-train:{job.run_id}")
        self._training_jobs[job.run_id] = task
        task.add_done_callback(lambda _: self._forget(job.run_id, task))
        return job

    def _forget(self, run_id: str, task: "asyncio.Task[None]") -> None:
        if self._training_jobs.get(run_id) is task:
            del self._training_jobs[run_id]

    async def _train(
        self, job: AdapterJob, groups: "list[art.TrajectoryGroup]", options: dict[str, Setting]
    ) -> None:
        """Train with another library's backend, and record the end."""
        try:
            result = await self.remote_backend.train(self.model, groups, **options)
        except asyncio.CancelledError:
            self._end(job, "canceled", None)
            raise
        except Exception as error:
            logger.exception("training of run_id %s failed", job.run_id)
            self._end(job, "failed", f"Training failed with error: {error!r}")
        else:
            self._jobs.update(job, step=result.step)
            is_empty = result.metrics.get(_TRAINABLE) == 0
            state, message = ("canceled", NOTHING_TRAINED) if is_empty else ("completed", None)
            self._end(job, state, message, metrics=result.metrics)

    async def _follow(self, job: AdapterJob, step: StepJob) -> None:
        """Wait for the server's job and record its end; other processes read it there."""
        assert self._server is not None
        try:
            await self._finish(job, step)
        except NipError as error:
            logger.warning("run_id %s: %s", job.run_id, error)

    async def _finish(self, job: AdapterJob, step: StepJob) -> AdapterJob:
        """Wait for a step's end, and record it. Raises JobError while its fate is unknown."""
        assert self._server is not None
        try:
            result = await self._server.finish(self.model, step)
        except JobFailed as error:
            if error.outcome == "cancelled":
                return self._end(job, "canceled", None)
            return self._end(job, "failed", f"Training failed with error: {error}")
        return self._end(job, "completed", None, metrics=result.metrics, model=result.model)

    async def _refresh(self, job: AdapterJob) -> tuple[AdapterJob, JobView | None, str]:
        """Look at an unfinished job again; and say why it can't be seen, if so."""
        # A job that no server has ends with the process that submitted it.
        if self._server is None or job.submission is None or job.step is None:
            if not job.owner_is_gone():
                return job, None, ""
            died = "its process ended"
            if self._server is not None:
                died += " while it was submitted; submit it again, what was sent is then found"
            return self._end(job, "failed", f"Training failed with error: {died}"), None, ""
        step = StepJob(job.step, job.submission, job.metrics)
        try:
            await self._register()
            record, view = await self._server.look(self.model, step)
        except BackendTrouble as error:
            return job, None, f"The last look failed: {error}"
        if record.state == "terminal":
            return await self._finish(job, step), None, ""
        return job, view, ""

    async def _register(self) -> None:
        """Register the model, where a process only asks about jobs and never called initialize."""
        if self.model._backend is None:
            await self.model.register(self.remote_backend)

    async def _settle(self) -> None:
        """Count the step of an ended job without a waiting process.

        That of a process that was killed before it had a reference still waits for the same groups.
        """
        assert self._server is not None
        newest = self._server.under_way(self.model)
        if newest is None or newest[1].state == "intent":
            return
        step = newest[0]
        record, _ = await self._server.look(self.model, step)
        if record.succeeded and self._is_claimed(step):
            await self._server.finish(self.model, step)
        elif record.succeeded:
            self._server.count(self.model, step)

    def _is_claimed(self, step: StepJob) -> bool:
        """Return True if a reference names the job of this step."""
        model = self.model
        return self._jobs.has(model.project, model.name, step.step, step.submission)

    async def _cancel_unclaimed(self, since_s: float) -> None:
        """Stop a job without a reference, left by a killed process."""
        assert self._server is not None
        newest = self._server.under_way(self.model)
        if newest is None or newest[1].created_at < since_s or self._is_claimed(newest[0]):
            return
        await self._server.cancel(self.model, newest[0])

    def _end(self, job: AdapterJob, state: str, message: str | None, **changes: Any) -> AdapterJob:
        if message is not None:
            message = redact(message, self.adapter_config.backend.key())
        return self._jobs.update(job, state=state, message=message, **changes)

    def _reference(self, job: AdapterJob) -> TrainingJobRef:
        metadata = {"submission": job.number, "step": job.step}
        return TrainingJobRef(run_id=job.run_id, backend=BACKEND, metadata=metadata)

    def _find_job(self, ref: TrainingJobRef) -> AdapterJob:
        """The job of a reference; of one without a number, the newest."""
        number = (ref.metadata or {}).get("submission")
        job = None
        if ref.backend == BACKEND and number is None:
            job = self._jobs.newest(ref.run_id)
        elif ref.backend == BACKEND and isinstance(number, int) and 0 <= number <= 9999:
            job = self._jobs.load(ref.run_id, number)
        if job is None:
            raise ValueError(f"No training job found with run_id {ref.run_id}.")
        return job
