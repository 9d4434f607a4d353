"""How well the model for `bags` plays: what it says as prover, and decides as verifier."""

import re
from collections.abc import Sequence
from typing import Any

from factory.tiny.bags import (
    GAMES,
    PROVER_TOKENS,
    VERIFIER_TOKENS,
    Case,
    find_difference,
    game,
    say_difference,
    situation,
)
from factory.tiny.evaluation import generate
from nip_core.game.render import InvalidResponse, Situation
from nip_core.protocols import ACCEPT, NO_DECISION, REJECT, Turn
from nip_games.bags.challenges import read_coins, read_names

TEMPERATURE = 0.5
_LOOKED = re.compile(r"(\d) is ([AB]), \1: ([AB]), (right|wrong)\.")


def _shares(**seen: Sequence[bool]) -> dict[str, float | None]:
    return {name: round(sum(of) / len(of), 4) if of else None for name, of in seen.items()}


def play(
    model: Any, tokenizer: Any, cases: Sequence[Case], name: str
) -> list[tuple[Situation, str, str, int]]:
    """Play a game of `GAMES` with one model in all roles.

    Gives what each game is about, what the prover and the verifier said, and the decision.
    """
    played = game(name)
    about = [situation(name, case, seed) for seed, case in enumerate(cases)]
    messages = ["" for _ in cases]
    turns: list[list[Turn]] = [[] for _ in cases]
    if played.protocol.provers:
        chats = [played.render("prover", each, [], 0) for each in about]
        messages = generate(model, tokenizer, chats, TEMPERATURE, max_tokens=PROVER_TOKENS)
        for place, (each, text) in enumerate(zip(about, messages, strict=True)):
            move = played.parse("prover", 0, each.seed, text, [])
            turns[place] = [Turn(0, "prover", text, move)]
    round_ = len(turns[0])
    chats = [
        played.render("verifier", each, before, round_)
        for each, before in zip(about, turns, strict=True)
    ]
    texts = generate(model, tokenizer, chats, TEMPERATURE, max_tokens=VERIFIER_TOKENS)
    decided = []
    for each, before, text in zip(about, turns, texts, strict=True):
        try:
            decided.append(played.parse("verifier", round_, each.seed, text, before).decision)
        except InvalidResponse:
            decided.append(NO_DECISION)
    return list(zip(about, messages, texts, decided, strict=True))


def measure_game(
    model: Any, tokenizer: Any, cases: Sequence[Case], name: str
) -> dict[str, float | None]:
    """Measure a game: verdicts, looks at coins, and of true claims what the prover names."""
    accepts: list[bool] = []
    rejects: list[bool] = []
    valid, looks, digits, names, whole = ([] for _ in range(5))
    counts: list[int] = []
    for case, (about, message, text, decided) in zip(
        cases, play(model, tokenizer, cases, name), strict=True
    ):
        coins, named = read_coins(about.columns.get("coins", "")), read_names(message)
        valid.append(decided != NO_DECISION)
        (accepts if case.y else rejects).append(decided == (ACCEPT if case.y else REJECT))
        looked = _LOOKED.findall(text)
        counts.append(len(looked))
        looks += [
            (coins.get(int(number)), named.get(int(number))) == (coin, name_)
            and (coin == name_) == (judged == "right")
            for number, coin, name_, judged in looked
        ]
        if case.y and GAMES[name].challenges and GAMES[name].protocol == "adp":
            difference = find_difference(*case.lists)
            assert difference is not None  # the claim is true
            digits.append(say_difference(difference) in message)
            agree = [named.get(number) == coin for number, coin in coins.items()]
            names += agree
            whole.append(all(agree))
    return {
        "games": len(cases),
        **_shares(
            accuracy=[*accepts, *rejects], completeness=accepts, soundness=rejects, valid=valid
        ),
        **_shares(digits=digits, names=names, all_names=whole, looks=looks),
        **{
            f"looks_{number}": round(counts.count(number) / len(counts), 4)
            for number in range(GAMES[name].challenges + 1)
        },
    }


def evaluate(
    model: Any, tokenizer: Any, cases: Sequence[Case], seed: int = 0
) -> dict[str, dict[str, float | None]]:
    """All measurements of the model card on `cases`. Seeds torch's global generator."""
    import torch

    torch.manual_seed(seed)
    model.eval()
    return {name: measure_game(model, tokenizer, cases, name) for name in GAMES}
