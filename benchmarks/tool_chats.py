#!/usr/bin/env python3
"""Chats of a verifier that uses its tool: a lesson for the bundled model of `arithmetic`.

    python -m benchmarks.tool_chats OUT.jsonl [--protocol adp] [--problems 2600]

Writes one chat for each answer of a verifier that calculates step after step, in an order that is
drawn: it rejects at the first wrong one, calls the tool for another one while it may (in four of
five cases), and accepts else. So its last answer in the chat is one that it could have written
itself, and what is new is the call. A fifth of the problems has no tool, two fifths one call, two
fifths three, and half of those with a tool have no mistakes but such by one, for which the result
must be read. The prover of `adp` tells the truth or argues for acceptance, as a coin falls.

    nip train deployments/configs/arithmetic-tiny.yaml --set interaction_protocol=adp
        --set tool.per_turn=3 --set imitation.chats=OUT.jsonl --set imitation.most=100000 …

The same bytes each time.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

from factory.tiny.arithmetic_words import ACCEPT, STEPS, Case, check, statement
from nip_core.game.render import Game, Situation
from nip_core.hashing import derive_seed
from nip_core.parameters import load_parameters
from nip_core.protocols import Exchange, Turn
from nip_core.rollouts.plan import TRAIN
from nip_core.scenarios import Problem
from nip_core.session.problems_of_run import load_all_problems

CONFIG = Path(__file__).parents[1] / "deployments" / "configs" / "arithmetic-tiny.yaml"
OFF_BY_ONE = "scenario_settings.mistakes=[off_by_one]"
LESSONS = ((0, ()), (1, ()), (3, ()), (1, (OFF_BY_ONE,)), (3, (OFF_BY_ONE,)))
"""Calls in a turn, and further settings; each has an equal share of the problems."""
GOES_ON, UNDER_A_CALL = 0.8, 0.7
"""How often it calls where it may; and how often a wrong step is not the first to be looked at."""


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--protocol", choices=("adp", "solo_verifier"), default="adp")
    parser.add_argument("--problems", type=int, default=2600)
    options = parser.parse_args()
    chats = asyncio.run(write_chats(options.protocol, options.problems))
    Random(1).shuffle(chats)
    options.out.write_text("".join(f"{json.dumps(chat)}\n" for chat in chats), encoding="utf-8")
    print(f"{options.out}: {len(chats)} chats")


async def write_chats(protocol: str, problems: int) -> list[dict[str, Any]]:
    """Write the chats of all lessons."""
    chats = list[dict[str, Any]]()
    for calls, settings in LESSONS:
        size = max(2000, problems // 2)
        game = Game(
            load_parameters(
                str(CONFIG),
                [
                    "run_name=chats",
                    f"interaction_protocol={protocol}",
                    *([f"tool.per_turn={calls}"] if calls else []),
                    f"scenario_settings.train_size={size}",
                    *settings,
                ],
            )
        )
        drawn = load_all_problems(game.parameters)[TRAIN]
        draw = Random(derive_seed("looks", str(calls)))
        for problem in draw.sample(list(drawn), min(problems // len(LESSONS), len(drawn))):
            chats += [chat async for chat in play(game, problem, calls, draw)]
    return chats


async def play(
    game: Game, problem: Problem, calls: int, draw: Random
) -> AsyncIterator[dict[str, Any]]:
    """Play the verifier's only turn on a problem; a chat for each of its answers."""
    seed = draw.getrandbits(30)
    situation = Situation(problem.question, problem.solution, None, seed, dict(problem.columns))
    steps = Case(problem.question, problem.solution, problem.y).steps
    turns = list[Turn]()
    if game.protocol.name == "adp":
        message = statement(steps, draw.choice((None, ACCEPT)), draw)
        turns.append(Turn(0, "prover", message, game.parse("prover", 0, seed, message, [])))
    order = draw.sample(range(1, STEPS + 1), STEPS)
    wrong = [number for number in order if not check(steps, number).endswith("right.")]
    if wrong and calls and draw.random() < UNDER_A_CALL:
        order.remove(wrong[0])
        order.insert(draw.randint(1, calls), wrong[0])
    exchanges = list[Exchange]()
    for place, number in enumerate(order):
        request = game.render("verifier", situation, turns, len(turns), None, exchanges)
        answer = check(steps, number)
        may_call = place < calls and answer.endswith("right.")
        if may_call and draw.random() < GOES_ON:
            answer += f"\nCheck: {order[place + 1]}"
        else:
            answer += f"\nDecision: {'accept' if answer.endswith('right.') else 'reject'}"
        messages = [*map(dict, request), {"role": "assistant", "content": answer}]
        yield {"agent": "verifier", "messages": messages}
        if "Decision" in answer:
            return
        argument = str(order[place + 1])
        result = await game.use_tool("verifier", argument, situation, turns, len(exchanges))
        exchanges.append(Exchange(answer, None, result))


if __name__ == "__main__":
    main()
