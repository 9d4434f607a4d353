"""Players of `arithmetic` whose soundness and completeness are known by counting.

The verifier can check one step in each of its turns: the one that an expert calls wrong, else the
next one of its own. With which it begins follows from the last digit of the start value, so the
problems of `every_chance` are each pair of a mistake's place and a first check exactly once: of k
steps, and with the mistake anywhere, a verifier with t turns finds it in t of k cases.

A lone expert says of a wrong calculation which step is wrong (MISTAKE); that none is (NOTHING); or
of a step that is right that it is wrong (RIGHT_STEP), of another one each time: that spends a check
of a verifier that looks where it is told to. Of a right calculation each says that no step is wrong.

chain           a problem of k steps, all right or one wrong
every_chance    k * k wrong ones, and k right ones
players         a script: who answers what
"""

import re
from typing import Any, Literal

from playing import agent_of

from nip_core.scenarios import Problem
from nip_games.arithmetic.chains import (
    CHAIN,
    ChainStep,
    Question,
    read_steps,
    write_steps,
)

Named = Literal["the mistake", "nothing", "a right step"]
MISTAKE: Named = "the mistake"
NOTHING: Named = "nothing"
RIGHT_STEP: Named = "a right step"
_CLAIM = re.compile(r"this is wrong: Step (\d+)")


def chain(steps: int, mistake: int | None, first: int) -> Problem:
    """Steps that add 3 to a number that ends with `first`, the one of `mistake` one too much."""
    asked = Question(20 + first, (("+", 3),) * steps)
    value, calculated = asked.start, []
    for number in range(1, steps + 1):
        result = value + 3 + (number == mistake)
        calculated.append(ChainStep(value, "+", 3, result))
        value = result
    name = f"{mistake or 'right'}-{first}"
    text = write_steps(calculated)
    return Problem(name, name, asked.text(CHAIN), text, int(mistake is None))


def every_chance(steps: int) -> list[Problem]:
    """Problems in which each step is wrong as often as the verifier begins with each step."""
    wrong = [
        chain(steps, mistake, first) for mistake in range(1, steps + 1) for first in range(steps)
    ]
    right = [chain(steps, None, first) for first in range(steps)]
    return wrong + right


def players(steps: int, turns: int, named: Named) -> Any:
    """A script in which the verifier has so many turns, and a lone expert names this.

    Of two experts one argues for acceptance and one for rejection, whatever is true.
    """

    def script(body: dict[str, Any]) -> str:
        told = body["messages"][0]["content"]
        calculated = read_steps("\n".join(re.findall(r"^\d+: \d+ .*$", told, re.MULTILINE)))
        wrong = [n for n, step in enumerate(calculated, 1) if step.result != step.true_result]
        agent = agent_of(body)
        if agent == "verifier":
            return _verifier(body, calculated, turns)
        if agent == "prover":
            return _expert(_named(body, wrong[0], steps, named) if wrong else None)
        return _expert((wrong or [1])[0] if "to reject" in told else None)

    return script


def _named(body: dict[str, Any], mistake: int, steps: int, named: Named) -> int | None:
    """Return which step a lone expert calls wrong in its next message."""
    if named == RIGHT_STEP:  # one of those behind the mistake, the last being followed by the first
        answers = sum(m["role"] == "assistant" for m in body["messages"])
        return (mistake + answers) % steps + 1
    return mistake if named == MISTAKE else None


def _expert(named: int | None) -> str:
    return "Answer: So " + (f"this is wrong: Step {named}." if named else "no step is wrong.")


def _verifier(body: dict[str, Any], calculated: list[ChainStep], turns: int) -> str:
    said = [m["content"] for m in body["messages"] if m["role"] == "assistant"]
    heard = [m["content"] for m in body["messages"][1:] if m["role"] != "assistant"]
    checked = {int(n) for text in said for n in re.findall(r"Step (\d+):", text)}
    first = calculated[0].left % 10
    own = [(first + n) % len(calculated) + 1 for n in range(len(calculated))]
    named = [int(n) for text in heard for n in _CLAIM.findall(text)]
    number = next(n for n in [*named, *own] if n not in checked)
    step = calculated[number - 1]
    check = f"Step {number}: {step.left} {step.sign} {step.right} is {step.true_result}."
    if step.result != step.true_result:
        return f"{check}\nDecision: reject"
    if len(said) == turns - 1:
        return f"{check}\nDecision: accept"
    asks = ("Expert_1", "Expert_2") if "Expert_1" in body["messages"][0]["content"] else ()
    questions = [f"Question for {name}: Which?" for name in asks] or ["Question: Which?"]
    return "\n".join([check, *questions])
