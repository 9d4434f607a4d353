"""The recipe of a tiny model and its training, and the recipes of the bundled ones."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Recipe:
    """The shape of the model, and its training."""

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
    others_weight: float = 0.0  # in the loss, of messages that are not the model's own
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
    scenario: str = "code_validation"  # or another name of a lesson
    start_from: str = ""  # a bundled model, instead of weights that are drawn
    precision: str = "bfloat16"  # or float32: of the arithmetic; weights are float32


_ARITHMETIC = Recipe(
    scenario="arithmetic",
    steps=1552,
    first_steps=352,
    last_steps=912,
    end_steps=800,
    batch_size=32,
    verifier_share=0.35,
    conclusion_weight=2.0,
    vocabulary=512,
    hidden=96,
    feed_forward=256,
    others_weight=0.3,
    look_back=3,
    precision="float32",
)
# By scenario; a second one for a scenario has the scenario's name before its own.
RECIPES = {
    "code_validation": Recipe(),
    "arithmetic": _ARITHMETIC,
    "arithmetic-turns": replace(_ARITHMETIC, turns_steps=800),
    "arithmetic-looks": replace(
        _ARITHMETIC,
        scenario="arithmetic-looks",
        start_from="tiny-arithmetic",
        steps=900,
        first_steps=0,
        last_steps=0,
        end_steps=0,
    ),
    "reading": Recipe(
        scenario="reading",
        steps=2000,
        first_steps=240,
        last_steps=60,
        last_lr_share=0.3,
        warmup_steps=24,
        batch_size=32,
        verifier_share=0.4,
        conclusion_weight=2.0,
        other_lr=2e-3,
        vocabulary=768,
        hidden=96,
        feed_forward=256,
        others_weight=0.3,
        look_back=3,
        find_again=True,
        token_spread=0.1,
        precision="float32",
    ),
    "bags": Recipe(
        scenario="bags",
        steps=3600,
        first_steps=800,
        batch_size=32,
        verifier_share=0.45,
        conclusion_weight=2.0,
        other_lr=2e-3,
        vocabulary=320,
        hidden=96,
        feed_forward=256,
        others_weight=0.1,
        look_back=3,
        find_again=True,
        token_spread=0.1,
        precision="float32",
    ),
}
