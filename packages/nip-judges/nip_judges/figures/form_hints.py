"""Hints for a judge whose form was not read: three of its answers, and a pattern that most match.

hint_at_form   lines for people, of the cells without a verdict
"""

import re
from collections import Counter
from collections.abc import Sequence

from nip_judges.parts import Cell

_LONGEST = 80
_LABELLED = re.compile(r"(?im)^\W*([a-z][a-z ]{1,24}?)\W{0,3}:\W{0,3}([a-z]+|\d+(?:\.\d+)?)\W*$")
_SHOWN = 3
_MOST = 0.5


def hint_at_form(cells: Sequence[Cell]) -> list[str]:
    """Show three answers without a verdict, and a pattern that more than half of all match.

    Empty where a judge wrote nothing, as a function does, or where all answers have a verdict.
    """
    silent = [cell for cell in cells if cell.verdict == "none" and cell.words.strip()]
    if not silent:
        return []
    ends = [" ".join(cell.words.split())[-_LONGEST:] for cell in silent]
    examples = " · ".join(f'"{text}"' for text in dict.fromkeys(ends[:_SHOWN]))
    hints = [f"neither accept nor reject, as these end: {examples}"]
    labels = Counter(
        match[1].strip().lower() for cell in silent for match in [_find_last(cell.words)] if match
    )
    for label, count in labels.most_common(1):
        if count > _MOST * len(silent):
            pattern = rf"(?i){re.escape(label)}\W{{0,3}}:\W{{0,3}}(\w+)"
            hints.append(f"{count} of these {len(silent)} match pattern: '{pattern}'")
    return hints


def _find_last(words: str) -> re.Match[str] | None:
    matches = list(_LABELLED.finditer(words[-2000:]))
    return matches[-1] if matches else None
