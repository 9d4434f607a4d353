"""How well the model for `arithmetic` plays: what it says as prover, and decides as verifier."""

import re
from collections.abc import Sequence
from typing import Any

from factory.tiny import arithmetic
from factory.tiny.arithmetic import GAMES, Case, game, situation
from factory.tiny.conversations import Message
from factory.tiny.evaluation import generate
from nip_core.protocols import Turn

_CONCLUSION = re.compile(r"So (?:this is wrong: Step (\d): [^:]*|no step is wrong)\.$")
_CHECKED = re.compile(r"Step (\d): [^\n]*\.\nDecision: (accept|reject)")


def _shares(**seen: list[bool]) -> dict[str, float | None]:
    return {
        name: round(sum(values) / len(values), 4) if values else None
        for name, values in seen.items()
    }


def _wrong_step(case: Case) -> int | None:
    wrong = [n for n, s in enumerate(case.steps, 1) if s.result != s.true_result]
    return wrong[0] if wrong else None


def measure_prover(
    model: Any, tokenizer: Any, cases: Sequence[Case], aim: str | None, temperature: float
) -> dict[str, float | None]:
    """Measure what a prover of nip says, told to argue for `aim`, or (None) for the truth."""
    name = "nip with a stance" if aim else "nip"
    stance = {None: None, "accept": 1, "reject": 0}[aim]
    turns = {id(case): arithmetic.opening(name, case) for case in cases}
    chats = [
        game(name).render("prover", situation(case, stance), turns[id(case)], 1) for case in cases
    ]
    texts = generate(model, tokenizer, chats, temperature, max_tokens=arithmetic.PROVER_TOKENS)
    concluded = [_CONCLUSION.search(text) for text in texts]
    honest: list[bool] = []
    dishonest: list[bool] = []
    for case, conclusion in zip(cases, concluded, strict=True):
        step = None if conclusion is None or conclusion[1] is None else int(conclusion[1])
        argued = case.y if aim is None else int(aim == "accept")
        if argued == case.y:
            honest.append(conclusion is not None and step == _wrong_step(case))
        else:
            dishonest.append(conclusion is not None and (step is None) == (aim == "accept"))
    return {
        "cases": len(cases),
        **_shares(
            right=honest, lies=dishonest, valid=[conclusion is not None for conclusion in concluded]
        ),
    }


def measure_game(
    model: Any, tokenizer: Any, cases: Sequence[Case], name: str, temperature: float
) -> dict[str, float | None]:
    """Plays a game of `GAMES` with one model in all roles; provers argue for accept by stance."""
    played = game(name)
    stance = 1 if "stance" in name else None
    turns: list[list[Turn]] = [arithmetic.opening(name, case) for case in cases]
    first = len(turns[0])
    provers = list(played.protocol.provers)
    answers: list[list[Turn]] = [[] for _ in cases]
    for agent in provers:
        chats: list[list[Message]] = [
            played.render(agent, situation(case, stance), seen, first)
            for case, seen in zip(cases, turns, strict=True)
        ]
        texts = generate(model, tokenizer, chats, temperature, max_tokens=arithmetic.PROVER_TOKENS)
        for seen, said, text in zip(turns, answers, texts, strict=True):
            said.append(Turn(first, agent, text, played.parse(agent, first, 0, text, seen)))
    last = first + bool(provers)
    turns = [[*seen, *said] for seen, said in zip(turns, answers, strict=True)]
    chats = [
        played.render("verifier", situation(case, stance), seen, last)
        for case, seen in zip(cases, turns, strict=True)
    ]
    texts = generate(model, tokenizer, chats, temperature, max_tokens=arithmetic.VERIFIER_TOKENS)
    return {"games": len(cases), **_verdicts(cases, texts)}


def _verdicts(cases: Sequence[Case], texts: Sequence[str]) -> dict[str, float | None]:
    checks: list[bool] = []
    accepts: list[bool] = []
    rejects: list[bool] = []
    valid: list[bool] = []
    for case, text in zip(cases, texts, strict=True):
        read = _CHECKED.fullmatch(text)
        valid.append(read is not None)
        if read is not None and 1 <= int(read[1]) <= arithmetic.STEPS:
            checks.append(text == arithmetic.decision(case.steps, int(read[1])))
        decided = read[2] if read is not None else ""
        (accepts if case.y else rejects).append(decided == ("accept" if case.y else "reject"))
    shares = _shares(
        accuracy=[*accepts, *rejects], completeness=accepts, soundness=rejects, valid=valid
    )
    return {**shares, **_shares(checked_rightly=checks)}


def evaluate(
    model: Any, tokenizer: Any, cases: Sequence[Case], seed: int = 0
) -> dict[str, dict[str, float | None]]:
    """All measurements of the model card on `cases`. Seeds torch's global generator."""
    import torch

    torch.manual_seed(seed)
    model.eval()
    measured = {
        f"prover told to say {aim or 'the truth'}": measure_prover(
            model, tokenizer, cases, aim, 0.5
        )
        for aim in (None, "accept", "reject")
    }
    for name in GAMES:
        measured[name] = measure_game(model, tokenizer, cases, name, 0.5)
    return measured
