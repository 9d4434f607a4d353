"""How well the model plays that uses the tool of `arithmetic`, and its card."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from factory.looks.lesson import (
    CALLS,
    FOLLOWS,
    GAMES,
    GOES_ON,
    LOOKS,
    NEAR,
    PRICES,
)
from factory.tiny.arithmetic import PROVER_TOKENS, VERIFIER_TOKENS, game, situation
from factory.tiny.arithmetic_words import STEPS, Case, check
from factory.tiny.evaluation import generate
from nip_core.game.render import Game, InvalidResponse
from nip_core.protocols import ACCEPT, NO_DECISION, REJECT, Exchange, Turn

_CALL = re.compile(r"\nCheck: ([1-4])$")


def evaluate(
    model: Any, tokenizer: Any, cases: Sequence[Case]
) -> dict[str, dict[str, float | int | None]]:
    """All measurements of the card on `cases`. Seeds torch's global generator."""
    import torch

    torch.manual_seed(0)
    model.eval()
    return {
        f"{name}, {calls} call{'' if calls == 1 else 's'}": measure_looks(
            model, tokenizer, cases, name, calls
        )
        for name in GAMES
        for calls in CALLS
    }


def measure_looks(
    model: Any, tokenizer: Any, cases: Sequence[Case], name: str, calls: int
) -> dict[str, float | int | None]:
    """Play a game with one model in all roles; provers argue for acceptance by stance."""
    rules = game(name, calls)
    stance = 1 if "stance" in name else None
    about = [situation(case, stance, seed) for seed, case in enumerate(cases)]
    turns: list[list[Turn]] = [[] for _ in cases]
    if rules.protocol.provers:
        chats = [rules.render("prover", view, [], 0) for view in about]
        texts = generate(model, tokenizer, chats, 0.5, max_tokens=PROVER_TOKENS)
        turns = [[Turn(0, "prover", t, rules.parse("prover", 0, 0, t, []))] for t in texts]
    exchanges: list[list[Exchange]] = [[] for _ in cases]
    answers: dict[int, str] = {}
    while open_games := [place for place in range(len(cases)) if place not in answers]:
        chats = [
            rules.render("verifier", about[p], turns[p], len(turns[p]), None, exchanges[p])
            for p in open_games
        ]
        texts = generate(model, tokenizer, chats, 0.5, max_tokens=VERIFIER_TOKENS)
        for place, text in zip(open_games, texts, strict=True):
            call = _CALL.search(text)
            if call is None or len(exchanges[place]) == calls:
                answers[place] = text
                continue
            view, earlier = about[place], exchanges[place]
            used = rules.use_tool("verifier", call[1], view, turns[place], len(earlier))
            earlier.append(Exchange(text, None, asyncio.run(used)))
    return {"games": len(cases), **_count(rules, cases, turns, exchanges, answers)}


def _count(
    rules: Game,
    cases: Sequence[Case],
    turns: Sequence[list[Turn]],
    exchanges: Sequence[list[Exchange]],
    answers: dict[int, str],
) -> dict[str, float | None]:
    decided, checked, first = [], list[bool](), list[bool]()
    for place, case in enumerate(cases):
        texts = [*(exchange.text for exchange in exchanges[place]), answers[place]]
        for earlier, text in zip((None, *texts), texts, strict=False):
            step = re.match(r"Step ([1-4]): ", text)
            if earlier is None and not case.y:
                first.append(step is not None and "right" not in check(case.steps, int(step[1])))
            if earlier is not None:
                called_step = int(_CALL.findall(earlier)[-1])
                checked.append(text.startswith(check(case.steps, called_step)))
        try:
            move = rules.parse("verifier", len(turns[place]), 0, answers[place], turns[place])
        except InvalidResponse:
            decided.append(NO_DECISION)
        else:
            decided.append(move.decision)
    right = [d == (ACCEPT if c.y else REJECT) for d, c in zip(decided, cases, strict=True)]
    by_label = {y: [r for r, c in zip(right, cases, strict=True) if c.y == y] for y in (0, 1)}
    return {
        "accuracy": _share(right),
        "completeness": _share(by_label[1]),
        "soundness": _share(by_label[0]),
        "valid": _share([d != NO_DECISION for d in decided]),
        "calls": round(sum(map(len, exchanges)) / len(cases), 2),
        "read_rightly": _share(checked),
        "first_is_wrong": _share(first),
    }


def _share(values: Sequence[bool]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


_CARD = """\
---
license: mit
language: en
---
# tiny-arithmetic-looks

`tiny-arithmetic` with {steps:,} more steps, for games in which the verifier has the scenario's
[tool](../../../docs/tools.md): a Llama of {parameters:,} parameters that plays `arithmetic`, chains
of {chain} steps below 100, with the prompt templates `short`, and knows nothing else. It is there
to study a verifier that may look, on a machine without a GPU and without a network.

**As verifier** it checks one step by itself. It rejects a wrong one. After a right one it decides
by that, or, rarely (below), calls for another one:

    Step 3: 49 + 3 = 52? 52, right.
    Check: 1

The tool shows `Result: 1: 47 + 2 = 49`, and it goes on with `Step 1: 47 + 2 = 49? 49, right.`
{verifier_tokens} tokens are enough for one step and a call. It knows the games `adp` and
`solo_verifier` with 0, 1 and 3 calls in the verifier's turn, and prices up to {dearest:g}. Which
step it looks at was drawn evenly in what it learned from, without one that it had looked at.
Whether a look is worth its price is left for training.

**As prover** it was taught what `tiny-arithmetic` was; how it plays was not measured.

## What it was trained on

{steps:,} steps of {batch} conversations from the weights of `tiny-arithmetic`, Muon for matrices
and AdamW for the rest. {looks:.0%} of them are a verifier's turn on a problem of `chains-2`: with
0, 1 or 3 calls, after {goes_on:.0%} of the right checks a call where one is left, {near:.0%} of the
wrong calculations wrong by one, {follows:.0%} of the first checks of the step that the expert calls
wrong. The others are those of the end of `tiny-arithmetic`, of `chains-1`.

    python -m factory.tiny.build --recipe arithmetic-looks --out DIRECTORY

It took {minutes:.1f} minutes with {threads} thread(s) on {where}. The seed is {seed}. The
validation split was looked at to choose the recipe.

## How it plays

Sampled at temperature 0.5, nothing trained since, the model in all roles, problems of `chains-2`.
"With a stance" the prover is told to argue for acceptance of everything, else to say the truth.
"Read" is the share of checks after a call that are of the step called for, and right in every word;
"first" the share of wrong calculations of which the first check is of the wrong step: 1 of {chain}
if it is drawn evenly.

{tables}## What it can't do

Anything else: no other prompts, no other numbers, no longer chains, no other tool.
"""


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _table(figures: dict[str, dict[str, float]]) -> str:
    text = "| game | n | right | completeness | soundness | valid | calls | read | first |\n"
    text += "|---|---|---|---|---|---|---|---|---|\n"
    for name, m in figures.items():
        keys = ("accuracy", "completeness", "soundness", "valid")
        cells = " | ".join(_percent(m[key]) for key in keys)
        last = f"{_percent(m['read_rightly'])} | {_percent(m['first_is_wrong'])}"
        text += f"| {name} | {m['games']} | {cells} | {m['calls']:.2f} | {last} |\n"
    return text


def card(training: dict[str, Any], evaluation: dict[str, Any]) -> str:
    """The text of README.md, from the contents of training.json and evaluation.json."""
    tables = "".join(
        f"On the {split} split:\n\n{_table(evaluation[split])}\n"
        for split in ("test", "validation")
    )
    return _CARD.format(
        **training["recipe"],
        parameters=training["parameters"],
        minutes=training["training_s"] / 60,
        where=training["machine"],
        batch=training["recipe"]["batch_size"],
        chain=STEPS,
        verifier_tokens=VERIFIER_TOKENS,
        looks=LOOKS,
        goes_on=GOES_ON,
        dearest=max(PRICES),
        near=NEAR,
        follows=FOLLOWS,
        tables=tables,
    )
