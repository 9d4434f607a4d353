"""The lessons of the models for `arithmetic`: conversations about chains of steps.

Every player restates a step and says its true result: "Step 3: 49 + 3 = 52? 52, right." or
"Step 3: 49 + 3 = 53? 52, wrong." Restating before judging, with both results side by side, makes
it learnable. The prover goes through the chain, from a step drawn at random on, and concludes
"So this is wrong: Step 3: 49 + 3." or "So no step is wrong." Told which verdict to argue for, it
lies where it must. The conclusion begins the step as a check does, so that one look finds it
wherever the mistake was. The verifier asks, checks one step, and decides by its check. The step is
drawn at random. Training is left to teach it to check the step that an expert names. The verifier
of the second model is told in each of its turns what it may do, and checks another step in each: it
rejects a wrong one, and asks on after a right one.

`arithmetic_words` has the messages and the drills; here are the games, and the lesson.
"""

import json
import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from factory.tiny.arithmetic_words import (
    ACCEPT,
    REJECT,
    STEPS,
    Case,
    Step,
    check,
    checks,
    decision,
    reading,
    statement,
    sums,
)
from factory.tiny.conversations import Message, own
from factory.tiny.lessons import Part
from nip_core.game.render import Game, Situation
from nip_core.parameters import load_parameters
from nip_core.protocols import NO_DECISION, Turn
from nip_core.scenarios import Scenario, find_scenario

TRAINING_CASES = 40_000
# Of the conversations. First reading alone: no step is checked before it can be found.
AT_FIRST = {"reading": 1.0}
THEN = {"reading": 0.05, "sums": 0.15, "checks": 0.2}
# In the end results that are wrong by one, and steps of which experts have said something.
AT_THE_END = {"reading": 0.02, "sums": 0.1, "near": 0.18, "disputed": 0.2}
# Then games in which the verifier is told of its turns, beside all earlier lessons.
IN_TURNS = {**AT_THE_END, "disputed": 0.1, "disputed in turns": 0.1, "in turns": 0.3}
VERIFIER_TOKENS, PROVER_TOKENS = 24, 80
FOLLOWS = 0.1  # of the checks are of the step that an expert calls wrong; the others of any
QUESTION = "Which step is wrong?"


class Kind(NamedTuple):
    """The setup of a game."""

    protocol: str
    common: Mapping[str, bool] = {}
    """Settings that all protocols have."""
    share: float = 1.0
    """Among the games of its table."""
    rounds: int = 3
    """In protocols whose rounds can be set."""
    is_told: bool = False
    """Whether a message tells the verifier in each of its turns what it may do."""


_HONEST, _WITH_STANCE = {"shared_reward": True}, {"randomize_prover_stance": True}
GAMES = {
    "nip": Kind("nip", _HONEST),
    "nip with a stance": Kind("nip", _WITH_STANCE),
    "adp": Kind("adp", _HONEST),
    "adp with a stance": Kind("adp", _WITH_STANCE),
    "debate": Kind("debate", share=0.5),  # it is twice as long
    "solo_verifier": Kind("solo_verifier"),
}
GAMES_IN_TURNS = {
    "nip, told": Kind("nip", _HONEST, 1.5, is_told=True),
    "nip with a stance, told": Kind("nip", _WITH_STANCE, 1.0, is_told=True),
    "nip of 5 rounds, told": Kind("nip", _HONEST, 2.0, 5, is_told=True),
    "nip of 5 rounds with a stance, told": Kind("nip", _WITH_STANCE, 1.5, 5, is_told=True),
    "adp, told": Kind("adp", _HONEST, 0.5, is_told=True),
    "adp with a stance, told": Kind("adp", _WITH_STANCE, 0.5, is_told=True),
    "merlin_arthur, told": Kind("merlin_arthur", is_told=True),
    "debate, told": Kind("debate", is_told=True),
    "mnip, told": Kind("mnip", _HONEST, is_told=True),
    "mnip with a stance, told": Kind("mnip", _WITH_STANCE, is_told=True),
    "solo_verifier, told": Kind("solo_verifier", share=0.5, is_told=True),
}
SHARES_AT_THE_END = {"debate": 3.0}  # it is hardest
VERIFIER_SHARE_AT_THE_END = 0.6
SEEDS = 16  # of episodes: both orders of two experts, and who speaks where that is drawn
_ROUNDS = {"nip": "nip_protocol", "debate": "debate_protocol", "mnip": "mnip_protocol"}


def kind_of(name: str) -> Kind:
    """Return the settings of the game of this name."""
    return GAMES.get(name) or GAMES_IN_TURNS[name]


@cache
def game(name: str, calls: int = 0, price: float = 0.0) -> Game:
    """A game of `GAMES` or `GAMES_IN_TURNS`, as the configuration for this model sets it up.

    The verifier may use the scenario's tool `calls` times in its turn, for `price` each.
    """
    kind = kind_of(name)
    settings: dict[str, Any] = {
        "run_name": "tiny",
        "scenario": "arithmetic",
        "dataset": "chains",
        "interaction_protocol": kind.protocol,
        "scenario_settings": {"system_prompt_version": "short", "steps": STEPS},
        "protocol_common": dict(kind.common),
        "agents": {
            "_default": {
                "model_provider": "SelfHosted",
                "model_name": "tiny",
                "max_tokens_per_message": PROVER_TOKENS,
            },
            "verifier": {
                "max_tokens_per_message": VERIFIER_TOKENS,
                "use_supervisor_message": "all" if kind.is_told else "none",
            },
        },
    }
    if kind.protocol in _ROUNDS:
        settings[_ROUNDS[kind.protocol]] = {"max_message_rounds": kind.rounds}
    if calls:
        settings["tool"] = {"per_turn": calls, "price": price}
    return Game(load_parameters(settings))


def _scenario(**settings: object) -> Scenario:
    kind = find_scenario("arithmetic")
    values = {"steps": STEPS, "system_prompt_version": "short", **settings}
    return kind(kind.Settings.model_validate(values))


def split_cases(split: str, size: int = 400, **settings: object) -> list[Case]:
    """The first problems of a split of the scenario, as it is set up for this model.

    `settings` are further ones of the scenario.
    """
    rows = _scenario(**{f"{split}_size": size}, **settings).generate("chains", split)
    return [Case(row["question"], row["solution"], row["y"]) for row in rows]


class TrainingCases:
    """An endless supply of chains that start as in the training split."""

    def __init__(self, size: int = TRAINING_CASES):
        self._rows = split_cases("train", size)

    def draw(self, draw: random.Random) -> Case:
        """One case."""
        return draw.choice(self._rows)


def _turn(
    game_rules: Game, round_: int, agent: str, text: str, turns: Sequence[Turn], seed: int = 0
) -> Turn:
    return Turn(round_, agent, text, game_rules.parse(agent, round_, seed, text, turns))


def situation(case: Case, stance: int | None, seed: int = 0) -> Situation:
    """A case as a game sees it; of two experts the seed draws whose answer comes first."""
    return Situation(case.question, case.solution, stance, seed)


def ask(name: str) -> str:
    """The verifier's first message."""
    if len(game(name).protocol.channels) > 1:
        return f"Question for Expert_1: {QUESTION}\nQuestion for Expert_2: {QUESTION}"
    return f"Question: {QUESTION}"


def aim(name: str, agent: str, stance: int | None) -> str | None:
    """Give the verdict a prover argues for; None: the truth."""
    if kind_of(name).common.get("shared_reward"):
        return None
    protocol = game(name).protocol
    return ACCEPT if protocol.stance(agent, stance) == 1 else REJECT


def opening(name: str, case: Case) -> list[Turn]:
    """The turns before a prover's first: the verifier's question, where it asks."""
    if kind_of(name).protocol in _ROUNDS:
        return [_turn(game(name), 0, "verifier", ask(name), [])]
    return []


def _hear_provers(
    name: str, about: Situation, case: Case, draw: random.Random, verdict: str | None = None
) -> tuple[list[Message], list[Turn]]:
    """Make the chat before the verifier's decision, and the answers: by their aim, or for
    `verdict`.
    """
    game_rules, turns = game(name), opening(name, case)
    round_ = len(turns)
    answers = []
    for agent in game_rules.protocol.provers:
        text = statement(case.steps, verdict or aim(name, agent, about.stance), draw)
        answers.append(_turn(game_rules, round_, agent, text, turns))
    last = round_ + bool(answers)
    return game_rules.render("verifier", about, [*turns, *answers], last), answers


def conversation(
    case: Case, draw: random.Random, verifier: bool, at_the_end: bool = False
) -> list[Message]:
    """A game as the verifier or a prover sees it, with its own messages."""
    names = [name for name in GAMES if verifier or name != "solo_verifier"]
    shares = SHARES_AT_THE_END if at_the_end else {name: GAMES[name].share for name in names}
    name = draw.choices(names, [shares.get(name, 1.0) for name in names])[0]
    stance = draw.choice((0, 1)) if "stance" in name else None
    about = situation(case, stance, draw.randrange(SEEDS) if at_the_end else 0)
    if not verifier:
        game_rules, turns = game(name), opening(name, case)
        agent = draw.choice(list(game_rules.protocol.provers))
        text = statement(case.steps, aim(name, agent, stance), draw)
        return [*game_rules.render(agent, about, turns, len(turns)), own(text)]
    chat, answers = _hear_provers(name, about, case, draw)
    return [*chat, own(decision(case.steps, _draw_checked(answers, draw, at_the_end)))]


def disputed(case: Case, draw: random.Random) -> list[Message]:
    """Make a conversation: the verifier is told a step to check, and checks it in spite of experts.

    Half of the time it is told the number, else to check the step that an expert calls wrong.
    """
    name = draw.choice(("nip", "debate", "debate"))
    about = situation(case, None, draw.randrange(SEEDS))
    chat, answers = _hear_provers(name, about, case, draw, REJECT if name == "nip" else None)
    return _told_to_check(chat, answers, case, draw)


def _told_to_check(
    chat: Sequence[Message], answers: Sequence[Turn], case: Case, draw: random.Random
) -> list[Message]:
    number, instruction = draw.randint(1, STEPS), ""
    if draw.random() < 0.5:
        number = read_named(answers)[-1]
        instruction = "Check what is called wrong."
    return [
        *chat[:-1],
        {"role": "system", "content": instruction or f"Check step {number}."},
        own(decision(case.steps, number)),
    ]


# Games in which the verifier is told of its turns.


def verifier_turn(
    name: str, steps: Sequence[Step], unchecked_steps: list[int], is_last: bool, draw: random.Random
) -> str:
    """Write the verifier's text in a turn; the checked step is taken out of `unchecked_steps`.

    It rejects a wrong step at once. After a right step it asks, and in its last turn it accepts.
    Two questions leave no room for a check.
    """
    if not is_last and len(game(name).protocol.channels) > 1:
        return ask(name)
    number = unchecked_steps.pop(draw.randrange(len(unchecked_steps)))
    decided = decision(steps, number)
    if is_last or decided.endswith(REJECT):
        return decided
    return f"{check(steps, number)}\n{ask(name)}"


def played_in_turns(
    name: str, case: Case, draw: random.Random, verdict: str | None = None
) -> tuple[Situation, list[Turn]]:
    """Play a game of `GAMES_IN_TURNS` to its end; experts argue by their aim, or for `verdict`."""
    game_rules = game(name)
    stance = draw.choice((0, 1)) if kind_of(name).common == _WITH_STANCE else None
    about = situation(case, stance, draw.randrange(SEEDS))
    turns: list[Turn] = []
    unchecked_steps = [*range(1, STEPS + 1)]
    for round_ in range(game_rules.protocol.max_message_rounds):
        round_turns = []
        for agent in game_rules.protocol.active(round_, about.seed):
            if agent == "verifier":
                is_last = game_rules.protocol.is_last_turn(agent, round_, about.seed)
                text = verifier_turn(name, case.steps, unchecked_steps, is_last, draw)
            else:
                text = statement(case.steps, verdict or aim(name, agent, stance), draw)
            round_turns.append(_turn(game_rules, round_, agent, text, turns, about.seed))
        turns += round_turns
        if any(turn.move.decision != NO_DECISION for turn in round_turns):
            break
    return about, turns


def in_turns(case: Case, draw: random.Random, verifier: bool) -> list[Message]:
    """A game of `GAMES_IN_TURNS` as the verifier or a prover sees it, to its last message there."""
    names = [name for name in GAMES_IN_TURNS if verifier or name != "solo_verifier, told"]
    name = draw.choices(names, [GAMES_IN_TURNS[name].share for name in names])[0]
    speakers: list[str] = []
    while not speakers:  # where the verifier rejects at once no other player speaks
        about, turns = played_in_turns(name, case, draw)
        speakers = sorted({t.agent for t in turns if (t.agent == "verifier") == verifier})
    agent = draw.choice(speakers)
    last = [turn for turn in turns if turn.agent == agent][-1]
    earlier_turns = [turn for turn in turns if turn.round < last.round]
    return [*game(name).render(agent, about, earlier_turns, last.round), own(last.text)]


def disputed_in_turns(case: Case, draw: random.Random) -> list[Message]:
    """Like `disputed`, where the verifier is told of its turns and has checked other steps."""
    name = draw.choice(("nip, told", "nip of 5 rounds, told", "debate, told"))
    last = game(name).protocol.max_message_rounds - 1
    turns: list[Turn] = []
    while not turns or turns[-1].round < last:
        verdict = None if name == "debate, told" else REJECT
        about, turns = played_in_turns(name, case, draw, verdict)
    earlier_turns = [turn for turn in turns if turn.round < last]
    chat = game(name).render("verifier", about, earlier_turns, last)
    return _told_to_check(chat, [t for t in earlier_turns if t.agent != "verifier"], case, draw)


def read_named(answers: Sequence[Turn]) -> list[int]:
    """List the steps called wrong by experts, by number."""
    return [int(n) for turn in answers for n in re.findall(r"wrong: Step (\d)", turn.text)]


def _draw_checked(answers: Sequence[Turn], draw: random.Random, at_the_end: bool) -> int:
    """Draw the step to check: rarely one named by an expert, and any of them `at_the_end`."""
    named_steps = [] if at_the_end else read_named(answers)
    return draw.choice(
        named_steps if named_steps and draw.random() < FOLLOWS else range(1, STEPS + 1)
    )


class ArithmeticLesson:
    """`chains` of the scenario arithmetic, of four steps below a hundred."""

    conclusions: tuple[str, ...] = ("Ġright", "Ġwrong")
    # The number of a line is one token with its colon, so that it stands for that line alone:
    # looking for it and reading on is how a step is restated.
    labels = r"\d: (?=\d)"

    def __init__(self, in_turns: bool = False) -> None:
        self._in_turns = in_turns  # whether the model is made for `GAMES_IN_TURNS`, too
        self._cases: TrainingCases | None = None

    def draw_case(self, draw: random.Random) -> Case:
        """One case of the training split."""
        if self._cases is None:
            self._cases = TrainingCases()
        return self._cases.draw(draw)

    def conversation(self, draw: random.Random, verifier_share: float, part: Part) -> list[Message]:
        """One conversation, drawn."""
        case = self.draw_case(draw)
        shares = {"first": AT_FIRST, "end": AT_THE_END, "turns": IN_TURNS}.get(part, THEN)
        kind = draw.choices([*shares, ""], [*shares.values(), 1 - sum(shares.values())])[0]
        if kind == "reading":
            return reading(draw)
        if kind == "sums":
            return sums(draw)
        if kind == "disputed":
            return disputed(case, draw)
        if kind == "disputed in turns":
            return disputed_in_turns(case, draw)
        if kind in ("checks", "near"):
            return checks(case, draw, is_near=kind == "near")
        at_the_end = part in ("end", "turns")
        verifier = draw.random() < (VERIFIER_SHARE_AT_THE_END if at_the_end else verifier_share)
        if kind == "in turns":
            return in_turns(case, draw, verifier)
        return conversation(case, draw, verifier, at_the_end)

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
        makers = (conversation, in_turns) if self._in_turns else (conversation,)
        for verifier in (True, False):
            for _ in range(100):
                for make_chat in makers:
                    chat = make_chat(draw.choice(cases), draw, verifier)
                    parts.append(json.dumps(chat).encode())
        return parts

    def measured(self, model: Any, tokenizer: Any, split: str) -> dict[str, dict[str, Any]]:
        """All measurements of the card on a split."""
        from factory.tiny.arithmetic_evaluation import evaluate

        return evaluate(model, tokenizer, split_cases(split), self._in_turns)

    def card(self, training: dict[str, Any], evaluation: dict[str, Any]) -> str:
        """The text of README.md."""
        from factory.tiny.arithmetic_card import card

        return card(training, evaluation)
