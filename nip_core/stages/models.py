"""The models that groups play with: first models, then those that iterations have trained.

models_for     the models that play an iteration
candidates     the models that an iteration has trained, by group
opponents_for  the models of earlier iterations that agents meet in one
opponents_on_record   their names

``models.json`` of iteration i says which models serve from iteration i + 1 on, and which groups
were not trained in i because no agent's update schedule said so. Where the settings ask for a
promotion gate and there was a new model, it also has the gate's decision, see `gating`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nip_core.jobs.document import read_job
from nip_core.parameters import HyperParameters
from nip_core.parameters.opponents import opponents_of
from nip_core.rollouts.league import earlier_models

if TYPE_CHECKING:
    from nip_core.stages.session import Session

NOT_SCHEDULED = "not scheduled"
"""The status of a job that there is none of, as no agent of its group trains in the iteration."""


@dataclass(frozen=True)
class ServedModel:
    """The model of a group, with where it comes from."""

    model: str  # the name that answers
    base_model: str
    trained_in: int | None = None  # the iteration whose job made it; None: the base model
    job_id: str | None = None
    digest: str | None = None  # of the weights' content, where the server gives it
    proof: Mapping[str, Any] | None = None  # how it was shown that these weights answer
    from_run: str | None = None  # the run that trained it; None: this one
    kind: str | None = None  # adapter or base, where the server says it


@dataclass(frozen=True)
class Decision:
    """The decision to take new models or not, with its reasons."""

    promoted: bool
    metric: str  # what is compared: accuracy or verifier_reward
    validation: float  # of the models that played the iteration
    candidate: float  # of the new ones
    difference: float  # new minus old, mean over problems
    ci95: tuple[float, float] | None  # of the difference; None with one question only
    problems: int
    margin: float
    candidates: Mapping[str, ServedModel] = field(default_factory=dict)
    """By group, the models that it was about."""


def models_for(session: "Session", iteration: int) -> dict[str, ServedModel]:
    """The models that play `iteration`, by group."""
    if iteration == 0:
        base = {group: session.base_model(group) for group in session.parameters.groups}
        first = session.origin[0] if session.origin else {}
        return {group: first.get(group) or ServedModel(base[group], base[group]) for group in base}
    stored = session.run.read_json(session.run.models(iteration - 1))
    return {group: ServedModel(**model) for group, model in stored["groups"].items()}


def candidates(session: "Session", iteration: int) -> dict[str, ServedModel]:
    """By group, the models of the iteration's succeeded jobs; not yet proved."""
    trained = {}
    for group in session.parameters.trainable_groups:
        record = read_job(session.run, session.run.job(iteration, group))
        if record is not None and record.succeeded:
            assert record.model is not None  # a succeeded job has one
            trained[group] = ServedModel(
                model=record.model,
                base_model=session.base_model(group),
                trained_in=iteration,
                job_id=record.id,
            )
    return trained


def opponents_for(session: "Session", iteration: int) -> dict[str, dict[int, ServedModel]]:
    """By agent, the earlier models that may play it in the training episodes of `iteration`.

    Each by the first iteration that it has played. Agents without any, as in the first iteration,
    are left out.
    """
    parameters = session.parameters
    if not opponents_of(parameters):
        return {}
    played = [models_for(session, 0)]
    for swap in session.records.swaps(iteration):
        played.append({group: ServedModel(**model) for group, model in swap["groups"].items()})
    names = [{group: model.model for group, model in groups.items()} for groups in played]
    group_of = _groups_of_agents(parameters)
    return {
        agent: {first: played[first][group_of[agent]] for first in models}
        for agent, models in opponents_on_record(parameters, names).items()
    }


def opponents_on_record(
    parameters: HyperParameters, played: Sequence[Mapping[str, str]]
) -> dict[str, dict[int, str]]:
    """The same as names; `played` are those of all models by group, up to the iteration itself."""
    group_of = _groups_of_agents(parameters)
    opponents = {}
    for agent in opponents_of(parameters):
        *before, now = [names[group_of[agent]] for names in played]
        opponents[agent] = earlier_models(before, now, parameters.opponents.last)
    return {agent: models for agent, models in opponents.items() if models}


def _groups_of_agents(parameters: HyperParameters) -> dict[str, str]:
    return {name: group for group, names in parameters.groups.items() for name in names}
