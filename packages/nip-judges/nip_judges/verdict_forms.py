"""Verdicts in a judge's words, read by the judge's own form: nothing is repaired or guessed.

Reading      a verdict, its place in the words, and why there is none
VerdictForm  reads words
TextForm     two texts, of which the last one counts
LoneForm     a text that accepts; every other answer rejects
PatternForm  a regular expression with one group, of which the last match counts
NumberForm   a number with a threshold
LabelForm    one of some labels, as JSON or alone
EndForm      another form that counts at the very end alone
make_form    the form that a judge's file describes

For pairs `accept` is the form by which the first response wins.
"""

import bisect
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from nip_core.errors import SettingsError
from nip_judges.parts import Verdict
from nip_judges.settings.pattern_checks import begins_with_all, check_pattern

LONGEST_SEARCHED = 10_000
"""A pattern is searched in so many last characters, which bounds its time."""
NEITHER = "neither accept nor reject"
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?!\w)")
_AFTER_VERDICT = " \t\r\n.!*_`'\")]}>"


class Reading(NamedTuple):
    """A verdict as it is read from a judge's words."""

    verdict: Verdict
    reason: str | None = None
    """Why there is none."""
    has_both: bool = False
    score: float | None = None
    start: int | None = None
    """The first character of the part that differs between the verdicts; None: not a place."""
    end: int | None = None


class VerdictForm(Protocol):
    """The form of a judge's verdicts."""

    def read(self, words: str) -> Reading:
        """Read the verdict."""

    @property
    def accept_forms(self) -> tuple[str, ...]:
        """The texts that accept."""

    @property
    def tails(self) -> tuple[str, str] | None:
        """The texts of accept and of reject from `Reading.start` on; None: there are no two."""


@dataclass(frozen=True)
class TextForm:
    """Two texts; the last occurrence of either counts, unless it stands within the other."""

    accept: str
    reject: str
    ignore_case: bool = False

    def __post_init__(self) -> None:
        accept, reject = self._fold(self.accept), self._fold(self.reject)
        if not accept.strip() or not reject.strip():
            raise SettingsError("accept and reject: each needs a character (got an empty text)")
        if accept == reject:
            raise SettingsError(f"accept and reject are one text ({self.accept!r}); set two")

    @property
    def accept_forms(self) -> tuple[str, ...]:
        return (self.accept,)

    @property
    def tails(self) -> tuple[str, str] | None:
        same = self._count_same()
        accept, reject = self.accept[same:], self.reject[same:]
        return None if self._fold(accept[0]) == self._fold(reject[0]) else (accept, reject)

    def read(self, words: str) -> Reading:
        text = self._fold(words)
        accept, reject = self._fold(self.accept), self._fold(self.reject)
        accepting, rejecting = _find_all(text, accept), _find_all(text, reject)
        if len(accept) < len(reject):
            accepting = _drop_inner(accepting, rejecting)
        else:
            rejecting = _drop_inner(rejecting, accepting)
        if not accepting and not rejecting:
            return Reading("none", NEITHER)
        last_accept, last_reject = (
            max((end, start) for start, end in places) if places else (-1, -1)
            for places in (accepting, rejecting)
        )
        end, start = max(last_accept, last_reject)
        return Reading(
            "accept" if last_accept > last_reject else "reject",
            has_both=bool(accepting and rejecting),
            start=start + self._count_same(),
            end=end,
        )

    def _count_same(self) -> int:
        """Count the first characters that both have; one of a form that ends there is left."""
        pairs = zip(self._fold(self.accept), self._fold(self.reject), strict=False)
        same = next((n for n, (a, r) in enumerate(pairs) if a != r), None)
        return min(len(self.accept), len(self.reject)) - 1 if same is None else same

    def _fold(self, text: str) -> str:
        return _fold(text) if self.ignore_case else text


@dataclass(frozen=True)
class LoneForm:
    """A text that accepts wherever it stands; every other answer rejects."""

    accept: str
    ignore_case: bool = False
    tails: tuple[str, str] | None = None

    @property
    def accept_forms(self) -> tuple[str, ...]:
        return (self.accept,)

    def read(self, words: str) -> Reading:
        if not words.strip():
            return Reading("none", NEITHER)
        text, accept = (_fold(part) if self.ignore_case else part for part in (words, self.accept))
        start = text.rfind(accept)
        if start < 0:
            return Reading("reject")
        return Reading("accept", start=start, end=start + len(accept))


def _fold(text: str) -> str:
    """Lower the letters that stay one character each, so that places stay the same."""
    return "".join(low if len(low := letter.lower()) == 1 else letter for letter in text)


def _find_all(text: str, part: str) -> list[tuple[int, int]]:
    places, start = [], text.find(part)
    while start >= 0:
        places.append((start, start + len(part)))
        start = text.find(part, start + 1)
    return places


def _drop_inner(
    places: list[tuple[int, int]], around: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Drop the places that lie within one of `around`, all of which have one length."""
    if not around:
        return places
    starts, length = [start for start, _ in around], around[0][1] - around[0][0]
    return [
        (start, end)
        for start, end in places
        # One holds it that begins neither after it nor too early to reach its end.
        if bisect.bisect_left(starts, end - length) == bisect.bisect_right(starts, start)
    ]


@dataclass(frozen=True)
class PatternForm:
    """A regular expression with one group; the last match counts, by its group's value."""

    pattern: str
    accept: str | None = None
    reject: str | None = None
    threshold: float | None = None
    """Of a number, in the place of accept and reject; with none of them it is a score alone."""
    ignore_case: bool = False
    compiled: re.Pattern[str] = field(init=False, repr=False, compare=False)
    takes_all: bool = field(init=False, repr=False, compare=False)
    """It begins with .* over lines: a match from the first character on is there or none is."""

    def __post_init__(self) -> None:
        compiled = check_pattern(self.pattern, self.ignore_case)
        object.__setattr__(self, "compiled", compiled)
        object.__setattr__(self, "takes_all", begins_with_all(compiled))
        if self.threshold is None and (self.accept is not None or self.reject is not None):
            TextForm(self.accept or "", self.reject or "")

    @property
    def accept_forms(self) -> tuple[str, ...]:
        return () if self.accept is None else (self.accept,)

    @property
    def tails(self) -> tuple[str, str] | None:
        if self.accept is None or self.reject is None or self.threshold is not None:
            return None
        return self.accept, self.reject

    def read(self, words: str) -> Reading:
        skipped = max(0, len(words) - LONGEST_SEARCHED)
        matches = list(self._matches(words[skipped:]))
        if not matches:
            return Reading("none", "no match of the pattern")
        last = matches[-1]
        start, end = skipped + last.start(1), skipped + last.end()
        value = last[1].strip()
        if self.accept is None and self.reject is None:
            return _judge_number(value, self.threshold)._replace(start=start, end=end)
        verdicts = {self._compare(match[1]) for match in matches}
        verdict = self._compare(value)
        return Reading(
            verdict,
            None if verdict != "none" else f"{value[:40]!r} is {NEITHER}",
            has_both={"accept", "reject"} <= verdicts,
            start=start,
            end=end,
        )

    def _matches(self, text: str) -> Iterator[re.Match[str]]:
        if self.takes_all:
            match = self.compiled.match(text)
            return iter([] if match is None or match[1] is None else [match])
        return (match for match in self.compiled.finditer(text) if match[1] is not None)

    def _compare(self, value: str) -> Verdict:
        # An expression that takes either case says so for its value as well.
        folds = bool(self.compiled.flags & re.IGNORECASE)
        change: Callable[[str], str] = str.casefold if folds else str
        value = change(value.strip())
        if self.accept is not None and value == change(self.accept.strip()):
            return "accept"
        is_reject = self.reject is not None and value == change(self.reject.strip())
        return "reject" if is_reject else "none"


@dataclass(frozen=True)
class NumberForm:
    """A number: it accepts from the threshold on, if there is one. The last of the words counts."""

    threshold: float | None
    low: float = -math.inf
    high: float = math.inf
    json_key: str | None = None
    """The key of a JSON object that holds the number; words in another form are read as well."""

    @property
    def accept_forms(self) -> tuple[str, ...]:
        best = self.high if math.isfinite(self.high) else max(self.threshold or 0.0, 1.0)
        number = f"{best:g}"
        return (number,) if self.json_key is None else (json.dumps({self.json_key: best}), number)

    @property
    def tails(self) -> tuple[str, str] | None:
        return None

    def read(self, words: str) -> Reading:
        value = None if self.json_key is None else _read_json_value(words, self.json_key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            reading = _judge_number(str(value), self.threshold)
        else:
            numbers = list(_NUMBER.finditer(words))
            if not numbers:
                return Reading("none", "no number")
            last = numbers[-1]
            reading = _judge_number(last[0], self.threshold)
            reading = reading._replace(start=last.start(), end=last.end())
        score = reading.score
        if score is not None and not self.low <= score <= self.high:
            return Reading("none", f"{score:g} is not within {self.low:g} to {self.high:g}")
        return reading


def _judge_number(text: str, threshold: float | None) -> Reading:
    try:
        score = float(text)
    except (ValueError, OverflowError):
        return Reading("none", f"{text[:40]!r} is no number")
    if not math.isfinite(score):
        return Reading("none", f"{text[:40]!r} is no finite number")
    if threshold is None:
        return Reading("none", "judge.threshold is not set", score=score)
    return Reading("accept" if score >= threshold else "reject", score=score)


@dataclass(frozen=True)
class LabelForm:
    """One of some labels: as JSON under `json_key`, or as the whole of the words."""

    labels: Sequence[str]
    passing: Sequence[str]
    json_key: str = "label"

    @property
    def accept_forms(self) -> tuple[str, ...]:
        json_forms = (json.dumps({self.json_key: p}, ensure_ascii=False) for p in self.passing)
        return (*json_forms, *self.passing)

    @property
    def tails(self) -> tuple[str, str] | None:
        failing = [label for label in self.labels if label not in self.passing]
        if len(self.passing) != 1 or len(failing) != 1:
            return None
        return self.passing[0], failing[0]

    def read(self, words: str) -> Reading:
        value = _read_json_value(words, self.json_key)
        stated = value if isinstance(value, str) else words.strip().strip("\"'`").strip()
        if stated not in self.labels:
            return Reading(
                "none", f"{stated[:40]!r} is none of the labels {', '.join(self.labels)}"
            )
        start = words.rfind(stated)
        return Reading(
            "accept" if stated in self.passing else "reject",
            start=start if start >= 0 else None,
            end=start + len(stated) if start >= 0 else None,
        )


def _read_json_value(words: str, key: str) -> object:
    """Return the value in words that are one JSON object, in a code block or not; else None."""
    text = words.strip()
    block = re.fullmatch(r"```(?:json)?\s*\n(.*)\n\s*```", text, re.DOTALL)
    try:
        value = json.loads(block[1] if block else text)
    except (ValueError, RecursionError):
        return None
    return value.get(key) if isinstance(value, dict) else None


@dataclass(frozen=True)
class EndForm:
    """Another form that counts at the end of the last line alone."""

    form: VerdictForm

    @property
    def accept_forms(self) -> tuple[str, ...]:
        return self.form.accept_forms

    @property
    def tails(self) -> tuple[str, str] | None:
        return self.form.tails

    def read(self, words: str) -> Reading:
        text = words.rstrip(_AFTER_VERDICT)
        begin = text.rfind("\n") + 1
        line = words[begin:].split("\n", maxsplit=1)[0]
        reading = self.form.read(line)
        if reading.verdict == "none":
            return reading
        if reading.end is not None and line[reading.end :].strip(_AFTER_VERDICT):
            return Reading("none", "the verdict is not at the end")
        places = (reading.start, reading.end)
        start, end = (None if place is None else place + begin for place in places)
        return reading._replace(start=start, end=end)


def make_form(
    accept: str | None,
    reject: str | None,
    pattern: str | None = None,
    threshold: float | None = None,
    ignore_case: bool = False,
    otherwise: str | None = None,
) -> VerdictForm:
    """Make the form that a judge's settings describe. Raises SettingsError where they don't."""
    if otherwise is not None and accept is not None:
        return LoneForm(accept, ignore_case)
    if pattern is not None:
        return PatternForm(pattern, accept, reject, threshold, ignore_case)
    if threshold is not None:
        return NumberForm(threshold)
    if accept is None or reject is None:
        missing_key = "accept" if accept is None else "reject"
        raise SettingsError(
            f"judge.{missing_key} is not set: name the text by which the judge does so"
        )
    return TextForm(accept, reject, ignore_case)
