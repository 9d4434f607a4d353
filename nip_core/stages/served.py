"""Which models play an iteration: first models, then those that iterations have trained."""

from nip_core.errors import CorruptionError
from nip_core.jobs.document import read_job
from nip_core.parameters.blocks.opponents import RUNS, list_opponents
from nip_core.records.attack_course import course_path, read_course
from nip_core.records.models import (
    ServedModel,
    list_of_others,
    map_agents_to_groups,
    name_opponents,
    read_models,
)
from nip_core.rollouts.plan import OpponentKey, is_final_test
from nip_core.session.session import Session


def find_models(session: Session, iteration: int) -> dict[str, ServedModel]:
    """Return by group the models of `iteration`."""
    if iteration == 0:
        base = {group: session.base_model(group) for group in session.parameters.groups}
        # There is no document yet that could be read: nothing was swapped before iteration 0.
        first = session.origin[0] if session.origin else {}
        return {group: first.get(group) or ServedModel(base[group], base[group]) for group in base}
    return read_models(session.run, iteration)


def find_new_models(session: Session, iteration: int) -> dict[str, ServedModel]:
    """By group, the models of the iteration's succeeded jobs; not yet proved."""
    new_models = {}
    for group in session.parameters.trainable_groups:
        record = read_job(session.run, session.run.job(iteration, group))
        if record is not None and record.succeeded:
            assert record.model is not None  # a succeeded job has one
            new_models[group] = ServedModel(
                model=record.model,
                base_model=session.base_model(group),
                trained_in=iteration,
                job_id=record.id,
            )
    return new_models


def find_opponents(session: Session, iteration: int) -> dict[str, dict[OpponentKey, ServedModel]]:
    """Return by agent the other models that may play it in the training episodes of `iteration`.

    Each by the first iteration that it has played, or by its run. Agents without any, as in the
    first iteration of a league, are left out.
    """
    parameters = session.parameters
    if not list_opponents(parameters):
        return {}
    if parameters.opponents.kind == RUNS:
        return list_of_others(parameters)
    earlier_models = [find_models(session, 0)]
    earlier_models += [swap.groups for swap in session.records.swaps(iteration)]
    names = [{group: model.model for group, model in groups.items()} for groups in earlier_models]
    group_of = map_agents_to_groups(parameters)
    return {
        agent: {first: earlier_models[int(first)][group_of[agent]] for first in models}
        for agent, models in name_opponents(parameters, names).items()
    }


def find_player(session: Session, iteration: int, split: str) -> int:
    """Return the iteration whose models play a split: itself, as a rule.

    The last test of an attack by training is played by the provers that were the worst.
    """
    if not is_final_test(session.parameters, split, iteration):
        return iteration
    course = read_course(session.run, iteration)
    if course is None:
        raise CorruptionError(f"{course_path(session.run, iteration)}: it is gone; run again")
    return course.worst_step
