"""The base of `debate` and `mnip`: two provers with a channel each, and one verifier."""

from collections.abc import Mapping
from random import Random
from typing import ClassVar

from nip_core.hashing import derive_seed
from nip_core.protocols.base import AgentSpec, Protocol
from nip_core.protocols.settings import GameSettings, TwoProverSettings

CHANNELS: Mapping[str, str] = {"prover0": "prover0_channel", "prover1": "prover1_channel"}

VERIFIER = AgentSpec(
    "Verifier",
    headers={
        "prover0_channel": "Question for Expert_1:",
        "prover1_channel": "Question for Expert_2:",
    },
    decides=True,
    last_round_message=True,
)


class TwoProversProtocol(Protocol):
    """The verifier writes to both channels at once, each prover to its own.

    Simultaneous: the provers answer in the same round without seeing each other's answer.
    Sequential: one after the other, each in a round of its own.
    """

    channels: ClassVar[tuple[str, ...]] = tuple(CHANNELS.values())

    def __init__(self, parameters: GameSettings):
        super().__init__(parameters)
        assert self.rounds_setting is not None
        settings: TwoProverSettings = getattr(parameters, self.rounds_setting)
        self.sequential = settings.sequential
        self.randomize_channel_order = settings.randomize_channel_order
        if self.randomize_channel_order:
            self.uses_seed = True
        order = ("prover0", "prover1") if settings.prover0_first else ("prover1", "prover0")
        provers: list[tuple[str, ...]] = [(order[0],), (order[1],)]
        if not self.sequential:
            provers = [("prover0", "prover1")]
        verifier: list[tuple[str, ...]] = [("verifier",)]
        first = self.common.verifier_first
        self._cycle = verifier + provers if first else provers + verifier

    def active(self, round_: int, seed: int) -> Mapping[str, tuple[str, ...]]:
        """Let the verifier write to both channels, each prover to its own, in the chosen order."""
        agents = self._cycle[round_ % len(self._cycle)]
        return {
            agent: tuple(CHANNELS.values()) if agent == "verifier" else (CHANNELS[agent],)
            for agent in agents
        }

    def channel_order(self, agent: str, round_: int, seed: int) -> tuple[str, ...]:
        """A prover is shown its own channel last; the verifier, on request, in random order."""
        visible = list(self.visible_channels(agent))
        if agent in CHANNELS:
            return tuple(sorted(visible, key=lambda channel: channel == CHANNELS[agent]))
        if self.randomize_channel_order:
            Random(derive_seed("channel order", seed, round_)).shuffle(visible)
        return tuple(visible)
