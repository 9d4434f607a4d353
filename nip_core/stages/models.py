"""Which model each group plays with: base models first, then what iterations have trained.

``models.json`` of iteration i says which models serve from iteration i + 1 on.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nip_core.stages.session import Session


@dataclass(frozen=True)
class ServedModel:
    """The model of a group, with where it comes from."""

    model: str  # the name that answers
    base_model: str
    trained_in: int | None = None  # the iteration whose job made it; None: the base model
    job_id: str | None = None
    digest: str | None = None  # of the weights' content, where the server gives it
    proof: Mapping[str, Any] | None = None  # how it was shown that these weights answer


def models_for(session: Session, iteration: int) -> dict[str, ServedModel]:
    """The models that play `iteration`, by group."""
    if iteration == 0:
        return {
            group: ServedModel(session.base_model(group), session.base_model(group))
            for group in session.parameters.groups
        }
    stored = session.run.read_json(session.run.models(iteration - 1))
    return {group: ServedModel(**model) for group, model in stored["groups"].items()}


def write_models(
    session: Session, iteration: int, models: Mapping[str, ServedModel]
) -> dict[str, ServedModel]:
    """Record the swap of `iteration`, once; returns what stands on record."""
    stored = session.run.write_json_once(
        session.run.models(iteration),
        {"groups": {group: asdict(model) for group, model in models.items()}},
        lease=session.lease,
    )
    return {group: ServedModel(**model) for group, model in stored["groups"].items()}
