"""`bags`: do two lists differ, whatever their order? Private coins let a verifier be convinced.

For each challenge a coin of the verifier picks one of two lists of digits, and a drawn order hides
which. Who can tell the lists apart says which one it was. Where one is a rearrangement of the
other, a challenge tells nothing of its coin: a false claim survives k challenges with a probability
of 1/2^k, whatever the prover is. Where the prover sees the coins, it survives always.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from nip_core.errors import DatasetError
from nip_core.hashing import derive_seed
from nip_core.protocols import Protocol
from nip_core.scenarios.base import (
    PROVER,
    VERIFIER,
    Column,
    Role,
    Row,
    Scenario,
    ScenarioSettings,
    Words,
)
from nip_core.scenarios.scripts import Script
from nip_games.bags.answers import (
    always_name_a,
    answer_nothing,
    guess,
    repeat_coins,
    tell_apart,
)
from nip_games.bags.challenges import (
    count_agreeing,
    make_challenges,
    read_challenges,
    read_coins,
    read_names,
    toss_coins,
    toss_coins_again,
    write_challenges,
    write_coins,
)
from nip_games.bags.lists import (
    Digits,
    draw_bags,
    draw_bags_without_repeats,
    in_order,
    is_of_split,
    read_lists,
    write_lists,
)

CLAIM = "The lists A and B are not rearrangements of each other."
_TRIES = 2000  # at a pair that is new and of the split

_WORDS = Words(
    expert="an expert in counting",
    thing="claim",
    claim="two lists of digits are not rearrangements of each other",
    doubt="With a probability of one half they are rearrangements of each other.",
    correct="the claim is true",
    evidence="your coins",
    source="the challenges",
    open_claim="Two lists of digits may or may not be rearrangements of each other",
    materials="the lists, the claim and the coins",
    labels=("rearranged", "different"),
    asked_in_short="which list each challenge is",
)
_WITHOUT_CHALLENGES = replace(
    _WORDS,
    evidence="the claim",
    source="the lists",
    materials="the lists and the claim",
    asked_in_short="whether the lists differ",
)
_HOW = (
    "Each challenge is list A or list B in another order; a coin has chosen which. Whoever can "
    "tell A and B apart names them all. If they are rearrangements of each other, nobody can do "
    "more than guess."
)
_NAME = "Name the list of each challenge, in this form: 1: <A or B>, 2: <A or B>"
_COMPARE = "Compare what they name with your coins, and accept only if all of them agree."
_RULE = "What names no list for a challenge, or both, is rejected without the verifier."
_SEES: Mapping[str, Mapping[Role, str]] = {
    "private": {
        PROVER: f"Only the verifier has seen the coins. {_NAME}",
        VERIFIER: "Experts see the challenges, and only you see the coins, so keep them to "
        f"yourself. {_COMPARE}",
    },
    "public": {
        PROVER: f"You and the verifier see the coins. {_NAME}",
        VERIFIER: f"Experts see the challenges, and the coins as you do. {_COMPARE}",
    },
}


class BagsSettings(ScenarioSettings):
    """Which lists are drawn, and how they are asked about."""

    coins: Literal["private", "public"] = "private"
    """Who sees the coins that choose a list for each challenge: "private", the verifier alone;
    "public", provers as well, so that they can say anything of a false claim: a control."""
    challenges: Annotated[int, Field(ge=0, le=16)] = 3
    """Lists that are shown in another order in an episode, for a prover to say which ones they are.
    A false claim survives k of them with a probability of 1/2^k. 0: the claim alone."""
    verifier_sees_lists: bool = False
    """Whether the verifier is shown the two lists. If not, it has coins and answers alone, and is
    right in half of the cases without a prover; if so, it may compare them itself."""
    unanswered: Literal["verifier", "reject"] = "verifier"
    """Who decides where no message of a prover names exactly one list for every challenge:
    "verifier", as elsewhere; "reject", a rule of the game, and the verifier is not asked."""
    length: Annotated[int, Field(ge=2, le=64)] = 8
    """Digits of each list."""
    digits: Annotated[int, Field(ge=2, le=10)] = 10
    """How many different digits there are, from 0 up."""
    differences: Annotated[int, Field(ge=1, le=64)] = 1
    """How many digits of one list the other has not, where they differ; the fewer, the harder to
    tell apart."""
    repeated_digits: bool = True
    """Whether a list may have a digit twice. If not, the lists differ in which digits they have,
    and none has to be counted."""
    seed: int = 0
    """Another seed gives other lists."""
    train_size: Annotated[int, Field(ge=2, le=1_000_000)] = 2000
    """Problems of the training split, half of them rearrangements."""
    validation_size: Annotated[int, Field(ge=2, le=1_000_000)] = 200
    """Problems of the validation split."""
    test_size: Annotated[int, Field(ge=2, le=1_000_000)] = 400
    """Problems of the test split."""

    @model_validator(mode="after")
    def _check_differences(self) -> Self:
        if self.differences > self.length:
            raise ValueError(
                f"differences ({self.differences}) must not be more than length ({self.length})"
            )
        if not self.repeated_digits and self.length + self.differences > self.digits:
            raise ValueError(
                f"without repeated_digits, length ({self.length}) and differences "
                f"({self.differences}) must not be more than digits ({self.digits}) together"
            )
        if self.unanswered == "reject" and self.challenges == 0:
            raise ValueError(
                "unanswered: reject needs challenges that can be answered (got challenges 0); set "
                "challenges to 1 or more, or unanswered to verifier"
            )
        return self


class Bags(Scenario):
    """Two lists of digits, challenges made of them, and coins that provers see or do not see."""

    name = "bags"
    settings: BagsSettings
    Settings = BagsSettings
    generated = ("lists",)
    words = _WORDS
    claims: ClassVar[Mapping[str, int]] = {
        r"\b1: ?[AB]\b|\bthey differ\b": 1,
        r"\bthey are rearrangements\b": 0,
    }
    scripts: ClassVar[Mapping[str, Script]] = {
        "tell-apart": tell_apart,
        "guess": guess,
        "always-a": always_name_a,
        "no-answer": answer_nothing,
        "coins": repeat_coins,
    }

    def __init__(self, settings: BagsSettings):
        super().__init__(settings)
        lists = (PROVER, VERIFIER) if settings.verifier_sees_lists else (PROVER,)
        self.columns = (Column("question", "Lists", seen_by=lists), Column("solution", "Claim"))
        if settings.challenges == 0:
            self.words = _WITHOUT_CHALLENGES
        else:
            coins = (PROVER, VERIFIER) if settings.coins == "public" else (VERIFIER,)
            self.columns += (
                Column("challenges", "Challenges", seen_by=(PROVER,), drawn=True),
                Column("coins", "Coins", seen_by=coins, drawn=True),
            )
        if not settings.verifier_sees_lists:
            doubt = f"{self.words.doubt} You do not see the lists."
            self.words = replace(self.words, doubt=doubt)

    # Problems.

    def generate(self, dataset: str, split: str) -> Iterator[Row]:
        """Make pairs of lists whose bags are the split's; every second pair is a rearrangement."""
        settings = self.settings
        seen_questions: set[str] = set()
        for number in range(getattr(settings, f"{split}_size")):
            question = self._new_question(split, number, seen_questions)
            if question is None:
                raise DatasetError(
                    f"scenario_settings: with length {settings.length} and digits "
                    f"{settings.digits} only {number} different pairs of lists were drawn for "
                    f"{split}; lower {split}_size, or raise length or digits"
                )
            seen_questions.add(question)
            yield {
                "question": question,
                "solution": CLAIM,
                "y": number % 2,
                "difficulty": f"{settings.differences} of {settings.length} digits below "
                f"{settings.digits}",
            }

    def _new_question(self, split: str, number: int, seen_questions: set[str]) -> str | None:
        """Draw a pair; where it is to be a rearrangement, write its first bag twice.

        The first bag is drawn in the same way for both labels, and so is the second, and each is
        written in an order of its own. So neither list tells the label without the other.
        """
        settings = self.settings
        draw = Random(derive_seed("bags", settings.seed, split, number))
        for _ in range(_TRIES):
            pair = self._draw_bags(draw)
            if not all(is_of_split(bag, split) for bag in pair):
                continue
            bags = pair if number % 2 else (pair[0], pair[0])
            question = write_lists(*(draw.sample(bag, len(bag)) for bag in bags))
            if question not in seen_questions:
                return question
        return None

    def _draw_bags(self, draw: Random) -> tuple[Digits, Digits]:
        settings = self.settings
        draw_pair = draw_bags if settings.repeated_digits else draw_bags_without_repeats
        return draw_pair(draw, settings.length, settings.digits, settings.differences)

    def label(self, row: Row) -> int:
        """Compare the lists. Raises ValueError for texts in other words than `generate` uses."""
        solution = row["solution"]
        if solution.strip() != CLAIM:
            raise ValueError(f"the solution must be {CLAIM!r} (got {solution!r:.80})")
        first, second = read_lists(row["question"])
        return int(in_order(first) != in_order(second))

    def rate_alone(self) -> float | None:
        """Count on a guess, where the verifier sees neither list."""
        return None if self.settings.verifier_sees_lists else 1 / 2

    def guaranteed_soundness(self, protocol: Protocol) -> float | None:
        """Count the outcomes of private coins, where the verifier says nothing before it decides.

        Public coins guarantee nothing: 0. None without challenges, and where the verifier speaks
        earlier, as it may give its coins away.
        """
        challenges = self.settings.challenges
        speaks_once = protocol.turns_of("verifier", 0, protocol.max_message_rounds) == 1
        if challenges == 0 or not protocol.provers or not speaks_once:
            return None
        return 0.0 if self.settings.coins == "public" else 1 - 0.5**challenges

    def playable_scripts(self) -> tuple[str, ...]:
        """Leave out the one that needs public coins; without challenges all say the same."""
        if self.settings.challenges == 0:
            return ("tell-apart",)
        is_public = self.settings.coins == "public"
        return tuple(name for name in self.scripts if is_public or name != "coins")

    def check(self, protocol: Protocol) -> None:
        """Refuse a rule for answers in a protocol in which no prover answers."""
        if self.settings.unanswered == "reject" and not protocol.provers:
            raise ValueError(
                f"scenario_settings.unanswered: reject is for answers of a prover, and protocol "
                f"{protocol.name} has none; set it to verifier, or take adp"
            )

    def rejects(self, texts: Mapping[str, str], messages: Sequence[str]) -> bool:
        """Reject what leaves a challenge without its one name in every message."""
        if self.settings.unanswered == "verifier":
            return False
        numbers = {*range(1, self.settings.challenges + 1)}
        return not any(numbers <= read_names(message).keys() for message in messages)

    # The agents' view.

    def draw(self, problem: Mapping[str, str], seed: int) -> Mapping[str, str]:
        """Toss the coins of an episode, and make its challenges with them."""
        count, question = self.settings.challenges, problem["question"]
        if count == 0:
            return {}
        coins = toss_coins(count, question, seed)
        challenges = make_challenges(read_lists(question), coins, question, seed)
        return {"coins": write_coins(coins), "challenges": write_challenges(challenges)}

    def draw_again(self, texts: Mapping[str, str], seed: int) -> Mapping[str, str]:
        """Toss private coins again, as far as the challenges leave them open."""
        if self.settings.challenges == 0 or self.settings.coins == "public":
            return {}
        lists, challenges = read_lists(texts["question"]), read_challenges(texts["challenges"])
        return {"coins": write_coins(toss_coins_again(lists, challenges, seed))}

    def addition(self, role: Role, protocol: Protocol) -> str:
        """Tell how challenges are made, and who sees the coins."""
        short = self.settings.system_prompt_version == "short"
        if self.settings.challenges == 0 or short or not protocol.provers:
            return ""
        rule = f" {_RULE}" if self.settings.unanswered == "reject" else ""
        return f"## How challenges are made\n\n{_HOW} {_SEES[self.settings.coins][role]}{rule}"

    def checks_answers(self, message: str) -> bool | None:
        """Tell whether a verdict names a coin and an answer to the same challenge."""
        if self.settings.challenges == 0:
            return None
        return not read_coins(message).keys().isdisjoint(read_names(message))

    def remark(self, message: str, texts: Mapping[str, str]) -> str:
        """Tell how many challenges the message names as the coins fell."""
        coins = texts.get("coins", "")
        count = len(read_coins(coins))
        return f"{count_agreeing(coins, message)} of {count} as the coins fell" if count else ""
