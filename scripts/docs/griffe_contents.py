"""Shows the tables of contents that modules begin with as lists.

A module's docstring has lines such as ``name    what it is``, which Markdown would run together.
"""

import re
from typing import Any

import griffe

_ENTRY = re.compile(r"^(\S(?:.*?\S)?) {2,}(\S.*)$")
_MORE = re.compile(r"^ {4,}(\S.*)$")


class Contents(griffe.Extension):  # type: ignore[misc]
    """Rewrites the docstrings of modules."""

    def on_module(self, *, mod: griffe.Module, **kwargs: Any) -> None:
        """Turn aligned lines into a list."""
        if mod.docstring is None:
            return
        lines: list[str] = []
        in_list = False
        for line in mod.docstring.value.splitlines():
            entry = _ENTRY.match(line)
            more = _MORE.match(line)
            if entry:
                names = ", ".join(f"`{name}`" for name in entry[1].split(", "))
                lines += ["" if not in_list else None, f"- {names}: {entry[2]}"]  # type: ignore[list-item]
                in_list = True
            elif more and in_list:
                lines[-1] += f" {more[1]}"
            else:
                if in_list and line.strip():
                    lines.append("")
                in_list = False
                lines.append(line)
        mod.docstring.value = "\n".join(line for line in lines if line is not None)
