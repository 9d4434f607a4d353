"""From what a model wrote to a message or a decision. docs/answers.md has the rules with examples.

Only a verifier decides. A decision has a line of its own, which begins with "Decision:" and goes
on with an answer of the scale. What may be somebody else's words is no decision: text behind ">",
in a code fence, in quotation marks, within a sentence. What is unclear is invalid, so that the
model is asked again, and never guessed.

AnswerForm      what an answer must look like
parse_response  the move in a text
parse_decision  the answer of the scale in a text, if it decides

Lines and parts are found by `headers`, what follows "Decision:" is read by `verdicts`. All of it
takes linear time in the length of the text.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nip_core.protocols import Move
from nip_core.protocols.scales import DecisionScale, discrete
from nip_core.scenarios.code_validation.headers import (
    NUMBERING,
    AnswerLines,
    Start,
    header_starts,
    last_message_start,
    parts,
    without_thinking,
)
from nip_core.scenarios.code_validation.verdicts import (
    CROSSES,
    TICKS,
    InvalidDecision,
    InvalidResponse,
    VerdictReader,
    is_blank,
    plain,
    simplified,
)

_GAP = r"[ *_]{1,6}"
_DECISION = re.compile(
    rf"(?P<lead>[ *_#`•⚖→➡👉🔍🎯📌{TICKS}{CROSSES}\"'(\[{{-]*{NUMBERING})"
    rf"(?:(?:final answer|verifier)[ *_]{{0,6}}:[ *_]{{0,6}})?"
    rf"(?:(?:so|thus|hence|therefore|finally|overall|in conclusion)\b,?{_GAP})?"
    rf"(?:(?:here is|here's|this is){_GAP})?(?:(?:my|the|our){_GAP})?"
    rf"(?:(?:final|overall|new|revised|updated|corrected|correct){_GAP})?"
    r"decision[ *_`\"')\]]*(?:(?P<colon>:)|(?<=[ *_])is\b ?:?|[-=]>?|→|$)",
    re.IGNORECASE,
)
_CROSS = set(CROSSES)
_APART = set("`\"'([{")  # before a decision they set it apart, like somebody's words
_INTRODUCTION = re.compile(
    r"(?P<speaker>(?:[a-z'_0-9]+ ){0,3})(?:(?:wrote|writes?|written|said|says?|claims?|claimed"
    r"|answers?|answered|states?|stated|told|replied|replies|concludes?|concluded|quotes?|quoted)"
    r"\b[^.!?]{0,60}:|(?:wrote|writes?|said|says?|claimed|stated))$",
    re.IGNORECASE,
)
_OWN_ANSWER = re.compile(
    r"[ *_#-]{0,9}(?:so |thus,? |therefore,? )?(?:my |the )?(?:final )?answer(?: is)?[ *_]*:?$"
    r"|[ *_#-]{0,9}(?:after|based on|considering|given|having)\b.*, (?:here is |here's )?"
    r"(?:my (?:final )?(?:decision|answer|conclusion)(?: is)?|i (?:conclude|decide)) ?:$",
    re.IGNORECASE,
)
_SPEAKS_ITSELF = re.compile(
    r"(?:i|we|i'll|we'll)(?! (?:not|never|would|could|should|might)\b)(?: [a-z]+)? $", re.IGNORECASE
)
_LABEL = re.compile(
    r"[ *_#>-]*(?:the )?(?:expert|prover|opponent|simulator|user|human|you|he|she|they|quote)"
    r"[ _]?[0-9]{0,2}[ *_]*:$"
    r"|.*<(?:blockquote|quote|q|cite|pre|code|del|s|strike)(?: [^>]*)?>$",
    re.IGNORECASE,
)
_SUPPOSITION = re.compile(
    r"[ *_#-]{0,9}(?:if|unless|suppose|assuming)\b.*(?:[,:;]|\bthen)$"
    r"|.*\b(?:examples?|options?)(?: (?:is|are))? ?:$",
    re.IGNORECASE,
)
_MOST = 100  # lines that begin like a decision
_LOOKED_AT = 400  # characters of the line before a decision


@dataclass(frozen=True)
class AnswerForm:
    """What form an answer must have."""

    channels: tuple[str, ...]  # that it is for
    headers: Mapping[str, str]  # by channel, what its part begins with; needed for several
    scale: DecisionScale | None  # answers of a decision; None: the agent may not decide
    has_reasoning: bool = False  # what stands before the message is the agent's own


def parse_response(text: str, form: AnswerForm) -> Move:
    """The move in `text`: a decision where it has one and the agent may decide, else messages.

    Raises InvalidResponse for an answer that is empty or not Unicode, MissingPart for one in which
    the part for a channel is missing, empty or there twice, and InvalidDecision for a decision
    that is none, or is two.
    """
    if _is_all_message(text, form):
        return Move(messages={form.channels[0]: text.strip()})
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidResponse(f"half a surrogate pair at character {error.start}") from None
    text = without_thinking(text)
    if not simplified(text).strip().strip("\0 \t\r\n"):
        raise InvalidResponse("empty answer")
    lines = AnswerLines(text)
    starts: dict[int, Start] = {}
    if len(form.channels) > 1:
        starts = header_starts(lines, {c: form.headers[c] for c in form.channels})
    elif form.has_reasoning:
        starts = last_message_start(lines, form.channels[0])
    if form.scale is not None:
        own = min(starts, default=0) if form.has_reasoning else 0
        answer = _decision(lines, form.scale, own, last_counts=form.has_reasoning)
        if answer is not None:
            value = form.scale.values[answer]
            return Move(decision=discrete(value), value=value)
        if form.has_reasoning and not starts and _ends_with_quoted(lines, form.scale):
            raise InvalidDecision("a decision in a quotation at the end")
    if len(form.channels) == 1 and not starts:
        return Move(messages={form.channels[0]: text.strip()})
    return Move(messages=parts(lines, starts, form.channels, form.headers))


def _is_all_message(text: str, form: AnswerForm) -> bool:
    """Whether the whole text is a message for the only channel, as it is in most answers.

    True only where what follows in `parse_response` would come to the same.
    """
    if len(form.channels) != 1 or form.has_reasoning or not text.isascii() or "think>" in text:
        return False
    if form.scale is not None and "decision" in text.lower():
        return False
    return bool(text.strip().strip("\0 \t\r\n"))


def parse_decision(text: str, scale: DecisionScale) -> str | None:
    """The answer of the scale that `text` decides for; None where it has no decision line.

    Raises InvalidDecision.
    """
    return _decision(AnswerLines(text), scale, 0, last_counts=False)


@dataclass(frozen=True)
class _DecisionLine:
    first: int  # its index
    last: int  # and that of the line with its verdict
    rest: str  # what follows "Decision:"
    is_apart: bool  # in quotation marks, brackets or backticks


_READERS: dict[tuple[tuple[str, float], ...], VerdictReader] = {}


def _reader(scale: DecisionScale) -> VerdictReader:
    """The scale's reader, of which there need not be more than one."""
    answers = tuple(scale.values.items())
    if answers not in _READERS:
        _READERS[answers] = VerdictReader(scale)
    return _READERS[answers]


def _decision(
    lines: AnswerLines, scale: DecisionScale, own: int, *, last_counts: bool
) -> str | None:
    """The answer in the decision lines from line `own` on.

    With `last_counts` a decision in the last line makes what is before it reasoning.
    """
    if not lines.contain("decision"):
        return None
    reader = _reader(scale)
    found = _decision_lines(lines, reader, own)
    if any(line.is_apart for line in found) and not _is_all(lines, found, own):
        found = [line for line in found if not line.is_apart]
    if last_counts and found and lines.next_filled(found[-1].last + 1, 1) is None:
        found = _final_run(lines, found)
    answers: set[str] = set()
    quoted = _in_long_quotations(lines) if found else set()
    for line in found:
        if _is_introduced(lines, line):
            raise InvalidDecision("a decision that the line before it gives to somebody else")
        if line.first in quoted:
            raise InvalidDecision("a decision in a quotation of several lines")
        answers.add(reader.read(line.rest))
    if not answers:
        return None
    if len(answers) > 1:
        raise InvalidDecision("two contradicting decisions")
    (answer,) = answers
    after = found[-1].last + 1
    later = [line for i, line in enumerate(lines.read[after:], after) if lines.free[i]]
    if reader.is_retracted(answer, "\n".join(later)):
        raise InvalidDecision("a decision that is taken back")
    return answer


def _decision_lines(lines: AnswerLines, reader: VerdictReader, own: int) -> Sequence[_DecisionLine]:
    found: list[_DecisionLine] = []
    seen = 0
    for i, line in lines.free_with("decision"):
        start = _DECISION.match(line) if i >= own else None
        if start is None:
            continue
        seen += 1
        if seen > _MOST:
            raise InvalidDecision(f"more than {_MOST} lines that begin like a decision")
        last, rest = i, line[start.end() :].strip()
        if is_blank(rest):
            below = lines.next_filled(i + 1, 1)
            if below is not None:
                last, rest = below, plain(lines.read[below])
                if lines.free[below] and (again := _DECISION.match(rest)) and again["colon"]:
                    continue  # a heading of the decision
        if start["colon"] is None and not reader.begins(rest):
            continue  # "the decision is hard": talk
        if not _CROSS.isdisjoint(start["lead"]):
            rest = f"❌ {rest}"
        is_apart = not _APART.isdisjoint(start["lead"])
        if is_apart and not reader.is_exactly(rest):
            continue
        found.append(_DecisionLine(i, last, rest, is_apart))
    return found


def _is_all(lines: AnswerLines, found: Sequence[_DecisionLine], own: int) -> bool:
    """Whether nothing else stands in the answer."""
    covered = {i for line in found for i in (line.first, line.last)}
    return all(i in covered or is_blank(line) for i, line in enumerate(lines.read) if i >= own)


def _ends_with_quoted(lines: AnswerLines, scale: DecisionScale) -> bool:
    """Whether the last line, which does not decide, is a decision in a fence or set apart."""
    last = lines.next_filled(len(lines.read) - 1, -1)
    line = "" if last is None else plain(lines.read[last])
    start = _DECISION.match(line)
    return start is not None and _reader(scale).is_exactly(line[start.end() :])


def _final_run(lines: AnswerLines, found: Sequence[_DecisionLine]) -> Sequence[_DecisionLine]:
    """The last decision lines, as many as have nothing between them."""
    first = len(found) - 1
    while first and lines.next_filled(found[first - 1].last + 1, 1) == found[first].first:
        first -= 1
    return found[first:]


def _is_introduced(lines: AnswerLines, line: _DecisionLine) -> bool:
    """Whether the line before says that somebody else decides so, or that nobody does."""
    before, said = lines.next_filled(line.first - 1, -1), ""
    while before is not None:
        said = plain(lines.read[before])[-_LOOKED_AT:].rstrip("*_` ")
        if not _OWN_ANSWER.match(said):
            break
        before, said = lines.next_filled(before - 1, -1), ""
    if _SUPPOSITION.match(said) or _LABEL.match(said):
        return True
    said_by = _INTRODUCTION.search(said)
    return said_by is not None and _SPEAKS_ITSELF.search(said_by["speaker"]) is None


def _in_long_quotations(lines: AnswerLines) -> set[int]:
    """The lines after one that opens a quotation, up to the one that closes it."""
    inside: set[int] = set()
    opened: int | None = None
    for i, line in enumerate(lines.read):
        if '"' in line and lines.free[i] and line.count('"') % 2:
            if opened is None:
                opened = i
            else:
                inside.update(range(opened + 1, i + 1))
                opened = None
    return inside
