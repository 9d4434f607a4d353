"""From a model's text to a call.

A call is a line that begins with the tool's label, such as "Look: 2", behind which no line begins
a decision, a question or an answer: of several such lines the last one counts, as where a text
names several verdicts. So a model that writes a result of its own invention, and a verdict behind
it, has decided.
"""

import re
from functools import cache

from nip_core.tools.tool import Tool

MOST_CHARACTERS = 10_000
"""Of an argument; the rest is cut off."""
_MARKS = " \t*_#`"
_MOVE = re.compile(rf"^[{_MARKS}]{{0,9}}(?:decision|question|answer)[{_MARKS}]{{0,6}}:", re.I)
_FENCE = re.compile(r"\A```[^\n]*\n(.*?)(?:\n```.*)?\Z", re.S)


@cache
def _label(tool: Tool) -> re.Pattern[str]:
    return re.compile(rf"[{_MARKS}]{{0,9}}{tool.name}[{_MARKS}]{{0,6}}:(.*)\Z", re.I | re.S)


def read_call(text: str, tool: Tool) -> str | None:
    """Read the argument of the call in an answer; None: it is no call.

    Of a tool whose argument `has_lines` all that follows the label is the argument, without the
    fence of a listing.
    """
    lines = text.split("\n")
    for number in range(len(lines) - 1, -1, -1):
        line = lines[number]
        if _MOVE.match(line):
            return None
        if match := _label(tool).match(line):
            rest = [match[1], *lines[number + 1 :]] if tool.has_lines else [match[1]]
            argument = "\n".join(rest).strip()
            if tool.has_lines and (fenced := _FENCE.match(argument)):
                argument = fenced[1]
            else:
                argument = argument.strip(_MARKS)
            return argument[:MOST_CHARACTERS]
    return None


def read_place(argument: str, thing: str, count: int) -> int:
    """Read the number of a place, 1 to `count`. Raises ValueError with the reason."""
    words = f"give the number of a {thing}, 1 to {count}"
    match = re.fullmatch(rf"(?:{thing}|number|no\.?|#|\(|\s)*([0-9]{{1,9}})[.)\s]*", argument, re.I)
    if match is None:
        raise ValueError(f"no number of a {thing} in {argument[:40]!r}; {words}")
    if not 1 <= int(match[1]) <= count:
        raise ValueError(f"there is no {thing} {int(match[1])}; {words}")
    return int(match[1])
