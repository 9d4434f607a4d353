"""The states of agents and groups in a checkpoint: plain values, to and from a dictionary."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Self, TypeAlias

PlainState: TypeAlias = dict[str, str | int | bool | None]
"""The fields of a state by name, as a checkpoint's JSON has them."""


@dataclass(frozen=True)
class _State:
    @classmethod
    def from_dict(cls, values: Mapping[str, str | int | bool | None]) -> Self:
        """Make the state from the values of `to_dict`. Raises ValueError naming an unknown key."""
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"{cls.__name__}: unknown keys {unknown} in the checkpoint")
        return cls(**values)

    def to_dict(self) -> PlainState:
        """JSON-encodable."""
        return asdict(self)


@dataclass(frozen=True)
class AgentState(_State):
    """The state of an agent; its model is the group's and stands in the group's state."""


@dataclass(frozen=True)
class OpenAiWholeAgentState(AgentState):
    """The model that an agent without a group was playing with."""

    model_name: str | None = None  # None: the base model


@dataclass(frozen=True)
class PureTextSharedModelGroupState(_State):
    """The state of a group."""


@dataclass(frozen=True)
class OpenAiSharedModelGroupState(PureTextSharedModelGroupState):
    """The group's current model, and its last fine-tune job if one was created."""

    fine_tune_job_id: str | None = None
    fine_tuned_model_name: str | None = None  # None: the base model
    fine_tuned_model_digest: str | None = None  # of its weights, where the server gives it
    fine_tuned_model_kind: str | None = None  # adapter or base, where the server says it
    has_switched: bool = False  # to the model of that job
    iteration: int = 0  # of that job: how many the group had before
