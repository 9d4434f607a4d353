"""The form in which a bundled problem is written down.

Source      a question, solutions that are right, and the tests that say so
problem     makes one from text, and refuses what the build could not use
"""

from dataclasses import dataclass
from typing import Literal

Difficulty = Literal["introductory", "interview"]
MIN_TESTS = 8


@dataclass(frozen=True)
class Source:
    """A problem as its author wrote it."""

    slug: str
    difficulty: Difficulty
    question: str
    tests: tuple[str, ...]
    """Each is source that raises unless it passes."""
    solutions: tuple[str, ...]


def problem(
    slug: str, difficulty: Difficulty, question: str, tests: str, *solutions: str
) -> Source:
    """A problem from text.

    Args:
        slug: its name, in lower case with hyphens.
        difficulty: introductory or interview.
        question: line breaks count as spaces, empty lines part paragraphs.
        tests: one on each line: an expression that must be true, or statements with `assert`.
        solutions: source texts.

    Raises:
        ValueError: fewer than MIN_TESTS tests, a test twice, or no solution.
    """
    lines = [line.strip() for line in tests.splitlines() if line.strip()]
    checks = tuple(line if "assert " in line else f"assert {line}" for line in lines)
    if len(set(checks)) < max(len(checks), MIN_TESTS):
        raise ValueError(f"{slug}: {len(checks)} tests; {MIN_TESTS} different ones are needed")
    if not solutions:
        raise ValueError(f"{slug}: no solution")
    paragraphs = question.strip().split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return Source(slug, difficulty, text, checks, tuple(s.strip() + "\n" for s in solutions))
