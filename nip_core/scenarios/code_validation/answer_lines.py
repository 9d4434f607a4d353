"""The lines of an answer, and where its parts begin.

AnswerLines        an answer's lines, and which of them are quotations
without_thinking   an answer without a reasoning model's block of thoughts
header_starts      the lines that begin with a channel's header
last_message_start the last line that begins with "Question:" or "Answer:"
begins_question    whether a line begins with "Question:"
parts              the part for each channel

Knows no decisions; see `parsing`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nip_core.scenarios.code_validation.decisions import (
    InvalidResponse,
    MissingPart,
    is_blank,
    plain,
    simplified,
)

NUMBERING = r"(?:(?:step )?[0-9]{1,2}[.):][ *_]*)?"
_LEAD = rf"[ *_#`•✅⚖→➡👉-]*{NUMBERING}"
_FENCE = re.compile(r"[ \t]*(?P<mark>`|~)(?P=mark){2,}(?P<info>[^`]*)$")
_MESSAGE_START = re.compile(
    rf"{_LEAD}(?:question|answer)(?: ?#?[0-9]{{1,3}})?[ *_`]*:", re.IGNORECASE
)
_QUESTION = re.compile(rf"{_LEAD}question(?: ?#?[0-9]{{1,3}})?[ *_`]*:", re.IGNORECASE)
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
        read = simplified(text)
        self.read = read.split("\n")
        self._lower = read.lower()  # lower-case letters may be more, lines are the same
        self.free = [True] * len(self.read)
        fences: dict[int, str] = {}
        if "```" in read or "~~~" in read:
            fences = {i: mark for i, line in enumerate(self.read) if (mark := _fence(line))}
        around = [self._filled(0, 1, str.isspace), self._filled(-1, -1, str.isspace)]
        if list(fences) in (around[:1], around):
            for i in fences:
                self.raw[i] = self.read[i] = ""
            fences = {}
        if fences or ">" in read:
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

    def contain(self, word: str) -> bool:
        """Whether any line contains a lower-case word."""
        return word in self._lower

    def free_with(self, word: str) -> Iterator[tuple[int, str]]:
        """Index and plain text of the free lines that contain a lower-case word."""
        line = counted = 0
        at = self._lower.find(word)
        while at >= 0:
            line += self._lower.count("\n", counted, at)
            counted = at
            if self.free[line]:
                yield line, plain(self.read[line])
            end = self._lower.find("\n", at)
            at = self._lower.find(word, end) if end >= 0 else -1

    def free_lines(self, first: int) -> Iterator[int]:
        """The indices of the free lines from `first` on."""
        return (i for i in range(first, len(self.read)) if self.free[i])

    def whole(self, first: int) -> str:
        """Everything from line `first` on, as it was written."""
        return "\n".join(self.raw[first:]).strip()

    def is_all(self, first: int, last: int, own: int) -> bool:
        """Whether nothing but the lines `first` and `last` stands in the lines from `own` on."""
        end = len(self.read) - 1
        ends = {self.next_filled(own, 1), self.next_filled(end, -1)} - {None}
        return ends <= {first, last}

    def next_filled(self, at: int, step: int) -> int | None:
        """The first line from `at` on, in steps of 1 or -1, with more than markup; None: none."""
        found = self._filled(at, step, is_blank) if 0 <= at < len(self.read) else -1
        return found if found >= 0 else None

    def _filled(self, at: int, step: int, blank: Callable[[str], bool]) -> int:
        at %= len(self.read)
        while 0 <= at < len(self.read):
            if self.read[at] and not blank(self.read[at]):
                return at
            at += step
        return -1


def _fence(line: str) -> str | None:
    """The mark of the fence that a line is, with its language, if it is one."""
    if "```" not in line and "~~~" not in line:
        return None
    found = _FENCE.match(line)
    return found["mark"] + found["info"].strip() if found else None


@dataclass(frozen=True)
class Start:
    """A line that begins a part, and what else stands in it."""

    channel: str
    rest: str


def begins_question(line: str) -> bool:
    """Whether a plain line begins with "Question:"."""
    return _QUESTION.match(line) is not None


def last_message_start(lines: AnswerLines, channel: str) -> dict[int, Start]:
    """The last line that begins with "Question:" or "Answer:", if there is one."""
    found: dict[int, Start] = {}
    for word in ("question", "answer"):
        for i, line in lines.free_with(word):
            if start := _MESSAGE_START.match(line):
                found[i] = Start(channel, line[start.end() :])
    return {i: found[i] for i in sorted(found)[-1:]}


def header_starts(lines: AnswerLines, headers: Mapping[str, str]) -> dict[int, Start]:
    """The lines that begin with a header, in order; `headers` are by channel."""
    found: dict[int, Start] = {}
    for channel, header in headers.items():
        pattern, word = _header_pattern(header)
        for i, line in lines.free_with(word):
            if start := pattern.match(line):
                found[i] = Start(channel, line[start.end() :])
    return dict(sorted(found.items()))


def _header_pattern(header: str) -> tuple[re.Pattern[str], str]:
    """What a line matches that begins with the header, and a lower-case word that it contains."""
    said = plain(simplified(header))
    words = re.findall(r"[^\W\d_]+|[0-9]+", said)
    if not words:
        return re.compile(_LEAD + re.escape(said)), said
    sign = re.escape(said[: said.index(words[0])])
    spelled = r"(?:[^\w:]|_){0,6}".join(map(re.escape, words))
    end = r"[ *_`)\]]*(?::|$)" if said.endswith(":") else r"(?![^\W_])"
    return re.compile(rf"{_LEAD}(?:{sign})?{spelled}{end}", re.IGNORECASE), words[0].lower()


def parts(
    lines: AnswerLines,
    starts: Mapping[int, Start],
    channels: Sequence[str],
    headers: Mapping[str, str],
) -> dict[str, str]:
    """The part for each channel, from its header, which is included, to the next one.

    Raises MissingPart for a part that is not there or empty, and for two for the same channel.
    """
    begun = {start.channel for start in starts.values()}
    for channel in channels:
        if channel not in begun:
            raise MissingPart(f"no part that begins with {headers[channel]!r}")
    found: dict[str, str] = {}
    ends = [*list(starts)[1:], len(lines.raw)]
    for (i, start), end in zip(starts.items(), ends, strict=True):
        name = headers.get(start.channel, "Question: or Answer:")
        if start.channel in found:
            raise MissingPart(f"two parts that begin with {name!r}")
        if is_blank("\n".join((start.rest, *lines.read[i + 1 : end]))):
            raise MissingPart(f"an empty part that begins with {name!r}")
        found[start.channel] = "\n".join(lines.raw[i:end]).strip()
    return {channel: found[channel] for channel in channels}
