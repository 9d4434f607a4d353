"""What a protocol is: data and pure functions about who speaks, sees, decides and is paid.

A protocol knows no models, prompts, files or network. Rounds are counted from 0; in a round
every active agent moves once without seeing what the others say in that round.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from nip_core.parameters import CommonProtocolParameters, HyperParameters

REJECT, ACCEPT, NO_DECISION = 0, 1, 2


@dataclass(frozen=True)
class AgentSpec:
    """How an agent appears to the others and what it argues for."""

    human_name: str
    stance: int | None = None  # the verdict a prover argues for; None for a verifier
    anonymous: bool = False  # its messages carry no name


@dataclass(frozen=True)
class Move:
    """What one agent does in one round: a message per channel, or a decision."""

    messages: Mapping[str, str] = field(default_factory=dict)
    decision: int = NO_DECISION


@dataclass(frozen=True)
class RoundResult:
    """What follows from the moves of one round."""

    rewards: Mapping[str, float]  # by agent, only what this round pays
    decision: int  # the registered verdict; NO_DECISION while there is none
    done: bool  # a verdict was registered
    terminated: bool  # the rounds are over without one


class Protocol:
    """A protocol with one verifier. A subclass states its data and overrides what differs.

    To add one: a module in this package with a subclass that sets `name`, `agents`, `channels`
    and `active`; its class in `PROTOCOLS`; its agents in `nip_core.parameters`; and a prompt
    template per agent.
    """

    name: str
    agents: ClassVar[Mapping[str, AgentSpec]]
    channels: tuple[str, ...] = ("main",)
    invisible: frozenset[tuple[str, str]] = frozenset()  # (agent, channel) pairs that are hidden
    last_round_message = False  # tell the verifier in the last round that it must decide
    min_message_rounds: int
    max_message_rounds: int

    def __init__(self, parameters: HyperParameters):
        self.common: CommonProtocolParameters = parameters.protocol_common

    def active(self, round_: int, seed: int) -> Mapping[str, tuple[str, ...]]:
        """The agents that move in `round_`, each with the channels it writes to."""
        raise NotImplementedError

    @property
    def agent_names(self) -> tuple[str, ...]:
        """Agents in index order."""
        return tuple(self.agents)

    def is_prover(self, agent: str) -> bool:
        """Whether the agent argues for a verdict rather than gives it."""
        return self.agents[agent].stance is not None

    def visible_channels(self, agent: str) -> tuple[str, ...]:
        """Channels the agent reads, in order."""
        return tuple(c for c in self.channels if (agent, c) not in self.invisible)

    def is_last_round(self, round_: int) -> bool:
        """Whether no round follows."""
        return round_ >= self.max_message_rounds - 1

    def stance(self, agent: str, drawn: int | None) -> int:
        """The verdict a prover argues for: the drawn one if there is one, else its own."""
        own = self.agents[agent].stance
        assert own is not None, f"{agent} is not a prover"
        return own if drawn is None else drawn

    def max_questions(self, seed: int) -> int:
        """Questions the verifier can ask and still decide: its turns but the last."""
        turns = sum("verifier" in self.active(r, seed) for r in range(self.max_message_rounds))
        return max(turns - 1, 0)

    def judge(
        self, round_: int, seed: int, y: int, stance: int | None, moves: Mapping[str, Move]
    ) -> RoundResult:
        """Whether the episode ends with these moves, and who is paid.

        A verdict counts only from round ``min_message_rounds - 1`` on; an earlier one is not
        registered and the game goes on.
        """
        verdict = NO_DECISION
        verifier_active = "verifier" in moves
        if verifier_active and round_ >= self.min_message_rounds - 1:
            verdict = moves["verifier"].decision
        done = verdict != NO_DECISION
        terminated = not done and self.is_last_round(round_)
        common = self.common
        if done:
            right = verdict == y
            verifier = common.verifier_reward if right else common.verifier_incorrect_penalty
        elif terminated:
            verifier = common.verifier_terminated_penalty
        else:
            verifier = common.verifier_no_guess_reward if verifier_active else 0.0
        rewards = {"verifier": verifier}
        for agent in self.agents:
            if not self.is_prover(agent):
                continue
            if common.shared_reward:
                rewards[agent] = verifier
            else:
                won = done and verdict == self.stance(agent, stance)
                rewards[agent] = common.prover_reward if won else 0.0
        return RoundResult(rewards, verdict, done, terminated)
