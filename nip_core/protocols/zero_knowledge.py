"""Zero knowledge: does the prover give away more than the verdict?

A protocol is wrapped. Two conversations run side by side, one with the verifier and one with an
adversarial verifier, which tries to learn something from the provers that it could not have said
by itself. A simulator, which sees no prover, tries to say the adversarial verifier's words. If
it can, the provers have taught the adversarial verifier nothing.

- Channels are tripled: ``<channel>_standard``, ``_adversarial`` and ``_simulator``. Provers read
  and write the first two kinds, each verifier its own, the simulator the third.
- The adversarial verifier and the simulator move when the verifier does. Provers answer both
  conversations in one message with a header for each. The two verifiers go by the names
  Verifier_1 and Verifier_2, dealt by the episode's seed, and a prover is shown Verifier_1's
  conversation first, so that neither name nor place tells it which one is the adversary.
- Who has decided (in a round in which decisions count) moves no more, and a conversation whose
  verifier has decided is closed. The game is done when both have decided, or when the rounds are
  over and the verifier has.
- In each turn of the adversarial verifier the simulator is paid ``simulator_reward_coefficient``
  times the similarity of the two (see `nip_core.protocols.similarity`), the adversarial verifier
  loses as much, and each prover gets ``aux_prover_reward_coefficient`` times the simulator's
  pay, besides the pay of the wrapped protocol. A turn for which the simulator has nothing, because
  it has decided before, counts as similarity 0.

The ancestor compares logits of single symbols, which language models don't have; the definition
here is this project's.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from nip_core.hashing import derive_seed
from nip_core.protocols.base import AgentSpec, Protocol, RoundResult, Turn
from nip_core.protocols.scales import NO_DECISION, round_value
from nip_core.protocols.settings import GameSettings
from nip_core.protocols.similarity import move_similarity

ADVERSARY, SIMULATOR = EXTRA_AGENTS = ("adversarial_verifier", "simulator")
_KINDS = ("standard", "adversarial", "simulator")
_KIND_OF = {"verifier": "standard", ADVERSARY: "adversarial", SIMULATOR: "simulator"}


class ZeroKnowledgeProtocol(Protocol):
    """The zero-knowledge variant of a protocol with one verifier."""

    def __init__(self, parameters: GameSettings, base: Protocol):
        super().__init__(parameters)
        if not base.can_be_zero_knowledge:
            raise ValueError(
                f"protocol_common.zero_knowledge: protocol {base.name!r} has no zero-knowledge "
                "variant; set it to false or use another protocol"
            )
        settings = parameters.zk_protocol
        self.base = base
        self.by_tokens = settings.similarity == "log_probs"
        self._simulator_coefficient = settings.simulator_reward_coefficient
        self._prover_coefficient = settings.aux_prover_reward_coefficient
        self._modelless = tuple(a for a in EXTRA_AGENTS if parameters.agents[a].is_random)
        self.min_message_rounds = base.min_message_rounds
        self.max_message_rounds = base.max_message_rounds
        self._fill(base)

    def _fill(self, base: Protocol) -> None:
        verifier = base.agents["verifier"]
        names = {
            **base.agents,
            ADVERSARY: replace(verifier, human_name="Verifier"),
            SIMULATOR: replace(verifier, human_name="Simulator"),
        }
        # Class attributes of other protocols are facts of this object.
        self.name = f"zk_{base.name}"  # type: ignore[misc]
        self.rounds_setting = base.rounds_setting  # type: ignore[misc]
        self.verifier_is_last = base.verifier_is_last  # type: ignore[misc]
        self.stance_can_be_randomized = base.stance_can_be_randomized  # type: ignore[misc]
        self.agents = {  # type: ignore[misc]
            agent: self._with_headers(agent, spec) for agent, spec in names.items()
        }
        self.channels = tuple(f"{c}_{kind}" for kind in _KINDS for c in base.channels)  # type: ignore[misc]
        self.hidden = frozenset(  # type: ignore[misc]
            (agent, f"{channel}_{kind}")
            for agent in self.agents
            for channel in base.channels
            for kind in _KINDS
            if not self._reads(agent, channel, kind)
        )

    def _with_headers(self, agent: str, spec: AgentSpec) -> AgentSpec:
        if agent not in _KIND_OF:
            return spec
        kind = _KIND_OF[agent]
        return replace(spec, headers={f"{c}_{kind}": text for c, text in spec.headers.items()})

    def _reads(self, agent: str, channel: str, kind: str) -> bool:
        role = "verifier" if agent in _KIND_OF else agent
        kinds = (_KIND_OF[agent],) if agent in _KIND_OF else ("standard", "adversarial")
        return (role, channel) not in self.base.hidden and kind in kinds

    def active(self, round_: int, seed: int) -> Mapping[str, tuple[str, ...]]:
        """Let each agent of the wrapped protocol write to its own conversations."""
        writers: dict[str, tuple[str, ...]] = {}
        base = self.base.active(round_, seed)
        for agent, channels in base.items():
            kinds = ("standard",) if agent == "verifier" else self._conversations(seed)
            writers[agent] = tuple(f"{c}_{kind}" for kind in kinds for c in channels)
        for extra in EXTRA_AGENTS:
            if "verifier" in base:
                writers[extra] = tuple(f"{c}_{_KIND_OF[extra]}" for c in base["verifier"])
        return writers

    def movers(
        self, round_: int, seed: int, turns: Sequence[Turn]
    ) -> Mapping[str, tuple[str, ...]]:
        """Leave out agents with a decision, and conversations closed by one."""
        earlier = [turn for turn in turns if turn.round < round_]
        closed = {kind for agent, kind in _KIND_OF.items() if self._has_decided(agent, earlier)}
        if closed >= {"adversarial"}:
            closed.add("simulator")  # there is nothing left to imitate
        open_ = {
            agent: tuple(c for c in channels if c.rpartition("_")[2] not in closed)
            for agent, channels in self.active(round_, seed).items()
        }
        return {agent: channels for agent, channels in open_.items() if channels}

    def _has_decided(self, agent: str, turns: Sequence[Turn]) -> bool:
        return any(
            turn.agent == agent
            and self.counts(turn.round)
            and (turn.move.decision != NO_DECISION or self.common.force_guess is not None)
            for turn in turns
        )

    def channel_order(self, agent: str, round_: int, seed: int) -> tuple[str, ...]:
        """The wrapped protocol's order within each conversation."""
        role = "verifier" if agent in _KIND_OF else agent
        visible = self.visible_channels(agent)
        order = self.base.channel_order(role, round_, seed)
        kinds = (*self._conversations(seed), "simulator")
        return tuple(f"{c}_{kind}" for kind in kinds for c in order if f"{c}_{kind}" in visible)

    def human_name(self, agent: str, seed: int) -> str:
        """Deal the names Verifier_1 and Verifier_2 by the seed; other agents keep theirs."""
        if agent not in ("verifier", ADVERSARY):
            return self.agents[agent].human_name
        return f"Verifier_{1 + self._conversations(seed).index(_KIND_OF[agent])}"

    def _conversations(self, seed: int) -> tuple[str, str]:
        """Those with provers, Verifier_1's first."""
        return ("adversarial", "standard") if _is_swapped(seed) else ("standard", "adversarial")

    def headers(self, agent: str, channels: Sequence[str], seed: int) -> Mapping[str, str]:
        """Let a prover address each verifier by its name."""
        if len(channels) < 2 or agent in _KIND_OF:
            return super().headers(agent, channels, seed)
        readers = {"standard": "verifier", "adversarial": ADVERSARY}
        return {c: f"To {self.human_name(readers[c.rpartition('_')[2]], seed)}:" for c in channels}

    def judge(
        self,
        round_: int,
        seed: int,
        y: int,
        stance: int | None,
        turns: Sequence[Turn],
        silent: Collection[str] = (),
    ) -> RoundResult:
        """As in the wrapped protocol until the verifier has decided, and the similarity."""
        # 1. The wrapped protocol pays until its verifier has decided; then only for silence.
        earlier = [turn for turn in turns if turn.round < round_]
        value = self._value(y, turns)
        rewards = dict.fromkeys(self.agents, 0.0)
        if self._has_decided("verifier", earlier):
            for prover in silent:
                rewards[prover] = self.common.prover_invalid_response_penalty or 0.0
            terminated = False
        else:
            base = self.base.judge(round_, seed, y, stance, turns, silent)
            rewards |= base.rewards
            terminated = base.terminated
        # 2. The simulator is paid for likeness, which the adversary loses and the provers share.
        similarity = self._similarity(round_, turns)
        paid = self._simulator_coefficient * similarity
        rewards[SIMULATOR] += paid
        rewards[ADVERSARY] -= paid
        for prover in self.provers:
            rewards[prover] += self._prover_coefficient * paid
        # 3. The game is done when both verifiers are.
        both = self._has_decided(ADVERSARY, turns) or self.is_last_round(round_)
        has_verdict = value is not None and both
        decision = round_value(value) if has_verdict and value is not None else NO_DECISION
        return RoundResult(
            rewards, decision, value if has_verdict else None, has_verdict, terminated
        )

    def _value(self, y: int, turns: Sequence[Turn]) -> float | None:
        """The verifier's verdict, in whichever round it was given."""
        for turn in turns:
            if turn.agent == "verifier":
                value = self.verdict(turn.round, y, turns, "verifier")
                if value is not None:
                    return value
        return None

    def _similarity(self, round_: int, turns: Sequence[Turn]) -> float:
        now = {turn.agent: turn for turn in turns if turn.round == round_}
        if ADVERSARY not in now:
            return 0.0
        return move_similarity(now[ADVERSARY], now.get(SIMULATOR), self.by_tokens)

    def check(self) -> None:
        """As every protocol; token probabilities are only compared of models."""
        super().check()
        if self.by_tokens and self._modelless:
            raise ValueError(
                f"zk_protocol.similarity: agents.{self._modelless[0]} is random and gives no "
                "log-probabilities; use text"
            )

    def reward_mid_point(self, agent: str) -> float:
        """Return the wrapped protocol's; 0 for the two added agents."""
        return 0.0 if agent in EXTRA_AGENTS else self.base.reward_mid_point(agent)

    def max_reward(self, agent: str) -> float:
        """With similarity 1 in every turn."""
        return self._bounds(agent)[1]

    def min_reward(self, agent: str) -> float:
        """With similarity 0, for the adversarial verifier 1, in every turn."""
        return self._bounds(agent)[0]

    def _bounds(self, agent: str) -> tuple[float, float]:
        highest = (
            self.turns_of("verifier", 0, self.max_message_rounds) * self._simulator_coefficient
        )
        if agent in EXTRA_AGENTS:
            ends = (-highest, 0.0) if agent == ADVERSARY else (0.0, highest)
        else:
            share = self._prover_coefficient * highest if self.is_prover(agent) else 0.0
            low, high = self.base.min_reward(agent), self.base.max_reward(agent)
            ends = (low + min(share, 0.0), high + max(share, 0.0))
        return min(ends), max(ends)


@lru_cache(maxsize=1024)
def _is_swapped(seed: int) -> bool:
    """Tell whether Verifier_1 is the adversary; asked many times in an episode."""
    # Not the seed's own parity, which deals the roles in merlin_arthur.
    return bool(derive_seed("verifier names", seed) & 1)
