"""A reward function of a user's own: it gives the pay of an ended episode, in the protocol's place.

EndedEpisode          the argument of the function
RewardFunction        one that is loaded; `pay` calls it and checks its result
load_reward_function  by the settings
bound_reward          the least and the most that an episode pays an agent
halve_reward          the reward between a good episode and a bad one for an agent

The function is code that runs as the user's own. It has to be pure: its result depends on its
argument alone, since episodes are paid again when a shard goes on after a kill, or is read by hand.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from nip_base.importing import find_line
from nip_core.importing import find_source, import_function
from nip_core.protocols.base import Exchange, Protocol, RoundResult, Turn
from nip_core.protocols.settings import CommonSettings
from nip_core.tolerance import at_least

SETTING = "protocol_common.reward_function"


@dataclass(frozen=True)
class EndedEpisode:
    """An episode after its last round, with its label. One that failed is never paid."""

    texts: Mapping[str, str]
    """The problem by column: `question`, `solution`, and all others of the scenario, those that are
    drawn for the episode included."""
    y: int
    """The true label: 1 correct, 0 buggy."""
    turns: Sequence[Turn]
    """In the order of play, each with `round`, `agent`, `text` and `move`. Log-probabilities are
    left out."""
    rounds: int
    """How many rounds were played."""
    decision: int
    """The verdict: 1 accept, 0 reject, 3 neither (the middle of a scale), 2 none was given."""
    value: float | None
    """The verdict's place on its scale, from -1 to 1; None without a verdict."""
    stance: int | None
    """The verdict that the provers argue for, where the settings draw one; None: their own."""
    rewards: Mapping[str, float]
    """The protocol's pay of each agent by the other settings of `protocol_common`."""

    @classmethod
    def make(
        cls,
        texts: Mapping[str, str],
        y: int,
        turns: Sequence[Turn],
        rounds: int,
        result: RoundResult,
        stance: int | None,
        rewards: Mapping[str, float],
    ) -> "EndedEpisode":
        """Make it of a played episode; a function that changes it changes nothing else."""
        return cls(
            texts=dict(texts),
            y=y,
            turns=tuple(_leave_out_tokens(turn) for turn in turns),
            rounds=rounds,
            decision=result.decision,
            value=result.value,
            stance=stance,
            rewards=dict(rewards),
        )

    @property
    def is_right(self) -> bool:
        """Tell whether the verdict is the label."""
        return self.decision == self.y

    def said(self, agent: str) -> tuple[str, ...]:
        """List what an agent wrote, turn by turn."""
        return tuple(turn.text for turn in self.turns if turn.agent == agent)


@dataclass(frozen=True)
class RewardFunction:
    """A reward function that is loaded."""

    address: str
    """As the settings name it."""
    function: Callable[[EndedEpisode], Any]
    file: str
    """In which it stands."""
    range: tuple[float, float] | None
    """Between which every reward lies; None: any finite number is one."""

    @property
    def called(self) -> str:
        """Return the function's own name."""
        return self.address.rpartition(":")[2]

    def pay(self, episode: EndedEpisode, question: str) -> dict[str, float]:
        """Ask for the rewards of an episode on the problem `question`, by agent.

        Raises ValueError that names the setting, function, problem and line, for any error that the
        function raises and any result that is no pay.
        """
        place = f"{SETTING}: {self.address} on problem {question}"
        agents = tuple(episode.rewards)  # before the function, which may change them
        try:
            returned = self.function(episode)
        except Exception as error:  # any error that a user's function raises
            raise ValueError(f"{place} {self._describe_raised(error, episode)}; mend it") from error
        if not isinstance(returned, Mapping) or {*returned} != {*agents}:
            result = [*returned] if isinstance(returned, Mapping) else returned
            raise ValueError(
                f"{place} has to return a reward for each of {', '.join(agents)} (got "
                f"{result!r:.120}, {self.file}); mend it"
            )
        return {agent: self._read_reward(place, agent, returned[agent]) for agent in agents}

    def _read_reward(self, place: str, agent: str, reward: Any) -> float:
        """Read a reward as a number. Raises ValueError."""
        try:
            number = math.nan if isinstance(reward, bool | str) else float(reward)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(
                f"{place} has to return a finite number for {agent} (got {reward!r:.80}, "
                f"{self.file}); mend it"
            )
        if self.range is None:
            return number
        lowest, highest = self.range
        if not (at_least(number, lowest) and at_least(highest, number)):
            raise ValueError(
                f"{place} returned {number:g} for {agent}, and protocol_common.reward_range is "
                f"from {lowest:g} to {highest:g} ({self.file}); mend it, or widen the range"
            )
        return number

    def _describe_raised(self, error: Exception, episode: EndedEpisode) -> str:
        text = " ".join(str(error).encode("utf-8", "backslashreplace").decode().split())
        has = ""
        if isinstance(error, AttributeError | LookupError):
            names = ", ".join(field.name for field in fields(episode))
            has = f"; an episode has {names}, and its texts are {', '.join(episode.texts)}"
        line = find_line(error, self.file)
        return f"raised {type(error).__name__}: {text:.500} ({self.file}{line}){has}"


def load_reward_function(common: CommonSettings) -> RewardFunction | None:
    """Load the function that the settings name; None where they name none.

    Raises ValueError, naming the setting, where there is none, or it can't be called with an
    episode.
    """
    address = common.reward_function
    if address is None:
        return None
    does = "takes an ended episode and returns a reward by agent (docs/howto/rewards.md)"
    function = import_function(SETTING, address, does)
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{SETTING}: {address!r} has to take one episode ({error})") from None
    return RewardFunction(address, function, find_source(function), common.reward_range)


def bound_reward(protocol: Protocol, agent: str) -> tuple[float, float]:
    """Return the least and the most that an episode can pay; infinite where no setting says so."""
    if protocol.common.reward_function is None:
        return protocol.min_reward(agent), protocol.max_reward(agent)
    return protocol.common.reward_range or (-math.inf, math.inf)


def halve_reward(protocol: Protocol, agent: str) -> float:
    """Return what lies between winning and losing: with a function, the middle of its range."""
    if protocol.common.reward_function is None:
        return protocol.reward_mid_point(agent)
    return sum(bound_reward(protocol, agent)) / 2


def _leave_out_tokens(turn: Turn) -> Turn:
    """Leave out log-probabilities, which are not on record for every turn."""
    earlier = tuple(Exchange(exchange.text) for exchange in turn.earlier)
    return turn._replace(tokens=None, earlier=earlier)
