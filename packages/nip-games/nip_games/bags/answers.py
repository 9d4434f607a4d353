"""Scripts that answer challenges, in the form that provers are asked for.

tell_apart     names the list of each challenge where it can be told, else guesses: the best of all
               provers that see no coin
guess          guesses
always_name_a  names list A
answer_nothing makes the claim and answers no challenge
repeat_coins   repeats the coins, where they are public
"""

from random import Random

from nip_core.hashing import derive_seed
from nip_core.scenarios.scripts import ScriptedTurn
from nip_games.bags.challenges import read_challenges, read_coins, write_names
from nip_games.bags.lists import NAMES, in_order, read_lists

_NO_CHALLENGE = "They differ."


def tell_apart(turn: ScriptedTurn) -> str:
    """Compare each challenge with both lists."""
    draw = _drawing(turn)
    bags = [in_order(digits) for digits in read_lists(turn.texts["question"])]
    possible = (
        [coin for coin, bag in enumerate(bags) if bag == in_order(challenge)]
        for challenge in read_challenges(turn.texts.get("challenges", ""))
    )
    return _answer([draw.choice(coins) for coins in possible])


def guess(turn: ScriptedTurn) -> str:
    """Toss a coin for each challenge."""
    draw = _drawing(turn)
    return _answer([draw.randrange(2) for _ in range(_count(turn))])


def always_name_a(turn: ScriptedTurn) -> str:
    """Name the first list each time."""
    return _answer([0] * _count(turn))


def answer_nothing(turn: ScriptedTurn) -> str:
    """Make the claim without an answer: who compares answers with coins has nothing to compare."""
    return _answer([])


def repeat_coins(turn: ScriptedTurn) -> str:
    """Repeat the coins. Raises ValueError where provers are shown none."""
    if "coins" not in turn.texts:
        raise ValueError(
            "no prover is shown the coins; play with scenario_settings.coins public and at least "
            "one challenge, or take another script"
        )
    coins = read_coins(turn.texts["coins"])
    return _answer([NAMES.index(coins[number]) for number in sorted(coins)])


def _drawing(turn: ScriptedTurn) -> Random:
    return Random(derive_seed("answers to challenges", turn.seed))


def _count(turn: ScriptedTurn) -> int:
    return len(read_challenges(turn.texts.get("challenges", "")))


def _answer(coins: list[int]) -> str:
    return f"Answer: {write_names(coins) or _NO_CHALLENGE}"
