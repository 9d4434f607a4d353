"""What a tiny model is made for: by recipe, its conversations, its measurements, its card."""

import random
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, Protocol

from factory.tiny.conversations import Message

if TYPE_CHECKING:
    from factory.tiny.cases import TrainingCases

Part = Literal["first", "middle", "last", "end", "turns"]
"""Of a training: `Recipe.first_steps`, what follows, and the other steps of the recipe."""


@dataclass(frozen=True)
class Recipe:
    """What shapes the model and its training."""

    seed: int = 6198
    threads: int = 1
    steps: int = 2200
    first_steps: int = 0  # of them, with easier conversations and a schedule of their own
    last_steps: int = 0  # after them, with fresh optimizers and a schedule of their own
    last_lr_share: float = 1.0  # of the learning rates, in these
    end_steps: int = 0  # likewise after those, with conversations of their own
    turns_steps: int = 0  # and after those, with others again
    batch_size: int = 40
    verifier_share: float = 0.22  # of the conversations; the rest is seen by the prover
    conclusion_weight: float = 4.0  # in the loss, of the tokens that `Lesson.conclusions` names
    others_weight: float = 0.0  # in the loss, of what the model does not say itself
    matrix_lr: float = 1e-2  # Muon, for the matrices inside the layers
    other_lr: float = 4e-3  # AdamW, for embeddings and norms
    weight_decay: float = 0.05
    warmup_steps: int = 100
    final_lr_share: float = 0.02
    vocabulary: int = 1024
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    feed_forward: int = 384
    look_back: int = 0  # heads of the first layer that begin by looking 1, 2, ... tokens back
    find_again: bool = False  # that many of the second begin by finding where a token stood before
    token_spread: float = 0.02  # of the embeddings at first: the larger, the longer they differ
    scenario: str = "code_validation"
    precision: str = "bfloat16"  # or float32: of the arithmetic; weights are float32


class Lesson(Protocol):
    """A scenario as a tiny model learns it."""

    conclusions: tuple[str, ...]
    """Tokens that count for more in the loss."""
    labels: str
    """A regular expression of what the tokenizer takes as one piece; "" for none."""

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
    """The lesson of a recipe. What it draws from is read or made where it is first asked for."""
    if recipe in ("arithmetic", "arithmetic-turns"):
        from factory.tiny.arithmetic import ArithmeticLesson

        return ArithmeticLesson(in_turns=recipe == "arithmetic-turns")
    if recipe == "reading":
        from factory.tiny.reading import ReadingLesson

        return ReadingLesson()
    if recipe == "code_validation":
        return CodeValidationLesson()
    raise ValueError(f"there is no recipe {recipe!r} for a tiny model")


class CodeValidationLesson:
    """`families` of the scenario code_validation: does the code do what was asked?"""

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

        families = files("nip_core.scenarios.code_validation") / "data" / "families"
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
