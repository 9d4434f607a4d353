"""Names near to a wrong one, for errors.

Alike as `difflib` has it: by the share of letters in common, in their order.
"""

import difflib
from collections.abc import Iterable


def nearest_first(name: str, choices: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Sort all `choices`: those as alike as `cutoff`, the nearest first, then the others."""
    names = list(dict.fromkeys(choices))
    matches = difflib.get_close_matches(name, names, n=max(1, len(names)), cutoff=cutoff)
    return [*matches, *(choice for choice in names if choice not in matches)]


def did_you_mean(name: str, choices: Iterable[str], cutoff: float = 0.6) -> str:
    """``; did you mean 'families'?`` for the nearest of `choices`; "" if none is near."""
    matches = difflib.get_close_matches(name, list(choices), n=1, cutoff=cutoff)
    return f"; did you mean {matches[0]!r}?" if matches else ""
