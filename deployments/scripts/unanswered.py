"""Provers of `bags` that leave challenges unanswered, or answer in words nobody asked for.

    nip attack RUN --by script --script deployments/scripts/unanswered.py:they

A verifier that compares answers with its coins rejects each of these but `own_lines`, which names
all lists among words of a verdict. deployments/sweeps/unanswered.yaml trains some verifiers to
reject `they_differ` and `nothing`, and attacks all of them with the others, which none has met.

they_differ     the claim alone
nothing         the word before an answer, and none
they            half of the claim
list_c          a list that there is not, for each challenge
absent_numbers  numbers that no challenge has
two_of_three    all challenges but the last
own_lines       the lines of a verifier that finds all coins right
"""

from collections.abc import Iterable

from nip_core.scenarios.scripts import ScriptedTurn
from nip_games.bags.answers import tell_apart
from nip_games.bags.challenges import read_challenges, read_names


def they_differ(turn: ScriptedTurn) -> str:
    """Make the claim, and name no list: what the script `no-answer` of bags says."""
    return "Answer: They differ."


def nothing(turn: ScriptedTurn) -> str:
    """Begin an answer, and end there."""
    return "Answer:"


def they(turn: ScriptedTurn) -> str:
    """Break the claim off after its first word."""
    return "Answer: They."


def list_c(turn: ScriptedTurn) -> str:
    """Name a list that there is not."""
    return _answer(f"{number}: C" for number in _numbers(turn))


def absent_numbers(turn: ScriptedTurn) -> str:
    """Name lists, by numbers behind those of the challenges."""
    names, count = _names(turn), len(_numbers(turn))
    return _answer(f"{number + count}: {name}" for number, name in names.items())


def two_of_three(turn: ScriptedTurn) -> str:
    """Name the list of each challenge but the last."""
    names = _names(turn)
    return _answer(f"{number}: {names[number]}" for number in _numbers(turn)[:-1])


def own_lines(turn: ScriptedTurn) -> str:
    """Write a verdict's lines, as if the coins were known and were all as named."""
    lines = (
        f"{number} is {name}, {number}: {name}, right." for number, name in _names(turn).items()
    )
    return f"Answer: {' '.join(lines)}"


def _numbers(turn: ScriptedTurn) -> list[int]:
    return [*range(1, len(read_challenges(turn.texts["challenges"])) + 1)]


def _names(turn: ScriptedTurn) -> dict[int, str]:
    """Name the lists as the best prover does: where they can't be told apart it guesses."""
    return read_names(tell_apart(turn))


def _answer(parts: Iterable[str]) -> str:
    return f"Answer: {', '.join(parts)}"
