"""The purpose of a tiny model by recipe: its conversations, its measurements, its card."""

import random
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, Protocol

from factory.tiny.conversations import Message

if TYPE_CHECKING:
    from factory.tiny.cases import TrainingCases

Part = Literal["first", "middle", "last", "end", "turns"]
"""Of a training: `first_steps` of its recipe, the steps behind them, and its other steps."""


class Lesson(Protocol):
    """A scenario as a tiny model learns it."""

    conclusions: tuple[str, ...]
    """Tokens that count for more in the loss."""
    labels: str
    """A regular expression of the texts that the tokenizer takes as one piece; "" for none."""

    def conversation(self, draw: random.Random, verifier_share: float, part: Part) -> list[Message]:
        """One conversation of a part of a training, drawn."""

    def facts(self) -> dict[str, Any]:
        """Facts of the training data, for training.json."""

    def made_for(self) -> list[bytes]:
        """List the files tied to the model: other files need another model."""

    def measured(self, model: Any, tokenizer: Any, split: str) -> dict[str, dict[str, Any]]:
        """All measurements of the card on a split."""

    def card(self, training: dict[str, Any], evaluation: dict[str, Any]) -> str:
        """The text of README.md, from the contents of training.json and evaluation.json."""


def find_lesson(recipe: str) -> Lesson:
    """The lesson of a recipe. Its source of conversations is read or made at its first use."""
    if recipe in ("arithmetic", "arithmetic-turns"):
        from factory.tiny.arithmetic import ArithmeticLesson

        return ArithmeticLesson(in_turns=recipe == "arithmetic-turns")
    if recipe == "arithmetic-looks":
        from factory.looks.lesson import LooksLesson

        return LooksLesson()
    if recipe == "reading":
        from factory.tiny.reading import ReadingLesson

        return ReadingLesson()
    if recipe == "bags":
        from factory.tiny.bags import BagsLesson

        return BagsLesson()
    if recipe == "code_validation":
        return CodeValidationLesson()
    raise ValueError(f"there is no recipe {recipe!r} for a tiny model")


class CodeValidationLesson:
    """`families` of the scenario code_validation: does the code answer the question?"""

    conclusions: tuple[str, ...] = ("Ġmatch", "Ġdiffer")
    labels = ""

    @cached_property
    def _cases(self) -> "TrainingCases":
        from factory.tiny.cases import TrainingCases

        return TrainingCases()

    def conversation(self, draw: random.Random, verifier_share: float, part: Part) -> list[Message]:
        """One conversation, drawn."""
        from factory.tiny.conversations import prover_conversation, verifier_conversation

        case = self._cases.draw(draw)
        verifier = draw.random() < verifier_share
        return (verifier_conversation if verifier else prover_conversation)(case, draw)

    def facts(self) -> dict[str, Any]:
        """Count the questions it draws from."""
        return {"questions": len(self._cases.questions)}

    def made_for(self) -> list[bytes]:
        """The short templates and the problem set."""
        from factory.tiny.conversations import template_text

        families = files("nip_games.code_validation") / "data" / "families"
        parts = [
            template_text(protocol, role).encode()
            for protocol, role in (
                ("nip", "prover"),
                ("nip", "verifier"),
                ("adp", "prover"),
                ("adp", "verifier"),
                ("solo_verifier", "verifier"),
            )
        ]
        splits = ("train", "validation", "test")
        return parts + [(families / f"{s}.parquet").read_bytes() for s in splits]

    def measured(self, model: Any, tokenizer: Any, split: str) -> dict[str, dict[str, Any]]:
        """All measurements of the card on a split."""
        from factory.tiny.cases import split_cases
        from factory.tiny.evaluation import evaluate

        return evaluate(model, tokenizer, split_cases(split))

    def card(self, training: dict[str, Any], evaluation: dict[str, Any]) -> str:
        """The text of README.md."""
        from factory.tiny.card import card

        return card(training, evaluation)
