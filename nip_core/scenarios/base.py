"""Scenarios: the domain of the problems, as data and pure functions.

Scenario          a domain; a subclass describes its problems and who sees which text of them
Column            one text of a problem: its heading in a prompt, and who sees it
Words             how prompts call the thing that is judged
Problem           one problem with its label
Label, NoLabel    the label of a solution that was written in play, or why there is none
ScenarioSettings  the settings that every scenario has

A problem is a question and a solution that may be right or wrong. All else that agents may be shown
of it is a further column. docs/scenarios.md builds a scenario of one's own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from nip_core.protocols import Protocol, Turn
from nip_core.scenarios.message_kinds import describe_message
from nip_core.scenarios.prompt_versions import FIRST, PromptVersion
from nip_core.scenarios.scripts import Script
from nip_core.tools import Tool

PROVER: Literal["prover"] = "prover"
VERIFIER: Literal["verifier"] = "verifier"
Role = Literal["prover", "verifier"]
"""Who is shown a column: agents that argue, or all others (the verifier and, in zero-knowledge
games, the adversarial verifier and the simulator)."""
Row = Mapping[str, Any]
NO_LABEL = -1
"""`y` of a problem with a solution that is written in play, until it is."""
RULE_MODEL = "rule:rejects"
"""Stands in the place of a model's name where `Scenario.rejects` has given the verdict."""


class ScenarioSettings(BaseModel):
    """Settings that every scenario has; a scenario's own class adds others."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)

    system_prompt_version: PromptVersion = FIRST
    """Which prompts: "v1" (answer at once), "v2" (reason first, then answer; what stands before the
    answer stays with the agent), "v3" and "v4" (these two in sentences that fit the words of every
    scenario), or "short" for very small models. Of a scenario of one's own the default is "v3"."""


@dataclass(frozen=True)
class Problem:
    """A question, a solution to it, and whether the solution is right."""

    id: str
    question_id: str
    """Equal for all problems with the same question."""
    question: str
    solution: str
    y: int
    """1 right, 0 wrong; `NO_LABEL` as long as the solution is not written."""
    difficulty: str | None = None
    mutation: str | None = None
    """The kind of mistake, where it is known."""
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The texts of the scenario's further columns, by name."""

    @property
    def texts(self) -> dict[str, str]:
        """All of its texts by column."""
        return {"question": self.question, "solution": self.solution, **self.columns}


@dataclass(frozen=True)
class Label:
    """The label of a solution that was written in play."""

    y: int
    """1 right, 0 wrong."""
    mutation: str | None = None
    """The kind of mistake, where it is wrong; stands in the episode's row as such."""
    seconds: float = 0.0
    """It took."""


class NoLabel(Exception):
    """A solution can't be labelled, by no fault of its own; its episode fails."""


@dataclass(frozen=True)
class Column:
    """A text of every problem, which stands in a dataset under `name`."""

    name: str
    heading: str
    """Stands above it in a prompt."""
    code: str | None = None
    """The language of which it is a listing."""
    seen_by: tuple[Role, ...] = (PROVER, VERIFIER)
    drawn: bool = False
    """Whether `Scenario.draw` makes it for each episode, so that no dataset has it."""
    hidden: bool = False
    """Whether no agent may see it, such as tests; then `seen_by` must be ()."""


@dataclass(frozen=True)
class Words:
    """How prompts call the judged thing. Each stands within a sentence; the examples are code's."""

    expert: str  # who argues: "an expert in Python"
    thing: str  # "solution"
    claim: str  # "a solution solves a problem"
    doubt: str  # a sentence: "With a probability of one half the solution has a bug."
    correct: str  # "the solution is correct for every input that the problem allows"
    evidence: str  # against which the verifier checks: "the code"
    source: str = ""  # the text that experts quote; "": the evidence
    full_claim: str = ""  # "a Python solution solves a problem"; "": the claim
    correct_in_short: str = ""  # "the solution is correct"; "": as above
    open_claim: str = ""  # a sentence's beginning: "A solution may or may not solve a problem"
    materials: str = ""  # "the problem and the solution"; "": the problem and the thing
    labels: tuple[str, str] = ("wrong", "right")  # of y = 0 and y = 1: "buggy", "correct"
    asked_in_short: str = "whether they match"  # the claim of experts in the version "short"
    stances: tuple[str, str] = ("", "")  # of provers; "": they argue for reject, or accept

    @property
    def all_materials(self) -> str:
        """Name the texts of a problem: `materials`, or a phrase of nip's."""
        return self.materials or f"the problem and the {self.thing}"

    @property
    def shortly_correct(self) -> str:
        """Describe a right solution, in few words where there are such."""
        return self.correct_in_short or self.correct

    def placeholders(self) -> dict[str, str]:
        """List the texts of the placeholders in templates."""
        claim = self.full_claim or self.claim
        return {
            "expert": self.expert,
            "thing": self.thing,
            "claim": self.claim,
            "full_claim": claim,
            "open_claim": self.open_claim or f"It is open whether {claim}",
            "doubt": self.doubt,
            "correct": self.shortly_correct,
            "source": self.source or self.evidence,
            "materials": self.all_materials,
        }


class Scenario:
    """A domain. A subclass sets the class variables that have no value here.

    All methods are pure functions of their arguments and of the settings.
    """

    name: ClassVar[str]
    """As the setting `scenario` calls it; equal to the module's name for those of this package."""
    words: Words
    columns: tuple[Column, ...] = (
        Column("question", "Problem"),
        Column("solution", "Solution"),
    )
    """The texts of problems: `question` and `solution` first, in the order of prompts. Where
    settings decide about words or columns, the object's own count."""
    split_by: ClassVar[tuple[str, ...]] = ("question",)
    """The columns that decide the split of a row from a source without splits: the first of these
    that the row has. A text of such a column of the scenario must not stand in two splits."""
    Settings: ClassVar[type[ScenarioSettings]] = ScenarioSettings
    """Of the block `scenario_settings`."""
    settings_block: ClassVar[str] = "scenario_settings"
    """The block in which its settings stand."""
    data_neutral: ClassVar[frozenset[str]] = frozenset()
    """Its settings that a resumed run may change, as they change no data."""
    bundled: ClassVar[Mapping[str, Path]] = {}
    """Where the datasets lie that come with it, by name."""
    generated: ClassVar[tuple[str, ...]] = ()
    """The names of datasets that `generate` makes."""
    labels_in_play: ClassVar[bool] = False
    """Whether a prover writes the solution, with its first message, and `label_written` labels it.
    Then no dataset has solutions or labels, and `solution` is `drawn`."""
    claims: ClassVar[Mapping[str, int]] = {}
    """Regular expressions of provers' claims, without regard to case, and the decision that each
    stands for: the report compares the verifier with one that believes the prover."""
    scripts: ClassVar[Mapping[str, Script]] = {}
    """By name, functions that write a prover's messages in an attack (`attack.by: script`)."""
    facets: ClassVar[tuple[str, str]] = ("Difficulty", "Mutation")
    """Headings of the columns `difficulty` and `mutation`, by which episodes are filtered and
    metrics are broken down."""
    tool: Tool | None = None
    """That a verifier may use by itself within its turn, where the settings allow it, see
    `use_tool`. The object's own counts."""
    template_directory: ClassVar[Path | None] = None
    """Where templates of its own lie, as ``<version>/<protocol>/<agent>.txt``; a template that is
    missing there is nip's."""

    def __init__(self, settings: Any):
        """`settings` are an object of `Settings`, or of the class of `settings_block`."""
        self.settings = settings

    # Problems.

    def generate(self, dataset: str, split: str) -> Iterable[Row]:
        """Make the rows of a dataset of `generated`, the same ones at each call."""
        raise NotImplementedError

    def expand(self, row: Row, name: str) -> Iterator[Row]:
        """Make rows of one row of a source; errors call it `name`."""
        yield row

    def takes(self, columns: Iterable[str]) -> bool:
        """Tell whether a source with these columns has all columns that `expand` needs."""
        return self.required_columns() <= {*columns}

    def required_columns(self) -> set[str]:
        """List the columns a dataset must have."""
        texts = {column.name for column in self.columns if not column.drawn}
        return texts if self.has_checker() or self.labels_in_play else texts | {"y"}

    def keeps(self, row: Row) -> bool:
        """Tell whether the settings leave this row in; the labels are balanced afterwards."""
        return True

    def filters(self) -> str:
        """Name the active filters, as the end of "there are no problems"."""
        return ""

    def label(self, row: Row) -> int:
        """1 if the row's solution is right, 0 if not: a checker in the place of the column `y`.

        Where a row has a `y` too, both must agree.
        """
        raise NotImplementedError

    def has_checker(self) -> bool:
        """Tell whether the scenario finds its labels itself."""
        return type(self).label is not Scenario.label

    def rate_alone(self) -> float | None:
        """Say how often a verifier is right without provers by checking all it can, in [0, 1].

        For problems of which half are right; None where it is not known. A verifier that is right
        more often alone has another source.
        """
        return None

    def guaranteed_soundness(self, protocol: Protocol) -> float | None:
        """Say how sound, in [0, 1], a verifier is at least that checks all it can.

        It decides by that, against any prover, however it computes: by a proof. None where there is
        no such proof. A learned verifier may be less sound.
        """
        return None

    def playable_scripts(self) -> tuple[str, ...]:
        """List the names of the scenario's scripts that can play under its settings."""
        return tuple(self.scripts)

    # Texts that agents see.

    def draw(self, problem: Mapping[str, str], seed: int) -> Mapping[str, str]:
        """Make the `drawn` columns for an episode of this seed."""
        return {}

    def draw_again(self, texts: Mapping[str, str], seed: int) -> Mapping[str, str]:
        """Draw anew the texts hidden from provers, given the texts among `texts` that they see.

        `texts` are all texts of an episode. The result has the distribution of the hidden texts for
        a reader with the knowledge of provers. {} where nothing drawn is hidden from provers, or
        where all of it follows from the texts that they see.

        An attack that chooses among messages judges them so: a choice by the episode's own coins
        would say how well a prover does that is told whether it has guessed them.
        """
        return {}

    def seen(self, role: Role) -> tuple[Column, ...]:
        """List the columns for an agent of this role, in order."""
        return tuple(column for column in self.columns if role in column.seen_by)

    def show(self, texts: Mapping[str, str], role: Role) -> str:
        """The problem as it stands in the prompt of an agent of this role."""
        if self.settings.system_prompt_version == "short":
            return "\n".join(texts[column.name] for column in self.seen(role))
        return "\n\n".join(
            f"## {column.heading}\n\n{_listing(texts[column.name], column.code)}"
            for column in self.seen(role)
        )

    def addition(self, role: Role, protocol: Protocol) -> str:
        """Return the text after nip's templates, and a protocol's, in prompts of this role."""
        return ""

    def announce(
        self,
        agent: str,
        protocol: Protocol,
        round_: int,
        turns: Sequence[Turn],
        texts: Mapping[str, str],
    ) -> str:
        """Return the game's message to an agent before its turn, given earlier turns; "" for none.

        `turns` are those of the rounds before `round_`, in channels that the agent does not read
        too; `texts` are all texts of the episode. So a question may depend on the answers to the
        one before. It is not recorded, as it follows from recorded turns: the same is said whenever
        the chat is rendered. Before a run it is tried for each round with no turns at all.
        """
        return ""

    def as_read(self, message: str, texts: Mapping[str, str]) -> str:
        """A prover's message as the others read it, such as with its quotes checked."""
        return message

    def remark(self, message: str, texts: Mapping[str, str]) -> str:
        """A word on a prover's message for people who read transcripts; "" for none."""
        return ""

    def kind_of_message(self, message: str, texts: Mapping[str, str]) -> str:
        """Name the kind of a prover's message in a few words; an attack's are counted by it."""
        return describe_message(message, self.claims, self.remark(message, texts))

    def checks_answers(self, message: str) -> bool | None:
        """Tell whether a verdict's message compares something of the prover's; None: not known."""
        return None

    def sentences(self, role: Role, stance: int | None) -> Mapping[str, str]:
        """Return sentences for placeholders of templates, in the place of nip's own."""
        return {}

    # Its tool.

    async def use_tool(self, argument: str, texts: Mapping[str, str]) -> str:
        """Return the result of a call of `tool`; `texts` are all texts of the episode.

        Raises ValueError with the reason where there is none, such as an unknown number: the
        caller is shown the reason. StageError is for a fault that keeps every call from a result.
        """
        raise NotImplementedError

    def check_tool(self) -> None:
        """Raise ValueError, with the remedy, where the tool can't be used on this system."""

    # Where a prover writes the solution.

    def written(self, message: str, texts: Mapping[str, str]) -> str:
        """The solution in a prover's message; `texts` are the problem's.

        Raises ValueError with the reason if there is none: the prover is asked again.
        """
        raise NotImplementedError

    async def label_written(self, texts: Mapping[str, str]) -> Label:
        """The label of the solution among the texts, the same at each call but for `seconds`.

        Raises NoLabel, or StageError for a fault that keeps every solution from being labelled.
        """
        raise NotImplementedError

    def label_workers(self) -> int:
        """Tell how many solutions are labelled at a time."""
        return 1

    def paid_verdict(self, y: int, stance: int | None) -> int | None:
        """Return the verdict provers are paid for, as a drawn stance; None: their own.

        `NO_DECISION` where no verdict does.
        """
        return stance

    # Games that can be played.

    def rejects(self, texts: Mapping[str, str], messages: Sequence[str]) -> bool:
        """Tell whether a rule of the game rejects, whatever the verifier would say.

        It is asked in each turn of the verifier in which a verdict counts, once provers have had a
        turn. `texts` are all texts of the episode, `messages` those of provers so far that the
        verifier reads, in order; none where all were silent. If it rejects, no model is asked: the
        turn is the surest rejection of the scale, by `RULE_MODEL`, and no agent is trained on it.
        """
        return False

    def check(self, protocol: Protocol) -> None:
        """Raise ValueError, naming the setting, where the scenario can't be played so."""

    def check_system(self) -> None:
        """Raise ValueError, with the remedy, where this system can't play it."""


def _listing(text: str, language: str | None) -> str:
    return text if language is None else f"```{language}\n{text}\n```"
