"""`arithmetic`: has a chain of steps a mistake? Problems without end, from a seed."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from nip_core.errors import DatasetError
from nip_core.hashing import derive_seed
from nip_core.scenarios.base import Column, Row, Scenario, ScenarioSettings, Words
from nip_core.scenarios.scripts import Script
from nip_core.tools import Tool, read_place
from nip_games.arithmetic.chains import (
    CHAIN,
    LOWEST,
    STORIES,
    ChainStep,
    Form,
    Mistake,
    Operator,
    Question,
    draw_chain,
    is_right,
    read_question,
    read_steps,
    write_steps,
)
from nip_games.arithmetic.kinds import name_kind
from nip_games.arithmetic.pairs import draw_pair
from nip_games.arithmetic.written import (
    call_right_step_wrong,
    name_nothing,
    pass_every_step,
)

LAST_DIGITS = {"train": (0, 1, 2, 3, 4, 5, 6), "validation": (7,), "test": (8, 9)}
"""Of the number that a chain starts with, by split: so no chain stands in two."""
_TRIES = 200  # at a chain that is new and possible


class ArithmeticSettings(ScenarioSettings):
    """Which chains are drawn."""

    generator: Literal["chains-1", "chains-2"] = "chains-1"
    """How they are drawn. "chains-2": neither a question nor the results that are shown tell its
    label. "chains-1": the values that are shown stay in the range alone, so a question whose true
    values leave it has a wrong calculation; earlier runs, which had no such setting."""
    form: Form = "chain"
    """How a question is worded: "chain" ("Start with 47. Add 8."), or "words", one of four stories
    ("Ann has 47 marbles. She is given 8.")."""
    steps: Annotated[int, Field(ge=1, le=64)] = 4
    """Steps of each chain."""
    numbers: Annotated[int, Field(ge=40, le=1_000_000)] = 100
    """All values of a chain are below; a number that is added or subtracted has one digit less."""
    operators: Annotated[tuple[Operator, ...], Field(min_length=1)] = ("+", "-")
    """Of the steps, each as likely as the others where the values allow it: "+", "-", "*"."""
    mistakes: Annotated[tuple[Mistake, ...], Field(min_length=1)] = (
        "off_by_one",
        "carry",
        "swapped_digits",
        "wrong_operator",
    )
    """Kinds of the one wrong step of a wrong chain."""
    seed: int = 0
    """Another seed gives other chains."""
    train_size: Annotated[int, Field(ge=2, le=1_000_000)] = 2000
    """Problems of the training split, half of them with a mistake."""
    validation_size: Annotated[int, Field(ge=2, le=1_000_000)] = 200
    """Problems of the validation split."""
    test_size: Annotated[int, Field(ge=2, le=1_000_000)] = 400
    """Problems of the test split."""


class Arithmetic(Scenario):
    """A number, steps to take from it, and a calculation that may have a wrong step."""

    name = "arithmetic"
    settings: ArithmeticSettings
    Settings = ArithmeticSettings
    columns = (Column("question", "Task"), Column("solution", "Calculation"))
    generated = ("chains",)
    claims: ClassVar[Mapping[str, int]] = {
        r"\bno step is wrong": 1,
        r"\bstep \d+ is wrong|\bthis is wrong: step \d": 0,
    }
    scripts: ClassVar[Mapping[str, Script]] = {
        "right-step": call_right_step_wrong,
        "every-step": pass_every_step,
        "no-step": name_nothing,
    }
    tool = Tool(
        name="check",  # a word that the bundled model has
        argument="the number of a step",
        result="this step of the task, calculated from the number before it",
        example="2",
    )
    words = Words(
        expert="an expert in arithmetic",
        thing="calculation",
        claim="a calculation has no mistake",
        doubt="With a probability of one half exactly one of its steps is wrong.",
        correct="every step of the calculation is right",
        evidence="the calculation",
        open_claim="A calculation may or may not have a mistake",
        materials="the task and the calculation",
        asked_in_short="which step is wrong",
    )

    def generate(self, dataset: str, split: str) -> Iterable[Row]:
        """Make chains for a split; every second one has a wrong step."""
        settings = self.settings
        seen_questions: set[str] = set()
        for number in range(getattr(settings, f"{split}_size")):
            row = self._new_row(split, number, seen_questions)
            if row is None:
                mended = f"lower {split}_size, or raise steps or numbers"
                if number < 2:  # the smallest split; steps that don't fit below are too many
                    mended = "raise numbers, or lower steps"
                raise DatasetError(
                    f"scenario_settings: with steps {settings.steps}, numbers {settings.numbers} "
                    f"and these operators and mistakes only {number} different chains were drawn "
                    f"for {split}; {mended}, or name more operators or mistakes"
                )
            seen_questions.add(row["question"])
            yield row

    def _new_row(self, split: str, number: int, seen_questions: set[str]) -> Row | None:
        settings = self.settings
        for attempt in range(_TRIES):
            draw = random.Random(
                derive_seed("arithmetic", settings.seed, split, number, attempt, settings.steps)
            )
            digit = draw.choice(LAST_DIGITS[split])
            start = draw.choice(
                range(digit if digit >= LOWEST else digit + 10, settings.numbers, 10)
            )
            y = number % 2
            chain = self._draw_steps(draw, start, y)
            if chain is None:
                continue
            steps, mistake = chain
            question = Question(start, tuple((step.sign, step.right) for step in steps))
            text = question.text(CHAIN if settings.form == "chain" else draw.choice(STORIES))
            if text not in seen_questions:
                return {
                    "question": text,
                    "solution": write_steps(steps),
                    "y": y,
                    "difficulty": f"{settings.steps} steps below {settings.numbers}",
                    "mutation": mistake,
                }
        return None

    def _draw_steps(
        self, draw: random.Random, start: int, y: int
    ) -> tuple[list[ChainStep], Mistake | None] | None:
        settings = self.settings
        limits = (start, settings.steps, settings.numbers, settings.operators)
        if settings.generator == "chains-1":
            return draw_chain(draw, *limits, () if y else settings.mistakes)
        pair = draw_pair(draw, *limits, settings.mistakes)
        if pair is None:
            return None
        right, wrong, mistake = pair
        return (right, None) if y else (wrong, mistake)

    async def use_tool(self, argument: str, texts: Mapping[str, str]) -> str:
        """Calculate a step of the task from the number with which the calculation begins it."""
        steps = read_steps(texts["solution"])
        number = read_place(argument, "step", len(steps))
        sign, right = read_question(texts["question"]).steps[number - 1]
        step = ChainStep(steps[number - 1].left, sign, right, 0)
        return f"{number}: {replace(step, result=step.true_result).text}"

    def kind_of_message(self, message: str, texts: Mapping[str, str]) -> str:
        """Tell which step a message calls wrong, and whether it is, or that it names none."""
        kind = name_kind(message, texts["solution"])
        return kind or super().kind_of_message(message, texts)

    def label(self, row: Row) -> int:
        """Calculate again. Raises ValueError for a text in other words than `generate` uses."""
        return int(is_right(read_question(row["question"]), read_steps(row["solution"])))

    def rate_alone(self) -> float:
        """Count on a verifier with one check in k steps: it finds 1 of k mistakes."""
        return 1 / 2 + 1 / (2 * self.settings.steps)
