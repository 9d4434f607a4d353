"""In which iterations an agent is trained. Counted from 0, over the whole run.

A group is trained on the rollouts of its agents that are due by their schedules.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, InstanceOf, PlainSerializer, WithJsonSchema

from nip_core.parameters.basis.plain import Plain, PlainMapping


class AgentUpdateSchedule(ABC):
    """Decides in which iterations an agent is trained."""

    @abstractmethod
    def updates(self, iteration: int) -> bool:
        """Return whether the agent is trained in this iteration (counted from 0)."""

    def to_dict(self) -> dict[str, Any]:
        """``{"_type": name, name: arguments}``; `from_dict` reads it."""
        name, arguments = type(self).__name__, asdict(self)  # type: ignore[call-overload]
        return {"_type": name, name: arguments} if arguments else {"_type": name}

    @staticmethod
    def from_dict(values: PlainMapping) -> "AgentUpdateSchedule":
        """The schedule of a `to_dict`, or of ``{"_type": name, argument: value, ...}``.

        Raises ValueError naming what is wrong.
        """
        name = values.get("_type")
        kind = SCHEDULES.get(name) if isinstance(name, str) else None
        if kind is None:
            raise ValueError(f"_type must be one of {', '.join(SCHEDULES)} (got {name!r})")
        inner: Plain = {key: value for key, value in values.items() if key != "_type"}
        if isinstance(inner, dict) and set(inner) == {name}:
            inner = inner[str(name)] or {}
        if not isinstance(inner, dict):
            raise ValueError(f"{name}: a mapping of arguments is needed (got {inner!r})")
        arguments = {_OTHER_NAMES.get(key, key): value for key, value in inner.items()}
        try:
            return kind(**arguments)
        except TypeError as error:  # a missing or unknown argument
            raise ValueError(str(error).replace(".__init__()", ":")) from None


@dataclass(frozen=True)
class ConstantUpdateSchedule(AgentUpdateSchedule):
    """Trains the agent in every iteration."""

    def updates(self, iteration: int) -> bool:
        """Always true."""
        return True


@dataclass(frozen=True)
class ContiguousPeriodicUpdateSchedule(AgentUpdateSchedule):
    """Trains the agent in the iterations ``start <= iteration % period < stop``."""

    period: int
    start: int
    stop: int

    def __post_init__(self) -> None:
        """Raises ValueError where the schedule could never train."""
        _check_integers(self)
        if not 0 <= self.start < self.stop <= self.period:
            raise ValueError(
                f"0 <= start < stop <= period is needed (got start={self.start}, "
                f"stop={self.stop}, period={self.period})"
            )

    def updates(self, iteration: int) -> bool:
        """Return whether the iteration lies in the stretch."""
        return self.start <= iteration % self.period < self.stop


@dataclass(frozen=True)
class AlternatingPeriodicUpdateSchedule(AgentUpdateSchedule):
    """Trains the first agent in the first iterations of every period, the other in the rest."""

    period: int
    first_agent_num_iterations: int
    first_agent: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError where one of the two would never be trained."""
        _check_integers(self)
        if not isinstance(self.first_agent, bool):
            raise ValueError(f"first_agent must be true or false (got {self.first_agent!r})")
        if not 0 < self.first_agent_num_iterations < self.period:
            raise ValueError(
                "0 < first_agent_num_iterations < period is needed (got "
                f"first_agent_num_iterations={self.first_agent_num_iterations}, "
                f"period={self.period})"
            )

    def updates(self, iteration: int) -> bool:
        """Return whether the iteration belongs to this agent."""
        is_first = iteration % self.period < self.first_agent_num_iterations
        return is_first is self.first_agent


_OTHER_NAMES = {"first_agent_num_rounds": "first_agent_num_iterations"}
"""Names that an argument may also have."""

SCHEDULES: dict[str, type[AgentUpdateSchedule]] = {
    kind.__name__: kind
    for kind in (
        ConstantUpdateSchedule,
        ContiguousPeriodicUpdateSchedule,
        AlternatingPeriodicUpdateSchedule,
    )
}


def _check_integers(schedule: AgentUpdateSchedule) -> None:
    for name, value in vars(schedule).items():
        if name != "first_agent" and (isinstance(value, bool) or not isinstance(value, int)):
            raise ValueError(f"{name} must be an integer (got {value!r})")


def _read(value: Any) -> Any:
    """A schedule from its written forms; a schedule without arguments may be just its name."""
    if isinstance(value, str):
        value = {"_type": value}
    return AgentUpdateSchedule.from_dict(value) if isinstance(value, Mapping) else value


UpdateSchedule = Annotated[
    InstanceOf[AgentUpdateSchedule],
    BeforeValidator(_read),
    PlainSerializer(AgentUpdateSchedule.to_dict),
    WithJsonSchema({"type": ["string", "object"]}, mode="validation"),
]
"""A schedule as a field of settings."""
