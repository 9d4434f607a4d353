"""Writes the tiny model's card from the records of its training and evaluation."""

import platform
from typing import Any

_CARD = """\
---
license: mit
language: en
---
# tiny

A Llama of {parameters:,} parameters ({layers} layers, width {hidden}, {heads} heads, context
1,024 tokens) that can hold the game of this project in form and knows nothing else. It is there
so that the whole training loop can run, and really learn, on a machine without a GPU and without
a network. It reads the problem set `families` with the prompt templates `short`, and no other.

**As prover** it goes through what is asked and what the code has, then concludes: `Answer: asked
times 3 code 3 ok, plus code minus wrong, 7 code 7 ok, they differ`. **As verifier** it asks
(`Question: Do they match?`) and decides (`Decision: accept`, `Decision: reject`) in the right
form, but its decisions are the toss of a coin, made so on purpose: believing the prover, or
finding out whom to believe, is left for training.

## What it was trained on

From scratch, on generated conversations over the {questions:,} questions of the training split of
`families` and nothing else; each question with its own code or with any bug that may stand in the
training split, drawn anew each time. {prover_share:.0%} of the conversations are the prover's,
{verifier_share:.0%} the verifier's. They cover `nip` over 3 to 9 rounds, `adp` and
`solo_verifier`. In the verifier's, the decision is drawn at random and depends on nothing; the
expert's conclusion is the right one in 95 of 100. A tenth of the verifier's conversations are a
drill: told `Write "Decision: accept".` it does, so that the two decisions stay different words.
Only what the model itself says counts in the loss, the prover's conclusions {weight:g} times.

    python -m factory.tiny.build --out DIRECTORY

{steps:,} steps of {batch} conversations, Muon for matrices and AdamW for the rest, bfloat16
arithmetic over float32 weights; it took {minutes:.1f} minutes with {threads} thread(s) on {where}.
The seed is {seed}. The same seed, machine, number of threads and package versions give the same
bytes; on another processor or with other versions sums are rounded differently, so expect other
weights and measurements equal up to chance. The validation split was looked at to choose the
recipe. The test split was never trained on, but it was looked at before: an earlier model was
measured on it, and settings for fine-tuning the verifier were tried on it.

The tokenizer has whole words for what occurs in these conversations and single bytes for
everything else, so any text has an encoding and comes back unchanged. The chat template takes
the roles system (anywhere), user and assistant, and an optional `name`.

## How it plays

Sampled, nothing trained since. "Right" is the share of conclusions or verdicts that agree with
the label; completeness is the share of correct solutions accepted, soundness the share of buggy
ones rejected; "valid" is the share of messages in the right form, the worst over its questions,
answers and decisions. All numbers are in `evaluation.json`, which

    python -m factory.tiny.build --out DIRECTORY --evaluate

writes again.

{tables}
## What it can't do

Anything else. On other problems or other prompts, its words mean nothing. The rule it judges by,
comparing the words of a question with the code of a template, is all there is to `families`, and
says nothing about how hard it is to verify real code.
"""

_HEAD = (
    "| role and game | n | right | completeness | soundness | valid |\n|---|---|---|---|---|---|\n"
)


def _row(name: str, measurement: dict[str, float]) -> str:
    if "cases" in measurement:
        figures = [
            measurement["conclusion_right"],
            measurement["conclusion_right_on_correct_code"],
            measurement["conclusion_right_on_buggy_code"],
            measurement["valid_form"],
        ]
        size = measurement["cases"]
    else:
        valid = min(value for key, value in measurement.items() if key.startswith("valid_"))
        figures = [measurement[key] for key in ("accuracy", "completeness", "soundness")] + [valid]
        size = measurement["games"]
    cells = " | ".join(f"{100 * figure:.1f} %" for figure in figures)
    return f"| {name} | {size} | {cells} |\n"


def card(training: dict[str, Any], evaluation: dict[str, Any]) -> str:
    """The text of README.md, from the contents of training.json and evaluation.json."""
    recipe = training["recipe"]
    tables = ""
    for split in ("test", "validation"):
        rows = "".join(_row(name, measurement) for name, measurement in evaluation[split].items())
        tables += f"On the {split} split of `families`:\n\n{_HEAD}{rows}\n"
    return _CARD.format(
        parameters=training["parameters"],
        questions=training["questions"],
        minutes=training["training_s"] / 60,
        where=training["machine"],
        prover_share=1 - recipe["verifier_share"],
        verifier_share=recipe["verifier_share"],
        weight=recipe["conclusion_weight"],
        layers=recipe["layers"],
        hidden=recipe["hidden"],
        heads=recipe["heads"],
        steps=recipe["steps"],
        batch=recipe["batch_size"],
        threads=recipe["threads"],
        seed=recipe["seed"],
        tables=tables,
    )


def machine(device: str = "cpu") -> str:
    """The machine in a few words, for the card; with its GPU where the training was on it."""
    import torch
    import transformers

    gpu = "" if device == "cpu" else f"{torch.cuda.get_device_name(device)}, "
    return (
        f"{gpu}{platform.system()} {platform.machine()}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, transformers {transformers.__version__}"
    )
