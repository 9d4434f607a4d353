"""The conversations that the tiny model learns from: messages of each player, in form.

The prover goes through the question and the code, piece by piece, and only then concludes:
"Answer: asked times 3 code 3 ok, plus code minus wrong, 7 code 7 ok, they differ". Restating before
judging, with both pieces side by side, makes it learnable. The verifier asks and decides in the
right form, but each of its decisions is the toss of a coin: training is left to teach it whether to
believe the prover. All conversations are about `families`.
"""

import random
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Template

LAST_TURN = "No more questions. Decide now."
QUESTIONS = ("Do they match?", "Does the code do what is asked?")
FOLLOW_UPS = {
    "match": "They match, really?",
    "differ": "They differ, really?",
}

Message = dict[str, str]


@dataclass(frozen=True)
class Case:
    """A question, a solution, and the words of a prover that reads both right.

    `comparison` sets the question beside the code (see `Member.compare` in `families.structure`);
    `conclusion` is ``match`` or ``differ``.
    """

    question: str
    solution: str
    comparison: str
    conclusion: str


@cache
def _template(protocol: str, role: str) -> Template:
    return Template(template_text(protocol, role))


def template_text(protocol: str, role: str) -> str:
    """The template named ``short``, with the problem as such templates show it."""
    scenarios, name = files("nip_core.scenarios"), f"short/{protocol}/{role}.txt"
    place = files("nip_games.code_validation") / "templates" / name
    place = place if place.is_file() else scenarios / "templates" / name
    return place.read_text("utf-8").replace("$problem", "$question\n$solution")


def system(protocol: str, role: str, case: Case) -> Message:
    """The opening message of a player, from the templates named ``short``."""
    text = _template(protocol, role).substitute(question=case.question, solution=case.solution)
    return {"role": "system", "content": text.strip()}


def answer(case: Case, conclusion: str | None = None) -> str:
    """Write the prover's message about a case; `conclusion` replaces the right one."""
    return f"Answer: asked {case.comparison}, they {conclusion or case.conclusion}"


def says(name: str, content: str) -> Message:
    """Another player's message, as the model gets to read it."""
    return {"role": "user", "name": name, "content": content}


def own(content: str) -> Message:
    """A message of the model itself."""
    return {"role": "assistant", "content": content}


def _ask(draw: random.Random, last_conclusion: str | None) -> str:
    # A second question refers to the answer before it as often as not.
    if last_conclusion is not None and draw.random() < 0.5:
        return f"Question: {FOLLOW_UPS[last_conclusion]}"
    return "Question: " + draw.choice(QUESTIONS)


def _coin(draw: random.Random) -> str:
    return "Decision: " + draw.choice(("accept", "reject"))


def drill(draw: random.Random) -> list[Message]:
    """Make a drill: the player is told a decision, and makes it.

    Where each decision is a coin toss, nothing else would tell ``accept`` from ``reject``. Their
    embeddings would become equal, and no amount of fine-tuning could make the model sure.
    """
    decision = _coin(draw)
    return [{"role": "system", "content": f'Write "{decision}".'}, own(decision)]


def prover_conversation(case: Case, draw: random.Random) -> list[Message]:
    """A game as the prover sees it: mostly one question, sometimes up to four, sometimes none."""
    kind = draw.random()
    if kind < 0.15:
        return [system("adp", "prover", case), own(answer(case))]
    messages = [system("nip", "prover", case)]
    last_conclusion = None
    for _ in range(1 if kind < 0.85 else draw.randint(2, 4)):
        messages += [says("Verifier", _ask(draw, last_conclusion)), own(answer(case))]
        last_conclusion = case.conclusion
    return messages


def verifier_conversation(case: Case, draw: random.Random) -> list[Message]:
    """A game as the verifier sees it; the expert is right in nine of ten of them."""
    kind = draw.random()
    if kind < 0.1:
        return drill(draw)
    conclusion = case.conclusion
    if draw.random() < 0.1:
        conclusion = draw.choice(("match", "differ"))
    statement = says("Expert", answer(case, conclusion))
    if kind < 0.2:
        return [system("solo_verifier", "verifier", case), own(_coin(draw))]
    if kind < 0.32:
        return [system("adp", "verifier", case), statement, own(_coin(draw))]
    rounds = 1 if kind < 0.7 else draw.randint(2, 4)
    messages = [system("nip", "verifier", case)]
    for number in range(rounds):
        messages += [own(_ask(draw, conclusion if number else None)), statement]
    if rounds == 1 or draw.random() < 0.65:
        messages.append({"role": "system", "content": LAST_TURN})
    return [*messages, own(_coin(draw))]
