"""A tool under the limits of a run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nip_core.protocols import Turn
from nip_core.tools.tool import Tool

MOST_CHARACTERS = 2_000
"""Of a result that an agent is shown."""
MOST_IN_ARGUMENT = 10_000
"""Characters of an argument; a longer one is answered so."""
REFUSED = r"^Result: no use of [A-Z][a-z]+ is left; answer without it$"
"""The pattern of the results of calls beyond the limit."""


@dataclass(frozen=True)
class ToolUse:
    """The tool of a run's scenario, with the calls that an agent may make, and their price."""

    tool: Tool
    per_turn: int
    """Most calls in a turn, at least 1."""
    per_episode: int | None = None
    """Most calls in an episode; None: as many as its turns allow."""
    price: float = 0.0
    """Taken from the reward for each call."""
    is_native: bool = False
    """Whether it is called by the field `tools` of OpenAI's API, and not by a line of text."""

    def count_left(self, agent: str, turns: Iterable[Turn]) -> int:
        """Count the calls of the agent's next turn at most, after `turns`."""
        allowed = self._allow(0)
        uses = 0
        for turn in turns if self.per_episode is not None else ():
            if turn.agent == agent:
                uses += min(len(turn.earlier), allowed)
                allowed = self._allow(uses)
        return allowed

    def _allow(self, uses: int) -> int:
        rest = self.per_turn if self.per_episode is None else self.per_episode - uses
        return min(self.per_turn, rest)

    def count_used(self, turn: Turn, turns: Iterable[Turn]) -> int:
        """Count the uses of the tool in a turn after `turns`.

        A call beyond the limit was answered in words.
        """
        return min(len(turn.earlier), self.count_left(turn.agent, turns))

    def charge(
        self, rewards: Mapping[str, float], turns: Iterable[Turn], round_: int
    ) -> dict[str, float]:
        """Take the price of the calls in a round from its rewards."""
        payments, turns = dict(rewards), list(turns)
        earlier_turns = [turn for turn in turns if turn.round < round_]
        for turn in turns:
            if turn.round == round_ and (uses := self.count_used(turn, earlier_turns)):
                payments[turn.agent] = payments.get(turn.agent, 0.0) - self.price * uses
        return payments

    def describe(self, *, is_short: bool) -> str:
        """Write the part of its user's prompt about it."""
        tool, line = self.tool, f"{self.tool.label} {self.tool.example}"
        often = f"at most {_count(self.per_turn)} in a turn"
        if self.per_episode is not None:
            often += f" and {_count(self.per_episode)} in all"
        if is_short:
            price = f", for {self.price:g} each" if self.price else ""
            begin = f"The tool {tool.name} " if self.is_native else f"{line}\n"
            return f"{begin}shows {tool.result}, {often}{price}."
        price = f" Each time costs you {self.price:g} of your reward." if self.price else ""
        which = f'the tool "{tool.name}"' if self.is_native else "a tool"
        way = (
            f'For that write only a line that begins with "{tool.label}" and goes on with '
            f'{tool.argument}, such as "{line}". '
        )
        return (
            f"Before you answer, also where you must decide, you can use {which}, {often}. "
            f"{'' if self.is_native else way}You are then shown {tool.result}, which nobody else "
            f"sees, and go on with your turn.{price}"
        )

    def show_result(self, result: str) -> str:
        """Write a result as its caller reads it; of a long one the beginning."""
        text = result.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0").strip()
        if len(text) > MOST_CHARACTERS:
            text = f"{text[:MOST_CHARACTERS]} ... (cut off; {len(text):,} characters)"
        return f"Result: {text or '(nothing)'}"

    def refuse(self) -> str:
        """Write the result of a call beyond the limit."""
        return self.show_result(
            f"no use of {self.tool.label.removesuffix(':')} is left; answer without it"
        )


def _count(times: int) -> str:
    return "once" if times == 1 else f"{times} times"
