"""Training: from rollouts to the models that serve the next iteration.

scheduled      the groups that are trained in an iteration
build_dataset  choose examples, commit them as Parquet
submit         one job per such group, through the ledger
wait           until it has ended
swap           prove that the new models answer; record who serves from the next iteration on
"""

import time
from collections.abc import Awaitable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from nip_core.agents.chat_client import Endpoint
from nip_core.concurrency import together
from nip_core.errors import JobError, ServerError, StageError
from nip_core.fine_tuning.dataset import (
    EXAMPLES,
    dataset_digest,
    to_parquet,
    to_supervised_jsonl,
    to_table,
)
from nip_core.fine_tuning.job import Busy, JobRecord, JobSpec, NoAnswer, Refused
from nip_core.fine_tuning.ledger import Ledger
from nip_core.hashing import derive_seed, digest
from nip_core.parameters import HyperParameters
from nip_core.rollouts.tables import parquet_table, read_rollouts
from nip_core.run_store.manifest import commit, read_file, read_manifest
from nip_core.stages.models import ServedModel, models_for, write_models
from nip_core.stages.providers import is_deterministic, speaks_nip
from nip_core.stages.session import Session
from nip_core.trainers.expert_iteration import choose_examples

_FILE = "examples.parquet"
T = TypeVar("T")


def scheduled(parameters: HyperParameters, iteration: int) -> tuple[str, ...]:
    """The groups that are trained in the iteration: not frozen, and it is an agent's turn."""
    groups = parameters.trainable_groups
    return tuple(group for group in groups if parameters.training_agents(group, iteration))


def build_dataset(session: Session, iteration: int, group: str) -> dict[str, Any]:
    """Choose and commit the group's examples; returns their number and digest.

    They come from the sides of those of its agents that are trained in this iteration.
    """
    agents = session.parameters.training_agents(group, iteration)
    run, store = session.run, session.run.store
    used = (
        range(iteration + 1)
        if session.parameters.text_rl.fine_tune_on_all_previous_rollouts
        else [iteration]
    )
    directories = {i: run.rollouts(i, "train") for i in used}
    inputs = {
        f"rollouts/{i:04d}": str(read_manifest(store, directory).extra["canonical_digest"])
        for i, directory in directories.items()
    }
    rollouts = [read_rollouts(store, directory) for directory in directories.values()]
    episodes = pa.concat_tables([r.episodes for r in rollouts])
    examples = choose_examples(
        session.game,
        group,
        iteration,
        episodes,
        pa.concat_tables([r.generations for r in rollouts]),
        agents,
    )
    table = to_table(examples)
    manifest = commit(
        store,
        run.dataset(iteration, group),
        {_FILE: to_parquet(table)},
        inputs=inputs,
        rows={"examples": table.num_rows},
        extra={
            "digest": dataset_digest(table),
            "examples": table.num_rows,
            "episodes": episodes.num_rows,
            "agents": list(agents),
        },
        lease=session.lease,
    )
    return dict(manifest.extra)


async def submit(session: Session, iteration: int, group: str) -> dict[str, Any]:
    """The group's job, submitted now or before; returns its id and state."""
    directory = session.run.dataset(iteration, group)
    manifest = read_manifest(session.run.store, directory)
    table = parquet_table(
        read_file(session.run.store, manifest, _FILE), EXAMPLES, manifest.path(_FILE)
    )
    spec = job_spec(session, iteration, group, manifest.extra["digest"], table.num_rows)

    async def create() -> JobRecord:
        async with aclosing(_backend(session, group)) as backend:
            ledger = _ledger(session, group, backend)
            return await ledger.ensure_job(spec, to_supervised_jsonl(table))

    return _reference(await session.with_server(create))


async def wait(session: Session, iteration: int, group: str) -> dict[str, Any]:
    """Wait for the group's job. Raises JobError if it ends without a model."""
    record = _record(session, iteration, group)
    settings = session.parameters.fine_tuning

    async def poll() -> JobRecord:
        async with aclosing(_backend(session, group)) as backend:
            return await _ledger(session, group, backend).poll(
                record,
                interval_s=settings.poll_interval_s,
                deadline_s=settings.deadline_s,
                # The run's own server stood still while the run did.
                counted_from_s=None if group in session.endpoints else time.time(),
            )

    if record.state != "terminal":
        session.progress.start_stage(f"iteration {iteration}: training {group}", 0)
        record = await session.with_server(poll)
    if record.outcome not in ("succeeded", "skipped"):
        raise JobError(
            f"job {record.id} of group {group}, iteration {iteration}: {record.outcome} "
            f"({record.reason}); its record is {session.run.job(iteration, group)}. Mend the cause "
            "and run again with --retry-failed-jobs"
        )
    return _reference(record)


async def swap(session: Session, iteration: int) -> dict[str, str]:
    """Prove every new model and record who serves from the next iteration on.

    A model counts only if it answers under its own name; on a server of nip it also needs the
    server's proof that the saved weights are the ones that answer.
    """
    due = scheduled(session.parameters, iteration)
    trained = [group for group in due if _record(session, iteration, group).succeeded]
    waiting = [group for group in session.parameters.trainable_groups if group not in due]

    async def prove_all() -> list[ServedModel]:
        return await together(
            prove(session, group, _trained_model(session, iteration, group)) for group in trained
        )

    proved = await session.with_server(prove_all)
    after = models_for(session, iteration) | dict(zip(trained, proved, strict=True))
    stored = write_models(session, iteration, after, not_scheduled=waiting)
    return {group: model.model for group, model in stored.items()}


def pass_on(session: Session, iteration: int) -> dict[str, str]:
    """Record the models of another run as those that serve from the next iteration on.

    For a run that plays the tests of another one again, where nothing is trained.
    """
    stored = write_models(session, iteration, session.origin[iteration + 1])
    return {group: model.model for group, model in stored.items()}


async def prove_serving(session: Session, iteration: int) -> None:
    """Prove the trained models that are to play `iteration`: those of a run that is opened again,
    and those of another run. Nothing is asked where there is none."""

    trained = {
        group: model
        for group, model in models_for(session, iteration).items()
        if model.trained_in is not None
    }

    async def prove_all() -> list[ServedModel]:
        return await together(prove(session, group, model) for group, model in trained.items())

    if trained:
        await session.with_server(prove_all)


async def prove(session: Session, group: str, model: ServedModel) -> ServedModel:
    """The model with the proof that it answers with the weights that it should.

    Raises StageError if it does not, or is not there; ServerError if nobody answers.
    """
    control = session.control_endpoint(group)
    where, hosted = control.base_url, speaks_nip(session.parameters.group_parameters(group))

    async def ask() -> None:
        message = {"role": "user", "content": "-"}
        body = {"model": model.model, "messages": [message], "max_tokens": 1}
        await session.client.complete(session.endpoint(group), body)

    async with aclosing(_backend(session, group)) as backend:
        described = await _answer_of(backend.model(model.model), control, model.model)
        if hosted and not _is_proved(described):
            # An adapter that is not loaded is loaded, and proved, when it is asked for.
            await ask()
            described = await _answer_of(backend.model(model.model), control, model.model)
    extension = described.get("nip") or {}
    proof = extension.get("proof")
    if hosted and not _is_proved(described):
        raise StageError(
            f"{where}: model {model.model} is there, but it is not proved that it "
            f"answers with the weights that its job saved: {proof}"
        )
    content = extension.get("content_digest")
    if model.digest is not None and content != model.digest:
        raise StageError(
            f"{where}: model {model.model} has other weights than those on record "
            f"(content digest {content}, on record {model.digest})"
        )
    await ask()
    return replace(model, digest=content, proof=proof, kind=extension.get("kind"))


def _is_proved(described: Mapping[str, Any]) -> bool:
    proof = (described.get("nip") or {}).get("proof")
    return bool(proof and proof.get("matches"))


async def _answer_of(call: Awaitable[T], endpoint: Endpoint, model: str) -> T:
    try:
        return await call
    except Refused as error:
        raise StageError(
            f"{endpoint.base_url}: model {model} can't be had: {error}. If the server's state was "
            "lost, --fork from an earlier run or start a new one"
        ) from error
    except (Busy, NoAnswer) as error:
        raise ServerError(f"{endpoint.base_url}: {error}") from error


def _trained_model(session: Session, iteration: int, group: str) -> ServedModel:
    record = _record(session, iteration, group)
    assert record.model is not None  # a succeeded job has one
    return ServedModel(
        model=record.model,
        base_model=session.base_model(group),
        trained_in=iteration,
        job_id=record.id,
    )


def job_spec(session: Session, iteration: int, group: str, dataset: str, examples: int) -> JobSpec:
    """What the group's job of this iteration is: equal settings and data, equal job."""
    parameters = session.parameters
    agent = parameters.group_parameters(group)
    current = models_for(session, iteration)[group]
    from_base = agent.fine_tune_from_scratch or current.trained_in is None
    parent = current.base_model if from_base else current.model
    hyper_parameters, extensions = training_settings(
        parameters,
        group,
        from_base=from_base,
        # What was stacked too high was merged into a base model, and goes on as one.
        can_stack=current.kind != "base",
    )
    return JobSpec(
        run=session.run.name,
        iteration=iteration,
        group=group,
        dataset_digest=dataset,
        parent_model=parent,
        parent_model_digest=(None if from_base else current.digest) or digest(parent),
        seed=derive_seed("job", parameters.seed, iteration, group),
        examples=examples,
        hyper_parameters=hyper_parameters,
        extensions=extensions,
        attempt=_attempt(session, iteration, group),
        suffix=f"{session.run.name}-{iteration:04d}-{group}",
    )


def training_settings(
    parameters: HyperParameters,
    group: str,
    *,
    from_base: bool,
    can_stack: bool = True,
    method: str = "supervised",
) -> tuple[dict[str, Any], dict[str, Any]]:
    """How the group's model is trained: what the OpenAI API has words for, and the rest.

    Only what the method and the server take is in it. `from_base`: not from the model that plays;
    `can_stack`: that one is an adapter, so that another can be trained over it.
    """
    agent = parameters.group_parameters(group)
    if from_base:
        start_from = "base"
    else:
        start_from = "stack" if agent.stack_lora_adapters and can_stack else "continue"
    hyper_parameters: dict[str, Any] = {"n_epochs": agent.num_epochs or parameters.rl.num_epochs}
    if method == "dpo" and agent.dpo_beta is not None:
        hyper_parameters["beta"] = agent.dpo_beta
    if not speaks_nip(agent):
        return hyper_parameters, {}
    hyper_parameters["batch_size"] = agent.per_device_train_batch_size
    extensions: dict[str, Any] = {
        "learning_rate": parameters.rl.lr,
        "lora_rank": agent.lora_rank,
        "lora_alpha": agent.effective_lora_alpha,
        "lora_dropout": agent.lora_dropout,
        "lr_scheduler": parameters.fine_tuning.lr_scheduler,
        "warmup_ratio": parameters.fine_tuning.warmup_ratio,
        "weight_decay": parameters.fine_tuning.weight_decay,
        "start_from": start_from,
    }
    if parameters.fine_tuning.max_length is not None:
        extensions["max_length"] = parameters.fine_tuning.max_length
    if agent.quantization != "none" and not is_deterministic(parameters, agent):
        extensions["quantization"] = "4bit"  # as bitsandbytes holds it in the engine
    return hyper_parameters, extensions


def _attempt(session: Session, iteration: int, group: str) -> int:
    """The attempt on record, or the next one where a failed job is to be tried again."""
    stored = session.run.read_json_or_none(session.run.job(iteration, group))
    if stored is None:
        return 0
    record = JobRecord.model_validate(stored)
    failed = record.state == "terminal" and record.outcome not in ("succeeded", "skipped")
    return record.attempt + 1 if failed and session.retry_failed_jobs else record.attempt


def _record(session: Session, iteration: int, group: str) -> JobRecord:
    return JobRecord.model_validate(session.run.read_json(session.run.job(iteration, group)))


def _reference(record: JobRecord) -> dict[str, Any]:
    return {
        "group": record.group,
        "id": record.id,
        "key": record.key,
        "status": record.outcome or record.status,
        "model": record.model,
    }


def _backend(session: Session, group: str) -> Any:
    # Imported here: the client costs most of a second, and playing does not need it.
    from nip_core.fine_tuning.openai_backend import OpenAIBackend

    control = session.control_endpoint(group)
    hosted = speaks_nip(session.parameters.group_parameters(group))
    return OpenAIBackend(control.base_url, control.api_key, extensions=hosted)


def _ledger(session: Session, group: str, backend: Any) -> Ledger:
    # The run's own server enforces the key itself and its list never lags.
    settle_s = session.parameters.fine_tuning.settle_s if group in session.endpoints else 0.0
    return Ledger(session.run, backend, settle_s=settle_s, lease=session.lease)
