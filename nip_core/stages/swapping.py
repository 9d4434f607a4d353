"""Swapping models: those that are proved, and passed the gate where there is one, serve next."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nip_core.evaluation.figures_in_words import gate_line
from nip_core.records.models import Decision, ServedModel, Swap
from nip_core.run_store.documents import validate_document
from nip_core.servers.kept_models import keep_models
from nip_core.session.session import Session
from nip_core.stages.gating import decide, is_due
from nip_core.stages.proving import prove_serving, return_places
from nip_core.stages.served import find_models
from nip_core.stages.training import list_scheduled_groups


async def swap_models(
    session: Session, iteration: int, candidates: Mapping[str, ServedModel]
) -> dict[str, str]:
    """Record who serves from the next iteration on; returns the models' names by group.

    New models do, all of them proved just before, as `candidates`, once they have passed the gate
    where the settings ask for one; then both sides must have played.
    """
    # 1. A swap that is on record stays as it is.
    if session.run.store.exists(session.run.models(iteration)):
        return await prove_serving(session, iteration + 1)
    # 2. The gate takes all new models or none.
    next_models, promotion = find_models(session, iteration), None
    if is_due(session, iteration):
        # Those that are not taken can be found again, too.
        promotion = replace(decide(session, iteration), candidates=candidates)
    if promotion is None or promotion.promoted:
        next_models |= candidates
    # 3. From here on they serve, even if this process dies.
    due = list_scheduled_groups(session.parameters, iteration)
    waiting = [group for group in session.parameters.trainable_groups if group not in due]
    models_on_record = _record_swap(session, iteration, next_models, waiting, promotion)
    if promotion is not None:
        gate = f"iteration {iteration}: {gate_line(promotion)}"
        figures = {name: x for name, x in promotion.to_document().items() if name != "candidates"}
        session.tell("gate", gate, iteration=iteration, **figures)
        # The new models have played last, and where base models take turns theirs has the place.
        if not promotion.promoted:
            await return_places(session, next_models)
    names = {group: model.model for group, model in models_on_record.items()}
    serving = ", ".join(f"{group}: {model}" for group, model in names.items())
    words = f"iteration {iteration}: the models from here on are {serving}"
    session.tell("swap", words, iteration=iteration, models=names)
    return names


def pass_on(session: Session, iteration: int) -> dict[str, str]:
    """Record the models of another run as the ones to serve from the next iteration on.

    For a run that plays the tests of another one again, where nothing is trained. None follow the
    last iteration.
    """
    if iteration == session.parameters.rl.num_iterations:
        return {}
    models_on_record = _record_swap(session, iteration, session.origin[iteration + 1])
    return {group: model.model for group, model in models_on_record.items()}


def _record_swap(
    session: Session,
    iteration: int,
    models: Mapping[str, ServedModel],
    not_scheduled: Sequence[str] = (),
    promotion: Decision | None = None,
) -> dict[str, ServedModel]:
    """Record the swap of `iteration` once; return by group the models on record.

    `promotion` is the decision of the gate, where there was one.
    """
    if session.server is not None:
        # Before the record: once it names a model, a machine that is lost must not take that model
        # along.
        names = [model.model for model in models.values()]
        keep_models(session.run, session.server.directory, names, session.lease)
    swap = Swap(groups=dict(models), not_scheduled=list(not_scheduled), promotion=promotion)
    path = session.run.models(iteration)
    # Of two runners that write it the first counts, so the models on record are returned.
    document = session.run.write_json_once(path, swap.to_document(), lease=session.lease)
    return validate_document(document, Swap, path).groups
