"""Tools: looks and runs of an agent's own within its turn, counted and priced.

Tool        a tool as a scenario declares it, as data
ToolUse     a tool under the limits of a run, with its words and its prices
find_call   the last call in an answer
read_place  an argument that is the number of a place

Where a scenario has a tool and the settings allow calls of it, an answer may be a call in the place
of a move. The result is shown to the caller alone, and its turn goes on: docs/tools.md.
"""

from nip_core.tools.calls import find_call, read_place
from nip_core.tools.tool import Tool
from nip_core.tools.use import MOST_CHARACTERS, MOST_IN_ARGUMENT, REFUSED, ToolUse

__all__ = [
    "MOST_CHARACTERS",
    "MOST_IN_ARGUMENT",
    "REFUSED",
    "Tool",
    "ToolUse",
    "find_call",
    "read_place",
]
