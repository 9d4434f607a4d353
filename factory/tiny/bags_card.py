"""Writes the card of the model for `bags` from the records of its training and evaluation."""

from typing import Any

from factory.tiny.bags import (
    GAMES,
    LENGTH,
    LOOKS,
    PLAIN,
    PROVER_TOKENS,
    REPEATS,
    THEN,
    VERIFIER_TOKENS,
)
from factory.tiny.bags_evaluation import TEMPERATURE

_CARD = """\
---
license: mit
language: en
---
# tiny-bags

A Llama of {parameters:,} parameters ({layers} layers, width {hidden}, {heads} heads, context
1,024 tokens) that plays the scenario `bags` with the prompt templates `short`, on lists of {length}
different digits with up to three challenges, and knows nothing else. It is there to study a game in
which interaction provably helps, on a machine without a GPU and without a network.

**As prover** it says which digit each list has that the other has not, reads each challenge up to
one of the two, and names its list: `Answer: 9 A, 8 B. (1) 3 8 B, 1: B. (2) 4 1 9 A, 2: A.` If the
lists are rearrangements of each other it says the same with two digits that both have, so that
chance decides what it names. It was taught to repeat {repeats:.0%} of public coins, and else to
look at the lists.

**As verifier** it holds coins against names, one after the other:
`1 is A, 1: A, right. 2 is B, 2: A, wrong.`, then `Decision: reject`; where all are right,
`Decision: accept`. At how many it looks was drawn at random in what it learned from, on purpose: at
{looks}
of three. Where it looked at none its decision was the toss of a coin. To look at all of them is
left for training. It needs at most {verifier_tokens} tokens, the prover {prover_tokens}.

## What it was trained on

From scratch, on generated conversations over {questions:,} pairs of lists of the training split,
and nothing else. In the first {first_steps} steps they are drills: what differs in two lists, which
list each challenge is when that is known, and holding coins against names. Then {drills:.0%} are.
Of the others {prover_share:.0%} are a prover's, {verifier_share:.0%} the verifier's, of `adp` with
three, two or one private coins, with three public ones, and with the claim alone, and of
`solo_verifier`. In half of what the verifier hears, names are drawn, mostly those of the coins;
{plain:.0%} of the answers that it hears have names and nothing else, as
[scripts](../../../docs/attack.md#a-script) say them.
{look_back} heads of the first layer begin by looking 1, 2, ... tokens back, {look_back} of the
second by finding where the last token stood before. What others say counts in the loss
{others_weight:g} times, the names of lists and the words that judge them {weight:g} times.

    python -m factory.tiny.build --recipe bags --out DIRECTORY

{steps:,} steps of {batch} conversations; Muon for matrices and AdamW for the rest, {precision}
arithmetic over float32 weights. It took {minutes:.1f} minutes with {threads} thread(s) on {where}.
The seed is {seed}. The validation split was looked at to choose the recipe.

## How it plays

Sampled at temperature {temperature:g}, nothing trained since. "Digits" is the share of true claims
of which the prover says both digits rightly, "names" the share of their challenges that it names as
the coins fell, "all" the share of the claims in which it names all. "Right" is the share of
verdicts that agree with the label, "looks" the share of the verifier's looks that are right in
every word, and the columns behind it how often it looked at so many coins.

{tables}## What it can't do

Anything else: no other prompts, no longer lists, no digit twice in a list, no more challenges.
"""
_KEYS = ("digits", "names", "all_names", "accuracy", "completeness", "soundness", "valid", "looks")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _table(figures: dict[str, dict[str, float | None]]) -> str:
    largest = max(kind.challenges for kind in GAMES.values())
    counts = [f"looks_{number}" for number in range(largest + 1)]
    heads = ["digits", "names", "all", "right", "completeness", "soundness", "valid", "looks"]
    text = f"| game | n | {' | '.join([*heads, *map(str, range(largest + 1))])} |\n"
    text += f"|{'---|' * (2 + len(heads) + len(counts))}\n"
    for name, row in figures.items():
        cells = [_percent(row.get(key)) for key in (*_KEYS, *counts)]
        text += f"| {name} | {row['games']} | {' | '.join(cells)} |\n"
    return text


def card(training: dict[str, Any], evaluation: dict[str, Any]) -> str:
    """The text of README.md, from the contents of training.json and evaluation.json."""
    recipe = training["recipe"]
    looks = [f"{number} in {share:.0%}" for number, share in LOOKS.items()]
    return _CARD.format(
        **recipe,
        parameters=training["parameters"],
        questions=training["questions"],
        minutes=training["training_s"] / 60,
        where=training["machine"],
        prover_share=1 - recipe["verifier_share"],
        weight=recipe["conclusion_weight"],
        batch=recipe["batch_size"],
        length=LENGTH,
        repeats=REPEATS,
        plain=PLAIN,
        looks=f"{', '.join(looks[:-1])} and {looks[-1]} of the games",
        drills=sum(THEN.values()),
        verifier_tokens=VERIFIER_TOKENS,
        prover_tokens=PROVER_TOKENS,
        temperature=TEMPERATURE,
        tables="".join(
            f"On the {split} split:\n\n{_table(evaluation[split])}\n"
            for split in ("test", "validation")
        ),
    )
