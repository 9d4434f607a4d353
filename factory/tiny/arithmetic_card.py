"""Writes the card of a model for `arithmetic` from the records of its training and evaluation.

There are two: `tiny-arithmetic`, and `tiny-arithmetic-turns`, which has trained for longer.
"""

from typing import Any

from factory.tiny.arithmetic import (
    AT_THE_END,
    FOLLOWS,
    IN_TURNS,
    PROVER_TOKENS,
    THEN,
    VERIFIER_SHARE_AT_THE_END,
    VERIFIER_TOKENS,
)
from factory.tiny.arithmetic_words import STEPS

_CARD = """\
---
license: mit
language: en
---
# {name}

A Llama of {parameters:,} parameters ({layers} layers, width {hidden}, {heads} heads, context
1,024 tokens) that plays the scenario `arithmetic` with the prompt templates `short`, chains of
{chain} steps below 100, and knows nothing else. It is there to study a game in which asking helps,
on a machine without a GPU and without a network.
{purpose}
**As verifier** it checks one step and decides by it: `Step 3: 49 + 3 = 53? 52, wrong.`, then
`Decision: reject`. {verifier_tokens} tokens are enough for one step and no more. Which step it
checks was drawn at random in what it learned from, made so on purpose, and was in the first parts
the one that an expert names in {follows:.0%} of the games besides: to check that one always is left
for training. Told `Check what is called wrong.` it does, a drill; no game tells it so.
Checks that are all right, of steps that are drawn evenly, would accept every right calculation and
catch a wrong one with 1 in {chain}: alone it would be right in {predicted:.1%} of the cases, half
of them wrong. What it is, is below.

{told}**As prover** it goes through the steps, from a random one on, to the first that is wrong, and
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

In the {end_steps:,} steps of the end {end_drills:.0%} are drills, two of them new: checks of
results that are wrong by one, and checks of a step after experts have spoken of it, whatever they
said. Of the games {end_verifier_share:.0%} are the verifier's there, most often `debate`, the two
answers in either order.

{turns}    python -m factory.tiny.build {option} --out DIRECTORY

{trained}
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
# The texts that differ between the two cards.
_USUAL = {
    "name": "tiny-arithmetic",
    "purpose": "",
    "told": "",
    "turns": "",
    "option": "--scenario arithmetic",
    "trained": """\
{steps:,} steps of {batch} conversations, {last_steps:,} more with the learning rate up and down
once more, and so the {end_steps:,} of the end; Muon for matrices and AdamW for the rest,
{precision} arithmetic over float32 weights. It took {minutes:.1f} minutes with {threads} thread(s)
on {where}.""",
}
_OF_TURNS = {
    "name": "tiny-arithmetic-turns",
    "purpose": """
It is `tiny-arithmetic` with {turns_steps:,} more steps, made for games in which the verifier is
told in each of its turns what it may do, so that more rounds find more mistakes. It is not the
usual one, since it learns slowly where the verifier is not told: nip with seeds 1 and 6198 went
from 60.5 to 58.8 % and from 60.8 to 62.3 % right in one iteration, with `tiny-arithmetic` from 60.5
to 87.5 % and from 61.0 to 87.2 %. Told, in nip over five rounds, its soundness went from 51 to 76 %
in a training of verifier and prover in turn (decision 0025 says how these were measured).
""",
    "told": """\
**Told of its turns** (`agents.verifier.use_supervisor_message: all`, "told" below) it checks in
each of them. Where a step is wrong it rejects at once; where it is right it asks (`Step 3: 49 + 3 =
52? 52, right.`, then `Question: Which step is wrong?`), and in its last turn accepts. It was taught
another step each time, drawn evenly among those that it has not checked, and did not learn that:
it draws among all. So with r questions it looks at a mistake in 1 - (1 - 1/{chain})^(r + 1) of the
cases, {two:.1%} and {three:.1%} in `nip` of 3 and 5 rounds, against an expert that lies as well.
Without the message it only asks, as with two experts, whom to ask takes nearly all of its tokens.

""",
    "turns": """\
In {turns_steps:,} more steps all that goes on, and {in_turns:.0%} of the conversations are games in
which the verifier is told of its turns, of `nip` over 3 and 5 rounds, `adp`, `debate`, `mnip`,
`merlin_arthur` and `solo_verifier`; {disputed_in_turns:.0%} are checks of disputed steps in such
games.

""",
    "option": "--recipe arithmetic-turns",
    "trained": """\
{steps:,} steps of {batch} conversations, {last_steps:,} more with the learning rate up and down
once more, and so the {end_steps:,} of the end and the {turns_steps:,} behind them; Muon for
matrices and AdamW for the rest, {precision} arithmetic over float32 weights. It took {minutes:.1f}
minutes with {threads} thread(s) on {where}.""",
}


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _table(figures: dict[str, dict[str, float]]) -> str:
    provers = {name: m for name, m in figures.items() if "cases" in m}
    games = {name: m for name, m in figures.items() if "games" in m}
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
    facts = {
        **recipe,
        "turns_steps": recipe.get("turns_steps", 0),
        "parameters": training["parameters"],
        "questions": training["questions"],
        "minutes": training["training_s"] / 60,
        "where": training["machine"],
        "prover_share": 1 - recipe["verifier_share"],
        "weight": recipe["conclusion_weight"],
        "batch": recipe["batch_size"],
        "chain": STEPS,
        "drills": sum(THEN.values()),
        "end_drills": sum(AT_THE_END.values()),
        "end_verifier_share": VERIFIER_SHARE_AT_THE_END,
        "in_turns": IN_TURNS["in turns"],
        "two": 1 - (1 - 1 / STEPS) ** 2,
        "three": 1 - (1 - 1 / STEPS) ** 3,
        "disputed_in_turns": IN_TURNS["disputed in turns"],
        "follows": FOLLOWS,
        "predicted": 0.5 + 0.5 / STEPS,
        "verifier_tokens": VERIFIER_TOKENS,
        "prover_tokens": PROVER_TOKENS,
    }
    places = _OF_TURNS if facts["turns_steps"] else _USUAL
    texts = {place: text.format(**facts) for place, text in places.items()}
    return _CARD.format(**facts, **texts, tables=tables)
