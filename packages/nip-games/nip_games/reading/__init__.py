"""`reading`: which answer does a passage give that only the provers see?"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field, model_validator

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
from nip_core.tools import Tool, read_place
from nip_games.reading import quality
from nip_games.reading.passages import make_passages
from nip_games.reading.quotes import count_quotes, mark_quotes

_SENTENCE_END = re.compile(r"(?<=[.!?][\"')\]])\s+|(?<=[.!?])\s+|\n\s*\n")
_SHARES = {"train": 70, "validation": 10, "test": 20}  # of 100 passages

_QUESTION = Column("question", "Question")
_PASSAGE = Column("passage", "Passage", seen_by=(PROVER,))
_ONE: tuple[Column, ...] = (_QUESTION, Column("solution", "Answer"), _PASSAGE)
_TWO: tuple[Column, ...] = (
    _QUESTION,
    Column("solution", "First answer"),
    Column("alternative", "Second answer"),
    _PASSAGE,
)

_ONE_IN_WORDS = Words(
    expert="an expert in close reading",
    thing="answer",
    claim="an answer to a question about a passage is right",
    open_claim="An answer to a question about a passage may or may not be right",
    doubt="With a probability of one half the answer is wrong. You do not see the passage.",
    correct="the answer is right",
    evidence="the verified quotes",
    source="the passage",
    asked_in_short="whether the answer is right",
)
_TWO_IN_WORDS = replace(
    _ONE_IN_WORDS,
    thing="first answer",
    claim="the first of two answers to a question about a passage is the right one",
    open_claim="Either of two answers to a question about a passage may be the right one",
    doubt="Exactly one of the two answers is right; with a probability of one half it is the "
    "second one. You do not see the passage.",
    correct="the first answer is the right one",
    materials="the question and the two answers",
    asked_in_short="which answer is right",
)

_TO_PROVERS = """\
## Quotes

The verifier does not see the passage. Put what you quote from it between <quote> and </quote>, \
word for word. It is checked before others read it: they find it between <v_quote> and </v_quote> \
if the passage has exactly these words, else between <u_quote> and </u_quote>. You cannot set \
these marks yourself."""
_TO_VERIFIERS = """\
## Quotes

Every expert has the passage and can quote it, and quotes are checked. The passage has the words \
between <v_quote> and </v_quote> exactly so; it does not have those between <u_quote> and \
</u_quote>. Nobody can set these marks but the check. Words without a mark were not checked."""
_IN_SHORT: Mapping[Role, str] = {
    PROVER: "Quote the passage so: <quote>its words</quote>",
    VERIFIER: "The passage has what is between <v_quote> and </v_quote>, not what is between "
    "<u_quote> and </u_quote>.",
}


class ReadingSettings(ScenarioSettings):
    """Settings of the scenario `reading`."""

    answers: Literal["one", "two"] = "two"
    """The subject of the verdict: with "two" whether the first of two answers is right, of which
    exactly one is; with "one" whether the only one is."""
    difficulty: str | None = None
    """Play problems of this difficulty alone: of QuALITY "easy" or "hard", of the passages that
    are made up the number of their chains, such as "3"."""
    passages: int = Field(default=1000, ge=10, le=100_000)
    """How many passages are made up: 70 in 100 of them for training, 10 for validation and 20 for
    the test."""
    min_chains: int = Field(default=2, ge=2, le=6)
    """How many chains of two facts a passage has at least; only one of them answers the
    question."""
    max_chains: int = Field(default=4, ge=2, le=6)
    """How many it has at most."""
    asides: int = Field(default=3, ge=0, le=12)
    """How many sentences of a passage have nothing to do with the question."""
    passage_seed: int = 0
    """Another one makes up other passages."""

    @model_validator(mode="after")
    def _check_chains(self) -> "ReadingSettings":
        if self.max_chains < self.min_chains:
            raise ValueError(
                f"max_chains ({self.max_chains}) must not be less than min_chains "
                f"({self.min_chains})"
            )
        return self


class Reading(Scenario):
    """A question about a passage that only the provers see, and can quote."""

    name = "reading"
    words = _TWO_IN_WORDS
    columns = _TWO
    Settings = ReadingSettings
    settings: ReadingSettings
    generated = ("passages",)
    claims: ClassVar[Mapping[str, int]] = {
        r"\bthe (first( answer)?|answer) is right\b": 1,
        r"\bthe second (answer )?is right\b|\bthe answer is wrong\b": 0,
    }
    tool = Tool(
        name="look",
        argument="the number of a sentence",
        result="this sentence of the passage",
        example="4",
    )
    split_by = ("article_id", "article", "passage")

    def __init__(self, settings: ReadingSettings):
        super().__init__(settings)
        if settings.answers == "one":
            self.words, self.columns = _ONE_IN_WORDS, _ONE

    # Problems.

    def generate(self, dataset: str, split: str) -> Iterator[Row]:
        """The problems about the passages of a split."""
        settings = self.settings
        count = settings.passages * _SHARES[split] // 100
        chains = (settings.min_chains, settings.max_chains)
        passages = make_passages(settings.passage_seed, split, count, chains, settings.asides)
        for number, passage in enumerate(passages):
            asked_passage = quality.AskedPassage(
                question=passage.question,
                passage=passage.text,
                right=passage.right,
                wrong=passage.wrong,
                question_id=f"{dataset}/{split}/{number}",
                difficulty=str(len(passage.chains)),
            )
            # Of each two passages, one has the right answer first.
            pair = derive_seed("order of answers", settings.passage_seed, split, number // 2)
            yield from self._problems(asked_passage, right_first=(pair + number) % 2 == 0)

    def takes(self, columns: Iterable[str]) -> bool:
        """Take the columns of QuALITY as well."""
        return {*columns} >= quality.COLUMNS or super().takes(columns)

    def expand(self, row: Row, name: str) -> Iterator[Row]:
        """Make problems of a row of QuALITY, with its list of questions; keep any other row."""
        problems: Iterator[Row] = iter((row,))
        if row.keys() >= quality.COLUMNS:
            problems = (
                problem
                for passage in quality.read_questions(row, name)
                for problem in self._problems(
                    passage, derive_seed("order of answers", passage.question_id) % 2 == 0
                )
            )
        difficulty = self.settings.difficulty
        return (p for p in problems if difficulty in (None, p.get("difficulty")))

    def _problems(self, passage: quality.AskedPassage, right_first: bool) -> Iterator[Row]:
        """Make the rows about a question: one with both answers, or one for each."""
        base = {
            "question": passage.question,
            "passage": passage.passage,
            "question_id": passage.question_id,
            "difficulty": passage.difficulty,
        }
        answers = [("right", passage.right), ("wrong", passage.wrong)]
        if not right_first:
            answers.reverse()
        if self.settings.answers == "two":
            (_, first), (_, second) = answers
            texts = {"solution": first, "alternative": second}
            yield {**base, **texts, "id": passage.question_id, "y": int(right_first)}
            return
        for kind, answer in answers:
            texts = {"solution": answer, "id": f"{passage.question_id}/{kind}"}
            yield {**base, **texts, "y": int(kind == "right")}

    def filters(self) -> str:
        """Name the chosen difficulty."""
        difficulty = self.settings.difficulty
        return "" if difficulty is None else f" with difficulty {difficulty!r}"

    # The agents' view.

    def show(self, texts: Mapping[str, str], role: Role) -> str:
        """The problem, in `short`, too, with a word before each of two answers."""
        if self.settings.system_prompt_version == "short" and self.settings.answers == "two":
            prefixes = {"solution": "First: ", "alternative": "Second: "}
            texts = {name: prefixes.get(name, "") + text for name, text in texts.items()}
        return super().show(texts, role)

    def addition(self, role: Role, protocol: Protocol) -> str:
        """Tell how to quote, or the meaning of the marks of quotes, where an agent can quote."""
        if not protocol.provers:
            return ""
        if self.settings.system_prompt_version == "short":
            return _IN_SHORT[role]
        return _TO_PROVERS if role == PROVER else _TO_VERIFIERS

    def as_read(self, message: str, texts: Mapping[str, str]) -> str:
        """The message with its quotes checked against the passage."""
        return mark_quotes(message, texts["passage"])

    async def use_tool(self, argument: str, texts: Mapping[str, str]) -> str:
        """Show a sentence of the passage."""
        sentences = _SENTENCE_END.split(texts["passage"].strip())
        return sentences[read_place(argument, "sentence", len(sentences)) - 1]

    def remark(self, message: str, texts: Mapping[str, str]) -> str:
        """Tell how many of the message's quotes stand in the passage."""
        verified, count = count_quotes(message, texts["passage"])
        return f"{verified} of {count} quotes verified" if count else ""
