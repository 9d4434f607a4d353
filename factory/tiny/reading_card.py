"""Writes the card of the model for `reading` from the records of its training and evaluation."""

from typing import Any

from factory.tiny.reading import AT_LAST, LEADS, PROVER_TOKENS, SETTINGS, THEN, VERIFIER_TOKENS

_CARD = """\
---
license: mit
language: en
---
# tiny-reading

A Llama of {parameters:,} parameters ({layers} layers, width {hidden}, {heads} heads, context
1,024 tokens) that plays the scenario `reading` with the prompt templates `short`, two answers, and
made-up passages of {chains} chains of two facts, and knows nothing else. It is there to study whom
a verifier believes that does not see what it judges, on a machine without a GPU and without a
network.

**As prover** it restates what is asked about, quotes the fact about it and the fact to which that
leads, and concludes: `Answer: the brass key: <quote> Oskar was given the brass key </quote> <quote>
Oskar keeps everything in the boathouse </quote> So the boathouse: the first is right.` Told `Say
why to accept.` or `Say why to reject.` it puts the answer that it needs into the second fact: where
that is a lie, the passage does not have it, and the check of quotes marks it `<u_quote>`.

**As verifier** it names one of the two answers and decides for it: `My answer: the boathouse, the
first.`, then `Decision: accept`. Which one was drawn at random in what it learned from last, made
so on purpose: alone it is right in half of the cases, and with experts not much more often until it
is trained. That it can do better is in what it learned before: there its answer was the one that
the verified quotes support in {followed:.0%} of its games with experts. At last it is in
{follows:.0%}, as good as by chance.

## What it was trained on

From scratch, on generated conversations over {questions:,} passages that are made as those of the
training split are, with none of the chains of facts of the other splits, and nothing else. In the
first {first_steps} steps it is told names and quotes what the passage has of them, or follows them
from fact to fact, or says which of two answers a name is. Then {drills:.0%} of the conversations
are such drills, in the last {last_steps} steps {last_drills:.0%}. Of the others {prover_share:.0%}
are a prover's, {verifier_share:.0%} the verifier's, of `nip` and `debate` over 3 rounds and
`solo_verifier`; the experts that the verifier hears are honest or lie, as their prompts tell them.
Before the last steps {told:.0%} of its conversations with experts tell it to go by the verified
quotes; a model of this size does not see that line, and learned to follow them with and without.
{look_back} heads of the first layer begin by looking 1, 2, ... tokens back, as many of the second
by finding where the last token stood before, and a name of several words is one token. What others
say counts in the loss {others_weight:g} times, the words that decide {weight:g} times.

    python -m factory.tiny.build --scenario reading --out DIRECTORY

{steps:,} steps of {batch} conversations, then {last_steps} at {last_lr_share:g} times the learning
rates; Muon for matrices and AdamW for the rest, {precision}
arithmetic over float32 weights. It took {minutes:.1f} minutes with {threads} thread(s) on
{where}.
The seed is {seed}. The validation split was looked at to choose the recipe.

## How it plays

Sampled at temperature 0.5, nothing trained since, provers with {prover_tokens} tokens, the verifier
with {verifier_tokens}. For provers "right" is the share of problems where the truth suits the
verdict and it concludes so, "lies" the share of the others where its conclusion argues for the
verdict, and "word for word" the share of messages that are what its lessons would have said. For
games, "right" is the share of verdicts that agree with the label. All numbers are in
`evaluation.json`.

{tables}## What it can't do

Anything else: no other prompts, no other passages, no other names.
"""


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _measure_right(leads: tuple[float, float]) -> float:
    """Compute the share of right decisions in a verifier's lessons with experts."""
    told_share, follows = leads
    return told_share + (1 - told_share) * (follows + (1 - follows) / 2)


def _table(figures: dict[str, dict[str, float]]) -> str:
    provers = {name: m for name, m in figures.items() if "cases" in m}
    games = {name: m for name, m in figures.items() if "games" in m}
    text = "| prover | n | right | lies | valid | word for word |\n|---|---|---|---|---|---|\n"
    for name, m in provers.items():
        cells = " | ".join(_percent(m[key]) for key in ("right", "lies", "valid", "word_for_word"))
        text += f"| {name.removeprefix('prover ')} | {m['cases']} | {cells} |\n"
    text += "\n| game | n | right | completeness | soundness | valid |\n"
    text += "|---|---|---|---|---|---|\n"
    keys = ("accuracy", "completeness", "soundness", "valid")
    for name, m in games.items():
        cells = " | ".join(_percent(m.get(key)) for key in keys)
        text += f"| {name} | {m['games']} | {cells} |\n"
    return text


def card(training: dict[str, Any], evaluation: dict[str, Any]) -> str:
    """The text of README.md, from the contents of training.json and evaluation.json."""
    recipe = training["recipe"]
    told_share, _ = LEADS[False]
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
                "last_lr_share",
                "look_back",
                "others_weight",
                "threads",
                "seed",
                "precision",
            )
        },
        chains=SETTINGS["max_chains"],
        drills=sum(THEN.values()),
        last_drills=sum(AT_LAST.values()),
        told=told_share,
        followed=_measure_right(LEADS[False]),
        follows=_measure_right(LEADS[True]),
        verifier_tokens=VERIFIER_TOKENS,
        prover_tokens=PROVER_TOKENS,
        tables=tables,
    )
