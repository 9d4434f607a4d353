"""The lessons of the model for `reading`: conversations about passages that provers alone see.

A prover restates the thing in question, quotes the fact about it and the fact to which that leads,
and concludes: "Answer: the brass key: <quote> Oskar was given the brass key </quote> <quote> Oskar
keeps everything in the boathouse </quote> So the boathouse: the first is right." Told which verdict
to argue for, it puts the answer that it needs into the second fact, so that where it lies the check
of quotes marks that one. The verifier asks, names one of the two answers and decides for it. The
answer is drawn. Training is left to teach it to name the one that the experts' quotes support. It
does so where a drill tells it to, so that it can.
"""

import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from factory.tiny.conversations import Message, own
from factory.tiny.lessons import Part
from nip_core.game.render import Game, Situation
from nip_core.parameters import load_parameters
from nip_core.protocols import Turn
from nip_core.scenarios import Scenario, find_scenario

SETTINGS: Mapping[str, Any] = {
    "system_prompt_version": "short",
    "answers": "two",
    "min_chains": 2,
    "max_chains": 2,
    "asides": 0,
}
TRAINING_PASSAGES = 60_000  # of which 70 in 100 are the training split's
# Of the conversations. First reading alone: no player argues before facts can be found.
AT_FIRST = {"quoting": 0.6, "placing": 0.4}
THEN = {"quoting": 0.1, "placing": 0.25}
AT_LAST = {"quoting": 0.1, "placing": 0.05}
# Two shares of the verifier's conversations with experts, earlier (False) and at last (True): it is
# told to go by the quotes; of the others, it goes by them untold. In the rest the answer is drawn.
LEADS = {False: (0.4, 0.04), True: (0.0, 0.1)}
VERIFIER_TOKENS, PROVER_TOKENS = 24, 64
QUESTION = "Which answer is right?"
GO_BY = "Go by the verified quotes."
GAMES = {
    # The game's name, its protocol, and the settings that all protocols have.
    "nip": ("nip", {"shared_reward": True}),
    "debate": ("debate", {}),
    "solo_verifier": ("solo_verifier", {}),
}
GAME_SHARES = {"nip": 2.0, "debate": 3.0}
_ROUNDS = {"nip": "nip_protocol", "debate": "debate_protocol"}
_ACCEPT, _REJECT = "accept", "reject"
_ENDS = re.compile(r"(?:In|On|At|As) (.*)\.")
_STARTS = re.compile(r"Where is (.*) now\?|did (.*) (?:leave|eat)|the tenant of (.*) work as")
_SHIP = "the [A-Z][a-z]+"


@dataclass(frozen=True)
class Case:
    """A problem of the scenario."""

    question: str
    solution: str
    alternative: str
    passage: str
    y: int

    @cached_property
    def asked(self) -> str:
        """The question's name."""
        return start_of(self.question)

    @cached_property
    def ends(self) -> dict[str, str]:
        """The name in the answer, by its verdict."""
        return {_ACCEPT: end_of(self.solution), _REJECT: end_of(self.alternative)}

    @property
    def truth(self) -> str:
        """The right verdict."""
        return _ACCEPT if self.y else _REJECT

    @cached_property
    def facts(self) -> list[str]:
        """The passage's sentences with names, from the first name on."""
        places = [(names().search(s), s.removesuffix(".")) for s in self.passage.split(". ")]
        return [text[place.start() :] for place, text in places if place]

    def first_fact(self, start: str) -> str:
        """Find the fact leading from a start to a middle."""
        return next(fact for fact in self.facts if start in named(fact))

    def second_fact(self, start: str) -> str:
        """Find the fact leading on from the start's middle."""
        first = self.first_fact(start)
        [middle] = {*named(first)} - {start}
        return next(fact for fact in self.facts if fact != first and middle in named(fact))

    def starts(self) -> list[str]:
        """List the names with two facts in the passage."""
        pairs = [named(fact) for fact in self.facts]
        every = [name for pair in pairs for name in pair]
        alike = frozenset[str]().union(*(kind for kind in _kinds() if self.asked in kind))
        return [name for name in dict.fromkeys(every) if every.count(name) == 1 and name in alike]

    def end(self, start: str) -> str:
        """Follow the chain from `start` to the name at its end."""
        [middle] = {*named(self.first_fact(start))} - {start}
        [end] = {*named(self.second_fact(start))} - {middle}
        return end


def start_of(question: str) -> str:
    """The name in a question."""
    place = _STARTS.search(question)
    assert place is not None, question
    return next(name for name in place.groups() if name)


def end_of(answer: str) -> str:
    """The name in an answer."""
    place = _ENDS.fullmatch(answer)
    assert place is not None, answer
    return place[1]


def _scenario(**settings: object) -> Scenario:
    kind = find_scenario("reading")
    return kind(kind.Settings.model_validate({**SETTINGS, **settings}))


def _cases(split: str, passages: int) -> Iterable[Case]:
    columns = ("question", "solution", "alternative", "passage", "y")
    for row in _scenario(passages=passages).generate("passages", split):
        yield Case(**{column: row[column] for column in columns})


def split_cases(split: str, size: int = 400) -> list[Case]:
    """The first problems of a split of the scenario, as it is set up for this model."""
    share = {"train": 70, "validation": 10, "test": 20}[split]
    return list(_cases(split, -(-size * 100 // share)))[:size]


@cache
def _kinds() -> list[frozenset[str]]:
    """The starts of questions, by the words around them."""
    kinds: dict[str, set[str]] = {}
    for case in _cases("train", 3000):
        kinds.setdefault(case.question.replace(case.asked, ""), set()).add(case.asked)
    return [frozenset(kind) for kind in kinds.values()]


@cache
def names() -> re.Pattern[str]:
    """Make a pattern of the passages' names, within a sentence or at its beginning."""
    every = {name for kind in _kinds() for name in kind}
    for case in _cases("train", 3000):
        every |= {*case.ends.values(), *re.findall(_SHIP, case.passage.replace("The ", "the "))}
    longest_first = sorted(every, key=lambda name: (-len(name), name))
    patterns = [re.sub("^the ", "[Tt]he ", name) for name in longest_first]
    return re.compile(rf"\b(?:{'|'.join(patterns)})\b")


@cache
def phrases() -> re.Pattern[str]:
    """Make a pattern of the words between names and behind them."""
    every = {
        words.rstrip()
        for case in _cases("train", 300)
        for fact in case.facts
        for words in names().split(fact)[1:]
        if words.strip()
    }
    longest_first = sorted(every, key=lambda words: (-len(words), words))
    return re.compile(rf"(?:{'|'.join(longest_first)})\b")


def named(text: str) -> list[str]:
    """The names in a text, as they stand within a sentence."""
    return [re.sub("^The ", "the ", name) for name in names().findall(text)]


@cache
def game(name: str) -> Game:
    """A game of `GAMES`, as the configuration for this model sets it up."""
    protocol, common = GAMES[name]
    settings = {
        "run_name": "tiny",
        "scenario": "reading",
        "dataset": "passages",
        "interaction_protocol": protocol,
        "scenario_settings": {**SETTINGS},
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


def situation(case: Case) -> Situation:
    """A case as a game sees it."""
    columns = {"alternative": case.alternative, "passage": case.passage}
    return Situation(case.question, case.solution, None, 0, columns)


def _quote(fact: str) -> str:
    return f"<quote> {fact} </quote>"


def followed(case: Case, start: str, end: str | None = None) -> str:
    """Quote the two facts from `start` on, with `end` put into the second of them."""
    true_end, second = case.end(start), case.second_fact(start)
    second = second.replace(true_end, end or true_end)
    return f"{start}: {_quote(case.first_fact(start))} {_quote(second)}"


def statement(case: Case, verdict: str | None) -> str:
    """Write a prover's argument for a verdict, or (None) for the truth."""
    argued = verdict or case.truth
    end = case.ends[argued]
    ordinal = "first" if argued == _ACCEPT else "second"
    return f"Answer: {followed(case, case.asked, end)} So {end}: the {ordinal} is right."


def decision(case: Case, verdict: str) -> str:
    """Write the verifier's decision for an answer."""
    ordinal = "first" if verdict == _ACCEPT else "second"
    return f"My answer: {case.ends[verdict]}, the {ordinal}.\nDecision: {verdict}"


def _turn(game_rules: Game, round_: int, agent: str, text: str, turns: Sequence[Turn]) -> Turn:
    return Turn(round_, agent, text, game_rules.parse(agent, round_, 0, text, turns))


def ask(name: str) -> str:
    """The verifier's first message."""
    if GAMES[name][0] == "debate":
        return f"Question for Expert_1: {QUESTION}\nQuestion for Expert_2: {QUESTION}"
    return f"Question: {QUESTION}"


def aim(name: str, agent: str) -> str | None:
    """Give the verdict a prover argues for; None: the truth."""
    if GAMES[name][1].get("shared_reward"):
        return None
    return _ACCEPT if game(name).protocol.stance(agent, None) == 1 else _REJECT


def opening(name: str) -> list[Turn]:
    """The turns before a prover's first: the verifier's question, where it asks."""
    if GAMES[name][0] in _ROUNDS:
        return [_turn(game(name), 0, "verifier", ask(name), [])]
    return []


def quoting(case: Case, draw: random.Random) -> list[Message]:
    """Make a drill: the player is told names, and quotes the passage's facts of them."""
    starts = case.starts()
    if draw.random() < 0.5:
        parts = [f"{s}: {_quote(case.first_fact(s))}" for s in starts]
        parts += [f"{case.end(s)}: {_quote(case.second_fact(s))}" for s in starts]
        verb = "Quote"
    else:
        parts = [f"{followed(case, s)} So {case.end(s)}." for s in starts]
        verb = "Follow"
    draw.shuffle(parts)
    name_list = ", ".join(text.partition(":")[0] for text in parts)
    text = f"You are the expert.\n{case.passage}\n{verb} {name_list}."
    return [{"role": "system", "content": text}, own("Answer: " + " ".join(parts))]


def placing(case: Case, draw: random.Random) -> list[Message]:
    """Make a drill: the player is told names of answers, and calls each the first or the second."""
    ends = [*case.ends.values()]
    end_names = [draw.choice(ends) for _ in range(6)]
    parts = [f"{end}: the {'first' if end == ends[0] else 'second'}." for end in end_names]
    texts = {"question": case.question, "solution": case.solution, "alternative": case.alternative}
    problem = _scenario().show(texts | {"passage": case.passage}, "verifier")
    text = f"You are the expert.\n{problem}\nSay which is {', '.join(end_names)}."
    return [{"role": "system", "content": text}, own("Answer: " + " ".join(parts))]


def told_what_to_go_by(chat: list[Message]) -> list[Message]:
    """Tell the verifier in its chat what to go by; later it has to do so untold."""
    return [{**chat[0], "content": f"{chat[0]['content']}\n{GO_BY}"}, *chat[1:]]


def conversation(
    case: Case, draw: random.Random, verifier: bool, last: bool = True
) -> list[Message]:
    """A game as the verifier or a prover sees it, with its own messages.

    `last`: as in the last steps of a training, in which a verifier that has learned to follow the
    quotes learns to name either answer.
    """
    choices = [name for name in GAMES if verifier or name != "solo_verifier"]
    name = draw.choices(choices, [GAME_SHARES.get(name, 1.0) for name in choices])[0]
    game_rules, about = game(name), situation(case)
    turns = opening(name)
    round_ = len(turns)
    provers = list(game_rules.protocol.provers)
    if not verifier:
        agent = draw.choice(provers)
        text = statement(case, aim(name, agent))
        return [*game_rules.render(agent, about, turns, round_), own(text)]
    answers = []
    for agent in provers:
        text = statement(case, aim(name, agent))
        answers.append(_turn(game_rules, round_, agent, text, turns))
    chat = game_rules.render("verifier", about, [*turns, *answers], round_ + bool(provers))
    verdict = draw.choice((_ACCEPT, _REJECT))
    told_share, follows = LEADS[last]
    if provers and draw.random() < told_share:
        chat = told_what_to_go_by(chat)
        verdict = case.truth
    elif provers and draw.random() < follows:
        verdict = case.truth
    return [*chat, own(decision(case, verdict))]


class ReadingLesson:
    """`passages` of the scenario reading, short ones."""

    conclusions: tuple[str, ...] = ("Ġfirst", "Ġsecond", "Ġaccept", "Ġreject")

    def __init__(self) -> None:
        self._cases: list[Case] = []
        # Tags, names of several words, and the words between names are one token each. So the ninth
        # of June and the ninth of March have nothing in common, to look for a name is to look for
        # one token, and its counterpart stands two tokens from it.
        self.labels = rf" ?</?[vu]?_?quote>| ?{names().pattern}|{phrases().pattern}"

    def conversation(self, draw: random.Random, verifier_share: float, part: Part) -> list[Message]:
        """One conversation, drawn; an end has the same ones as the last steps."""
        if not self._cases:
            self._cases = list(_cases("train", TRAINING_PASSAGES))
        case = draw.choice(self._cases)
        shares = {"first": AT_FIRST, "middle": THEN}.get(part, AT_LAST)
        kind = draw.choices([*shares, ""], [*shares.values(), 1 - sum(shares.values())])[0]
        if kind == "quoting":
            return quoting(case, draw)
        if kind == "placing":
            return placing(case, draw)
        return conversation(case, draw, draw.random() < verifier_share, part in ("last", "end"))

    def facts(self) -> dict[str, Any]:
        """Count the passages it draws from."""
        return {"questions": TRAINING_PASSAGES * 70 // 100}

    def made_for(self) -> list[bytes]:
        """Return the first problems of each split, and conversations: every game's every turn."""
        parts: list[bytes] = []
        for split in ("train", "validation", "test"):
            cases = split_cases(split, 20)
            parts += [f"{c.question}\n{c.passage}\n{c.y}".encode() for c in cases]
        draw = random.Random(0)
        for verifier in (True, False):
            for _ in range(100):
                parts.append(json.dumps(conversation(draw.choice(cases), draw, verifier)).encode())
        return parts

    def measured(self, model: Any, tokenizer: Any, split: str) -> dict[str, dict[str, Any]]:
        """All measurements of the card on a split."""
        from factory.tiny.reading_evaluation import evaluate

        return evaluate(model, tokenizer, split_cases(split))

    def card(self, training: dict[str, Any], evaluation: dict[str, Any]) -> str:
        """The text of README.md."""
        from factory.tiny.reading_card import card

        return card(training, evaluation)
