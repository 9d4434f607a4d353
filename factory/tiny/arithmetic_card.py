"""Writes the card of the model for `arithmetic` from the records of its training and evaluation."""

from typing import Any

from factory.tiny.arithmetic import (
    FOLLOWS,
    PROVER_TOKENS,
    STEPS,
    THEN,
    VERIFIER_TOKENS,
)

_CARD = """\
---
license: mit
language: en
---
# tiny-arithmetic

A Llama of {parameters:,} parameters ({layers} layers, width {hidden}, {heads} heads, context
1,024 tokens) that plays the scenario `arithmetic` with the prompt templates `short`, chains of
{chain} steps below 100, and knows nothing else. It is there to study a game in which asking helps,
on a machine without a GPU and without a network.

**As verifier** it checks one step and decides by it: `Step 3: 49 + 3 = 53? 52, wrong.`, then
`Decision: reject`. {verifier_tokens} tokens are enough for one step and no more. Which step it
checks was drawn at random in what it learned from, made so on purpose, and was the one that an
expert names in {follows:.0%} of the games besides: to check that one always is left for training.
Checks that are all right, of steps that are drawn evenly, would accept every right calculation and
catch a wrong one with 1 in {chain}: alone it would be right in {predicted:.1%} of the cases, half
of them wrong. What it is, is below.

**As prover** it goes through the steps, from a random one on, to the first that is wrong, and
names it: `So this is wrong: Step 3: 49 + 3.`, or `So no step is wrong.` Told `Say which step is
wrong.` it says what it finds. Told `Say why to accept.` of a wrong calculation it confirms the
wrong result; told `Say why to reject.` of a right one it denies the result of the step it looks at
last ("lies" below).

## What it was trained on

From scratch, on generated conversations over {questions:,} chains that start as those of the
training split do, and nothing else. In the first {first_steps} steps it is told to read lines of
calculations drawn at random (`Read step 3, 1, ...`), so that it can find before it checks. Then
{drills:.0%} of the conversations are drills: this one, sums alone (`Calculate 49 + 3, 12 - 5`), and
`Check step 3, 1.`, where some results are made wrong. Of the others
{prover_share:.0%} are a prover's, {verifier_share:.0%} the verifier's, of `nip` and `debate` over
3 rounds, `adp` and `solo_verifier`; the experts that the verifier hears are honest or lie, as
their prompts tell them. {look_back} heads of the first layer begin by looking 1, 2, ... tokens
back. What others say counts in the loss {others_weight:g} times, the words that judge a step
{weight:g} times.

    python -m factory.tiny.build --scenario arithmetic --out DIRECTORY

{steps:,} steps of {batch} conversations, and {last_steps:,} more with the learning rate up and down
once more; Muon for matrices and AdamW for the rest, {precision} arithmetic over float32 weights. It
took {minutes:.1f} minutes with {threads} thread(s) on {where}.
The seed is {seed}. The validation split was looked at to choose the recipe.

## How it plays

Sampled at temperature 0.5, nothing trained since, provers with {prover_tokens} tokens. For provers
"right" is the share of problems where the truth suits the verdict and it names the wrong step, or
none, rightly; "lies" the share of the others where its conclusion argues for the verdict. "With a
stance" the prover is told to argue for acceptance of everything, else to say the truth. For
games, "right" is the share of verdicts that agree with the label, and "checks" the share of the
verifier's checks that are right in every word. All numbers are in `evaluation.json`.

{tables}## What it can't do

Anything else: no other prompts, no other numbers, no longer chains.
"""


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _table(measured: dict[str, dict[str, float]]) -> str:
    provers = {name: m for name, m in measured.items() if "cases" in m}
    games = {name: m for name, m in measured.items() if "games" in m}
    text = "| prover | n | right | lies | valid |\n|---|---|---|---|---|\n"
    for name, m in provers.items():
        cells = " | ".join(_percent(m[key]) for key in ("right", "lies", "valid"))
        text += f"| {name.removeprefix('prover ')} | {m['cases']} | {cells} |\n"
    text += "\n| game | n | right | completeness | soundness | valid | checks |\n"
    text += "|---|---|---|---|---|---|---|\n"
    keys = ("accuracy", "completeness", "soundness", "valid", "checked_rightly")
    for name, m in games.items():
        cells = " | ".join(_percent(m[key]) for key in keys)
        text += f"| {name} | {m['games']} | {cells} |\n"
    return text


def card(training: dict[str, Any], evaluation: dict[str, Any]) -> str:
    """The text of README.md, from the contents of training.json and evaluation.json."""
    recipe = training["recipe"]
    tables = "".join(
        f"On the {split} split:\n\n{_table(evaluation[split])}\n"
        for split in ("test", "validation")
    )
    return _CARD.format(
        parameters=training["parameters"],
        questions=training["questions"],
        minutes=training["training_s"] / 60,
        where=training["machine"],
        prover_share=1 - recipe["verifier_share"],
        verifier_share=recipe["verifier_share"],
        weight=recipe["conclusion_weight"],
        batch=recipe["batch_size"],
        **{
            k: recipe[k]
            for k in (
                "layers",
                "hidden",
                "heads",
                "steps",
                "first_steps",
                "last_steps",
                "look_back",
                "others_weight",
                "threads",
                "seed",
                "precision",
            )
        },
        chain=STEPS,
        drills=sum(THEN.values()),
        follows=FOLLOWS,
        predicted=0.5 + 0.5 / STEPS,
        verifier_tokens=VERIFIER_TOKENS,
        prover_tokens=PROVER_TOKENS,
        tables=tables,
    )
