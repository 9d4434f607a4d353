"""An `art.Backend` over lm_server: programs written for OpenPipe ART train on it.

LmServerBackend       register, train, train_sft and the methods of a back-end that ART's models
call LmServerTrainResult   the result of `train`: ART's result with the model's name on the server

    backend = LmServerBackend("http://127.0.0.1:8000", state_dir="./art-state")
    await model.register(backend)
    result = await backend.train(model, groups, learning_rate=1e-5)

A step is one job, submitted by the ledger through `submissions` under a run id of project, name and
step. A program that is killed while a step is trained, and run again, goes on with the job that it
had submitted: `register` waits for it, and `train` with the same groups returns it. With other
groups the finished step counts, and the next one is trained. Needs the package `art`
(scripts/build_art.sh); docs/art.md lists the supported parts of ART.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

try:
    import art
except ImportError as error:
    raise ImportError(
        "nip_by_hand.fine_tuning.art.art_backend needs OpenPipe ART (openpipe-art): build an "
        "environment with it by scripts/build_art.sh and run the program there; see docs/art.md"
    ) from error
from art.metrics_taxonomy import (
    TRAIN_GRADIENT_STEPS_KEY,
    average_metric_samples,
    build_training_summary_metrics,
    summarize_trajectory_groups,
)
from openai import AsyncOpenAI

from nip_by_hand.fine_tuning.art.art_adapter_config import DEFAULT_STATE_DIR, KEY_VARIABLE
from nip_by_hand.fine_tuning.art.art_client import (
    TokenIdsClient,
    check_base_model,
    delete_model,
    health_problem,
)
from nip_by_hand.fine_tuning.art.art_options import (
    job_settings,
    model_options,
    refuse_server_arguments,
    sft_options,
    sft_settings,
    train_options,
)
from nip_by_hand.fine_tuning.art.art_rows import Data, sft_data, training_data
from nip_by_hand.fine_tuning.art.art_steps import (
    JobFailed,
    ModelRecord,
    Step,
    StepJob,
    StepRecords,
    job_metrics,
    make_step,
)
from nip_by_hand.fine_tuning.job_data import JobSettings
from nip_by_hand.fine_tuning.submissions import LiveSubmission, Submissions
from nip_core.errors import SettingsError
from nip_core.hashing import derive_seed
from nip_core.jobs.job import BackendTrouble, JobRecord, JobSpec, JobView
from nip_core.jobs.openai_backend import NipBackend
from nip_core.proxies import http_client
from nip_core.redaction import read_key, redact

_GROUP = "art"
_Model: TypeAlias = "art.TrainableModel[Any, Any]"
_log = logging.getLogger(__name__)


@dataclass
class LmServerTrainResult(art.TrainResult):  # type: ignore[misc]
    """`model` is the step's, as the server names it; `job_id` is None if nothing was trained."""

    model: str | None = None
    job_id: str | None = None


class LmServerBackend:
    """Trains ART's models on a running lm_server. One program at a time may train a model."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        state_dir: str | os.PathLike[str] = DEFAULT_STATE_DIR,
        poll_interval_s: float = 1.0,
        deadline_s: float = 86400.0,
        wait_at_register: bool = True,
    ) -> None:
        """`api_key`: default is the environment's NIP_API_KEY. `state_dir` keeps steps and jobs.

        Looks at a job every `poll_interval_s`, and gives up on it `deadline_s` after its
        submission. Raises SettingsError without a key, StoreError for a directory that can't be
        used. Nothing is sent yet. Without `wait_at_register` a step that an earlier program left
        under way is not waited for.
        """
        key = api_key or read_key(os.environ, KEY_VARIABLE)
        if not key:
            raise SettingsError(f"api_key: none is given; pass it, or set {KEY_VARIABLE}")
        self._root = base_url.rstrip("/").removesuffix("/v1")
        self._address = self._root + "/v1"
        self._api_key = key
        self._state_dir = os.fspath(state_dir)
        self._poll_interval_s, self._deadline_s = poll_interval_s, deadline_s
        self._client = AsyncOpenAI(
            base_url=self._address,
            api_key=key,
            # Trying again is the ledger's, which looks first whether the job was created.
            max_retries=0,
            timeout=120.0,
            http_client=http_client(self._address),
        )
        self._server = NipBackend(self._address, key, client=self._client)
        # An lm_server lists a job as soon as it has created it, so there is nothing to wait for.
        self._submissions = Submissions(self._state_dir, _GROUP, settle_s=0.0)
        self._records = StepRecords(self._state_dir)
        self._wait_at_register = wait_at_register
        self._lock = asyncio.Lock()
        self._models: dict[tuple[str, str], ModelRecord] = {}
        self._clients: list[TokenIdsClient] = []

    def __repr__(self) -> str:
        return f"LmServerBackend({self._root!r}, state_dir={self._state_dir!r})"

    # Called by ART's models ---------------------------------------------------------------------

    async def close(self) -> None:
        """Close the connections. Jobs go on, and the server too."""
        await self._server.aclose()
        for client in self._clients:
            await client.close()

    async def register(self, model: "art.Model[Any, Any]") -> None:
        """Record a model, and wait for an unfinished step of an earlier program.

        Raises SettingsError if the server has no such base model, or for a configuration that it
        can't do; Refused or NoAnswer if the server refuses or doesn't answer.
        """
        if not model.trainable:
            return
        model_options(model._internal_config)
        await check_base_model(self._server, self._root, model.base_model)
        record = self._records.open(model.project, model.name, model.base_model)
        self._models[model.project, model.name] = record
        if self._wait_at_register:
            await self._take_over(model)

    async def _prepare_backend_for_training(
        self, model: _Model, config: Mapping[str, Any] | None = None
    ) -> tuple[str, str]:
        """Address and key for the model's OpenAI client."""
        refuse_server_arguments(config)
        self._record(model)
        if model._openai_client is None:
            model._openai_client = TokenIdsClient(self._address, self._api_key)
            self._clients.append(model._openai_client)
        return self._address, self._api_key

    def _model_inference_name(self, model: "art.Model[Any, Any]", step: int | None = None) -> str:
        """The server's name for the model of `step`, or of the newest one."""
        if not model.trainable:
            return str(model.inference_model_name or model.name)
        record = self._record(model)
        if step is None:
            return record.served
        if not 0 <= step <= record.step:
            raise ValueError(
                f"model {model.project}/{model.name}: there is no step {step}, the newest is "
                f"{record.step}"
            )
        return record.steps[step].model

    async def _get_step(self, model: _Model) -> int:
        return self._record(model).step

    async def _delete_checkpoint_files(self, model: _Model, steps_to_keep: list[int]) -> None:
        """Delete the models of all other steps. The server keeps parents of other models."""
        record = self._record(model)
        kept_steps = {step for step in (*steps_to_keep, record.step) if step >= 0}
        keep = {record.base_model, *(record.steps[step].model for step in kept_steps)}
        for name in dict.fromkeys(step.model for step in reversed(record.steps)):
            if name not in keep and (needed := await delete_model(self._client, name)):
                _log.info("checkpoint %s stays: %s", name, needed)

    async def train(
        self,
        model: _Model,
        trajectory_groups: "Iterable[art.TrajectoryGroup]",
        **options: Any,
    ) -> LmServerTrainResult:
        """Train one step on groups of trajectories; `options` are `art_options.TrainOptions`.

        Where no group prefers a trajectory the step advances without a job. Raises SettingsError
        for options and trajectories that can't be trained, before anything is sent; JobFailed;
        JobError if the job's fate is unknown (run again then); LiveSubmission if another program
        trains this step.
        """
        return await self.finish(model, await self.begin(model, trajectory_groups, **options))

    async def _train_model(
        self,
        model: _Model,
        trajectory_groups: "list[art.TrajectoryGroup]",
        config: "art.TrainConfig",
        dev_config: Mapping[str, Any],
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        """Train one step; the figures of each of its optimizer steps."""
        options = {**config.model_dump(), **dev_config, "verbose": verbose}
        step = await self.begin(model, trajectory_groups, **options)
        for figures in await self._figures(model, step):
            yield figures

    async def _train_sft(
        self,
        model: _Model,
        trajectories: "Iterable[art.Trajectory]",
        config: "art.TrainSFTConfig",
        dev_config: Mapping[str, Any],
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        """Learn the assistant messages of trajectories, once each; figures as `_train_model`."""
        if dev_config:
            raise SettingsError(f"train_sft: there is no option {next(iter(dev_config))!r}")
        configured = model_options(model._internal_config)
        data = sft_data(trajectories)
        if data.lines == 0:
            raise SettingsError("train_sft: there is no trajectory to learn from")
        settings = sft_settings(sft_options(config.model_dump()), configured, repeats=data.repeats)
        step = await self._begin(model, "supervised", data, settings, dict(data.metrics))
        for figures in await self._figures(model, step):
            yield figures

    # Beyond ART -----------------------------------------------------------------------------------

    async def begin(
        self,
        model: _Model,
        trajectory_groups: "Iterable[art.TrajectoryGroup]",
        **options: Any,
    ) -> StepJob:
        """The first half of `train`: returns when the job of the step is submitted."""
        # 1. Check the options, before anything is sent.
        groups, checked = list(trajectory_groups), train_options(options)
        record = self._record(model)
        reference = checked.kl_penalty_reference_step
        if reference is not None and reference != record.step:
            raise SettingsError(
                f"kl_penalty_reference_step: {reference} can't be done by lm_server; the reference "
                f"is the step that is trained from, which is {record.step}"
            )
        # 2. Make the lines and the settings of the job.
        data = training_data(groups, checked)
        summary = build_training_summary_metrics(
            summarize_trajectory_groups(groups), include_trainable_groups=True
        )
        configured = model_options(model._internal_config)
        settings = job_settings(checked, configured, repeats=data.repeats)
        metrics = {**summary, **data.metrics}
        # 3. Submit it; without a line the step advances all the same.
        if data.lines:
            return await self._begin(model, "trajectories", data, settings, metrics)
        _log.warning("no group says what is better: the step advances and nothing is trained")
        self._put(model, record, *record.steps, Step(model=record.served))
        return StepJob(record.step + 1, None, {**metrics, "data/step_trainer_tokens": 0.0})

    async def finish(self, model: _Model, step: StepJob) -> LmServerTrainResult:
        """The second half of `train`: waits for the step's model. Raises JobFailed."""
        samples = await self._figures(model, step)
        record = self._record(model)
        job = self.job(model, step)
        return LmServerTrainResult(
            step=step.step,
            metrics=average_metric_samples(samples),
            model=record.steps[step.step].model,
            job_id=None if job is None else job.id,
        )

    async def look(self, model: _Model, step: StepJob) -> tuple[JobRecord, JobView | None]:
        """The record of a step's job, and the server's status while it goes on. It has one."""
        run_id, number = self._record(model).run_id(step.step), step.submission
        return await self._submissions.look(run_id, -1 if number is None else number, self._server)

    async def cancel(self, model: _Model, step: StepJob) -> None:
        """Stop the job of a step; an ended one stays as it is."""
        if step.submission is not None:
            run_id = self._record(model).run_id(step.step)
            await self._submissions.cancel(run_id, step.submission, self._server)

    async def problem(self, base_model: str) -> str | None:
        """Tell why the server would train nothing from `base_model`, for this key; or None."""
        problem = await health_problem(self._root)
        if problem is None:
            try:
                await check_base_model(self._server, self._root, base_model)
            except (BackendTrouble, SettingsError) as error:
                problem = redact(str(error), self._api_key)
        return None if problem is None else f"{self._root} is not healthy: {problem}"

    def under_way(self, model: _Model) -> tuple[StepJob, JobRecord] | None:
        """The newest job of the step after the newest one, of whichever process."""
        record = self._records.load(model.project, model.name)
        self._see(model, record)
        newest = self._submissions.newest(record.run_id(record.step + 1))
        return None if newest is None else (StepJob(record.step + 1, newest[0], {}), newest[1])

    def count(self, model: _Model, step: StepJob) -> None:
        """Count a trained step before any call of `train` has returned it."""
        record, job = self._record(model), self.job(model, step)
        if step.submission is not None and job is not None and job.succeeded:
            finished_step = make_step(step.submission, job, returned=False)
            self._put(model, record, *record.steps, finished_step)

    def job(self, model: _Model, step: StepJob) -> JobRecord | None:
        """The job of a step as recorded; None if it trained nothing."""
        if step.submission is None:
            return None
        return self._submissions.record(self._record(model).run_id(step.step), step.submission)

    # Inside ---------------------------------------------------------------------------------------

    def _record(self, model: "art.Model[Any, Any]") -> ModelRecord:
        try:
            return self._models[model.project, model.name]
        except KeyError:
            raise ValueError(
                f"model {model.project}/{model.name} is not registered with {self!r}; call "
                "model.register(backend) first"
            ) from None

    def _put(self, model: _Model, record: ModelRecord, *steps: Step) -> None:
        self._see(model, self._records.put(record, steps))

    def _see(self, model: _Model, record: ModelRecord) -> None:
        """Go on from the record."""
        self._models[model.project, model.name] = record
        if model.inference_model_name is not None:
            model.inference_model_name = record.served

    async def _begin(
        self,
        model: _Model,
        method: str,
        data: Data,
        settings: JobSettings,
        metrics: dict[str, float],
    ) -> StepJob:
        """Submit the job of the next step, or find an equal one from before."""
        # 1. The newest step was trained on this data, and no call of `train` has returned it.
        record, digest = self._record(model), hashlib.sha256(data.jsonl).hexdigest()
        last = record.steps[-1]
        if not last.returned and last.digest == digest:
            return StepJob(record.step, last.submission, metrics)
        # 2. The next one has ended already: it is this one, or another program's.
        number, run_id = record.step + 1, record.run_id(record.step + 1)
        newest = self._submissions.newest(run_id)
        if newest is not None and newest[1].succeeded:
            if newest[1].dataset_digest != digest:
                raise LiveSubmission(
                    f"model {record.project}/{record.name}: another program has trained step "
                    f"{number}; register the model again to go on from there"
                )
            return StepJob(number, newest[0], metrics)
        # 3. Describe the job.
        seed = model_options(model._internal_config).seed

        def make_spec(submission: int) -> JobSpec:
            return self._submissions.spec(
                run_id,
                submission,
                parent_model=record.served,
                dataset_digest=digest,
                examples=data.lines,
                method=method,
                seed=derive_seed(run_id) if seed is None else seed,
                hyper_parameters=settings.hyper_parameters,
                nip=settings.nip,
            )

        # 4. A job cut short with other data makes room; then submit, or find it.
        cut_short = newest if newest is not None and newest[1].state == "intent" else None
        if cut_short is not None and make_spec(cut_short[0]).key != cut_short[1].key:
            await self._submissions.cancel(run_id, cut_short[0], self._server)
        submission, _ = await self._submissions.submit(run_id, make_spec, data.jsonl, self._server)
        return StepJob(number, submission, metrics)

    async def _figures(self, model: _Model, step: StepJob) -> list[dict[str, float]]:
        """Wait for a step's model, count the step, and give the figures of its training."""
        if step.submission is None:
            return [{**step.counted, TRAIN_GRADIENT_STEPS_KEY: 0.0}]
        # 1. Wait for the job's end.
        job = await self._follow(self._record(model), step.step, step.submission)
        # 2. Count the step once, whoever else waited for it.
        async with self._lock:
            record = self._records.load(model.project, model.name)  # others may wait for it too
            self._see(model, record)
            if record.step < step.step:
                finished_step = make_step(step.submission, job, returned=True)
                self._put(model, record, *record.steps, finished_step)
            elif not record.steps[step.step].returned:
                steps = list(record.steps)
                steps[step.step] = steps[step.step].model_copy(update={"returned": True})
                self._put(model, record, *steps)
        return [{**step.counted, **figures} for figures in job_metrics(job)]

    async def _follow(self, record: ModelRecord, step: int, submission: int) -> JobRecord:
        """Wait for the model of a step. Raises JobFailed."""
        job = await self._submissions.follow(
            record.run_id(step),
            submission,
            self._server,
            interval_s=self._poll_interval_s,
            deadline_s=self._deadline_s,
        )
        if not job.succeeded:
            raise JobFailed(
                f"model {record.project}/{record.name}, step {step}: job {job.id} "
                f"{job.outcome}: {job.reason}",
                job.outcome or "failed",
            )
        return job

    async def _take_over(self, model: _Model) -> None:
        """Wait for the job of an earlier program, and count its step."""
        record = self._record(model)
        newest = self._submissions.newest(record.run_id(record.step + 1))
        if newest is None:
            return
        submission, job = newest
        if job.state == "submitted":
            _log.info("step %d is under way as job %s: waiting", record.step + 1, job.id)
            try:
                job = await self._follow(record, record.step + 1, submission)
            except JobFailed as error:
                _log.warning("%s; the step is still to be trained", error)
        if job.succeeded:
            self._put(model, record, *record.steps, make_step(submission, job, returned=False))
