"""The models of a run as they stand in its ``models.json``: first models, then trained ones.

ServedModel           the model of a group, with where it comes from
Decision              the gate's decision about new models
opponents_on_record   by agent, the names of the earlier models that it may meet

``models.json`` of iteration i says which models serve from iteration i + 1 on, and which groups
were not trained in i because no agent's update schedule said so. Where the settings ask for a
promotion gate and there was a new model, it also has the gate's decision.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nip_core.parameters import HyperParameters
from nip_core.parameters.opponents import opponents_of
from nip_core.rollouts.league import earlier_models

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


def opponents_on_record(
    parameters: HyperParameters, played: Sequence[Mapping[str, str]]
) -> dict[str, dict[int, str]]:
    """The same as names; `played` are those of all models by group, up to the iteration itself."""
    group_of = map_agents_to_groups(parameters)
    opponents = {}
    for agent in opponents_of(parameters):
        *before, now = [names[group_of[agent]] for names in played]
        opponents[agent] = earlier_models(before, now, parameters.opponents.last)
    return {agent: models for agent, models in opponents.items() if models}


def map_agents_to_groups(parameters: HyperParameters) -> dict[str, str]:
    return {name: group for group, names in parameters.groups.items() for name in names}
