"""The models that groups play with: first models, then those that iterations have trained.

models_for     the models that play an iteration
candidates     the models that an iteration has trained, by group

``models.json`` of iteration i says which models serve from iteration i + 1 on, and which groups
were not trained in i because no agent's update schedule said so. Where the settings ask for a
promotion gate and there was a new model, it also has the gate's decision, see `gating`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nip_core.jobs.document import read_job

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
