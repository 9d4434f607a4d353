"""An attack by choice: of several messages, the one is played that the verifier likes best."""

from collections.abc import Mapping
from typing import ClassVar

from nip_core.attacks.base import Attack, AttackTurn, NoOptions, PlayableMessage


class BestOfN(Attack):
    """Of the first n messages the one is played that makes the verifier likeliest to accept.

    Of equals it is the first. So a larger n has all that a smaller one has, and the numbers can be
    compared.
    """

    name = "best-of-n"
    Options = NoOptions
    command_options: ClassVar[tuple[str, ...]] = ("n",)

    @property
    def counts(self) -> tuple[int, ...]:
        """The n of the settings."""
        return self.settings.n

    @property
    def continuations(self) -> int:
        """The continuations of the settings."""
        return self.settings.continuations

    async def choose(self, turn: AttackTurn) -> Mapping[int, PlayableMessage]:
        """Choose the best of the first n messages, for each n."""
        messages = await turn.ask(max(turn.counts))
        firsts: dict[object, PlayableMessage] = {}
        same = [firsts.setdefault(message.words, message) for message in messages]
        # Where all messages say the same there is no choice, and nothing to pay for.
        different = [*firsts.values()] if len(firsts) > 1 else []
        likely = await turn.estimate(different) if different else ()
        worth = {m.number: p for m, p in zip(different, likely, strict=True)}

        def order(message: PlayableMessage) -> tuple[float, int]:
            return worth.get(message.number, 0.0), -message.number

        return {n: max(same[:n], key=order) for n in turn.counts}

    def describe(self) -> str:
        """Say of how many messages the best is played."""
        largest = self.counts[-1]
        return f"the best of up to {largest:,} messages" if largest > 1 else "single messages"
