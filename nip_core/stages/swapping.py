"""Swapping models: they are proved, pass the gate where there is one, and serve from then on.

is_due            whether old and new models are compared in an iteration
prove_candidates  prove that the new models answer
prove_serving     prove that the models which are to play an iteration answer
swap_models       record who serves from the next iteration on
prove             the proof of one model

The gate: new models play on only if they do not play validation problems worse. After the jobs of
an iteration have ended, the models that play it (split `validation`) and the new models of all
groups together (split `candidate`) play the same validation problems with the same seeds. The old
ones play anew each time: the figure at which they were chosen is the highest of several and would
flatter them. Test problems are never looked at here.

What is covered: new models that are worse by more than the margin, on the problems played, stay
out. What is not: the difference has an interval, and a margin of 0 also refuses models that are as
good as the old ones in about half of all cases.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa

from nip_core.concurrency import gather_or_cancel
from nip_core.errors import ServerError, StageError
from nip_core.evaluation.metrics import mean_by_problem, paired_difference
from nip_core.evaluation.report_text import gate_line
from nip_core.jobs.job import Busy, NoAnswer, Refused
from nip_core.jobs.openai_backend import OpenAIBackend, open_backend
from nip_core.jobs.server_calls import LmServer
from nip_core.parameters import HyperParameters
from nip_core.parameters.checks import takes_turns
from nip_core.rollouts.chat_client import ChatClient, Endpoint
from nip_core.rollouts.model_call import limit_name
from nip_core.rollouts.plan import CANDIDATE, VALIDATION
from nip_core.rollouts.tables import read_rollouts
from nip_core.stages.models import Decision, ServedModel, candidates, models_for, write_models
from nip_core.stages.providers import Endpoints, speaks_nip
from nip_core.stages.session import Session
from nip_core.stages.training import scheduled
from nip_core.tolerance import at_least


def is_due(session: Session, iteration: int) -> bool:
    """Say whether the iteration's models have to pass the gate.

    They do if it is on, there is a new model, and who serves next is not on record yet.

    To be asked when the jobs of the iteration have ended.
    """
    if not session.parameters.promotion.enabled:
        return False
    is_swapped = session.run.store.exists(session.run.models(iteration))
    return not is_swapped and bool(candidates(session, iteration))


def compare(old: pa.Table, new: pa.Table, metric: str, margin: float, seed: int) -> Decision:
    """The decision from the episodes of both sides, which cover the same problems.

    The new models are taken if their metric is at least the old ones' less `margin`. A failed
    episode counts as wrong and earns nothing. Raises DatasetError if the problems differ.
    """
    reward_of = "verifier" if metric == "verifier_reward" else None
    paired = paired_difference(old, new, seed, reward_of=reward_of)
    before, after = (mean_by_problem(side, reward_of) for side in (old, new))
    assert before is not None and after is not None  # there are problems, or no gate
    low, high = paired["ci95"]
    return Decision(
        promoted=at_least(paired["difference"], -margin),
        metric=metric,
        validation=before,
        candidate=after,
        difference=paired["difference"],
        ci95=(low, high),
        problems=paired["problems"],
        margin=margin,
    )


def decide(session: Session, iteration: int) -> Decision:
    """Compare what both sides have played. Raises MissingFileError if one has not."""
    run, settings = session.run, session.parameters.promotion
    old, new = (
        read_rollouts(run.store, run.rollouts(iteration, split)).episodes
        for split in (VALIDATION, CANDIDATE)
    )
    return compare(old, new, settings.metric, settings.margin, session.parameters.seed)


async def prove_candidates(session: Session, iteration: int) -> dict[str, str]:
    """Prove that the new models of all groups answer; returns their names by group."""
    proved = await _prove_all(session, candidates(session, iteration))
    return {group: model.model for group, model in proved.items()}


def takes_turns_in(session: Session) -> bool:
    """Say whether old and new models of a group can't play at the same time."""
    parameters = session.parameters
    groups = parameters.trainable_groups
    return any(takes_turns(parameters, parameters.group_parameters(group)) for group in groups)


async def swap_models(session: Session, iteration: int) -> dict[str, str]:
    """Record who serves from the next iteration on; returns the models' names by group.

    New models do once they are proved, and have passed the gate where the settings ask for one;
    then both sides must have played.
    """
    # 1. A swap that is on record stays as it is.
    if session.run.store.exists(session.run.models(iteration)):
        await prove_serving(session, iteration + 1)
        return {g: model.model for g, model in models_for(session, iteration + 1).items()}
    # 2. No model serves that is not proved.
    proved = await _prove_all(session, candidates(session, iteration))
    # 3. The gate takes all new models or none.
    after, promotion = models_for(session, iteration), None
    if is_due(session, iteration):
        # Those that are not taken can be found again, too.
        promotion = asdict(replace(decide(session, iteration), candidates=proved))
    if promotion is None or promotion["promoted"]:
        after |= proved
    # 4. From here on they serve, whatever happens to this process.
    due = scheduled(session.parameters, iteration)
    waiting = [group for group in session.parameters.trainable_groups if group not in due]
    stored = write_models(session, iteration, after, waiting, promotion)
    if promotion is not None:
        session.log.info("iteration %d: %s", iteration, gate_line(promotion))
        if not promotion["promoted"]:
            await _return_places(session, after)
    names = {group: model.model for group, model in stored.items()}
    serving = ", ".join(f"{group}: {model}" for group, model in names.items())
    session.log.info("iteration %d: the models from here on are %s", iteration, serving)
    return names


def pass_on(session: Session, iteration: int) -> dict[str, str]:
    """Record the models of another run as those that serve from the next iteration on.

    For a run that plays the tests of another one again, where nothing is trained.
    """
    stored = write_models(session, iteration, session.origin[iteration + 1])
    return {group: model.model for group, model in stored.items()}


async def prove_serving(session: Session, iteration: int) -> None:
    """Prove the trained models that are to play `iteration`: those of a run that is opened again,
    those of another run, and those that newer base models have taken the place of. Nothing is
    asked where there is none."""
    models = models_for(session, iteration)
    trained = {g: model for g, model in models.items() if model.trained_in is not None}
    await _return_places(session, {g: m for g, m in models.items() if m.trained_in is None})
    if trained:
        session.progress.start_stage(f"iteration {iteration}: proving the models that play", 0)
        await _prove_all(session, trained)


async def _return_places(session: Session, models: Mapping[str, ServedModel]) -> None:
    """Let base models answer again that others have taken the place of, see `takes_turns`."""
    parameters = session.parameters

    async def bring_back(group: str, model: ServedModel) -> None:
        control = session.at(group).control
        async with open_backend(control, speaks_nip=True) as backend:
            await _described(backend, control, model.model)

    async def bring_all() -> list[None]:
        return await gather_or_cancel(bring_back(*item) for item in waiting.items())

    waiting = {
        group: model
        for group, model in models.items()
        if takes_turns(parameters, parameters.group_parameters(group))
    }
    if waiting:
        await session.with_server(bring_all)


async def _prove_all(session: Session, models: Mapping[str, ServedModel]) -> dict[str, ServedModel]:
    """Prove models, by group; returns them with their proofs."""

    async def prove_each() -> list[ServedModel]:
        return await gather_or_cancel(
            prove(session.parameters, group, session.at(group), session.client, model)
            for group, model in models.items()
        )

    return dict(zip(models, await session.with_server(prove_each), strict=True))


async def prove(
    parameters: HyperParameters,
    group: str,
    at: Endpoints,
    client: ChatClient,
    model: ServedModel,
) -> ServedModel:
    """The model with the proof that it answers with the weights that it should.

    It counts only if it answers under its own name; on a server of nip it also needs the server's
    proof that the saved weights are the ones that answer. Raises StageError if it does not, or is
    not there; ServerError if nobody answers.
    """
    agent, control = parameters.group_parameters(group), at.control
    where, hosted = control.base_url, speaks_nip(agent)

    async def ask() -> None:
        message = {"role": "user", "content": "-"}
        body = {"model": model.model, "messages": [message], limit_name(agent): 1}
        await client.complete(at.play, body)

    # 1. Is it there, and does its server prove it?
    async with open_backend(control, speaks_nip=hosted) as backend:
        extension = await _described(backend, control, model.model)
        if hosted and not (extension.get("proof") or {}).get("matches"):
            # An adapter that is not loaded is loaded, and proved, when it is asked for.
            await ask()
            extension = await _described(backend, control, model.model)
    proof = extension.get("proof")
    if hosted and not (proof or {}).get("matches"):
        raise StageError(
            f"{where}: model {model.model} is there, but it is not proved that it "
            f"answers with the weights that its job saved: {proof}"
        )
    # 2. Are its weights those on record?
    content = extension.get("content_digest")
    if model.digest is not None and content != model.digest:
        raise StageError(
            f"{where}: model {model.model} has other weights than those on record "
            f"(content digest {content}, on record {model.digest})"
        )
    # 3. Does it answer?
    await ask()
    return replace(model, digest=content, proof=proof, kind=extension.get("kind"))


async def _described(backend: OpenAIBackend, control: Endpoint, model: str) -> dict[str, Any]:
    """The part of a model's description that servers of nip add; empty for others.

    A base model that has lost its place to another one is started first.
    """
    extension = await _extension_of(backend, control, model)
    # A base model of the server's configuration says no kind.
    if extension.get("kind", "base") == "base" and extension.get("served") is False:
        await LmServer(control).move_engine(model, "start")
        extension = await _extension_of(backend, control, model)
    return extension


async def _extension_of(backend: OpenAIBackend, endpoint: Endpoint, model: str) -> dict[str, Any]:
    try:
        return dict((await backend.model(model)).get("nip") or {})
    except Refused as error:
        raise StageError(
            f"{endpoint.base_url}: model {model} can't be had: {error}. If the server's state was "
            "lost, --fork from an earlier run or start a new one"
        ) from error
    except (Busy, NoAnswer) as error:
        raise ServerError(f"{endpoint.base_url}: {error}") from error
