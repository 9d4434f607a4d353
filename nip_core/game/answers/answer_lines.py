"""The lines of an answer, and where its parts begin.

AnswerLines       an answer's lines, and which of them are quotations
without_thinking  an answer without a reasoning model's block of thoughts
begins_question   whether a line begins with "Question:"
find_part_starts  the lines with which the parts of an answer begin
cut_parts         the part for each channel

Knows no decisions; see `parsing`.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from nip_core.game.answers.decisions import (
    InvalidResponse,
    MissingPart,
    any_case,
    is_blank,
    simplify,
    strip_decoration,
)

NUMBERING = r"(?:(?:step )?[0-9]{1,2}[.):][ *_]*)?"
_LEAD = rf"[ *_#`•✅⚖→➡👉-]*{NUMBERING}"
_FENCE = re.compile(r"[ \t]*(?P<mark>`|~)(?P=mark){2,}(?P<info>[^`]*)$")
_NUMBER = r"(?: ?#?[0-9]{1,3})?[ *_`]*:"
_MESSAGE_START = any_case(rf"{_LEAD}(?:question|answer){_NUMBER}")
_QUESTION = any_case(rf"{_LEAD}question{_NUMBER}")
_THINKING, _THOUGHT = "<think>", "</think>"


def without_thinking(text: str) -> str:
    """The text behind a block of thoughts, if it begins with one.

    Raises InvalidResponse for a block without an end.
    """
    if text.lstrip().startswith(_THINKING):
        _, end, answer = text.partition(_THOUGHT)
        if not end:
            raise InvalidResponse("the thinking does not end")
        return answer
    if _THOUGHT in text:  # a server may have taken the opening tag for part of the prompt
        lines = text.split("\n")
        ends = [i for i, line in enumerate(lines) if line.strip() == _THOUGHT]
        if ends:
            return "\n".join(lines[ends[0] + 1 :])
    return text


class AnswerLines:
    """The lines of an answer: `raw` as written, `read` simplified, and which of them are `free`.

    Free lines stand outside of code fences and do not begin with ">". A fence around the whole
    answer is taken off.
    """

    def __init__(self, text: str):
        self.raw = text.split("\n")
        plain = simplify(text)
        self.read = plain.split("\n")
        self._lower = plain.lower()
        self.free = [True] * len(self.read)
        fences: dict[int, str] = {}
        if "```" in plain or "~~~" in plain:
            fences = {i: mark for i, line in enumerate(self.read) if (mark := _fence(line))}
            inked = [i for i, line in enumerate(self.read) if line.strip()]
            if list(fences) in (inked[:1], [inked[0], inked[-1]]):
                for i in fences:
                    self.raw[i] = self.read[i] = ""
                fences = {}
        if fences or ">" in plain:
            self._mark_quotations(fences)

    def _mark_quotations(self, fences: Mapping[int, str]) -> None:
        opened: str | None = None
        for i, line in enumerate(self.read):
            fence = fences.get(i)
            if opened is not None or fence is not None or line.lstrip().startswith(">"):
                self.free[i] = False
            if opened is None:
                opened = fence and fence[0]
            elif fence == opened:  # without a language, which only an opening fence has
                opened = None

    def free_with(self, *words: str) -> list[tuple[int, str]]:
        """Find free lines with one of some lower-case words: their index and plain text."""
        places: set[int] = set()
        for word in words:
            if word in self._lower:
                places.update(i for i, line in enumerate(self._lower_lines) if word in line)
        return [(i, strip_decoration(self.read[i])) for i in sorted(places) if self.free[i]]

    @cached_property
    def _lower_lines(self) -> list[str]:
        return self._lower.split("\n")

    @cached_property
    def filled(self) -> list[int]:
        """The lines with more than markup."""
        lines = enumerate(self.read)
        return [i for i, line in lines if line[:1].isalnum() or not is_blank(line)]

    def filled_from(self, first: int) -> int | None:
        """The next line with more than markup, from `first` on."""
        index = bisect_left(self.filled, first)
        return self.filled[index] if index < len(self.filled) else None

    def filled_above(self, first: int) -> Iterator[int]:
        """The lines before `first` with more than markup, the nearest one first."""
        return (self.filled[i] for i in range(bisect_left(self.filled, first) - 1, -1, -1))

    @cached_property
    def quoted(self) -> set[int]:
        """Find the lines after the opening of a quotation, up to its end."""
        inside: set[int] = set()
        opened: int | None = None
        for i, line in enumerate(self.read):
            if '"' in line and self.free[i] and line.count('"') % 2:
                if opened is None:
                    opened = i
                else:
                    inside.update(range(opened + 1, i + 1))
                    opened = None
        return inside


def _fence(line: str) -> str | None:
    """Return a fence's mark with its language; None if the line is no fence."""
    if "```" not in line and "~~~" not in line:
        return None
    fence = _FENCE.match(line)
    return fence["mark"] + fence["info"].strip() if fence else None


def begins_question(line: str) -> bool:
    """Tell whether a plain line begins with "Question:"."""
    return _QUESTION.match(line) is not None


@dataclass(frozen=True)
class Start:
    """A line that begins a part, and the rest of it."""

    channel: str
    rest: str


def find_part_starts(
    lines: AnswerLines, channels: Sequence[str], headers: Mapping[str, str], has_reasoning: bool
) -> dict[int, Start]:
    """Find the first lines of parts, in order.

    For several channels those with a header; behind reasoning the last one that begins with
    "Question:" or "Answer:".
    """
    if len(channels) > 1:
        patterns = [(channel, *_header_pattern(headers[channel])) for channel in channels]
        return _starts(lines, patterns)
    if not has_reasoning:
        return {}
    starts = _starts(lines, [(channels[0], _MESSAGE_START, ("question", "answer"))])
    return dict([*starts.items()][-1:])


def _starts(
    lines: AnswerLines, patterns: Iterable[tuple[str, re.Pattern[str], Sequence[str]]]
) -> dict[int, Start]:
    """Find matching lines by channel; each match has one of the words, to look for first."""
    starts: dict[int, Start] = {}
    for channel, pattern, words in patterns:
        for i, line in lines.free_with(*words):
            if start := pattern.match(line):
                starts[i] = Start(channel, line[start.end() :])
    return dict(sorted(starts.items()))


def _header_pattern(header: str) -> tuple[re.Pattern[str], Sequence[str]]:
    """Make a pattern for lines with the header first, and name a lower-case word of it."""
    text = strip_decoration(simplify(header))
    words = re.findall(r"[^\W\d_]+|[0-9]+", text)
    if not words:
        return re.compile(_LEAD + re.escape(text)), [text]
    sign = re.escape(text[: text.index(words[0])])
    spelled = r"(?:[^\w:]|_){0,6}".join(map(re.escape, words))
    end = r"[ *_`)\]]*(?::|$)" if text.endswith(":") else r"(?![^\W_])"
    return any_case(rf"{_LEAD}(?:{sign})?{spelled}{end}"), [words[0].lower()]


def cut_parts(
    lines: AnswerLines,
    starts: Mapping[int, Start],
    channels: Sequence[str],
    headers: Mapping[str, str],
) -> dict[str, str]:
    """Cut out the part for each channel, from its header on to the next one.

    Raises MissingPart for a part that is not there or empty, and for two for the same channel.
    """
    begun_channels = {start.channel for start in starts.values()}
    for channel in channels:
        if channel not in begun_channels:
            raise MissingPart(f"no part that begins with {headers[channel]!r}")
    parts: dict[str, str] = {}
    ends = [*list(starts)[1:], len(lines.raw)]
    for (i, start), end in zip(starts.items(), ends, strict=True):
        name = headers.get(start.channel, "Question: or Answer:")
        if start.channel in parts:
            raise MissingPart(f"two parts that begin with {name!r}")
        if is_blank("\n".join((start.rest, *lines.read[i + 1 : end]))):
            raise MissingPart(f"an empty part that begins with {name!r}")
        parts[start.channel] = "\n".join(lines.raw[i:end]).strip()
    return {channel: parts[channel] for channel in channels}
