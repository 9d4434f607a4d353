"""Names near to a wrong one, for errors.

nearest_first  the names that there are, the most alike first
did_you_mean   the nearest as a question; "" where none is near

Alike as `difflib` has it: by the share of letters in common, in their order.
"""

import difflib
from collections.abc import Iterable


def nearest_first(name: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Sort all of `known`: those as alike as `cutoff`, the nearest first, then the others."""
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(name, names, n=max(1, len(names)), cutoff=cutoff)
    return [*near, *(other for other in names if other not in near)]


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """``; did you mean 'families'?`` for the nearest of `known`; "" if none is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""
