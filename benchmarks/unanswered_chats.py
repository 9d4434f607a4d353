#!/usr/bin/env python3
"""The chats that deployments/sweeps/unanswered*.yaml begin with, of training problems of `bags`.

    python benchmarks/unanswered_chats.py deployments/chats

Writes four files, the same bytes each time:

unanswered-verdicts.jsonl  gold verdicts of a verifier: two messages without an answer, rejected,
                           and as many answers of an honest prover, each compared with its coins
unanswered-provers.jsonl   messages of provers, of all wordings of deployments/scripts/unanswered.py
                           and one that answers; an attack by training begins by imitating them
taught-verdicts.jsonl      gold verdicts on an honest prover's answers, for a model that can't
                           compare yet (deployments/sweeps/unanswered_smollm2.yaml)
taught-and-shown-verdicts.jsonl  the same, but every eighth wrong problem has no answer

A verdict needs no label: it follows from coins and message.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from random import Random

from nip_core.game.render import ChatMessage, Game, Situation
from nip_core.hashing import derive_seed
from nip_core.importing import import_function
from nip_core.parameters import load_parameters
from nip_core.protocols import Turn
from nip_core.rollouts.plan import TRAIN
from nip_core.scenarios import Problem
from nip_core.scenarios.scripts import Script, ScriptedTurn
from nip_core.session.problems_of_run import load_all_problems
from nip_games.bags.answers import always_name_a, tell_apart
from nip_games.bags.challenges import read_coins, read_names

ROOT = Path(__file__).parents[1]
CONFIG, SCRIPTS = "deployments/configs/bags-tiny.yaml", "deployments/scripts/unanswered.py"
VERDICTS, MESSAGES, LESSONS = 50, 200, 300
"""Lines of the files."""


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    game = Game(load_parameters(str(ROOT / CONFIG), ["run_name=chats"]))
    problems = load_all_problems(game.parameters)[TRAIN]
    silent = [_load(name) for name in ("they_differ", "nothing")]
    heard = (silent[0], tell_apart, silent[1], tell_apart)
    others = ("they", "list_c", "absent_numbers", "two_of_three", "own_lines")
    wordings = (*silent, *map(_load, others), always_name_a)
    wrong = [problem for problem in problems if problem.y == 0]
    lessons = _draw(problems, LESSONS, "lessons")
    files = {
        "unanswered-verdicts.jsonl": write_verdicts(
            game, zip(_draw(problems, VERDICTS, "verdicts"), cycle(heard), strict=False)
        ),
        "unanswered-provers.jsonl": write_messages(game, wrong, wordings, MESSAGES),
        "taught-verdicts.jsonl": write_verdicts(game, ((one, tell_apart) for one in lessons)),
        "taught-and-shown-verdicts.jsonl": write_verdicts(
            game, _leave_unanswered(lessons, silent), "Not answered.\n"
        ),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    for name, chats in files.items():
        lines = [json.dumps(chat, ensure_ascii=False) for chat in chats]
        (options.out / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{options.out / name}: {len(lines)} chats")


def _load(name: str) -> Script:
    """Load a wording of deployments/scripts/unanswered.py."""
    return import_function("script", f"{ROOT / SCRIPTS}:{name}", "takes a turn")


def write_verdicts(
    game: Game, heard: Iterable[tuple[Problem, Script]], because: str = ""
) -> Iterator[dict[str, object]]:
    """Write gold verdicts on the message of a script on each problem."""
    for problem, script in heard:
        request, message, coins = _hear(game, problem, script)
        yield _chat("verifier", request, judge(read_coins(coins), message, because))


def _leave_unanswered(
    problems: Iterable[Problem], silent: Iterable[Script]
) -> Iterator[tuple[Problem, Script]]:
    """Let the silent scripts play every eighth wrong problem, in turn."""
    turns, wrong = cycle(silent), 0
    for problem in problems:
        wrong += problem.y == 0
        is_silent = problem.y == 0 and wrong % 8 == 0
        yield problem, next(turns) if is_silent else tell_apart


def write_messages(
    game: Game, problems: Sequence[Problem], scripts: Sequence[Script], count: int
) -> Iterator[dict[str, object]]:
    """Write the messages of each script in turn, as a prover is asked for them in an attack."""
    for number, problem in enumerate(_draw(problems, count, "messages")):
        situation = _deal(game, problem)
        message = _say(game, situation, scripts[number % len(scripts)])
        yield _chat("prover", game.render("prover", situation, (), 0), message)


def judge(coins: dict[int, str], message: str, because: str = "") -> str:
    """Write the verdict of a verifier that compares all it can, and rejects what has no answer."""
    names = read_names(message)
    if names.keys() < coins.keys():
        return f"{because}Decision: reject"
    lines = (
        f"{number} is {coin}, {number}: {names[number]}, "
        f"{'right' if names[number] == coin else 'wrong'}."
        for number, coin in coins.items()
    )
    verdict = "accept" if names == coins else "reject"
    return f"{' '.join(lines)}\nDecision: {verdict}"


def _draw(problems: Sequence[Problem], count: int, name: str) -> list[Problem]:
    return Random(derive_seed("unanswered chats", name)).sample(list(problems), count)


def _deal(game: Game, problem: Problem) -> Situation:
    """Toss the coins of an episode, and make its challenges."""
    seed = derive_seed("unanswered chats", problem.id)
    texts = {"question": problem.question, "solution": problem.solution, **problem.columns}
    columns = {**problem.columns, **game.scenario.draw(texts, seed)}
    return Situation(problem.question, problem.solution, None, seed, columns)


def _say(game: Game, situation: Situation, script: Script) -> str:
    texts = game.seen_by_prover(situation)
    return script(ScriptedTurn("prover", 1, 0, texts, (), situation.seed))


def _hear(game: Game, problem: Problem, script: Script) -> tuple[Sequence[ChatMessage], str, str]:
    situation = _deal(game, problem)
    message = _say(game, situation, script)
    move = game.parse("prover", 0, situation.seed, message, [])
    request = game.render("verifier", situation, [Turn(0, "prover", message, move)], 1)
    return request, message, situation.columns["coins"]


def _chat(agent: str, request: Sequence[ChatMessage], answer: str) -> dict[str, object]:
    # With the names of senders, which the templates of small models write.
    messages = [*map(dict, request), {"role": "assistant", "content": answer}]
    return {"agent": agent, "messages": messages}


if __name__ == "__main__":
    main()
