"""The base of protocols: data and pure functions about who speaks, sees, decides and is paid.

A protocol knows settings by their addresses, and no models, prompts, files or network. Rounds are
counted from 0; in a round every mover moves once without seeing the others' messages in it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

from nip_core.protocols.scales import (
    ACCEPT,
    NEITHER,
    NO_DECISION,
    REJECT,
    SCALES,
    DecisionScale,
    round_value,
)
from nip_core.protocols.settings import CommonSettings, GameSettings, RoundSettings
from nip_core.protocols.settings_checks import check_playable

_SEEDS = range(16)  # for figures over all seeds
_VALUES = {REJECT: -1.0, NEITHER: 0.0, ACCEPT: 1.0}


@dataclass(frozen=True)
class AgentSpec:
    """How an agent appears to the others, and the verdict that it argues for."""

    human_name: str
    stance: int | None = None  # the verdict a prover argues for; None: it argues for none
    anonymous: bool = False  # its messages carry no name
    headers: Mapping[str, str] = field(default_factory=dict)
    """By channel: the line that starts the part for it, where one answer is for several."""
    decides: bool = False  # may end its game with a decision
    last_round_message: bool = False  # is told in its last turn that it must decide


_NO_MESSAGES: Mapping[str, str] = {}  # shared by all moves without; no code may write to it


# Tuples, as there are millions of moves and turns where rollouts become datasets: a frozen
# dataclass takes four times as long to make.
class Move(NamedTuple):
    """The move of one agent in one round: a message per channel, or a decision."""

    messages: Mapping[str, str] = _NO_MESSAGES
    decision: int = NO_DECISION
    value: float | None = None  # of a decision, in [-1, 1]; see `nip_core.protocols.scales`
    call: str | None = None  # the argument of a tool; the turn goes on, so no move of a turn has it


@dataclass(frozen=True)
class TokenChoice:
    """One generated token with its log-probability, and the likeliest ones there with theirs."""

    token: str
    logprob: float
    top: Mapping[str, float]


class Exchange(NamedTuple):
    """An answer that an agent gave within its turn."""

    text: str
    tokens: Sequence[TokenChoice] | None = None  # the generated tokens, if they were asked for
    result: str | None = None  # of the tool that it called, as the agent read it


class Turn(NamedTuple):
    """The answers of one agent in one round, as its model gave them and as the game took them.

    A turn is a list of exchanges: calls of a tool, and the agent's move, to which `text` and
    `tokens` belong.
    """

    round: int
    agent: str
    text: str
    move: Move
    tokens: Sequence[TokenChoice] | None = None
    earlier: Sequence[Exchange] = ()

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """List all exchanges, in order."""
        return (*self.earlier, Exchange(self.text, self.tokens))


@dataclass(frozen=True)
class RoundResult:
    """The consequence of the moves of one round."""

    rewards: Mapping[str, float]  # by agent, only what this round pays
    decision: int  # the registered verdict; NO_DECISION while there is none
    value: float | None  # of that verdict
    done: bool  # the game has its verdict
    terminated: bool  # the rounds are over without one


class Protocol:
    """A protocol with one verifier. A subclass states its data and overrides what differs.

    To add one: a subclass with `name`, `agents`, `active` and its rounds, and a prompt template
    per agent. It is found by ``interaction_protocol: <module>`` in this package, or by
    ``path/to/file.py:Class`` or ``package.module:Class`` anywhere (docs/protocols.md adds one).
    """

    name: ClassVar[str]
    """As in the settings, the `episodes` table and the directory of its templates."""
    agents: ClassVar[Mapping[str, AgentSpec]]
    """By name, in index order."""
    channels: ClassVar[Sequence[str]] = ("main",)
    hidden: ClassVar[Collection[tuple[str, str]]] = frozenset()
    """(agent, channel) pairs: channels that the agent does not read."""
    stance_can_be_randomized: ClassVar[bool] = False
    can_be_zero_knowledge: ClassVar[bool] = False
    rounds_setting: ClassVar[str | None] = None
    """The group of settings with the rounds, like "nip_protocol"; None: they are fixed here."""
    uses_seed: bool = True
    """Whether an episode's seed may decide anything in it. Not inherited: a subclass that never
    looks at the seed says so itself."""
    verifier_is_last: ClassVar[bool] = True
    """Whether the last round must be the verifier's."""
    min_message_rounds: int = 1
    max_message_rounds: int = 1
    template_directory: ClassVar[Path | None] = None
    """Where <agent>.txt lie. None: the scenario's templates of this name and version."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.uses_seed = vars(cls).get("uses_seed", True)

    def __init__(self, parameters: GameSettings):
        """Raise ValueError, naming the setting, for settings without a game."""
        self.common: CommonSettings = parameters.protocol_common
        if self.rounds_setting is not None:
            rounds: RoundSettings = getattr(parameters, self.rounds_setting)
            self.min_message_rounds = rounds.min_message_rounds
            self.max_message_rounds = rounds.max_message_rounds

    # Who speaks and sees.

    def active(self, round_: int, seed: int) -> Mapping[str, tuple[str, ...]]:
        """The agents that move in `round_`, each with the channels it writes to."""
        raise NotImplementedError

    def movers(
        self, round_: int, seed: int, turns: Sequence[Turn]
    ) -> Mapping[str, tuple[str, ...]]:
        """List the active agents with a move left; of `turns` only earlier rounds matter."""
        return self.active(round_, seed)

    @property
    def agent_names(self) -> tuple[str, ...]:
        """Agents in index order."""
        return tuple(self.agents)

    @property
    def provers(self) -> tuple[str, ...]:
        """List the agents with a verdict to argue for."""
        return tuple(agent for agent in self.agents if self.is_prover(agent))

    def is_prover(self, agent: str) -> bool:
        """Tell whether the agent argues for a verdict rather than gives it."""
        return self.agents[agent].stance is not None

    def may_decide(self, agent: str) -> bool:
        """Tell whether the agent may decide instead of sending a message."""
        return self.agents[agent].decides

    def may_be_silent(self, agent: str) -> bool:
        """Tell whether the game goes on, at a price, when the agent has no valid answer."""
        return self.is_prover(agent) and self.common.prover_invalid_response_penalty is not None

    def visible_channels(self, agent: str) -> tuple[str, ...]:
        """Channels the agent reads, in order."""
        return tuple(c for c in self.channels if (agent, c) not in self.hidden)

    def channel_order(self, agent: str, round_: int, seed: int) -> tuple[str, ...]:
        """Order the visible channels as the agent reads the round's messages."""
        return self.visible_channels(agent)

    def human_name(self, agent: str, seed: int) -> str:
        """Return what the others know the agent by."""
        return self.agents[agent].human_name

    def headers(self, agent: str, channels: Sequence[str], seed: int) -> Mapping[str, str]:
        """By channel, how the part of an answer for it begins; empty for a single channel."""
        if len(channels) < 2:
            return {}
        own_headers = self.agents[agent].headers
        return {channel: own_headers[channel] for channel in channels}

    # Rounds and stances.

    def is_last_round(self, round_: int) -> bool:
        """Tell whether no round follows."""
        return round_ >= self.max_message_rounds - 1

    def is_last_turn(self, agent: str, round_: int, seed: int) -> bool:
        """Tell whether the agent has a turn in the round and none after it."""
        later = range(round_ + 1, self.max_message_rounds)
        return agent in self.active(round_, seed) and not any(
            agent in self.active(r, seed) for r in later
        )

    def must_decide(self, agent: str, round_: int, seed: int) -> bool:
        """Tell whether only a decision of the agent can still be of use in its turn."""
        forced = self.common.force_guess is not None
        is_judge = agent == "verifier" and self.may_decide(agent) and not forced
        return is_judge and self.counts(round_) and self.is_last_turn(agent, round_, seed)

    def counts(self, round_: int) -> bool:
        """Tell whether a decision made in the round is registered."""
        return round_ >= self.min_message_rounds - 1

    def stance(self, agent: str, drawn_stance: int | None) -> int:
        """The verdict a prover argues for: the drawn one if there is one, else its own."""
        verdict = self.agents[agent].stance
        assert verdict is not None, f"{agent} is not a prover"
        return (
            verdict if drawn_stance is None or not self.stance_can_be_randomized else drawn_stance
        )

    def shared_stance(self, drawn_stance: int | None) -> int | None:
        """Return the one verdict of all provers; None where they differ or there are none."""
        stances = {self.stance(agent, drawn_stance) for agent in self.provers}
        return stances.pop() if len(stances) == 1 else None

    def max_questions(self, seed: int) -> int:
        """Questions the verifier can ask and still decide: its turns but the last."""
        return max(self.turns_of("verifier", seed, self.max_message_rounds) - 1, 0)

    def turns_of(self, agent: str, seed: int, rounds: int) -> int:
        """Tell how many of the first `rounds` rounds are turns of the agent."""
        return sum(agent in self.active(r, seed) for r in range(rounds))

    @property
    def scale(self) -> DecisionScale:
        """Return the scale of a verifier's answers when it decides."""
        return SCALES[self.common.verifier_decision_scale]

    # Rewards.

    def judge(
        self,
        round_: int,
        seed: int,
        y: int,
        stance: int | None,
        turns: Sequence[Turn],
        silent: Collection[str] = (),
    ) -> RoundResult:
        """Tell whether the episode ends with this round, and who is paid.

        `turns` are all so far, `round_` included; `silent` are agents that gave no
        valid answer in it. A verdict counts only from round ``min_message_rounds - 1`` on; an
        earlier one is not registered and the game goes on.
        """
        # 1. Whether this round ends the episode.
        value = self.verdict(round_, y, turns, "verifier")
        decision = NO_DECISION if value is None else round_value(value)
        has_verdict = value is not None
        terminated = not has_verdict and self.is_last_round(round_)
        # 2. The verifier is paid, then each prover for its own verdict or with it.
        verifier = self._verifier_reward(round_, seed, y, value, terminated)
        rewards = dict.fromkeys(self.agents, 0.0) | {"verifier": verifier}
        for agent in self.provers:
            if self.common.shared_reward:
                rewards[agent] = verifier if self.earns(agent, seed) else 0.0
            elif has_verdict and self.earns(agent, seed) and decision == self.stance(agent, stance):
                rewards[agent] = self.common.prover_reward
            if agent in silent:
                rewards[agent] += self.common.prover_invalid_response_penalty or 0.0
        return RoundResult(rewards, decision, value, has_verdict, terminated)

    def earns(self, agent: str, seed: int) -> bool:
        """Tell whether a prover takes part in the payment of an episode of this seed."""
        return True

    def verdict(self, round_: int, y: int, turns: Sequence[Turn], agent: str) -> float | None:
        """Return the value of the agent's decision in this round, if there is one to count."""
        moves = [turn.move for turn in turns if turn.round == round_ and turn.agent == agent]
        if not moves or not self.counts(round_):
            return None
        forced = self.common.force_guess
        if forced is not None:
            accepts = y == ACCEPT if forced == "y" else forced == "one"
            return 1.0 if accepts else -1.0
        (move,) = moves
        if move.decision == NO_DECISION:
            return None
        return _VALUES[move.decision] if move.value is None else move.value

    def _verifier_reward(
        self, round_: int, seed: int, y: int, value: float | None, terminated: bool
    ) -> float:
        common = self.common
        if value is not None:
            return self.decision_reward(value, y)
        if terminated:
            return common.verifier_terminated_penalty
        active = "verifier" in self.active(round_, seed)
        return common.verifier_no_guess_reward if active else 0.0

    def decision_reward(self, value: float, y: int) -> float:
        """Return what a decision of this value in [-1, 1] earns the verifier.

        Linear between the penalty for being quite wrong, the reward for neither, and the reward
        for being quite right.
        """
        right = value if y == ACCEPT else -value
        end = self.common.verifier_reward if right > 0 else self.common.verifier_incorrect_penalty
        middle = self.neither_reward
        return middle + abs(right) * (end - middle)

    @property
    def neither_reward(self) -> float:
        """The verifier's reward for a decision in the middle of the scale."""
        common = self.common
        if common.verifier_neither_accept_nor_reject_reward is not None:
            return common.verifier_neither_accept_nor_reject_reward
        return (common.verifier_reward + common.verifier_incorrect_penalty) / 2

    def max_reward(self, agent: str) -> float:
        """Return the most a whole episode can pay the agent."""
        return max(self._totals(agent))

    def min_reward(self, agent: str) -> float:
        """Return the least a whole episode can pay the agent, even without valid answers."""
        penalty = self.common.prover_invalid_response_penalty
        if penalty is None or not self.is_prover(agent):
            return min(self._totals(agent))
        turns = max(self.turns_of(agent, seed, self.max_message_rounds) for seed in _SEEDS)
        return min(self._totals(agent)) + turns * penalty

    def reward_mid_point(self, agent: str) -> float:
        """Halfway between winning and losing; separates good from bad responses."""
        common = self.common
        if agent != "verifier" and not any(self._earning(agent)):
            return 0.0
        if agent == "verifier" or common.shared_reward:
            return (common.verifier_reward + common.verifier_incorrect_penalty) / 2
        return common.prover_reward / 2

    def _earning(self, agent: str) -> set[bool]:
        """Say whether the agent is a prover whom the verdict pays; both, where the seed decides."""
        return {self.is_prover(agent) and self.earns(agent, seed) for seed in _SEEDS}

    def _totals(self, agent: str) -> list[float]:
        """Rewards of whole episodes, without penalties of provers; the extremes are among them."""
        if agent == "verifier":
            return [total for seed in _SEEDS for total in self._verifier_totals(seed)]
        earning = self._earning(agent)
        totals = [0.0] if False in earning else []
        if True in earning:
            shared = self.common.shared_reward
            totals += self._totals("verifier") if shared else [0.0, self.common.prover_reward]
        return totals

    def _verifier_totals(self, seed: int) -> list[float]:
        turns = [r for r in range(self.max_message_rounds) if "verifier" in self.active(r, seed)]
        # Every scale is symmetric, so one label shows all that a verdict can earn.
        verdicts = [self.decision_reward(value, ACCEPT) for value in self.scale.values.values()]
        min_turns = sum(not self.counts(r) for r in turns)  # turns before the verdict's
        waited = [n * self.common.verifier_no_guess_reward for n in (min_turns, len(turns) - 1)]
        undecided = sum(not self.is_last_round(r) for r in turns)
        never = undecided * self.common.verifier_no_guess_reward
        return [
            never + self.common.verifier_terminated_penalty,
            *(reward + verdict for reward in waited for verdict in verdicts),
        ]

    def check(self) -> None:
        """Raise ValueError, naming the setting, if the protocol can't be played as set."""
        check_playable(self)


__all__ = [
    "ACCEPT",
    "NEITHER",
    "NO_DECISION",
    "REJECT",
    "AgentSpec",
    "Move",
    "Protocol",
    "RoundResult",
    "TokenChoice",
    "Turn",
]
