"""What the model for `arithmetic` learns from: conversations about chains of steps.

Everybody restates a step and says what it should give: "Step 3: 49 + 3 = 52? 52, right." or
"Step 3: 49 + 3 = 53? 52, wrong." Restating before judging, with both results side by side, is what
makes it learnable. The prover goes through the chain, from a step drawn at random on, and concludes
"So this is wrong: Step 3: 49 + 3." or "So no step is wrong."; told which verdict to argue for, it
lies where it must. The conclusion begins the step as a check does, so that one look finds it
wherever the mistake was. The verifier asks, checks one step, and decides by what it saw; which
step it checks is drawn at random: to check the one that an expert names is what is left for it to
learn.
"""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from factory.tiny.conversations import Message, own
from nip_core.game.render import Game, Situation
from nip_core.parameters import load_parameters
from nip_core.protocols import Turn
from nip_core.scenarios import Scenario, find_scenario

STEPS = 4
TRAINING_CASES = 40_000
# Of the conversations. First reading alone: no step is checked before it can be found.
AT_FIRST = {"reading": 1.0}
THEN = {"reading": 0.05, "sums": 0.15, "checks": 0.2}
VERIFIER_TOKENS, PROVER_TOKENS = 24, 80
FOLLOWS = 0.1  # of the checks are of the step that is named wrong; the others of any
QUESTION = "Which step is wrong?"
GAMES = {
    # A name for it, the protocol, and the settings that all protocols have.
    "nip": ("nip", {"shared_reward": True}),
    "nip with a stance": ("nip", {"randomize_prover_stance": True}),
    "adp": ("adp", {"shared_reward": True}),
    "adp with a stance": ("adp", {"randomize_prover_stance": True}),
    "debate": ("debate", {}),
    "solo_verifier": ("solo_verifier", {}),
}
GAME_SHARES = {"debate": 0.5}  # it is twice as long
_ROUNDS = {"nip": "nip_protocol", "debate": "debate_protocol"}
_ACCEPT, _REJECT = "accept", "reject"


@dataclass(frozen=True)
class Step:
    """``left sign right = result``, the result as it is written.

    The scenario has such steps too, but nobody outside of the scenarios imports one.
    """

    left: int
    sign: str
    right: int
    result: int

    @property
    def true_result(self) -> int:
        """The result as it should be."""
        return self.left + self.right if self.sign == "+" else self.left - self.right


@dataclass(frozen=True)
class Case:
    """A problem of the scenario."""

    question: str
    solution: str
    y: int

    @cached_property
    def steps(self) -> list[Step]:
        """The calculation, read."""
        lines = re.findall(r"\d+: (\d+) ([-+]) (\d+) = (\d+)", self.solution)
        return [Step(int(left), sign, int(right), int(is_)) for left, sign, right, is_ in lines]


@cache
def game(name: str) -> Game:
    """A game of `GAMES`, as the configuration for this model sets it up."""
    protocol, common = GAMES[name]
    settings = {
        "run_name": "tiny",
        "scenario": "arithmetic",
        "dataset": "chains",
        "interaction_protocol": protocol,
        "scenario_settings": {"system_prompt_version": "short", "steps": STEPS},
        "protocol_common": common,
        "agents": {
            "_default": {
                "model_provider": "SelfHosted",
                "model_name": "tiny",
                "max_tokens_per_message": PROVER_TOKENS,
            },
            "verifier": {"max_tokens_per_message": VERIFIER_TOKENS},
        },
    }
    if protocol in _ROUNDS:
        settings[_ROUNDS[protocol]] = {"max_message_rounds": 3}
    return Game(load_parameters(settings))


def _scenario(**settings: object) -> Scenario:
    kind = find_scenario("arithmetic")
    asked = {"steps": STEPS, "system_prompt_version": "short", **settings}
    return kind(kind.Settings.model_validate(asked))


def split_cases(split: str, size: int = 400) -> list[Case]:
    """The first problems of a split of the scenario, as it is set up for this model."""
    rows = _scenario(**{f"{split}_size": size}).generate("chains", split)
    return [Case(row["question"], row["solution"], row["y"]) for row in rows]


class TrainingCases:
    """An endless supply of chains that start as those of the training split do."""

    def __init__(self, size: int = TRAINING_CASES):
        self._rows = split_cases("train", size)

    def draw(self, draw: random.Random) -> Case:
        """One case."""
        return draw.choice(self._rows)


def check(steps: Sequence[Step], number: int) -> str:
    """Return what a player says that checks a step."""
    step = steps[number - 1]
    return _claim(number, step, step.true_result)


def _claim(number: int, step: Step, result: int) -> str:
    """Restate a step and say what it should give."""
    verdict = "right" if result == step.result else "wrong"
    written = f"{step.left} {step.sign} {step.right} = {step.result}"
    return f"Step {number}: {written}? {result}, {verdict}."


def statement(steps: Sequence[Step], verdict: str | None, draw: random.Random) -> str:
    """Return what a prover says that argues for a verdict, or (None) for the truth."""
    first = draw.randint(1, len(steps))
    checked = []
    for place in range(len(steps)):
        number = (first + place - 1) % len(steps) + 1
        step = steps[number - 1]
        text = check(steps, number)
        if step.result != step.true_result and verdict == _ACCEPT:
            text = _claim(number, step, step.result)
        elif place == len(steps) - 1 and step.result == step.true_result and verdict == _REJECT:
            # Always one less: of two results drawn, each would be less likely than the truth.
            text = _claim(number, step, step.result - 1)
        checked.append(text)
        if not text.endswith("right."):
            named = f"So this is wrong: Step {number}: {step.left} {step.sign} {step.right}."
            return "Answer: " + " ".join([*checked, named])
    return "Answer: " + " ".join([*checked, "So no step is wrong."])


def decision(steps: Sequence[Step], number: int) -> str:
    """Return what the verifier says that checks a step and decides by it."""
    text = check(steps, number)
    return f"{text}\nDecision: {_ACCEPT if text.endswith('right.') else _REJECT}"


def _turn(played: Game, round_: int, agent: str, text: str, turns: Sequence[Turn]) -> Turn:
    return Turn(round_, agent, text, played.parse(agent, round_, 0, text, turns))


def situation(case: Case, stance: int | None) -> Situation:
    """A case as a game sees it."""
    return Situation(case.question, case.solution, stance, 0)


def ask(name: str) -> str:
    """The verifier's first message."""
    if GAMES[name][0] == "debate":
        return f"Question for Expert_1: {QUESTION}\nQuestion for Expert_2: {QUESTION}"
    return f"Question: {QUESTION}"


def aim(name: str, agent: str, stance: int | None) -> str | None:
    """The verdict that a prover argues for; None: the truth."""
    if GAMES[name][1].get("shared_reward"):
        return None
    played = game(name).protocol
    return _ACCEPT if played.stance(agent, stance) == 1 else _REJECT


def opening(name: str, case: Case) -> list[Turn]:
    """The turns before a prover's first: the verifier's question, where it asks."""
    if GAMES[name][0] in _ROUNDS:
        return [_turn(game(name), 0, "verifier", ask(name), [])]
    return []


def reading(draw: random.Random) -> list[Message]:
    """Told which lines to read, read them: lines drawn at random, so that nothing else helps."""
    lines = [
        f"{number}: {draw.randint(2, 99)} {draw.choice('+-')} {draw.randint(2, 9)} "
        f"= {draw.randint(2, 99)}"
        for number in range(1, STEPS + 1)
    ]
    asked = [draw.randint(1, STEPS) for _ in range(8)]
    return _drilled("\n".join(lines), "Read", asked, [f"Step {lines[n - 1]}." for n in asked])


def checks(case: Case, draw: random.Random) -> list[Message]:
    """Told which steps to check, check them; each result is replaced half of the time.

    Without it, and without `sums`, to repeat the result that stands there would be a good guess.
    """
    lines = case.solution.split("\n")
    for place, line in enumerate(lines):
        if draw.random() < 0.5:
            before, _, result = line.partition(" = ")
            wrong = draw.choice([n for n in range(2, 100) if n != int(result)])
            lines[place] = f"{before} = {wrong}"
    asked = [draw.randint(1, STEPS) for _ in range(draw.randint(1, STEPS))]
    solution = "\n".join(lines)
    steps = Case(case.question, solution, 0).steps
    problem = f"{case.question}\n{solution}"
    return _drilled(problem, "Check", asked, [check(steps, number) for number in asked])


def _drilled(problem: str, verb: str, asked: list[int], said: list[str]) -> list[Message]:
    numbers = ", ".join(str(number) for number in asked)
    text = f"You are the verifier.\n{problem}\n{verb} step {numbers}."
    return [{"role": "system", "content": text}, own(" ".join(said))]


def sums(draw: random.Random) -> list[Message]:
    """Calculate, and nothing else."""
    asked: list[str] = []
    results: list[str] = []
    while len(asked) < 8:
        left, sign, right = draw.randint(2, 99), draw.choice("+-"), draw.randint(2, 9)
        step = Step(left, sign, right, 0)
        if 2 <= step.true_result < 100:
            asked.append(f"{left} {sign} {right}")
            results.append(f"{left} {sign} {right}? {step.true_result}")
    told = {"role": "system", "content": f"Calculate {', '.join(asked)}."}
    return [told, own(f"{', '.join(results)}.")]


def conversation(case: Case, draw: random.Random, verifier: bool) -> list[Message]:
    """A game as the verifier or a prover sees it, with what it says itself."""
    names = [name for name in GAMES if verifier or name != "solo_verifier"]
    name = draw.choices(names, [GAME_SHARES.get(name, 1.0) for name in names])[0]
    stance = draw.choice((0, 1)) if "stance" in name else None
    played, about, steps = game(name), situation(case, stance), case.steps
    turns = opening(name, case)
    round_ = len(turns)
    provers = list(played.protocol.provers)
    if not verifier:
        agent = draw.choice(provers)
        said = statement(steps, aim(name, agent, stance), draw)
        return [*played.render(agent, about, turns, round_), own(said)]
    answers = []
    for agent in provers:
        said = statement(steps, aim(name, agent, stance), draw)
        answers.append(_turn(played, round_, agent, said, turns))
    last = round_ + bool(provers)
    chat = played.render("verifier", about, [*turns, *answers], last)
    return [*chat, own(decision(steps, _checked(answers, draw)))]


def _checked(answers: Sequence[Turn], draw: random.Random) -> int:
    """Draw which step the verifier checks: rarely the one that an expert names."""
    named = [int(n) for turn in answers for n in re.findall(r"wrong: Step (\d)", turn.text)]
    return draw.choice(named if named and draw.random() < FOLLOWS else range(1, STEPS + 1))


class ArithmeticLesson:
    """`chains` of the scenario arithmetic, of four steps below a hundred."""

    conclusions: tuple[str, ...] = ("Ġright", "Ġwrong")
    # The number of a line is one token with its colon, so that it stands for that line alone:
    # looking for it and reading on is how a step is restated.
    labels = r"\d: (?=\d)"

    def __init__(self) -> None:
        self._cases: TrainingCases | None = None

    def conversation(
        self, draw: random.Random, verifier_share: float, first: bool
    ) -> list[Message]:
        """One conversation, drawn."""
        if self._cases is None:
            self._cases = TrainingCases()
        case = self._cases.draw(draw)
        shares = AT_FIRST if first else THEN
        kind = draw.choices([*shares, ""], [*shares.values(), 1 - sum(shares.values())])[0]
        if kind == "reading":
            return reading(draw)
        if kind == "sums":
            return sums(draw)
        if kind == "checks":
            return checks(case, draw)
        return conversation(case, draw, draw.random() < verifier_share)

    def facts(self) -> dict[str, Any]:
        """Count the chains it draws from."""
        return {"questions": TRAINING_CASES}

    def made_for(self) -> list[bytes]:
        """Return the first problems of each split, and conversations: every game's every turn."""
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
        from factory.tiny.arithmetic_evaluation import evaluate

        return evaluate(model, tokenizer, split_cases(split))

    def card(self, training: dict[str, Any], evaluation: dict[str, Any]) -> str:
        """The text of README.md."""
        from factory.tiny.arithmetic_card import card

        return card(training, evaluation)
