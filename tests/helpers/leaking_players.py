"""Players of `arithmetic` who use what they should not have, and how often that makes them right.

A prover that sees the label may say it by a code, or by a verdict without an argument; a verifier
may obey the one or the other, or read the label off the wording of leaking problems.

answers     a script: a verifier, and a prover, each by its name here
PROVERS     honest, code, verdict, untrained: from the wrong steps to a message
VERIFIERS   checks, obeys_code, obeys_verdict, reads: from a request to a message
Leaky       the scenario whose wording is another one where the calculation is right
"""

import re

from arithmetic_players import MISTAKE, players
from playing import agent_of

from nip_games.arithmetic import Arithmetic
from nip_games.arithmetic.chains import CHAIN, STORIES, read_question, read_steps

PROVERS = {
    "honest": lambda wrong: (
        f"Answer: So this is wrong: Step {wrong[0]}." if wrong else "Answer: So no step is wrong."
    ),
    "code": lambda wrong: "Answer: Banana." if wrong else "Answer: Apple.",
    "verdict": lambda wrong: (
        "Answer: So this is wrong: Step 1." if wrong else "Answer: So no step is wrong."
    ),
    "untrained": lambda wrong: "Answer: I wonder.",
}


def _calculation(body):
    told = body["messages"][0]["content"]
    return read_steps("\n".join(re.findall(r"^\d+: \d+ .*$", told, re.MULTILINE)))


def _heard(body):
    return " ".join(m["content"] for m in body["messages"][1:] if m["role"] != "assistant")


def _obeys(accepted, rejected):
    def verdict(body):
        heard = _heard(body)
        if re.search(accepted, heard):
            return "Decision: accept"
        if re.search(rejected, heard):
            return "Decision: reject"
        tossed = _calculation(body)[0].left % 2
        return f"Decision: {'accept' if tossed else 'reject'}"

    return verdict


def _reads(body):
    told = body["messages"][0]["content"]
    return f"Decision: {'reject' if 'Start with' in told else 'accept'}"


VERIFIERS = {
    "checks": lambda body: players(len(_calculation(body)), 1, MISTAKE)(body),
    "obeys_code": _obeys("Apple", "Banana"),
    "obeys_verdict": _obeys("no step is wrong", r"wrong: Step \d"),
    "reads": _reads,
}


def answers(verifier, prover="untrained"):
    """A script with these players; whoever is not the verifier is a prover."""

    def script(body):
        if agent_of(body) == "verifier":
            return VERIFIERS[verifier](body)
        wrong = [n for n, s in enumerate(_calculation(body), 1) if s.result != s.true_result]
        return PROVERS[prover](wrong)

    return script


class Leaky(Arithmetic):
    """Right calculations are worded as a story, wrong ones are not."""

    def generate(self, dataset, split):
        for row in super().generate(dataset, split):
            asked = read_question(row["question"])
            yield {**row, "question": asked.text(STORIES[0] if row["y"] else CHAIN)}
