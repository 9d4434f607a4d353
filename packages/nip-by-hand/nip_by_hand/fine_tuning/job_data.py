"""The parts that a trainer adapter gives to a job: the lines of its training file, and its
settings.

SupervisedLine    a conversation whose assistant messages are learned
TrajectoryLine    a conversation with its reward, and the group it is compared in
PairLine          a prompt with the preferred answer and the other one
JobSettings       the settings, those of OpenAI's API and the server's own

The rules that lines must keep stand in `nip_base.formats`.
"""

from dataclasses import dataclass
from typing import NotRequired, TypeAlias, TypedDict

from nip_base.wire import NipSettings

Setting: TypeAlias = bool | int | float | str | list[str] | None


@dataclass(frozen=True)
class JobSettings:
    """The settings of a job: those that the OpenAI API has words for, and the server's own."""

    hyper_parameters: dict[str, Setting]
    nip: NipSettings


class LineMessage(TypedDict):
    """A message. `weight` 0: an answer that is context, and not trained."""

    role: str
    content: str
    name: NotRequired[str]
    weight: NotRequired[int]
    token_ids: NotRequired[list[int]]
    logprobs: NotRequired[list[float]]


class SupervisedLine(TypedDict):
    """A conversation."""

    messages: list[LineMessage]


class TrajectoryLine(SupervisedLine):
    """A conversation with its reward. Lines of one `group_id` are compared with each other."""

    group_id: str
    reward: float
    advantage: NotRequired[float]


class PairLine(TypedDict):
    """A prompt with two answers, the preferred one and the other.

    Each answer is a list of one message.
    """

    input: SupervisedLine
    preferred_output: list[LineMessage]
    non_preferred_output: list[LineMessage]


JobLine: TypeAlias = SupervisedLine | TrajectoryLine | PairLine
