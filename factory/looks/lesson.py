"""The lesson of the model for `arithmetic` that uses the scenario's tool.

It begins with the weights of `tiny-arithmetic`, and goes on with conversations of that model's end.
Beside them are turns in which the verifier may use `Check`: it checks one step by itself, as
before, and rejects a wrong one. After a right one it tosses a coin: it decides by this step, or
calls for another one, drawn evenly among the others, and checks that with the tool's result before
it. Training is left to teach it whether a look is worth its price. Half of the wrong calculations
are wrong by one, for which the result must be read.
"""

import asyncio
import json
import random
from typing import Any

from factory.tiny.arithmetic import (
    TRAINING_CASES,
    ArithmeticLesson,
    aim,
    game,
    read_named,
    situation,
    split_cases,
)
from factory.tiny.arithmetic_words import STEPS, Case, check, decision, statement
from factory.tiny.conversations import Message, own
from factory.tiny.lessons import Part
from nip_core.protocols import Exchange, Turn

LOOKS = 0.65  # of the conversations; the rest is as in the end of `tiny-arithmetic`
GAMES = ("adp", "adp with a stance", "solo_verifier")
CALLS, SHARES_OF_CALLS = (0, 1, 3), (0.2, 0.3, 0.5)
PRICES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.6)
HAS_A_PRICE = 0.4  # of the games with calls
NEAR = 0.5  # of the wrong calculations are wrong by one
GOES_ON = 0.5  # of the right checks are followed by a call, where one is left
FOLLOWS = 0.1  # of the first checks are of the step that the expert calls wrong
PAIRS: dict[str, Any] = {"generator": "chains-2"}


def looks(case: Case, draw: random.Random) -> list[Message]:
    """Play a game to the verifier's decision; the chat has all answers and results."""
    name, calls = draw.choice(GAMES), draw.choices(CALLS, SHARES_OF_CALLS)[0]
    is_priced = calls and draw.random() < HAS_A_PRICE
    rules = game(name, calls, draw.choice(PRICES) if is_priced else 0.0)
    stance = draw.choice((0, 1)) if "stance" in name else None
    about, turns = situation(case, stance), list[Turn]()
    if rules.protocol.provers:
        text = statement(case.steps, aim(name, "prover", stance), draw)
        turns.append(Turn(0, "prover", text, rules.parse("prover", 0, 0, text, [])))
    order = draw.sample(range(1, STEPS + 1), STEPS)
    if (named_steps := read_named(turns)) and draw.random() < FOLLOWS:
        order.remove(named_steps[-1])
        order.insert(0, named_steps[-1])
    exchanges = list[Exchange]()
    for place, number in enumerate(order):
        text = check(case.steps, number)
        if place == calls or not text.endswith("right.") or draw.random() >= GOES_ON:
            chat = rules.render("verifier", about, turns, len(turns), None, exchanges)
            return [*chat, own(decision(case.steps, number))]
        step = str(order[place + 1])
        result = asyncio.run(rules.use_tool("verifier", step, about, turns, len(exchanges)))
        exchanges.append(Exchange(f"{text}\nCheck: {step}", None, result))
    raise AssertionError("a verifier has fewer calls than there are steps")


class LooksLesson(ArithmeticLesson):
    """`chains` of the scenario arithmetic, for a verifier that may use the tool."""

    def __init__(self) -> None:
        super().__init__()
        self._pairs = list[Case]()  # of the generator `chains-2`, as games have them
        self._near = list[Case]()

    def conversation(self, draw: random.Random, verifier_share: float, part: Part) -> list[Message]:
        """One conversation, drawn."""
        if draw.random() >= LOOKS:
            return super().conversation(draw, verifier_share, "end")
        if not self._pairs:
            self._pairs = split_cases("train", TRAINING_CASES, **PAIRS)
            near_cases = split_cases("train", TRAINING_CASES // 2, mistakes=["off_by_one"], **PAIRS)
            self._near = [case for case in near_cases if not case.y]
        case = draw.choice(self._pairs)
        return looks(case if case.y or draw.random() >= NEAR else draw.choice(self._near), draw)

    def made_for(self) -> list[bytes]:
        """The first problems, conversations of the first model, and games with the tool."""
        draw, cases = random.Random(0), split_cases("train", 20, **PAIRS)
        chats = [looks(draw.choice(cases), draw) for _ in range(200)]
        return [*super().made_for(), *(json.dumps(chat).encode() for chat in chats)]

    def measured(self, model: Any, tokenizer: Any, split: str) -> dict[str, dict[str, Any]]:
        """All measurements of the card on a split."""
        from factory.looks.evaluation import evaluate

        return evaluate(model, tokenizer, split_cases(split, **PAIRS))

    def card(self, training: dict[str, Any], evaluation: dict[str, Any]) -> str:
        """The text of README.md."""
        from factory.looks.evaluation import card

        return card(training, evaluation)
