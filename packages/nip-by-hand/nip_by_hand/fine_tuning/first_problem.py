"""The first fault of a caller's data, for an error in one line.

first_problem   a ValidationError of pydantic's -> the first problem of it
"""

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError


@dataclass(frozen=True)
class FirstProblem:
    """A problem: its place as steps from the top, pydantic's kind and words, and the value."""

    place: tuple[int | str, ...]
    kind: str
    message: str
    got: Any
    more: int  # problems beside this one

    @property
    def field(self) -> str:
        """Name the field at the top of the problem's place; empty where there is none."""
        return str(self.place[0]) if self.place else ""


def first_problem(error: ValidationError) -> FirstProblem:
    """Read the first problem; the others may follow from it."""
    problems = error.errors(include_url=False)
    first = problems[0]
    return FirstProblem(
        first["loc"], first["type"], first["msg"], first["input"], len(problems) - 1
    )
