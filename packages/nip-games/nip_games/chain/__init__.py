"""`chain`: does a chain of steps end as claimed? Two provers are played against each other.

The verifier sees the start and the end of the chain, by the claim, and none of its steps. In each
round of `refereed` both provers are asked for the value in the middle of the steps in dispute
(`disputes`); after log2 k rounds one step of k is left, and the verifier calculates that one. It is
always right if the prover on the right side is honest: the one for a true claim, the one against a
false one. An honest prover on the other side guarantees nothing, as no true values lead to its end.
With a single prover a step is drawn by lot after it has stated all values: a control, in which one
wrong step of k is found in 1/k.
"""

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from nip_core.errors import DatasetError
from nip_core.hashing import derive_seed
from nip_core.protocols import ACCEPT, REJECT, Protocol, Turn
from nip_core.scenarios.base import (
    PROVER,
    Column,
    Role,
    Row,
    Scenario,
    ScenarioSettings,
    Words,
)
from nip_core.scenarios.scripts import Script
from nip_core.tools import Tool, read_place
from nip_games.chain import announcements, lies
from nip_games.chain.disputes import find_dispute, join_messages, read_stated
from nip_games.chain.modular import (
    Operator,
    Steps,
    calculate,
    draw_steps,
    is_prime,
    read_chain,
    read_claim,
    read_values,
    write_chain,
    write_claim,
    write_values,
)

TENTHS = {"train": range(6), "validation": range(6, 8), "test": range(8, 10)}
"""Of all chains, by split: so no chain stands in two."""
_TRIES = 200  # at a chain that is new and of the split
_DRAWN = "drawn_step"
_SEEDS = range(16)  # of episodes that are looked at
_WORDS = Words(
    expert="an expert in calculating",
    thing="claim",
    claim="a chain of steps ends with the number that is claimed",
    doubt="With a probability of one half it ends with another number. You do not see its steps.",
    correct="the claim is true",
    evidence="the step that you are shown",
    source="the steps",
    open_claim="A chain of steps may or may not end with the number that is claimed",
    materials="the steps, their values and the claim",
    labels=("false", "true"),
    asked_in_short="which values are right",
)


class ChainSettings(ScenarioSettings):
    """Which chains are drawn, and which of their steps is checked."""

    checked: Literal["disputed", "drawn"] = "disputed"
    """Which step the verifier is shown in the end: "disputed", the one that is left of those that
    two provers dispute; "drawn", one that is drawn by lot after a single prover has stated all
    values: a control."""
    steps: Annotated[int, Field(ge=2, le=1024)] = 8
    """Steps of each chain, a power of two. Two provers need as many rounds as it can be halved."""
    modulus: Annotated[int, Field(ge=5, le=1_000_000)] = 97
    """All values are below, a prime."""
    operators: Annotated[tuple[Operator, ...], Field(min_length=1)] = ("+", "-", "*")
    """Of the steps, each as likely as the others: "+", "-", "*"."""
    largest: Annotated[int, Field(ge=2)] = 9
    """The largest number that a step adds, subtracts or multiplies by."""
    seed: int = 0
    """Another seed gives other chains."""
    train_size: Annotated[int, Field(ge=2, le=1_000_000)] = 2000
    """Problems of the training split, half of them with a false claim."""
    validation_size: Annotated[int, Field(ge=2, le=1_000_000)] = 200
    """Problems of the validation split."""
    test_size: Annotated[int, Field(ge=2, le=1_000_000)] = 400
    """Problems of the test split."""

    @model_validator(mode="after")
    def _check_numbers(self) -> Self:
        if self.steps & (self.steps - 1):
            raise ValueError(f"steps must be a power of two, such as 8 (got {self.steps})")
        if not is_prime(self.modulus):
            raise ValueError(f"modulus must be a prime, such as 97 (got {self.modulus})")
        if self.largest >= self.modulus:
            raise ValueError(
                f"largest ({self.largest}) must be below modulus ({self.modulus}), or a step could "
                "undo all before it"
            )
        return self


class Chain(Scenario):
    """A start, steps that the verifier does not see, and the end that is claimed."""

    name = "chain"
    settings: ChainSettings
    Settings = ChainSettings
    generated = ("chains",)
    words = _WORDS
    tool = Tool(
        name="look",
        argument="the number of a step",
        result="this step, without the values before and after it",
        example="3",
    )
    scripts: ClassVar[Mapping[str, Script]] = {
        "honest": lies.honest,
        "lie-late": lies.lie_late,
        "lie-early": lies.lie_early,
        "lie-anywhere": lies.lie_anywhere,
        "random-lie": lies.random_lie,
        "no-value": lies.no_value,
    }

    def __init__(self, settings: ChainSettings):
        super().__init__(settings)
        self.columns = (
            Column("question", "Steps", seen_by=(PROVER,)),
            Column("solution", "Claim"),
            Column("values", "Value after each step", seen_by=(PROVER,), drawn=True),
        )
        if settings.checked == "drawn":
            # No agent may see it before the values are stated; then `announce` shows it.
            self.columns += (Column(_DRAWN, "Drawn step", seen_by=(), hidden=True, drawn=True),)

    # Problems.

    def generate(self, dataset: str, split: str) -> Iterator[Row]:
        """Make chains of the split; every second claim is the end of another chain."""
        settings = self.settings
        seen_questions: set[str] = set()
        for number in range(getattr(settings, f"{split}_size")):
            row = self._new_row(split, number, seen_questions)
            if row is None:
                raise DatasetError(
                    f"scenario_settings: with steps {settings.steps}, modulus {settings.modulus}, "
                    f"largest {settings.largest} and operators {' '.join(settings.operators)} only "
                    f"{number} different chains were drawn for {split}; lower {split}_size, or "
                    "raise one of them"
                )
            seen_questions.add(str(row["question"]))
            yield row

    def _new_row(self, split: str, number: int, seen_questions: set[str]) -> Row | None:
        """Draw two chains with one start and unequal ends, and ask about the first.

        The two are exchangeable: either end, given the start, has the distribution of the other. So
        the claim tells nothing of the label, and neither do the steps without it.
        """
        settings, y = self.settings, number % 2
        draw = Random(derive_seed("chain", settings.seed, split, number))
        for _ in range(_TRIES):
            start = draw.randrange(settings.modulus)
            first, second = (self._draw_steps(draw, start, split) for _ in range(2))
            if first is None or second is None:
                continue
            question, ends = write_chain(first), [calculate(c)[-1] for c in (first, second)]
            if ends[0] != ends[1] and question not in seen_questions:
                return {
                    "question": question,
                    "solution": write_claim(start, ends[1 - y]),
                    "y": y,
                    "difficulty": f"{settings.steps} steps modulo {settings.modulus}",
                }
        return None

    def _draw_steps(self, draw: Random, start: int, split: str) -> Steps | None:
        s = self.settings
        for _ in range(_TRIES):
            chain = draw_steps(draw, start, s.steps, s.modulus, s.operators, s.largest)
            if derive_seed("split of a chain", write_chain(chain)) % 10 in TENTHS[split]:
                return chain
        return None

    def label(self, row: Row) -> int:
        """Calculate the chain. Raises ValueError for texts in other words than `generate` uses."""
        chain, (start, end) = read_chain(row["question"]), read_claim(row["solution"])
        count = len(chain.steps)
        if start != chain.start:
            raise ValueError(f"the chain starts with {chain.start}, and the claim says {start}")
        if end >= chain.modulus:
            raise ValueError(f"the claim must end below {chain.modulus} (got {end})")
        if count != self.settings.steps:
            raise ValueError(
                f"the chain has {count} steps, and scenario_settings.steps is {self.settings.steps}"
            )
        return int(calculate(chain)[-1] == end)

    def rate_alone(self) -> float | None:
        """Count on a guess: start and claimed end tell nothing."""
        return 1 / 2

    def guaranteed_soundness(self, protocol: Protocol) -> float | None:
        """Count the steps where one is drawn: one of those that lead to a false end is wrong.

        Two provers guarantee nothing, as both may lie.
        """
        is_drawn = self.settings.checked == "drawn" and len(protocol.provers) == 1
        return 1 / self.settings.steps if is_drawn else None

    # The agents' view.

    def draw(self, problem: Mapping[str, str], seed: int) -> Mapping[str, str]:
        """Calculate the values for the provers, and draw the step that is checked by lot."""
        values = {"values": write_values(calculate(read_chain(problem["question"])))}
        if self.settings.checked == "disputed":
            return values
        return {**values, _DRAWN: self._draw_number("drawn step", problem["question"], seed)}

    def draw_again(self, texts: Mapping[str, str], seed: int) -> Mapping[str, str]:
        """Draw another step: the stated values say nothing of it."""
        if self.settings.checked == "disputed":
            return {}
        return {_DRAWN: self._draw_number("drawn step again", texts["question"], seed)}

    def _draw_number(self, purpose: str, question: str, seed: int) -> str:
        draw = Random(derive_seed(f"{purpose} of a chain", question, seed))
        return str(draw.randint(1, self.settings.steps))

    def addition(self, role: Role, protocol: Protocol) -> str:
        """Tell how the step that is checked is found."""
        if self.settings.system_prompt_version == "short" or not protocol.provers:
            return ""
        if self.settings.checked == "drawn":
            return announcements.explain_draw(role)
        asserting, denying = _find_sides(protocol)
        names = [protocol.agents[agent].human_name for agent in (asserting, denying)]
        return announcements.explain_dispute(role, *names)

    def announce(
        self,
        agent: str,
        protocol: Protocol,
        round_: int,
        turns: Sequence[Turn],
        texts: Mapping[str, str],
    ) -> str:
        """Ask provers for a value, and show the verifier the step that is left, or drawn."""
        is_prover = protocol.is_prover(agent)
        try:
            chain, (_, end) = read_chain(texts["question"]), read_claim(texts["solution"])
        except ValueError:
            return ""  # a prompt without a problem, of which the length is measured
        is_short = self.settings.system_prompt_version == "short"
        if not protocol.provers or (is_prover and self.settings.checked == "drawn"):
            return ""
        if self.settings.checked == "drawn":
            messages = [join_messages(turn) for turn in turns if protocol.is_prover(turn.agent)]
            stated = {**read_values("\n".join(messages)), 0: chain.start, len(chain.steps): end}
            return announcements.show_drawn(chain, int(texts[_DRAWN]), stated, is_short)
        asserting, denying = _find_sides(protocol)
        stated_by_both = read_stated(turns, round_, asserting, denying, chain.modulus)
        dispute = find_dispute(chain.start, end, len(chain.steps), stated_by_both)
        names = protocol.agents[asserting].human_name, protocol.agents[denying].human_name
        if is_prover:
            return announcements.ask_for_value(dispute, names[0], is_short)
        return announcements.show_disputed(dispute, chain, *names, is_short)

    async def use_tool(self, argument: str, texts: Mapping[str, str]) -> str:
        """Show a step, which the verifier can calculate from a value that was stated."""
        steps = read_chain(texts["question"]).steps
        number = read_place(argument, "step", len(steps))
        return f"{number}: {steps[number - 1]}"

    # The moves that can be made.

    def check(self, protocol: Protocol) -> None:
        """Take protocols in which provers speak, or none do, and then the verifier decides."""
        place = f"scenario chain: protocol {protocol.name!r}"
        fits = "use refereed, adp with scenario_settings.checked: drawn, or solo_verifier"
        rounds = range(protocol.max_message_rounds)
        movers = [{*protocol.active(r, seed)} for r in rounds for seed in _SEEDS]
        earlier_movers = [agents for agents in movers if agents != {"verifier"}]
        asks = protocol.turns_of("verifier", 0, protocol.max_message_rounds) != 1
        if asks or protocol.common.zero_knowledge or "verifier" not in movers[-1]:
            raise ValueError(
                f"{place} lets the verifier speak before its step is found, or has other agents "
                f"than it and provers; {fits}"
            )
        if not protocol.provers:
            return
        if self.settings.checked == "drawn":
            self._check_one_prover(protocol, place)
            return
        stances = sorted(protocol.stance(agent, None) for agent in protocol.provers)
        if stances != [REJECT, ACCEPT] or any(
            agents != {*protocol.provers} for agents in earlier_movers
        ):
            raise ValueError(
                f"{place} does not have two provers that argue for opposite verdicts and speak at "
                f"the same time, as scenario_settings.checked: disputed needs; {fits}"
            )
        needed = self.settings.steps.bit_length()  # one more than it can be halved
        if protocol.max_message_rounds != needed:
            setting = f"{protocol.rounds_setting}.max_message_rounds"
            raise ValueError(
                f"{setting}: {self.settings.steps} steps of scenario chain take {needed} rounds, "
                f"{needed - 1} to halve them and one for the verdict (got "
                f"{protocol.max_message_rounds}); set it to {needed}, or scenario_settings.steps "
                f"to {2 ** (protocol.max_message_rounds - 1)}"
            )

    def _check_one_prover(self, protocol: Protocol, place: str) -> None:
        if len(protocol.provers) != 1 or protocol.common.randomize_prover_stance:
            raise ValueError(
                f"{place} does not have exactly one prover that argues for acceptance, as "
                "scenario_settings.checked: drawn needs; use adp without "
                "protocol_common.randomize_prover_stance, or set checked to disputed"
            )


def _find_sides(protocol: Protocol) -> tuple[str, str]:
    """Find the provers for and against the claim."""
    by_stance = {protocol.stance(agent, None): agent for agent in protocol.provers}
    return by_stance[ACCEPT], by_stance[REJECT]
