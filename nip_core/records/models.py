"""The models of a run as they stand in its ``models.json``: first models, then trained ones.

ServedModel     the model of a group, with where it comes from
Decision        the gate's decision about new models
Swap            the whole document; read_swap reads one
read_models     the models that play an iteration
name_opponents  by agent, the names of the earlier models, or of other runs', that may play for it
list_opponents_taken_over  the models of other runs that play in training
list_of_others  by agent, the models of other runs that may play for it

``models.json`` of iteration i is written by `nip_core.stages.swapping` and read here. It says
which models serve from iteration i + 1 on, and which groups were not trained in i because no
agent's update schedule said so. Where the settings ask for a promotion gate and there was a new
model, it also has the gate's decision.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict

from nip_core.parameters import HyperParameters
from nip_core.parameters.blocks.opponents import RUNS, list_opponents
from nip_core.rollouts.league import find_earlier_models
from nip_core.rollouts.plan import OpponentKey
from nip_core.run_store.documents import validate_document
from nip_core.run_store.run import RunRecord, RunStore, read_document
from nip_core.run_store.store import MissingFileError
from nip_core.scenarios.scripts import name_as_model

NOT_SCHEDULED = "not scheduled"
"""The status of a job that there is none of, as no agent of its group trains in the iteration."""


@dataclass(frozen=True)
class ServedModel:
    """The model of a group, with where it comes from."""

    model: str  # the name that answers
    base_model: str
    trained_in: int | None = None  # the iteration of the job that made it; None: the base model
    job_id: str | None = None
    digest: str | None = None  # of the weights' content, where the server gives it
    proof: Mapping[str, Any] | None = None  # how it was shown that these weights answer
    from_run: str | None = None  # the run that trained it; None: this one
    kind: str | None = None  # adapter or base, where the server says it


@dataclass(frozen=True)
class Decision:
    """The decision to take new models or not, with its reasons."""

    promoted: bool
    metric: str  # the compared figure: accuracy or verifier_reward
    validation: float  # of the models that played the iteration
    candidate: float  # of the new ones
    difference: float  # new minus old, mean over problems
    ci95: tuple[float, float] | None  # of the difference; None with one question only
    problems: int
    margin: float
    candidates: Mapping[str, ServedModel] = field(default_factory=dict)
    """By group, the models that it was about."""

    def to_document(self) -> dict[str, Any]:
        """Give it as JSON has it, with a list for the interval."""
        return {**asdict(self), "ci95": None if self.ci95 is None else [*self.ci95]}


class Swap(BaseModel):
    """``models.json`` of an iteration: who serves from the next one on."""

    model_config = ConfigDict(frozen=True)

    groups: dict[str, ServedModel]
    not_scheduled: list[str] = []
    """Groups of which no agent's update schedule asked for a training."""
    promotion: Decision | None = None
    """None: no gate was asked for, or there was no new model."""

    @property
    def names(self) -> dict[str, str]:
        """Name the model of each group."""
        return {group: model.model for group, model in self.groups.items()}

    def to_document(self) -> dict[str, Any]:
        """Give it as it stands on record: without a gate there is no key for it."""
        return {
            "groups": {group: asdict(model) for group, model in self.groups.items()},
            "not_scheduled": list(self.not_scheduled),
            # No null in its place: documents of runs without a gate stay as they have been.
            **({} if self.promotion is None else {"promotion": self.promotion.to_document()}),
        }


def list_taken_over(record: RunRecord) -> list[dict[str, ServedModel]]:
    """List by iteration, and by group, the models of other runs with which the run was created.

    Only a run that plays the tests of another one again has more than one entry.
    """
    place = f"{record.run}/run.json"
    return [
        validate_document({"groups": groups}, Swap, place).groups
        # A run that begins with base models has none.
        for groups in record.contents.get("origin") or ()
    ]


def list_opponents_taken_over(record: RunRecord) -> list[ServedModel]:
    """List the models of other runs that play in training, by the run's record."""
    runs = (record.parameters.get("opponents") or {}).get("runs") or ()
    opponents = [entry["found"] for entry in runs if entry.get("found")]
    models = [
        ServedModel(**model) for opponent in opponents for model in opponent["models"].values()
    ]
    return [model for model in models if model.trained_in is not None]


def read_swap(run: RunStore, iteration: int) -> Swap | None:
    """Read the swap of an iteration; None if there is none yet. Raises CorruptionError."""
    return read_document(run, run.models(iteration), Swap)


def read_models(run: RunStore, iteration: int) -> dict[str, ServedModel]:
    """Read by group the models in play in an iteration of the run.

    Of iteration 0 only those that come from another run. Raises MissingFileError if the iteration
    before is not over, CorruptionError for a damaged document.
    """
    if iteration == 0:
        return (list_taken_over(run.open()) or [{}])[0]
    swap = read_swap(run, iteration - 1)
    if swap is None:
        raise MissingFileError(f"{run.models(iteration - 1)}: no such file")
    return swap.groups


def name_opponents(
    parameters: HyperParameters, model_names: Sequence[Mapping[str, str]]
) -> dict[str, dict[OpponentKey, str]]:
    """Name by agent the earlier models that may play it, each by the first iteration it played.

    `model_names` are those of all models by group, up to the iteration itself. Models of other runs
    are named by the run.
    """
    if parameters.opponents.kind == RUNS:
        by_agent = list_of_others(parameters)
        return {a: {run: m.model for run, m in models.items()} for a, models in by_agent.items()}
    group_of = map_agents_to_groups(parameters)
    opponents: dict[str, dict[OpponentKey, str]] = {}
    for agent in list_opponents(parameters):
        *earlier, now = [names[group_of[agent]] for names in model_names]
        opponents[agent] = find_earlier_models(earlier, now, parameters.opponents.last)
    # In the first iterations there may be no earlier model to meet.
    return {agent: models for agent, models in opponents.items() if models}


def list_of_others(parameters: HyperParameters) -> dict[str, dict[OpponentKey, ServedModel]]:
    """List by agent, and by run, the models of other runs that may play it; or their scripts."""
    by_agent: dict[str, dict[OpponentKey, ServedModel]] = {}
    for entry in parameters.opponents.runs:
        if (opponent := entry.found) is None:
            continue
        for agent in entry.agents:
            if opponent.script is None:
                model = ServedModel(**opponent.models[agent])
            else:
                name = name_as_model(opponent.script, opponent.script_digest)
                model = ServedModel(name, name)
            by_agent.setdefault(agent, {})[entry.name] = model
    return by_agent


def map_agents_to_groups(parameters: HyperParameters) -> dict[str, str]:
    """Give by agent its model group."""
    return {name: group for group, names in parameters.groups.items() for name in names}
