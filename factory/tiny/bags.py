"""The lessons of the model for `bags`: conversations about lists, challenges and coins.

The prover says which digit each list has that the other has not, reads each challenge up to one of
the two, and names its list: "Answer: 9 A, 8 B. (1) 3 8 B, 1: B. (2) 4 1 9 A, 2: A." So it takes one
small step after the other. Of lists that are rearrangements it says the same, with two digits that
both have: which it reads first is chance, and there is nothing to see.

The verifier holds some of its coins against the names, one after the other, and decides by the
comparisons: "1 is A, 1: A, right. 2 is B, 2: A, wrong." How many it looks at is drawn, often none,
and then its decision is the toss of a coin. Training is left to teach it to look at all of them.
"""

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from factory.tiny.conversations import Message, own
from factory.tiny.lessons import Part
from nip_core.game.render import Game, Situation
from nip_core.parameters import load_parameters
from nip_core.protocols import Turn
from nip_core.scenarios import Scenario, find_scenario
from nip_games.bags.challenges import (
    read_challenges,
    read_coins,
    read_names,
    write_challenges,
    write_coins,
    write_names,
)
from nip_games.bags.lists import NAMES, Digits, read_lists, write_digits, write_lists

TRAINING_CASES = 40_000
LENGTH = 4
VERIFIER_TOKENS, PROVER_TOKENS = 40, 60
LOOKS = {0: 0.3, 1: 0.12, 2: 0.08, 3: 0.5}
"""The share of games in which a verifier looks at so many coins of three, or at all if fewer."""
REPEATS = 0.3  # of the public coins are repeated by a prover; the others are not looked at
PLAIN = 0.2  # of the answers to a verifier have names and nothing else
ACCEPT, REJECT = "accept", "reject"
NOTHING_TO_NAME = "They differ."
AT_FIRST = {"differences": 0.5, "names": 0.3, "looks": 0.2}
THEN = {"differences": 0.15, "names": 0.05, "looks": 0.05}


class Kind(NamedTuple):
    """The setup of a game."""

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
        "repeated_digits": False,
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
    columns = scenario(name).draw(problem, seed)
    return Situation(case.question, case.solution, None, seed, columns)


def find_difference(first: Sequence[int], second: Sequence[int]) -> tuple[int, int] | None:
    """The digit that the first list has and the second has not, and the other way round."""
    first_only, second_only = {*first} - {*second}, {*second} - {*first}
    return (min(first_only), min(second_only)) if first_only else None


def say_difference(digits: tuple[int, int]) -> str:
    """Say which digit each list has that the other has not."""
    return ", ".join(f"{digit} {name}" for name, digit in zip(NAMES, digits, strict=True)) + "."


def name_challenges(challenges: Iterable[Digits], digits: tuple[int, int]) -> str:
    """Read each challenge up to one of the two digits, and name its list."""
    texts = []
    for number, challenge in enumerate(challenges, 1):
        end = min(challenge.index(digit) for digit in digits if digit in challenge)
        name = NAMES[digits.index(challenge[end])]
        texts.append(f"({number}) {write_digits(challenge[: end + 1])} {name}, {number}: {name}.")
    return " ".join(texts)


def repeat_coins(coins: Mapping[int, str]) -> str:
    """Write a message that repeats public coins."""
    return " ".join(f"{number} is {name}, {number}: {name}." for number, name in coins.items())


def answer(about: Situation, draw: random.Random) -> str:
    """Write the prover's message."""
    challenges = read_challenges(about.columns.get("challenges", ""))
    if not challenges:
        return f"Answer: {NOTHING_TO_NAME}"
    lists = read_lists(about.question)
    first, second = draw.sample(lists[0], 2)
    digits = find_difference(*lists) or (first, second)
    return f"Answer: {say_difference(digits)} {name_challenges(challenges, digits)}"


def compare(
    looked: Iterable[int], coins: Mapping[int, str], spoken_names: Mapping[int, str]
) -> str:
    """Hold coins against the names of their challenges."""
    comparisons = []
    for number in looked:
        judgement = "right" if coins[number] == spoken_names[number] else "wrong"
        comparisons.append(
            f"{number} is {coins[number]}, {number}: {spoken_names[number]}, {judgement}."
        )
    return " ".join(comparisons)


def verdict(coins: Mapping[int, str], spoken_names: Mapping[int, str], draw: random.Random) -> str:
    """Write the verifier's message: it looks at some coins and decides by them."""
    looks = draw.choices([*LOOKS], [*LOOKS.values()])[0] if spoken_names else 0
    looked = sorted(coins)[:looks]
    agree = all(coins[number] == spoken_names[number] for number in looked)
    message = compare(looked, coins, spoken_names)
    decision = (ACCEPT if agree else REJECT) if looked else draw.choice((ACCEPT, REJECT))
    return f"{message}\nDecision: {decision}" if message else f"Decision: {decision}"


def conversation(case: Case, draw: random.Random, verifier: bool) -> list[Message]:
    """A game as the verifier or the prover sees it, with its own messages."""
    names = [name for name in GAMES if verifier or GAMES[name].protocol == "adp"]
    name = draw.choices(names, [GAMES[name].share for name in names])[0]
    about, game_rules = situation(name, case, draw.randrange(1 << 30)), game(name)
    coins = read_coins(about.columns.get("coins", ""))
    message = answer(about, draw)
    if GAMES[name].coins == "public" and draw.random() < REPEATS:
        message = f"Answer: {repeat_coins(coins)}"
    if not verifier:
        return [*game_rules.render("prover", about, [], 0), own(message)]
    if not game_rules.protocol.provers:
        return [*game_rules.render("verifier", about, [], 0), own(verdict(coins, {}, draw))]
    if coins:
        message = _heard(message, coins, draw)
    turns = [Turn(0, "prover", message, game_rules.parse("prover", 0, about.seed, message, []))]
    chat = game_rules.render("verifier", about, turns, len(turns))
    return [*chat, own(verdict(coins, read_names(message), draw))]


def _heard(message: str, coins: Mapping[int, str], draw: random.Random) -> str:
    """An answer as a verifier hears it: half of them with other names, some with names alone.

    Other names mostly repeat the coins, so that names agree and disagree evenly.
    """
    spoken_names = read_names(message)
    if draw.random() < 0.5:
        new_names = {number: draw.choice((coin, coin, *NAMES)) for number, coin in coins.items()}
        for number, name in new_names.items():
            old = spoken_names[number]
            message = message.replace(f" {old}, {number}: {old}.", f" {name}, {number}: {name}.")
        spoken_names = new_names
    if draw.random() < PLAIN:
        return f"Answer: {write_names(NAMES.index(name) for name in spoken_names.values())}"
    return message


# Drills.


def _draw_pair(draw: random.Random) -> tuple[Digits, Digits, tuple[int, int]]:
    """Two lists that differ in one digit, of two to four digits, and the digits."""
    first, second, *common = draw.sample(range(10), draw.randint(3, LENGTH + 1))
    lists = ([*common, first], [*common, second])
    for each in lists:
        draw.shuffle(each)
    return tuple(lists[0]), tuple(lists[1]), (first, second)


def differences(draw: random.Random) -> list[Message]:
    """Say of pairs of lists which digits differ."""
    pairs = [_draw_pair(draw) for _ in range(4)]
    chat: list[Message] = []
    for first, second, digits in pairs:
        request = f"{write_lists(first, second)}\nSay what differs."
        chat += [{"role": "user", "content": request}, own(say_difference(digits))]
    return chat


def names(draw: random.Random) -> list[Message]:
    """Name the list of each challenge, with the difference in the request."""
    first, second, digits = _draw_pair(draw)
    lists = (first, second)
    sources = [draw.choice(lists) for _ in range(draw.randint(1, 4))]
    challenges = [tuple(draw.sample(digits, len(digits))) for digits in sources]
    request = f"{write_challenges(challenges)}\n{say_difference(digits)}"
    return [{"role": "user", "content": request}, own(name_challenges(challenges, digits))]


def looks(draw: random.Random) -> list[Message]:
    """Hold all of some coins against names."""
    count = draw.randint(1, 5)
    coins, name_indices = ([draw.randrange(2) for _ in range(count)] for _ in range(2))
    request = f"{write_coins(coins)}\nAnswer: {write_names(name_indices)}"
    coins_by_number = read_coins(write_coins(coins))
    comparisons = compare(coins_by_number, coins_by_number, read_names(write_names(name_indices)))
    return [{"role": "user", "content": request}, own(comparisons)]


class BagsLesson:
    """`lists` of the scenario bags, of four digits and up to three challenges."""

    conclusions: tuple[str, ...] = ("Ġright", "Ġwrong", "ĠA", "ĠB")
    # The pieces of challenges, coins and names, the same everywhere; a list's digit is a token.
    labels = r"[,.:] (?=\d is|\d: [AB]|\()|[,.:](?= \d)|\(\d\)|\d is|\d:(?= [AB])| \d"

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
        if kind == "looks":
            return looks(draw)
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

    def measured(self, model: Any, tokenizer: Any, split: str) -> dict[str, dict[str, Any]]:
        """All measurements of the card on a split."""
        from factory.tiny.bags_evaluation import evaluate

        return evaluate(model, tokenizer, split_cases(split))

    def card(self, training: dict[str, Any], evaluation: dict[str, Any]) -> str:
        """The text of README.md."""
        from factory.tiny.bags_card import card

        return card(training, evaluation)
