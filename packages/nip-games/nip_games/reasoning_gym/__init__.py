"""`reasoning_gym`: is a short answer right? Tasks of the library reasoning-gym, from a seed.

The library's generators give questions with their right answers. A wrong answer is the right one of
another question of the same task. Only tasks whose answers are numbers, options or short strings,
and were right when they were calculated again, are played.
"""

from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import Field, model_validator

from nip_core.scenarios.base import Column, Row, Scenario, ScenarioSettings, Words
from nip_games.reasoning_gym.answers import answer_questions
from nip_games.reasoning_gym.tasks import TASKS, TaskName

Size = Annotated[int, Field(ge=4, le=1_000_000, multiple_of=4)]


class ReasoningGymSettings(ScenarioSettings):
    """Which questions are item."""

    tasks: Annotated[tuple[TaskName, ...], Field(min_length=1)] = tuple(TASKS)
    """Names of the library's tasks, in turn."""
    seed: int = 0
    """Another seed gives other questions."""
    train_size: Size = 500
    """Problems of the training split, a multiple of 4: half of them are right."""
    validation_size: Size = 60
    """Problems of the validation split."""
    test_size: Size = 100
    """Problems of the test split."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({*self.tasks}) < len(self.tasks):
            raise ValueError("tasks names a task twice")
        return self


class ReasoningGym(Scenario):
    """A question with one exact answer, and a response that states an answer."""

    name = "reasoning_gym"
    settings: ReasoningGymSettings
    Settings = ReasoningGymSettings
    columns = (
        Column("question", "Task"),
        Column("solution", "Answer"),
        Column("reference", "Right answer", seen_by=(), hidden=True),
    )
    generated = ("answers",)
    words = Words(
        expert="an expert in exact tasks",
        thing="answer",
        claim="an answer to a task is right",
        doubt="With a probability of one half the answer is wrong.",
        correct="the answer is the right one",
        evidence="the answer",
        source="the task",
        open_claim="An answer to a task may or may not be right",
        materials="the task and the answer",
        asked_in_short="whether the answer is right",
    )

    def generate(self, dataset: str, split: str) -> Iterator[Row]:
        """Questions of the split; of four answers two are those of another question."""
        settings = self.settings
        size = getattr(settings, f"{split}_size")
        for row in answer_questions(settings.tasks, settings.seed, split, size):
            yield {
                "question": row.item.question,
                "solution": row.response,
                "reference": row.item.answer,
                "y": int(row.is_right),
                "difficulty": row.item.task,
                "mutation": None if row.is_right else "another question's answer",
            }

    def label(self, row: Row) -> int:
        """Compare the stated answer with the reference, by the rule `exact` of judges.

        Where that rule is not certain, a row's own `y` counts. Raises ValueError where it has none.
        """
        from nip_judges.checks.exact_answers import decide_exact

        is_right = decide_exact(row["solution"], row["question"], row["reference"])
        if is_right is not None:
            return int(is_right)
        if row.get("y") is None:
            raise ValueError(
                f"{row['solution']!r:.80} states no answer that is certainly right or wrong beside "
                f"the reference {row['reference']!r:.40}; give the row a y"
            )
        return int(row["y"])
