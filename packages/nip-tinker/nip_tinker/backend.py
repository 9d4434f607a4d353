"""The back-end of `model_provider: Tinker`: fine-tune jobs over a service that knows steps alone.

Such a service has no jobs: who trains has to be there. So a job is a note in the run.
`retrieve_job` starts a `Driver` of it in this process, and polling sees how far it is. While
no process polls, the job stands still.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import JsonValue

from nip_core.errors import SettingsError
from nip_core.jobs.job import (
    Backend,
    Busy,
    JobSpec,
    JobView,
    ModelView,
    NoAnswer,
    Payload,
    PlannedTraining,
    Refused,
)
from nip_core.nearest import did_you_mean, nearest_first
from nip_core.parameters import HyperParameters, Provider
from nip_core.parameters.services.providers import Tinker
from nip_core.redaction import show_address
from nip_tinker.agent_checks import ALPHA, check_agent
from nip_tinker.datums import load_text, make_probe
from nip_tinker.options import Options, read_options
from nip_tinker.plan import plan_training
from nip_tinker.proof import prove
from nip_tinker.record.notes import BlockNote, JobNote, Notes
from nip_tinker.record.run_files import RunFiles
from nip_tinker.record.steps import Plan
from nip_tinker.training.driver import Driver
from nip_tinker.training.ends import end_job
from nip_tinker.wire import PATIENCE_S, PROTOBUF, TinkerClient

_ENDED = ("succeeded", "failed", "cancelled")
_NAMES_SHOWN = 8
_DEFAULT_RATE = 1e-4


class TinkerBackend(Backend):
    """Jobs that this process drives, at a service that speaks Tinker's API."""

    proves = True
    tells_steps = True
    stands_still = True

    def __init__(
        self,
        address: str,
        key: str,
        provider: type[Provider] = Tinker,
        *,
        timeout_s: float = 120.0,
        options: Options | None = None,
        client: TinkerClient | None = None,
        files: RunFiles | None = None,
    ) -> None:
        """`timeout_s`: how long a look takes at most; less than the default is one of a person, who
        waits no longer than that for a service that is away. `options`, `client` and `files`
        replace those of provider, address and run."""
        super().__init__(address, key)
        self._options = options or read_options(provider)
        patience_s = PATIENCE_S if timeout_s >= 120.0 else timeout_s
        self._client = client or TinkerClient(address, key, patience_s=patience_s)
        self._files = files
        self._drivers: dict[str, tuple[Driver, asyncio.Task[JobNote]]] = {}

    @classmethod
    def check_agent(cls, parameters: HyperParameters, name: str) -> None:
        check_agent(parameters, name)

    @classmethod
    def plan_training(
        cls, parameters: HyperParameters, group: str, examples: Sequence[int | None], tokens: float
    ) -> PlannedTraining:
        return plan_training(parameters, group, examples, tokens)

    # Before anything is spent

    async def check_jobs(self) -> None:
        """Raise SettingsError unless the service speaks this wire, and takes the key."""
        place = f"the service at {show_address(self.address)}"
        await self._client.check_wire(f"base_url or {Tinker.address_variable}")
        try:
            # Of no model: whether the body is understood is all that is asked.
            await self._client.submit(make_probe((5, 6)).send("nip-probe", 1, forward_only=True))
        except Refused as error:
            if error.status in (415, 422):
                raise SettingsError(
                    f"{place} speaks an older wire of Tinker's API, in JSON ({error}); nip speaks "
                    f"that of SDK 0.25 and later ({PROTOBUF}): use a newer server"
                ) from None

    async def check_model(self, model: str) -> None:
        place = f"the service at {show_address(self.address)}"
        bases = await self._client.list_bases()
        if bases and model not in bases:
            raise SettingsError(
                f"{place} trains no base model {model!r}{did_you_mean(model, bases)}; it has "
                f"{', '.join(nearest_first(model, bases)[:_NAMES_SHOWN])}: set model_name to one"
            )
        await asyncio.to_thread(load_text, model, self._options.tokenizer, None)

    # Jobs

    async def find_file(self, filename: str, size_bytes: int) -> str | None:
        return filename if self._place.size(f"files/{filename}") == size_bytes else None

    async def upload(self, filename: str, data: Payload) -> str:
        self._place.copy_in(f"files/{filename}", data)
        return filename

    async def create_job(
        self, spec: JobSpec, file_id: str, validation_file_id: str | None = None
    ) -> JobView:
        notes = Notes(self._place, spec.key)
        job = notes.read_job()
        if job is None:
            job = JobNote(
                key=spec.key,
                metadata=spec.metadata,
                plan=make_plan(spec),
                parent=spec.parent_model,
                file=file_id,
                address=show_address(self.address),
                created_at=time.time(),
            )
            notes.write_job(job)
        return self._view(job)

    async def find_jobs(self, key: str) -> list[JobView]:
        job = Notes(self._place, key).read_job()
        return [] if job is None else [self._view(job)]

    async def retrieve_job(self, job_id: str) -> JobView:
        """Look at a job; one that has not ended is driven on by this process from here on."""
        notes = Notes(self._place, job_id)
        driven = self._drivers.get(job_id)
        if driven is not None and driven[1].done():
            del self._drivers[job_id]
            try:
                driven[1].result()
            except (Busy, NoAnswer) as error:
                raise NoAnswer(error.message, error.retry_after_s) from None
        if driven is None or job_id not in self._drivers:
            job = notes.read_job()
            if job is None:
                raise Refused(f"the run has no notes of a job {job_id}", 404)
            if job.status in _ENDED:
                return self._view(job)
            driver = Driver(self._client, notes, self._options)
            task = asyncio.create_task(driver.run(), name=f"training {job_id}")
            self._drivers[job_id] = driver, task
            return self._view(job, driver)
        if (silence := self._client.describe_silence()) is not None:
            raise NoAnswer(silence)  # the driver goes on asking
        driver, _ = driven
        view = self._view(driver.job or await self._read(notes, job_id), driver)
        # It has ended when its driver has: that tidies up behind it.
        return replace(view, status="running") if view.status in _ENDED else view

    async def _read(self, notes: Notes, job_id: str) -> JobNote:
        job = notes.read_job()
        if job is None:
            raise Refused(f"the run has no notes of a job {job_id}", 404)
        return job

    async def cancel_job(self, job_id: str) -> JobView:
        await self._end_driver(job_id)
        notes = Notes(self._place, job_id)
        job = await self._read(notes, job_id)
        if job.status not in _ENDED:
            job.state = None
            await end_job(self._client, notes, job, "cancelled", self._options.settle_s)
        return self._view(job)

    async def job_events(self, job_id: str) -> list[dict[str, JsonValue]]:
        notes = Notes(self._place, job_id)
        job = await self._read(notes, job_id)
        return [event for block in notes.list_blocks(job) for event in _events(job, block)]

    async def describe_model(self, name: str) -> ModelView:
        """Describe a model; of a trained one it is proved that the sampler has its weights."""
        if not name.startswith("tinker://"):
            return ModelView(kind="base")
        return ModelView(kind="adapter", proof=await prove(self._client, name), is_served=True)

    async def aclose(self) -> None:
        for job_id in [*self._drivers]:
            await self._end_driver(job_id)
        await self._client.aclose()

    async def _end_driver(self, job_id: str) -> None:
        driven = self._drivers.pop(job_id, None)
        if driven is not None:
            driven[1].cancel()
            await asyncio.gather(driven[1], return_exceptions=True)

    @property
    def _place(self) -> RunFiles:
        if self._files is None:
            if self.run is None:
                raise Refused("jobs of this service are kept in a run, and none is open", 404)
            run, lease = self.run
            self._files = RunFiles(run.store, f"{run.root}/training", lease)
        return self._files

    def _view(self, job: JobNote, driver: Driver | None = None) -> JobView:
        effective: dict[str, Any] = {
            **job.plan.model_dump(exclude={"method", "seed", "continues"}, exclude_none=True),
            "lora_alpha": ALPHA,
            "lora_dropout": 0.0,
            "level": job.level,
            "scored_tokens": job.scored_tokens,
        }
        newest = None if driver is None else driver.newest
        if newest is not None and job.steps and newest.step:
            effective["nip"] = {
                "progress": {
                    "step": newest.step,
                    "total_steps": job.steps,
                    "train_loss": newest.loss,
                    "tokens": newest.tokens,
                    "time_left_s": newest.left_s,
                }
            }
        return JobView(
            id=job.key,
            status=job.status,
            created_at=job.created_at,
            fine_tuned_model=job.model,
            error=job.error,
            finished_at=job.finished_at,
            trained_tokens=job.trained_tokens,
            effective=effective,
            metadata=job.metadata,
        )


def make_plan(spec: JobSpec) -> Plan:
    """Read the settings of a job. Raises Refused for one that the wire can't carry."""
    settings, nip = dict(spec.hyper_parameters), spec.nip.model_dump(exclude_unset=True)
    start = nip.pop("start_from", "base")
    if (
        start == "stack"
        or settings.pop("advantage", "given") != "given"
        or settings.pop("kl_penalty", 0)
    ):
        raise Refused("start_from: stack, advantage and kl_penalty can't be carried")
    settings.setdefault("n_epochs", 1)
    settings.setdefault("batch_size", 8)
    nip.setdefault("learning_rate", _DEFAULT_RATE)
    nip.setdefault("lora_rank", 32)
    try:
        return Plan(
            method=spec.method,
            seed=spec.seed,
            continues=start == "continue",
            **settings,
            **nip,
        )
    except ValueError as error:
        raise Refused(f"the job's settings can't be carried: {error}") from None


def _events(job: JobNote, block: BlockNote) -> list[dict[str, JsonValue]]:
    return [
        {
            "type": "metrics",
            "created_at": figures.at,
            "message": f"Step {figures.step + 1}/{job.steps}",
            "data": {
                "step": figures.step + 1,
                "total_steps": job.steps,
                "train_loss": figures.loss,
                "learning_rate": figures.learning_rate,
                "tokens": figures.tokens,
            },
        }
        for figures in block.figures
    ]
