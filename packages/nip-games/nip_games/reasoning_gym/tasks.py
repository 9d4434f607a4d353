"""Tasks of the library reasoning-gym whose answers are exact, and pairs of them.

TASKS       the tasks, with the options of their generators
Drawn       a task's question with its right answer
Generator   what the library makes of a task and a seed
make_generators, draw_pairs, is_apart
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from nip_core.distribution import how_to_install
from nip_core.errors import DatasetError
from nip_core.hashing import derive_seed

CHECKED_WITH = "0.1.25"
"""The version of the library whose answers were calculated again, task by task."""
TENTHS = {"train": range(6), "validation": range(6, 8), "test": range(8, 10)}
"""Of all questions, by split: so no question stands in two, whatever the seed."""
TaskName = Literal[
    "base_conversion",
    "calendar_arithmetic",
    "chain_sum",
    "count_bits",
    "count_primes",
    "course_schedule",
    "gcd",
    "lcm",
    "products",
    "simple_equations",
    "spell_backward",
]
_TRIES = 2000  # at a question that is new, of the split, and apart from one that waits
_SIZE = 10**9  # questions of a generator: more than are drawn


@dataclass(frozen=True)
class Task:
    """A task of the library."""

    answers: Literal["number", "option", "string"]
    """The kind of its answers."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of its generator, where they are not the library's own."""


TASKS: dict[TaskName, Task] = {
    # A number below 36 may be a letter, which stands in many texts.
    "base_conversion": Task("string", {"min_value": 100}),
    # Its other tasks have answers of several kinds, or dates that can be read in two ways.
    "calendar_arithmetic": Task("option", {"tasks": ["weekday_offset"]}),
    "chain_sum": Task("number"),
    "count_bits": Task("number"),
    "count_primes": Task("number"),
    "course_schedule": Task("option"),
    "gcd": Task("number"),
    "lcm": Task("number"),
    "products": Task("number"),
    "simple_equations": Task("number"),
    "spell_backward": Task("string"),
}


class Drawn(NamedTuple):
    """A question of a task, and its right answer."""

    task: TaskName
    number: int
    """Of the question in its generator."""
    question: str
    answer: str


class Generator(Protocol):
    """Make the questions of a task."""

    def __getitem__(self, number: int, /) -> Mapping[str, Any]:
        """The entry of this number: `question`, `answer` and more."""

    def score_answer(self, answer: str, entry: Mapping[str, Any]) -> float:
        """The library's own score, in [0, 1]; some tasks give part marks to wrong answers."""


def make_generators(tasks: Iterable[TaskName], seed: int) -> dict[TaskName, Generator]:
    """Make the library's generators of these tasks.

    Raises DatasetError, with the command, where the library or a part of it is not installed.
    """
    try:
        import reasoning_gym
    except ImportError as error:
        raise DatasetError(
            "scenario: the problems of reasoning_gym need the library reasoning-gym "
            f"({error}); {how_to_install('reasoning-gym')}"
        ) from None
    # An entry is drawn from its generator's seed plus its number: near seeds share most entries.
    return {
        name: reasoning_gym.create_dataset(
            name, seed=derive_seed("reasoning_gym", seed, name), size=_SIZE, **TASKS[name].options
        )
        for name in tasks
    }


def draw_pairs(task: TaskName, generator: Generator, split: str) -> Iterator[tuple[Drawn, Drawn]]:
    """Draw two questions at a time, with answers apart from each other; without end.

    Where both are shown with their own answers, or both with the other's, right answers and wrong
    ones are the same texts. Raises DatasetError where no new pair is found.
    """
    open_items: list[Drawn] = []
    seen_questions: set[str] = set()
    number, tries = 0, 0
    while True:
        entry = generator[number]
        new = Drawn(task, number, str(entry["question"]).strip(), str(entry["answer"]))
        number, tries = number + 1, tries + 1
        if tries > _TRIES:
            raise DatasetError(
                f"scenario_settings: {task} has no more questions for {split}; lower "
                f"{split}_size, or name more tasks"
            )
        tenth = derive_seed("split of reasoning_gym", new.question) % 10
        if tenth not in TENTHS[split] or new.question in seen_questions:
            continue
        seen_questions.add(new.question)
        other = next((old for old in open_items if is_apart(old.answer, new.answer)), None)
        if other is None:
            open_items.append(new)
            continue
        open_items.remove(other)
        tries = 0
        yield other, new


def is_apart(first: str, second: str) -> bool:
    """Tell whether no reader takes one answer for the other: by a sign, by case, as a number."""
    one, two = (answer.strip().casefold().lstrip("+-") for answer in (first, second))
    try:
        return float(one) != float(two)
    except ValueError:
        return one != two
