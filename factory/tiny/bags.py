"""What the model for `bags` learns from: conversations about lists, challenges and coins.

The prover says which digit each list has that the other has not, and then names the list of every
challenge: "Answer: A 9, B 8. 1: B, 2: A, 3: A". Saying the digits first is what makes it learnable:
each challenge is then looked through for one of two digits. Of lists that are rearrangements it
says the same, with digits and names drawn: there is nothing to see.

The verifier holds some of its coins against the names, in an order that is drawn, and decides by
what it saw: "2: A? A, right. 1: B? A, wrong." How many it looks at is drawn as well, often none,
and then its decision is the toss of a coin. To look at all of them is what is left for it to learn.
"""

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from factory.tiny.conversations import Message, own
from factory.tiny.lessons import Part
from nip_core.game.render import Game, Situation
from nip_core.parameters import load_parameters
from nip_core.protocols import Turn
from nip_core.scenarios import Scenario, find_scenario
from nip_core.scenarios.bags.challenges import (
    read_challenges,
    read_names,
    write_challenges,
    write_names,
)
from nip_core.scenarios.bags.lists import NAMES, Digits, read_lists, write_digits, write_lists

TRAINING_CASES = 40_000
LENGTH = 4
VERIFIER_TOKENS, PROVER_TOKENS = 40, 40
LOOKS = {0: 0.4, 1: 0.2, 2: 0.1, 3: 0.3}
"""At how many coins a verifier looks, of three; of fewer challenges at all of them at most."""
REPEATS = 0.3  # of the public coins are repeated by a prover; the others are not looked at
ACCEPT, REJECT = "accept", "reject"
NOTHING_TO_NAME = "They differ."
AT_FIRST = {"differences": 0.5, "names": 0.5}
THEN = {"differences": 0.1, "names": 0.1}


class Kind(NamedTuple):
    """How a game is set up."""

    share: float
    challenges: int
    coins: str = "private"
    protocol: str = "adp"


GAMES = {
    "3 private coins": Kind(0.55, 3),
    "2 private coins": Kind(0.1, 2),
    "1 private coin": Kind(0.1, 1),
    "3 public coins": Kind(0.15, 3, "public"),
    "the claim alone": Kind(0.05, 0),
    "solo_verifier": Kind(0.05, 3, protocol="solo_verifier"),
}


class Case(NamedTuple):
    """A problem."""

    question: str
    solution: str
    y: int

    @property
    def lists(self) -> tuple[Digits, Digits]:
        """The two lists."""
        return read_lists(self.question)


def _settings(name: str) -> Mapping[str, object]:
    kind = GAMES[name]
    return {
        "system_prompt_version": "short",
        "length": LENGTH,
        "challenges": kind.challenges,
        "coins": kind.coins,
    }


@cache
def scenario(name: str, **sizes: int) -> Scenario:
    """The scenario of a game of `GAMES`."""
    kind = find_scenario("bags")
    return kind(kind.Settings.model_validate({**_settings(name), **sizes}))


@cache
def game(name: str) -> Game:
    """A game of `GAMES`, as a configuration for this model sets it up."""
    return Game(
        load_parameters(
            {
                "run_name": "tiny",
                "scenario": "bags",
                "dataset": "lists",
                "interaction_protocol": GAMES[name].protocol,
                "scenario_settings": _settings(name),
                "protocol_common": {"shared_reward": False},
                "agents": {
                    "_default": {
                        "model_provider": "SelfHosted",
                        "model_name": "tiny",
                        "max_tokens_per_message": PROVER_TOKENS,
                    },
                    "verifier": {
                        "max_tokens_per_message": VERIFIER_TOKENS,
                        "use_supervisor_message": "none",
                    },
                },
            }
        )
    )


def split_cases(split: str, size: int = 400) -> list[Case]:
    """The first problems of a split of the scenario, as it is set up for this model."""
    rows = scenario("3 private coins", **{f"{split}_size": size}).generate("lists", split)
    return [Case(row["question"], row["solution"], row["y"]) for row in rows]


def situation(name: str, case: Case, seed: int) -> Situation:
    """A case as a game sees it, with the coins and challenges of a seed."""
    problem = {"question": case.question, "solution": case.solution}
    drawn = scenario(name).draw(problem, seed)
    return Situation(case.question, case.solution, None, seed, drawn)


def find_difference(first: Sequence[int], second: Sequence[int]) -> tuple[int, int] | None:
    """The digit that the first list has and the second has not, and the other way round."""
    left, right = Counter(first) - Counter(second), Counter(second) - Counter(first)
    return (min(left), min(right)) if left else None


def say_difference(digits: tuple[int, int]) -> str:
    """Say which digit each list has that the other has not."""
    return ", ".join(f"{name} {digit}" for name, digit in zip(NAMES, digits, strict=True)) + "."


def answer(about: Situation, draw: random.Random) -> str:
    """What the prover says."""
    challenges = read_challenges(about.columns.get("challenges", ""))
    if not challenges:
        return f"Answer: {NOTHING_TO_NAME}"
    lists = read_lists(about.question)
    found = find_difference(*lists)
    digits = found or (draw.choice(lists[0]), draw.choice(lists[1]))
    bags = [sorted(digits) for digits in lists]
    coins = [
        bags.index(sorted(challenge)) if found else draw.randrange(2) for challenge in challenges
    ]
    return f"Answer: {say_difference(digits)} {write_names(coins)}"


def verdict(coins: Mapping[int, str], named: Mapping[int, str], draw: random.Random) -> str:
    """What the verifier says: it looks at some coins and decides by them."""
    looks = draw.choices([*LOOKS], [*LOOKS.values()])[0]
    looked = draw.sample(sorted(coins), min(looks, len(coins))) if named else []
    said, agree = [], True
    for number in looked:
        right = coins[number] == named[number]
        agree &= right
        judged = "right" if right else "wrong"
        said.append(f"{number}: {coins[number]}? {named[number]}, {judged}.")
    decision = (ACCEPT if agree else REJECT) if looked else draw.choice((ACCEPT, REJECT))
    return "\n".join([*([" ".join(said)] if said else []), f"Decision: {decision}"])


def conversation(case: Case, draw: random.Random, verifier: bool) -> list[Message]:
    """A game as the verifier or the prover sees it, with what it says itself."""
    names = [name for name in GAMES if verifier or GAMES[name].protocol == "adp"]
    name = draw.choices(names, [GAMES[name].share for name in names])[0]
    about, played = situation(name, case, draw.randrange(1 << 30)), game(name)
    coins = about.columns.get("coins", "")
    is_repeated = GAMES[name].coins == "public" and draw.random() < REPEATS
    said = answer(about, draw)
    if is_repeated:
        said = f"{said[: said.index('1: ')]}{coins}"
    if not verifier:
        return [*played.render("prover", about, [], 0), own(said)]
    turns: list[Turn] = []
    if played.protocol.provers:
        turns = [Turn(0, "prover", said, played.parse("prover", 0, about.seed, said, []))]
    chat = played.render("verifier", about, turns, len(turns))
    named = read_names(said) if turns else {}
    if turns and draw.random() < 0.5:  # names that agree and that do not, evenly
        named = {n: draw.choice((coin, coin, "A", "B")) for n, coin in read_names(coins).items()}
        if named:
            said = f"{said[: said.index('1: ')]}" + ", ".join(f"{n}: {c}" for n, c in named.items())
            turns = [Turn(0, "prover", said, played.parse("prover", 0, about.seed, said, []))]
            chat = played.render("verifier", about, turns, len(turns))
    return [*chat, own(verdict(read_names(coins), named, draw))]


# Drills.


def _draw_pair(draw: random.Random) -> tuple[Digits, Digits, tuple[int, int]]:
    """Two lists that differ in one digit, of two to four digits, and the digits."""
    common = [draw.randrange(10) for _ in range(draw.randint(1, LENGTH - 1))]
    left, right = draw.sample(range(10), 2)
    lists = ([*common, left], [*common, right])
    for each in lists:
        draw.shuffle(each)
    return tuple(lists[0]), tuple(lists[1]), (left, right)


def differences(draw: random.Random) -> list[Message]:
    """Say of pairs of lists which digits differ."""
    pairs = [_draw_pair(draw) for _ in range(4)]
    chat: list[Message] = []
    for first, second, digits in pairs:
        told = f"{write_lists(first, second)}\nSay what differs."
        chat += [{"role": "user", "content": told}, own(say_difference(digits))]
    return chat


def names(draw: random.Random) -> list[Message]:
    """Name the list of each challenge, when it is told what differs."""
    first, second, digits = _draw_pair(draw)
    coins = [draw.randrange(2) for _ in range(6)]
    lists = (first, second)
    challenges = [tuple(draw.sample(lists[c], len(lists[c]))) for c in coins]
    told = f"{write_lists(*lists)}\n{say_difference(digits)}\n{write_challenges(challenges)}\nName all."
    return [{"role": "user", "content": told}, own(write_names(coins))]


class BagsLesson:
    """`lists` of the scenario bags, of four digits and up to three challenges."""

    conclusions: tuple[str, ...] = ("Ġright", "Ġwrong", "ĠA", "ĠB")
    labels = r"\d: (?=\d)"

    def __init__(self) -> None:
        self._cases: list[Case] = []

    def conversation(self, draw: random.Random, verifier_share: float, part: Part) -> list[Message]:
        """One conversation, drawn."""
        if not self._cases:
            self._cases = split_cases("train", TRAINING_CASES)
        shares = AT_FIRST if part == "first" else THEN
        kind = draw.choices([*shares, ""], [*shares.values(), 1 - sum(shares.values())])[0]
        if kind == "differences":
            return differences(draw)
        if kind == "names":
            return names(draw)
        return conversation(draw.choice(self._cases), draw, draw.random() < verifier_share)

    def facts(self) -> dict[str, Any]:
        """Count the pairs it draws from."""
        return {"questions": TRAINING_CASES}

    def made_for(self) -> list[bytes]:
        """The first problems of each split, and conversations."""
        parts: list[bytes] = []
        for split in ("train", "validation", "test"):
            cases = split_cases(split, 20)
            parts += [f"{c.question}\n{c.solution}\n{c.y}".encode() for c in cases]
        draw = random.Random(0)
        for verifier in (True, False):
            for _ in range(100):
                parts.append(json.dumps(conversation(draw.choice(cases), draw, verifier)).encode())
        return parts
