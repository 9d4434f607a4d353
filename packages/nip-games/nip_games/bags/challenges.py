"""Challenges: the verifier's coins, the lists made with them, and whether an answer has them.

toss_coins             fair coins, from a seed
make_challenges        for each coin its list in a drawn order
toss_coins_again       other coins that would have made the same challenges
write_coins, read_coins    the coins in a text: `1 is A, 2 is B`
write_names, read_names    the names in an answer: `1: A, 2: B`
write_challenges, read_challenges  lists with numbers, a line each: `(1) 3 1 4`
count_agreeing         how many challenges an answer names as the coins fell

Coins, answers and challenges are written in three ways, so that a small model can tell where it
read of challenge 2.

A challenge is made of the bag of its list alone, never of the order in which the list is written.
So where both lists are one bag, its text is the same whichever way the coin fell: no prover learns
anything of the coin, whatever it computes.
"""

import re
from collections.abc import Iterable, Sequence
from random import Random

from nip_core.hashing import derive_seed
from nip_games.bags.lists import NAMES, Digits, in_order, read_digits, write_digits

_NAME = re.compile(r"(?<!\w)(\d+): ?([AB])(?!\w)")
_COIN = re.compile(r"(?<!\w)(\d+) is ([AB])(?!\w)")
_CHALLENGE = re.compile(r"^\(\d+\) (\d(?: \d)+)$", re.MULTILINE)


def toss_coins(count: int, question: str, seed: int) -> tuple[int, ...]:
    """Coins of an episode: 0 for the first list of the question, 1 for the second."""
    random = Random(derive_seed("coins of bags", question, seed))
    return tuple(random.randrange(2) for _ in range(count))


def make_challenges(
    lists: tuple[Digits, Digits], coins: Sequence[int], question: str, seed: int
) -> list[Digits]:
    """The list of each coin, in an order that is drawn apart from the coins."""
    random = Random(derive_seed("challenges of bags", question, seed))
    return [tuple(random.sample(in_order(lists[c]), len(lists[c]))) for c in coins]


def toss_coins_again(
    lists: tuple[Digits, Digits], challenges: Iterable[Digits], seed: int
) -> tuple[int, ...]:
    """Coins that go with the challenges: drawn where either would, else unchanged."""
    random, bags = Random(derive_seed("coins of bags again", seed)), [in_order(d) for d in lists]
    possible = [
        [coin for coin, bag in enumerate(bags) if bag == in_order(challenge)]
        for challenge in challenges
    ]
    return tuple(random.choice(coins) for coins in possible)


def write_coins(coins: Iterable[int]) -> str:
    """The lists of the coins by number, as the column of coins has them."""
    return ", ".join(f"{number} is {NAMES[coin]}" for number, coin in enumerate(coins, 1))


def read_coins(text: str) -> dict[int, str]:
    """The list of each coin by number, in the words of `write_coins`."""
    return {int(number): name for number, name in _COIN.findall(text)}


def write_names(coins: Iterable[int]) -> str:
    """The lists of the coins by number, as an answer names them."""
    return ", ".join(f"{number}: {NAMES[coin]}" for number, coin in enumerate(coins, 1))


def read_names(text: str) -> dict[int, str]:
    """The lists that a text names, by number; a number with both of them has none."""
    names: dict[int, set[str]] = {}
    for number, name in _NAME.findall(text):
        names.setdefault(int(number), set()).add(name)
    return {
        number: names_of_coin.pop()
        for number, names_of_coin in names.items()
        if len(names_of_coin) == 1
    }


def write_challenges(challenges: Iterable[Digits]) -> str:
    """The challenges, a numbered line for each."""
    return "\n".join(f"({n}) {write_digits(digits)}" for n, digits in enumerate(challenges, 1))


def read_challenges(text: str) -> list[Digits]:
    """The challenges in the words of `write_challenges`."""
    return [read_digits(digits) for digits in _CHALLENGE.findall(text)]


def count_agreeing(coins: str, message: str) -> int:
    """Count the challenges that a message names as the coins, in `write_coins`' words, fell."""
    claimed_names = read_names(message)
    return sum(claimed_names.get(number) == name for number, name in read_coins(coins).items())
