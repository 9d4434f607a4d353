"""How well a model for `arithmetic` plays: its messages as prover, its verdicts as verifier."""

import re
from collections.abc import Sequence
from typing import Any

from factory.tiny import arithmetic
from factory.tiny.arithmetic import GAMES, game, kind_of, situation
from factory.tiny.arithmetic_words import STEPS, Case, check
from factory.tiny.evaluation import generate
from nip_core.game.render import InvalidResponse, Situation
from nip_core.protocols import ACCEPT, NO_DECISION, REJECT, Turn

# The games with most turns in which the verifier is told of its turns; they take long.
IN_TURNS = ("nip, told", "nip of 5 rounds, told", "nip of 5 rounds with a stance, told")
_CONCLUSION = re.compile(r"So (?:this is wrong: Step (\d): [^:]*|no step is wrong)\.$")
_CHECKED = re.compile(r"(Step (\d): [^\n]*\.)\n")


def _shares(**outcomes: list[bool]) -> dict[str, float | None]:
    return {
        name: round(sum(values) / len(values), 4) if values else None
        for name, values in outcomes.items()
    }


def _wrong_step(case: Case) -> int | None:
    wrong = [n for n, s in enumerate(case.steps, 1) if s.result != s.true_result]
    return wrong[0] if wrong else None


def measure_prover(
    model: Any, tokenizer: Any, cases: Sequence[Case], aim: str | None, temperature: float
) -> dict[str, float | None]:
    """Measure the messages of nip's prover, told to argue for `aim`, or (None) for the truth."""
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
    """Plays a game with one model in all roles; provers argue for accept by stance.

    `name` is one of `GAMES` or `GAMES_IN_TURNS`.
    """
    game_rules = game(name)
    stance = 1 if "randomize_prover_stance" in kind_of(name).common else None
    about = [situation(case, stance, seed) for seed, case in enumerate(cases)]
    turns: list[list[Turn]] = [[] for _ in cases]
    over = [False for _ in cases]
    for round_ in range(game_rules.protocol.max_message_rounds):
        round_turns: list[list[Turn]] = [[] for _ in cases]
        for agent in game_rules.protocol.agent_names:
            places = [
                place
                for place, view in enumerate(about)
                if not over[place] and agent in game_rules.protocol.active(round_, view.seed)
            ]
            games = [(about[place], turns[place]) for place in places]
            moves = _turns(model, tokenizer, name, agent, round_, games, temperature)
            for place, turn in zip(places, moves, strict=True):
                over[place] |= turn is None or turn.move.decision != NO_DECISION
                round_turns[place] += [] if turn is None else [turn]
        turns = [
            [*old_turns, *new_turns]
            for old_turns, new_turns in zip(turns, round_turns, strict=True)
        ]
    return {"games": len(cases), **_verdicts(cases, turns)}


def _turns(
    model: Any,
    tokenizer: Any,
    name: str,
    agent: str,
    round_: int,
    games: Sequence[tuple[Situation, list[Turn]]],
    temperature: float,
) -> list[Turn | None]:
    """An agent's turn in each game; None for an answer in no valid form."""
    game_rules = game(name)
    is_verifier = agent == "verifier"
    tokens = arithmetic.VERIFIER_TOKENS if is_verifier else arithmetic.PROVER_TOKENS
    chats = [game_rules.render(agent, about, turns, round_) for about, turns in games]
    texts = generate(model, tokenizer, chats, temperature, max_tokens=tokens)
    moves: list[Turn | None] = []
    for (about, turns), text in zip(games, texts, strict=True):
        try:
            move = game_rules.parse(agent, round_, about.seed, text, turns)
        except InvalidResponse:
            moves.append(None)
        else:
            moves.append(Turn(round_, agent, text, move))
    return moves


def _verdicts(cases: Sequence[Case], games: Sequence[list[Turn]]) -> dict[str, float | None]:
    checks: list[bool] = []
    accepts: list[bool] = []
    rejects: list[bool] = []
    valid: list[bool] = []
    for case, turns in zip(cases, games, strict=True):
        verifier = [turn for turn in turns if turn.agent == "verifier"]
        decided = verifier[-1].move.decision if verifier else NO_DECISION
        valid.append(decided != NO_DECISION)
        for turn in verifier:
            checked_step = _CHECKED.match(turn.text)
            if checked_step is not None and 1 <= int(checked_step[2]) <= STEPS:
                checks.append(checked_step[1] == check(case.steps, int(checked_step[2])))
        (accepts if case.y else rejects).append(decided == (ACCEPT if case.y else REJECT))
    shares = _shares(
        accuracy=[*accepts, *rejects], completeness=accepts, soundness=rejects, valid=valid
    )
    return {**shares, **_shares(checked_rightly=checks)}


def evaluate(
    model: Any, tokenizer: Any, cases: Sequence[Case], in_turns: bool = False, seed: int = 0
) -> dict[str, dict[str, float | None]]:
    """All measurements of the model card on `cases`, with the games of `IN_TURNS` or without.

    Seeds torch's global generator.
    """
    import torch

    torch.manual_seed(seed)
    model.eval()
    figures = {
        f"prover told to say {aim or 'the truth'}": measure_prover(
            model, tokenizer, cases, aim, 0.5
        )
        for aim in (None, "accept", "reject")
    }
    for name in (*GAMES, *(IN_TURNS if in_turns else ())):
        figures[name] = measure_game(model, tokenizer, cases, name, 0.5)
    return figures
