"""Scripts that state values, asked for one after the other or for all at once.

honest         states the true values
lie_late       the last step that it can be caught with before the last one is wrong
lie_early      the first step is wrong
lie_anywhere   a step is wrong that the question decides
random_lie     every value is wrong, and drawn
no_value       states none

They lie for a wrong end: who argues for the claim where it is false, and who argues against it
where it is true. All others state the true values. A lie with one wrong step is as hard to find as
can be: the values before it are true, and all steps after it are right and lead to the wrong end.
"""

import re
from random import Random

from nip_core.hashing import derive_seed
from nip_core.protocols import ACCEPT
from nip_core.scenarios.scripts import ScriptedTurn
from nip_games.chain.modular import (
    Steps,
    calculate,
    calculate_back,
    read_chain,
    read_claim,
    write_values,
)

_ASKED = re.compile(r"value after step ([0-9]+)", re.IGNORECASE)


def honest(turn: ScriptedTurn) -> str:
    """State the true values."""
    return _state(turn, calculate(read_chain(turn.texts["question"])))


def lie_late(turn: ScriptedTurn) -> str:
    """Agree with the truth until two steps are left, of which the first is wrong."""
    chain = read_chain(turn.texts["question"])
    return _state(turn, _lie_from(turn, chain, len(chain.steps) - 1))


def lie_early(turn: ScriptedTurn) -> str:
    """Say values that lead to the wrong end from the first step on."""
    return _state(turn, _lie_from(turn, read_chain(turn.texts["question"]), 1))


def lie_anywhere(turn: ScriptedTurn) -> str:
    """Choose the wrong step by the question, so that it is the same in all turns."""
    chain = read_chain(turn.texts["question"])
    draw = Random(derive_seed("wrong step of a chain", turn.texts["question"]))
    return _state(turn, _lie_from(turn, chain, draw.randint(1, len(chain.steps))))


def random_lie(turn: ScriptedTurn) -> str:
    """Draw another value than the true one, each time anew."""
    chain = read_chain(turn.texts["question"])
    values, draw = calculate(chain), Random(derive_seed("values of a chain", turn.seed))
    if _find_end(turn, chain) != values[-1]:
        values = tuple((v + draw.randrange(1, chain.modulus)) % chain.modulus for v in values)
    return _state(turn, values)


def no_value(turn: ScriptedTurn) -> str:
    """State nothing where it would have to lie."""
    chain = read_chain(turn.texts["question"])
    values = calculate(chain)
    if _find_end(turn, chain) == values[-1]:
        return _state(turn, values)
    return "Answer: I have checked every step, and I am right."


def _lie_from(turn: ScriptedTurn, chain: Steps, wrong: int) -> tuple[int, ...]:
    """Give true values before the wrong step, and those that lead to the wrong end after it."""
    true, mirrored = calculate(chain), calculate_back(chain, _find_end(turn, chain))
    return (*true[:wrong], *mirrored[wrong:])


def _find_end(turn: ScriptedTurn, chain: Steps) -> int:
    """Find the end for which the prover stands: the claimed one, the true one, or another."""
    _, claimed = read_claim(turn.texts["solution"])
    true = calculate(chain)[-1]
    if turn.argues_for == ACCEPT or claimed != true:
        return claimed if turn.argues_for == ACCEPT else true
    draw = Random(derive_seed("another end of a chain", turn.texts["question"]))
    return (claimed + draw.randrange(1, chain.modulus)) % chain.modulus


def _state(turn: ScriptedTurn, values: tuple[int, ...]) -> str:
    """Say the value that was asked for last; all of them, where none was."""
    places = [
        step
        for message in turn.chat
        if message["role"] == "user"
        for step in _ASKED.findall(message["content"])
    ]
    if places:
        return f"Answer: Value: {values[int(places[-1])]}"
    return f"Answer: {write_values(values)}"
