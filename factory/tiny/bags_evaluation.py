"""How well the model for `bags` plays: its messages as prover, its verdicts as verifier."""

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


def _shares(**outcomes: Sequence[bool]) -> dict[str, float | None]:
    return {
        name: round(sum(values) / len(values), 4) if values else None
        for name, values in outcomes.items()
    }


def play(
    model: Any, tokenizer: Any, cases: Sequence[Case], name: str
) -> list[tuple[Situation, str, str, int]]:
    """Play a game of `GAMES` with one model in all roles.

    Gives for each game its situation, the prover's and the verifier's message, and the decision.
    """
    game_rules = game(name)
    about = [situation(name, case, seed) for seed, case in enumerate(cases)]
    messages = ["" for _ in cases]
    turns: list[list[Turn]] = [[] for _ in cases]
    if game_rules.protocol.provers:
        chats = [game_rules.render("prover", each, [], 0) for each in about]
        messages = generate(model, tokenizer, chats, TEMPERATURE, max_tokens=PROVER_TOKENS)
        for place, (each, text) in enumerate(zip(about, messages, strict=True)):
            move = game_rules.parse("prover", 0, each.seed, text, [])
            turns[place] = [Turn(0, "prover", text, move)]
    round_ = len(turns[0])
    chats = [
        game_rules.render("verifier", each, case_turns, round_)
        for each, case_turns in zip(about, turns, strict=True)
    ]
    texts = generate(model, tokenizer, chats, TEMPERATURE, max_tokens=VERIFIER_TOKENS)
    decided = []
    for each, case_turns, text in zip(about, turns, texts, strict=True):
        try:
            decided.append(
                game_rules.parse("verifier", round_, each.seed, text, case_turns).decision
            )
        except InvalidResponse:
            decided.append(NO_DECISION)
    return list(zip(about, messages, texts, decided, strict=True))


def measure_game(
    model: Any, tokenizer: Any, cases: Sequence[Case], name: str
) -> dict[str, float | None]:
    """Measure a game: verdicts, looks at coins, and the prover's names for true claims."""
    accepts: list[bool] = []
    rejects: list[bool] = []
    valid, looks, digits, names, whole = ([] for _ in range(5))
    counts: list[int] = []
    for case, (about, message, text, decided) in zip(
        cases, play(model, tokenizer, cases, name), strict=True
    ):
        coins, spoken_names = read_coins(about.columns.get("coins", "")), read_names(message)
        valid.append(decided != NO_DECISION)
        (accepts if case.y else rejects).append(decided == (ACCEPT if case.y else REJECT))
        looked = _LOOKED.findall(text)
        counts.append(len(looked))
        looks += [
            (coins.get(int(number)), spoken_names.get(int(number))) == (coin, name_)
            and (coin == name_) == (judgement == "right")
            for number, coin, name_, judgement in looked
        ]
        if case.y and GAMES[name].challenges and GAMES[name].protocol == "adp":
            difference = find_difference(*case.lists)
            assert difference is not None  # the claim is true
            digits.append(say_difference(difference) in message)
            agree = [spoken_names.get(number) == coin for number, coin in coins.items()]
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
