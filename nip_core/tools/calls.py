"""From a model's text to a call: a line that begins with the tool's label, such as "Look: 2"."""

import re
from functools import cache
from typing import NamedTuple

from nip_core.tools.tool import Tool

_MARKS = " \t*_#`"
_LEAD = rf"[{_MARKS}•-]{{0,9}}(?:[0-9]{{1,2}}[.)] ?)?"
_FENCE = re.compile(r"\A\s*```[^\n]*\n(.*?)(?:\n```(?:[^\n]*\n(.*))?)?\Z", re.S)


class Call(NamedTuple):
    """The last call in an answer."""

    argument: str
    lead: str
    """The lines before it."""
    tail: str
    """The lines after it; of a tool whose argument `has_lines` they may be the argument's."""


@cache
def _label(tool: Tool) -> re.Pattern[str]:
    return re.compile(rf"{_LEAD}{tool.name}[{_MARKS}]{{0,6}}[:：](.*)\Z", re.I | re.S)


def find_call(text: str, tool: Tool) -> Call | None:
    """Find the last call in an answer; None where there is none.

    An argument that `has_lines` has all that follows the label, or all of a listing behind it.
    """
    lines = text.split("\n")
    for number in range(len(lines) - 1, -1, -1):
        if match := _label(tool).match(lines[number]):
            lead, tail = "\n".join(lines[:number]), "\n".join(lines[number + 1 :])
            if tool.has_lines:
                argument, tail = _take_lines(match[1], tail)
                return Call(argument, lead, tail)
            return Call(match[1].strip(_MARKS), lead, tail)
    return None


def _take_lines(first: str, tail: str) -> tuple[str, str]:
    """Take an argument of several lines as it is written; return the lines after it, too."""
    text = first.strip(" *`_") and first.removeprefix(" ")
    argument = f"{text}\n{tail}".removeprefix("\n").rstrip()
    if fenced := _FENCE.match(argument):
        return fenced[1], fenced[2] or ""
    is_quoted = "\n" not in argument and len(argument) > 2 and argument[0] == argument[-1] == "`"
    return argument[1:-1] if is_quoted else argument, tail


def read_place(argument: str, thing: str, count: int) -> int:
    """Read the number of a place, 1 to `count`. Raises ValueError with the reason."""
    words = f"give the number of a {thing}, 1 to {count}"
    match = re.fullmatch(rf"(?:{thing}|number|no\.?|#|\(|\s)*([0-9]{{1,9}})[.)\s]*", argument, re.I)
    if match is None:
        raise ValueError(f"no number of a {thing} in {argument[:40]!r}; {words}")
    if not 1 <= int(match[1]) <= count:
        raise ValueError(f"there is no {thing} {int(match[1])}; {words}")
    return int(match[1])
