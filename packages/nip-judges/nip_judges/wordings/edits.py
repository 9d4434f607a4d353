"""Edits that keep a right answer right: its characters stay, in their order.

EDITS           their names, in the order of a table
write_edit      the edited text of a row's response
describe_edits  each with its source and how its text is made, as rows of a table

A judge that rejects a right answer for white space or a heading rejects the form, not the answer.
Paraphrases are no edits: nothing proves that they keep the label.
"""

import re
from collections.abc import Callable

from nip_judges.checks.stated_answers import last_line, list_statements
from nip_judges.parts import GradedRow

_FENCE = "```"


def _edit_space(response: str) -> str:
    """Add white space at the ends, and an empty line between lines outside of code."""
    if _FENCE in response or re.search(r"^[ \t]", response, re.MULTILINE):
        return f"\n\n{response}\n\n\n"
    lines = [f"{line}  " for line in response.splitlines()] or [""]
    return "\n\n" + "\n\n".join(lines) + "\n\n\n"


def _edit_heading(response: str) -> str:
    return f"## Response\n\n{response}"


def _edit_answer_line(response: str) -> str:
    """Repeat the final answer that the response states, else its last line, behind "Answer:"."""
    stated = list_statements(response)
    answer = stated[-1].chunk if stated else last_line(response)
    answer = " ".join(answer.split())
    return f"{response}\n\nAnswer: {answer}" if answer else response


def _edit_code_block(response: str) -> str:
    fence = _FENCE
    while fence in response:
        fence += "`"
    return f"{fence}\n{response}\n{fence}"


def _edit_polite(response: str) -> str:
    return f"{response}\n\nI hope that this helps."


_EDITORS: dict[str, tuple[Callable[[str], str], str, str]] = {
    "white space": (_edit_space, "2609.01354", "white space at the ends and between lines"),
    "heading": (_edit_heading, "2603.05399", "a heading above it"),
    "answer line": (_edit_answer_line, "2603.05399", 'its final answer again, behind "Answer:"'),
    "code block": (_edit_code_block, "2603.05399", "the same in a code block"),
    "polite": (_edit_polite, "ours", "a polite sentence below it"),
}
EDITS: tuple[str, ...] = tuple(_EDITORS)


def write_edit(name: str, row: GradedRow) -> str:
    """Write the response of a row with an edit of that name."""
    return _EDITORS[name][0](row.response)


def describe_edits() -> list[tuple[str, str, str]]:
    """List all edits: name, source, and how the text is made."""
    return [(name, source, words) for name, (_, source, words) in _EDITORS.items()]
