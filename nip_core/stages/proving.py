"""Proving that models answer, with the weights that they should, before they play."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nip_core.concurrency import gather_or_cancel
from nip_core.errors import ServerError, StageError
from nip_core.evaluation.figures_in_words import amount
from nip_core.jobs.job import Backend, Busy, ModelView, NoAnswer, Refused
from nip_core.jobs.services import open_backend
from nip_core.parameters import HyperParameters
from nip_core.parameters.derived.hosting import takes_turns
from nip_core.parameters.services.dialects import find_dialect
from nip_core.records.models import ServedModel
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.client.completions import RequestRefusedError
from nip_core.servers.endpoints import Endpoints
from nip_core.session.session import Session
from nip_core.stages.served import find_models, find_new_models, find_opponents


async def prove_serving(session: Session, iteration: int) -> dict[str, str]:
    """Prove the trained models of `iteration` before they play; name the models by group.

    These are the models of a run that is opened again, models of another run, models that newer
    base models have replaced, and models of earlier iterations or other runs that play in
    training. Where nothing was trained nothing is asked.
    """
    models = find_models(session, iteration)
    # A model that no iteration has trained is the one of the server's configuration: nothing was
    # saved that it could be compared with.
    trained_models = {g: model for g, model in models.items() if model.trained_in is not None}
    await return_places(session, {g: m for g, m in models.items() if m.trained_in is None})
    if trained_models:
        await prove_all(session, trained_models)
    await _prove_opponents(session, iteration)
    return {group: model.model for group, model in models.items()}


async def _prove_opponents(session: Session, iteration: int) -> None:
    parameters = session.parameters
    is_played = iteration < parameters.rl.num_iterations  # the last has nothing but a test
    opponents = find_opponents(session, iteration) if is_played else {}
    group_of = {name: group for group, names in parameters.groups.items() for name in names}
    by_name = {
        model.model: (group_of[agent], model)
        for agent, models in opponents.items()
        for model in models.values()
        if model.trained_in is not None
    }
    await _prove_each(session, [*by_name.values()])


async def prove_candidates(session: Session, iteration: int) -> dict[str, ServedModel]:
    """Prove that the new models of all groups answer; return them with their proofs, by group."""
    return await prove_all(session, find_new_models(session, iteration))


async def prove_all(session: Session, models: Mapping[str, ServedModel]) -> dict[str, ServedModel]:
    """Prove models, by group; returns them with their proofs."""
    return dict(zip(models, await _prove_each(session, [*models.items()]), strict=True))


async def _prove_each(
    session: Session, models: Sequence[tuple[str, ServedModel]]
) -> list[ServedModel]:
    """Prove models, each with its group, in their order."""

    async def prove_each() -> list[ServedModel]:
        return await gather_or_cancel(
            prove(session.parameters, group, session.at(group), session.client, model)
            for group, model in models
        )

    if not models:
        return []
    answers = "answers" if len(models) == 1 else "answer"
    with session.progress.doing(f"proving that {amount(len(models), 'model')} {answers}"):
        return await session.with_server(prove_each)


async def prove(
    parameters: HyperParameters,
    group: str,
    endpoints: Endpoints,
    client: ChatClient,
    model: ServedModel,
) -> ServedModel:
    """Ask the model's server for a proof of its weights, and return the model with it.

    It counts only if it answers under its own name; where the back-end proves models it also needs
    the proof that the saved weights are the ones that answer. Raises StageError if it does not, or
    is not there; ServerError if no server answers.
    """
    agent, address = parameters.group_parameters(group), endpoints.control.base_url

    async def ask() -> None:
        message = {"role": "user", "content": "-"}
        dialect = find_dialect(agent)
        body: dict[str, Any] = {"model": model.model, "messages": [message]}
        # As short as may be: that it answers is all that is asked, and providers send bills.
        body[dialect.limit] = dialect.least_limit
        try:
            await client.complete(endpoints.play, body)
        except RequestRefusedError as refused:
            # It answers, and thinks: OpenAI refuses an answer afterwards that has no text yet.
            if "output limit was reached" not in str(refused):
                raise

    # 1. Is it there, and does its server prove it?
    async with open_backend(agent.provider, endpoints.control) as backend:
        facts = await _describe(backend, model.model)
        if backend.proves and not facts.is_proved:
            # An adapter that is not loaded is loaded, and proved, when it is asked for.
            await ask()
            facts = await _describe(backend, model.model)
    if backend.proves and not facts.is_proved:
        raise StageError(
            f"{address}: model {model.model} is there, but it is not proved that it "
            f"answers with the weights that its job saved: {facts.proof}"
        )
    # 2. Are its weights those on record?
    if model.digest is not None and facts.digest != model.digest:
        raise StageError(
            f"{address}: model {model.model} has other weights than those on record "
            f"(content digest {facts.digest}, on record {model.digest})"
        )
    # 3. Does it answer?
    await ask()
    return replace(model, digest=facts.digest, proof=facts.proof, kind=facts.kind)


async def _describe(backend: Backend, model: str) -> ModelView:
    """Return its server's view of a model; one that has lost its place is started first."""
    try:
        return await backend.bring_model(model)
    except Refused as error:
        raise StageError(
            f"{backend.address}: model {model} can't be had: {error}. If the server's state was "
            "lost, --fork from an earlier run or start a new one"
        ) from error
    except (Busy, NoAnswer) as error:
        raise ServerError(f"{backend.address}: {error}") from error


async def return_places(session: Session, models: Mapping[str, ServedModel]) -> None:
    """Let base models answer again in the place of others, see `takes_turns`."""
    parameters = session.parameters

    async def bring_back(group: str, model: ServedModel) -> None:
        provider = parameters.group_parameters(group).provider
        async with open_backend(provider, session.at(group).control) as backend:
            await _describe(backend, model.model)

    async def bring_all() -> list[None]:
        return await gather_or_cancel(bring_back(*item) for item in waiting.items())

    waiting = {
        group: model
        for group, model in models.items()
        if takes_turns(parameters, parameters.group_parameters(group))
    }
    if waiting:
        await session.with_server(bring_all)
