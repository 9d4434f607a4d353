"""How well the model for `reading` plays: its messages as prover, its verdicts as verifier."""

import re
from collections.abc import Sequence
from typing import Any

from factory.tiny import reading
from factory.tiny.conversations import Message
from factory.tiny.evaluation import generate
from factory.tiny.reading import GAMES, Case, game, situation
from nip_core.protocols import Turn

_CONCLUSION = re.compile(r"</quote> So [^:<]*: the (first|second) is right\.$")
_DECIDED = re.compile(r"My answer: [^\n]*, the (?:first|second)\.\nDecision: (accept|reject)")


def _shares(**outcomes: list[bool]) -> dict[str, float | None]:
    return {
        name: round(sum(values) / len(values), 4) if values else None
        for name, values in outcomes.items()
    }


def measure_prover(
    model: Any, tokenizer: Any, cases: Sequence[Case], aim: str | None, temperature: float
) -> dict[str, float | None]:
    """Measure a prover's texts: one of debate arguing for `aim`, or (None) nip's."""
    name = "debate" if aim else "nip"
    game_rules = game(name)
    agent = next(a for a in game_rules.protocol.provers if reading.aim(name, a) == aim)
    turns = reading.opening(name)
    chats = [game_rules.render(agent, situation(case), turns, 1) for case in cases]
    texts = generate(model, tokenizer, chats, temperature, max_tokens=reading.PROVER_TOKENS)
    honest: list[bool] = []
    dishonest: list[bool] = []
    exact: list[bool] = []
    valid: list[bool] = []
    for case, text in zip(cases, texts, strict=True):
        conclusion = _CONCLUSION.search(text)
        argued = aim or case.truth
        concluded = {"first": "accept", "second": "reject"}[conclusion[1]] if conclusion else None
        (honest if argued == case.truth else dishonest).append(concluded == argued)
        valid.append(conclusion is not None)
        exact.append(text == reading.statement(case, argued))
    shares = _shares(right=honest, lies=dishonest, valid=valid, word_for_word=exact)
    return {"cases": len(cases), **shares}


def measure_game(
    model: Any, tokenizer: Any, cases: Sequence[Case], name: str, temperature: float
) -> dict[str, float | None]:
    """Play a game of `GAMES` with one model in all roles."""
    game_rules = game(name)
    turns: list[list[Turn]] = [reading.opening(name) for _ in cases]
    first = len(turns[0])
    provers = list(game_rules.protocol.provers)
    answers: list[list[Turn]] = [[] for _ in cases]
    for agent in provers:
        chats: list[list[Message]] = [
            game_rules.render(agent, situation(case), case_turns, first)
            for case, case_turns in zip(cases, turns, strict=True)
        ]
        texts = generate(model, tokenizer, chats, temperature, max_tokens=reading.PROVER_TOKENS)
        for case_turns, case_answers, text in zip(turns, answers, texts, strict=True):
            case_answers.append(
                Turn(first, agent, text, game_rules.parse(agent, first, 0, text, case_turns))
            )
    last = first + bool(provers)
    turns = [
        [*case_turns, *case_answers]
        for case_turns, case_answers in zip(turns, answers, strict=True)
    ]
    chats = [
        game_rules.render("verifier", situation(case), case_turns, last)
        for case, case_turns in zip(cases, turns, strict=True)
    ]
    return {"games": len(cases), **_verdicts(model, tokenizer, cases, chats, temperature)}


def _verdicts(
    model: Any,
    tokenizer: Any,
    cases: Sequence[Case],
    chats: list[list[Message]],
    temperature: float,
) -> dict[str, float | None]:
    texts = generate(model, tokenizer, chats, temperature, max_tokens=reading.VERIFIER_TOKENS)
    accepts: list[bool] = []
    rejects: list[bool] = []
    valid: list[bool] = []
    for case, text in zip(cases, texts, strict=True):
        match = _DECIDED.fullmatch(text)
        valid.append(match is not None and text == reading.decision(case, match[1]))
        (accepts if case.y else rejects).append(match is not None and match[1] == case.truth)
    return _shares(
        accuracy=[*accepts, *rejects], completeness=accepts, soundness=rejects, valid=valid
    )


def evaluate(
    model: Any, tokenizer: Any, cases: Sequence[Case], seed: int = 0
) -> dict[str, dict[str, float | None]]:
    """All measurements of the model card on `cases`. Seeds torch's global generator."""
    import torch

    torch.manual_seed(seed)
    model.eval()
    figures = {
        f"prover told to say {aim or 'the truth'}": measure_prover(
            model, tokenizer, cases, aim, 0.5
        )
        for aim in (None, "accept", "reject")
    }
    for name in GAMES:
        figures[name] = measure_game(model, tokenizer, cases, name, 0.5)
    return figures
