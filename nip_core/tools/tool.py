"""A tool as a scenario declares it."""

import re
from dataclasses import dataclass

_NAME = re.compile(r"[a-z][a-z]{1,19}")
_TAKEN = frozenset({"decision", "question", "answer"})
"""Words that begin other lines of answers."""


@dataclass(frozen=True)
class Tool:
    """A tool of a scenario, as data. Raises ValueError for a name that can't begin a line."""

    name: str
    """A verb of 2 to 20 small letters, such as "look"; a call is a line that begins with it."""
    argument: str
    """The argument in a sentence: "the number of a step"."""
    result: str
    """The result in a sentence: "this step, calculated again"."""
    example: str
    """An argument."""
    has_lines: bool = False
    """Whether an argument may have several lines."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in _TAKEN:
            raise ValueError(
                f"a tool is named by one word of 2 to 20 small letters, and not by "
                f"{', '.join(sorted(_TAKEN))} (got {self.name!r:.80})"
            )

    @property
    def label(self) -> str:
        """The beginning of a call."""
        return f"{self.name.capitalize()}:"
