"""Training: one job per group, submitted and waited for."""

import asyncio
import tempfile
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from nip_base.formats import MIN_EXAMPLES
from nip_core.errors import CorruptionError, DeadlineError, JobError, ParkedError
from nip_core.evaluation.figures_in_words import amount
from nip_core.hashing import digest
from nip_core.jobs.document import read_job
from nip_core.jobs.job import Backend, BackendTrouble, JobRecord, JobSpec, JobView
from nip_core.jobs.ledger import Ledger, open_ledger
from nip_core.jobs.steps import is_paused, look_for_steps, read_step_figures
from nip_core.parameters import HyperParameters
from nip_core.progress.board import Activity, Progress
from nip_core.progress.outlook import STEPS
from nip_core.records.rewinds import number_next_attempt
from nip_core.run_store.facts import DatasetFacts
from nip_core.run_store.manifest import read_manifest
from nip_core.session.session import Session
from nip_core.stages.choosing import describe_dataset
from nip_core.stages.served import find_models
from nip_core.trainers.dataset import open_dataset
from nip_core.trainers.group_job import Parent, group_job
from nip_core.trainers.lines import read_held_out, write_payloads

Step = Literal["go_on", "keep_model", "try_again", "stop"]


def list_scheduled_groups(parameters: HyperParameters, iteration: int) -> tuple[str, ...]:
    """Return the groups that are trained in the iteration: not frozen, and an agent's turn."""
    groups = parameters.trainable_groups
    return tuple(group for group in groups if parameters.training_agents(group, iteration))


@dataclass(frozen=True)
class JobReference:
    """A job as it is told to people and programs."""

    group: str
    id: str | None
    """None: there is none, its examples are too few."""
    key: str
    status: str | None
    """How it ended, or the back-end's last word."""
    model: str | None


@dataclass(frozen=True)
class JobEnd:
    """The end of a wait for a job."""

    job: JobReference
    again: bool = False
    """The job gave no model, and another one is to be submitted."""
    parked: str | None = None
    """The reason in words why the run waits: the job goes on, and the settings end the wait. None:
    it has ended."""


async def submit_job(session: Session, iteration: int, group: str) -> JobReference:
    """Submit the group's job, unless it was submitted before.

    Its tokens are on record before anything is sent. Raises StageError for examples that the
    back-end would refuse.
    """
    # 1. The job follows from settings, dataset and parent alone.
    directory = session.run.dataset(iteration, group)
    facts = DatasetFacts.from_manifest(read_manifest(session.run.store, directory))
    dataset = open_dataset(session.run.store, directory)
    out = read_held_out(session.parameters, dataset)
    spec = make_job_spec(session, iteration, group, facts, out)
    # 2. One that is on record as submitted is not asked for again.
    earlier_record = _stored(session, iteration, group)
    if (
        earlier_record is not None
        and earlier_record.key == spec.key
        and earlier_record.id is not None
    ):
        return _announce(session, earlier_record)
    epochs, tokens = spec.hyper_parameters["n_epochs"], facts.tokens
    note = describe_dataset(facts, epochs)
    # A create that was cut short may have made the job: the budget counts it already.
    is_new = (
        earlier_record is None or earlier_record.key != spec.key or not earlier_record.creates_open
    )
    if is_new and spec.examples >= MIN_EXAMPLES:  # with fewer the ledger skips it, for nothing
        job_words = f"the job of group {group}, iteration {iteration},"
        session.budget.admit_job(job_words, group, None if tokens is None else epochs * tokens)
    if is_new:
        session.progress.count_job()

    # 3. The ledger alone creates jobs, and looks first whether this one was.
    async def create() -> JobRecord:
        # In files: a dataset may be larger than the memory.
        with tempfile.TemporaryDirectory() as folder:
            training, validation = await asyncio.to_thread(
                write_payloads,
                dataset,
                out,
                Path(folder),
                f"dataset of group {group}, iteration {iteration}",
            )
            async with _ledger(session, group) as (ledger, _):
                return await ledger.ensure_job(spec, training, validation, note=note)

    return _announce(session, await session.with_server(create))


def _announce(session: Session, record: JobRecord) -> JobReference:
    """Announce the submitted job."""
    reference = _reference(record)
    news = f"trains as job {record.id}" if record.id else f"has no job, {reference.status}"
    words = f"iteration {record.iteration}: {record.group} {news}"
    session.tell("submit", words, iteration=record.iteration, **asdict(reference))
    return reference


async def wait_for_job(session: Session, iteration: int, group: str) -> JobEnd:
    """Wait for the group's job, as long as the settings say.

    Raises JobError if it ends without a model, and the settings let that stop the run.
    """
    record = _record(session, iteration, group)
    settings = session.parameters.fine_tuning

    async def poll(activity: Activity) -> JobRecord:
        async with _ledger(session, group) as (ledger, backend):
            try:
                return await ledger.poll(
                    record,
                    interval_s=settings.poll_interval_s,
                    deadline_s=settings.deadline_s,
                    # The run's own server stood still while the run did.
                    counted_from_s=None if group in session.endpoints else session.clock.now(),
                    park_after_s=settings.park_after_s,
                    # Where a look shows the steps, it is as often as people want to see them.
                    longest_pause_s=settings.poll_interval_s if backend.tells_steps else None,
                    watch=partial(_watch, session.progress, activity, backend),
                )
            except DeadlineError:
                # The job goes on, so that a person can raise the deadline and have it.
                if settings.on_deadline == "stop":
                    raise
                late = f"not finished {settings.deadline_s:g} s after its submission"
                return await ledger.give_up(record, late)

    # 1. Until it ends, or the settings say not to wait any longer.
    if record.state != "terminal":
        try:
            with session.progress.doing(
                f"training {group}",
                group=group,
                job=record.id,
                unit=STEPS,
                status=record.status or "",
                tokens_total=_tokens_of(session, record),
            ) as activity:
                record = await session.with_server(lambda: poll(activity))
        except ParkedError as parked:
            words = f"iteration {iteration}: parked, {parked}"
            session.tell("parked", words, iteration=iteration, group=group, job=record.id)
            return JobEnd(_reference(record), parked=str(parked))
    # 2. A job without a model: the settings decide the next step.
    step = choose_next_step(session.parameters, record)
    if step == "stop":
        raise make_stop_error(record, session.run.job(iteration, group))
    end = JobEnd(_reference(record), again=step == "try_again")
    if record.id:
        status, model = end.job.status, record.model or "none"
        words = f"iteration {iteration}: job {record.id} of {group}: {status}, model {model}"
        figures = _figures(record)
        facts = {**asdict(end.job), "again": end.again, "parked": end.parked}
        session.tell("job", words + figures.words, iteration=iteration, **facts, **figures.facts)
    return end


async def _watch(
    progress: Progress,
    activity: Activity,
    backend: Backend,
    view: JobView | None,
    trouble: str,
) -> None:
    """Show the state of a job after a look at it."""
    if trouble:
        progress.count_retry(f"job {activity.job}: {trouble}")
    if view is None:
        return
    try:
        steps = await look_for_steps(backend, view)
    except BackendTrouble as error:
        steps = None
        progress.count_retry(f"events of job {activity.job}: {error}")
    now_s, status = progress.clock(), "paused" if is_paused(view) else view.status
    if steps is None:
        activity.tell(now_s, status=status)
        return
    activity.tell(
        now_s,
        status=status,
        done=steps.step,
        total=steps.total,
        loss=steps.loss,
        tokens=steps.tokens,
        left_s=steps.left_s,
    )
    progress.training_tokens_per_s = activity.tokens_per_s or progress.training_tokens_per_s


def _tokens_of(session: Session, record: JobRecord) -> int | None:
    """Count the tokens of the whole job; None where they are not known."""
    directory = session.run.dataset(record.iteration, record.group)
    facts = DatasetFacts.from_manifest(read_manifest(session.run.store, directory))
    tokens, epochs = facts.tokens, record.settings.get("n_epochs")
    return None if tokens is None or not isinstance(epochs, int) else tokens * epochs


@dataclass(frozen=True)
class _Figures:
    """The course of a job that has ended, for people and for programs."""

    words: str
    facts: Mapping[str, Any]


def _figures(record: JobRecord) -> _Figures:
    steps = read_step_figures(record.backend_events)
    losses = [step.loss for step in steps.values() if step.loss is not None]
    facts: dict[str, Any] = {"steps": max(steps, default=None), "tokens": record.trained_tokens}
    words = f", {amount(facts['steps'], 'step')}" if steps else ""
    if losses:
        facts |= {"first_loss": losses[0], "last_loss": losses[-1]}
        words += f", loss {losses[0]:.3g} to {losses[-1]:.3g}"
    if record.finished_at is not None and record.submitted_at is not None:
        facts["seconds"] = max(record.finished_at - record.submitted_at, 0.0)
        words += f", {facts['seconds']:.0f} s after its submission"
    return _Figures(words, facts)


def make_job_spec(
    session: Session, iteration: int, group: str, dataset: DatasetFacts, out: frozenset[str]
) -> JobSpec:
    """The group's job of this iteration: equal settings and data, equal job.

    `dataset` has the facts of its manifest, `out` the questions that are not trained on.
    """
    parameters = session.parameters
    current = find_models(session, iteration)[group]
    agent = parameters.group_parameters(group)
    from_base = agent.fine_tune_from_scratch or current.trained_in is None
    parent = Parent(
        model=current.base_model if from_base else current.model,
        digest=None if from_base else current.digest,
        is_base=from_base,
        # An adapter stacked too high was merged into a base model, and goes on as one.
        can_stack=current.kind != "base",
    )
    validation_examples = dataset.validation_examples
    return group_job(
        parameters,
        session.run.name,
        iteration,
        group,
        parent,
        method=dataset.method,
        dataset_digest=dataset.digest,
        examples=dataset.examples - validation_examples,
        attempt=_attempt(session, iteration, group),
        validation_examples=validation_examples,
        validation_digest=digest(sorted(out)) if out else None,
    )


def _attempt(session: Session, iteration: int, group: str) -> int:
    """The attempt on record, or the next one where a failed job is to be tried again."""
    record = _stored(session, iteration, group)
    if record is None:
        return number_next_attempt(session.run, iteration, group)
    if record.state != "terminal" or record.outcome in ("succeeded", "skipped"):
        return record.attempt
    is_retried = (
        session.retry_failed_jobs or choose_next_step(session.parameters, record) == "try_again"
    )
    return record.attempt + 1 if is_retried else record.attempt


def _stored(session: Session, iteration: int, group: str) -> JobRecord | None:
    """Return the record of the group's job, if there is one."""
    return read_job(session.run, session.run.job(iteration, group))


def _record(session: Session, iteration: int, group: str) -> JobRecord:
    record = _stored(session, iteration, group)
    if record is None:
        raise CorruptionError(f"{session.run.job(iteration, group)}: it is gone; run again")
    return record


def _reference(record: JobRecord) -> JobReference:
    status = record.outcome or record.status
    return JobReference(record.group, record.id, record.key, status, record.model)


def _ledger(session: Session, group: str) -> AbstractAsyncContextManager[tuple[Ledger, Backend]]:
    agent = session.parameters.group_parameters(group)
    # The run's own server enforces the key itself and its list never lags.
    settle_s = session.parameters.fine_tuning.settle_s if group in session.endpoints else 0.0
    return open_ledger(
        session.run,
        agent.provider,
        session.at(group).control,
        settle_s=settle_s,
        lease=session.lease,
        clock=session.clock,
    )


def choose_next_step(parameters: HyperParameters, record: JobRecord) -> Step:
    """Decide the step after a job that is on record as terminal.

    A job is tried again until it has had `fine_tuning.max_attempts`, those on record before it
    included; the next failure stops the run.
    """
    settings = parameters.fine_tuning
    steps: dict[str, Step] = {
        "succeeded": "go_on",
        **{outcome: getattr(settings, name) for outcome, name in _SETTINGS.items()},
        "refused": "stop",  # the same request would be refused again
    }
    step = steps[record.outcome or "failed"]
    has_had_all = len(record.previous) + 1 >= settings.max_attempts
    return "stop" if step == "try_again" and has_had_all else step


_SETTINGS = {
    "failed": "on_failed",
    "cancelled": "on_cancelled",
    "not_found": "on_not_found",
    "deadline": "on_deadline",
    "skipped": "on_too_few_examples",
}
"""By outcome of a job, the setting of fine_tuning that says what follows."""


def _name_setting(record: JobRecord) -> str:
    setting = _SETTINGS.get(record.outcome or "failed")
    return f", or set fine_tuning.{setting} to another step" if setting else ""


def make_stop_error(record: JobRecord, path: str) -> JobError:
    """Make the error of a run stopped by the job on record at `path`."""
    attempts = len(record.previous) + 1
    tried = "" if attempts == 1 else f", after {attempts} attempts"
    return JobError(
        f"job {record.id} of group {record.group}, iteration {record.iteration}: {record.outcome} "
        f"({record.reason}){tried}; its record is {path}. Mend the cause and run again with "
        f"--retry-failed-jobs{_name_setting(record)}"
    )
