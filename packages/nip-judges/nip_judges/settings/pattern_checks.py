"""Regular expressions of a judge's file: their time stays bounded, whatever a judge writes.

check_pattern    compile an expression, or refuse it in a line
begins_with_all  tell whether an expression begins with .* over lines
"""

import importlib
import re
from collections.abc import Iterator
from typing import Any

from nip_core.errors import SettingsError

_MOST_REPEATS = 50
_MOST_SCANS = 2
_SAMPLE = [*map(chr, range(256)), "\u200b", "\u2028", "é", "д", "字", "٣"]
# The standard library's own parts, untyped.
_parser: Any = importlib.import_module("re._parser")
_compiler: Any = importlib.import_module("re._compiler")


def check_pattern(pattern: str, ignore_case: bool = False) -> re.Pattern[str]:
    """Compile an expression with one group whose time stays bounded.

    Raises SettingsError for another number of groups, for a repetition without an end within
    another or directly before another, and for one over alternatives.
    """
    try:
        compiled = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
        tree = _parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise SettingsError(f"pattern: {pattern!r} is no regular expression ({error})") from None
    if compiled.groups != 1:
        raise SettingsError(
            f"pattern: {pattern!r} needs one group, the verdict (got {compiled.groups}); write "
            "(?:...) for the others"
        )
    reason = _find_explosion(tree)
    starts = 0 if str(tree[0][1]) == "AT_BEGINNING_STRING" else 1
    if reason is None and starts + _count_scans(tree)[0] > _MOST_SCANS:
        reason = "two repetitions of a dot"
    if reason is not None:
        raise SettingsError(
            f"pattern: {pattern!r} has {reason}, which may take for ever; write it without"
        )
    return compiled


def begins_with_all(compiled: re.Pattern[str]) -> bool:
    """Tell whether an expression begins with .* over lines, so that one place has all matches."""
    tree = _parser.parse(compiled.pattern)
    begins = len(tree) > 0 and str(tree[0]).startswith("(MAX_REPEAT, (0, MAXREPEAT, [(ANY,")
    return begins and bool(compiled.flags & re.DOTALL)


def _find_explosion(items: Any, is_repeated: bool = False) -> str | None:
    before: Any = None  # the part that is repeated directly before
    for operator, argument in items:
        name = str(operator)
        repeats = "REPEAT" in name and argument[1] > _MOST_REPEATS
        if repeats and is_repeated:
            return "a repetition within a repetition"
        if repeats and before is not None and _take_the_same(before, argument[2]):
            return "two repetitions side by side that take the same"
        if name == "BRANCH" and is_repeated:
            return "a repetition of alternatives"
        for inner in _list_inner(argument):
            if (reason := _find_explosion(inner, is_repeated or repeats)) is not None:
                return reason
        if not name.startswith(("ASSERT", "AT")):  # these take no character
            before = argument[2] if repeats else None
    return None


def _count_scans(items: Any, opened: int = 0) -> tuple[int, int]:
    """Count how often repetitions of a dot multiply the time by the length, and those left open.

    One that was closed, in an atomic group or in a look around, is not tried again, but it is
    scanned anew for each place of those that are open before it.
    """
    most = opened
    for operator, argument in items:
        name = str(operator)
        repeats = "REPEAT" in name and argument[1] > _MOST_REPEATS
        if repeats and [str(part[0]) for part in argument[2]] == ["ANY"]:
            most = max(most, opened + 1)
            opened += "POSSESSIVE" not in name
            continue
        counts = [_count_scans(inner, opened) for inner in _list_inner(argument)]
        most = max([most, *(inner_most for inner_most, _ in counts)])
        if not name.startswith(("ATOMIC", "ASSERT", "POSSESSIVE")):
            opened = max([opened, *(inner_open for _, inner_open in counts)])
    return most, opened


def _take_the_same(first: Any, second: Any) -> bool:
    """Say whether two parts both match some character; of others it is taken for granted."""
    one, second_code = _compiler.compile(first), _compiler.compile(second)
    takes = [{sign for sign in _SAMPLE if part.fullmatch(sign)} for part in (one, second_code)]
    return not all(takes) or bool(takes[0] & takes[1])


def _list_inner(argument: Any) -> Iterator[Any]:
    if isinstance(argument, _parser.SubPattern):
        yield argument
    elif isinstance(argument, tuple | list):
        for part in argument:
            yield from _list_inner(part)
