"""From a model's text to a message or a decision. docs/answers.md has the rules with examples.

Only a verifier decides. A decision has a line of its own, which begins with "Decision:" and goes
on with an answer of the scale; a verdict in other words is taken for one where it is unmistakable.
Words that may be another player's are no decision: text behind ">", in a code fence, in quotation
marks, within a sentence. An unclear answer is invalid, so that the model is asked again, and never
guessed.

The rules of each step have a module, in this order: `answer_lines` (lines, parts for channels),
`verdict_labels` (lines that begin with a label), `decisions` (the verdict in a line) and
`other_words` (verdicts elsewhere); `plainer` rewords an answer that stays unclear. All of it
takes linear time in the length of the text.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from nip_core.game.answers.answer_lines import (
    AnswerLines,
    cut_parts,
    find_part_starts,
    without_thinking,
)
from nip_core.game.answers.decisions import (
    InvalidDecision,
    InvalidResponse,
    VerdictReader,
    any_case,
    simplify,
)
from nip_core.game.answers.other_words import Claim, find_claims
from nip_core.game.answers.plainer import put_plainly
from nip_core.game.answers.reasons import EMPTY, USED_UP
from nip_core.game.answers.verdict_labels import (
    WORDS,
    Answer,
    LabelledLine,
    find_labelled_lines,
    is_introduced,
)
from nip_core.protocols import NO_DECISION, Move
from nip_core.protocols.scales import DecisionScale, round_value
from nip_core.tools import Tool, find_call

# Words that ask or suppose something, so that a verdict in it may be meant otherwise.
_ASKING = any_case(
    r"\?|\b(?:why|whether|how|what|which|explain|show|tell|trace|describe|convince|prove|please"
    r"|if|unless|would|could|should|might|may)\b"
)
_SENTENCE = re.compile(r"(?<=[.!;]) ")
_MOVE = any_case(
    r"[ \t*_#`•✅❌-]{0,9}(?:[0-9]{1,2}[.)] ?)?(?:(?:my|the|our|final|overall) ){0,3}"
    r"(?:decision|verdict|question|answer|conclusion)\b[ \t*_#`]{0,6}(?:[:=-]|is\b|for\b)"
)
"""The beginning of a move behind a call."""
_TELLING = ("accept", "reject", *WORDS)  # words without which no answer decides


@dataclass(frozen=True)
class AnswerForm:
    """The form that an answer must have."""

    channels: tuple[str, ...]  # that it is for
    headers: Mapping[str, str]  # by channel, the beginning of its part; needed for several
    scale: DecisionScale | None  # answers of a decision; None: the agent may not decide
    has_reasoning: bool = False  # the text before the message is the agent's own
    must_decide: bool = False  # a message would be of no use, so that it is asked for again
    is_early: bool = False  # a decision would not be registered yet
    tool: Tool | None = None  # that may be called in its place
    is_used_up: bool = False  # a call would be one too many


def parse_response(text: str, form: AnswerForm) -> Move:
    """The move in `text`: a decision where it has one and the agent may decide, else messages.

    An answer that does not show clearly whether it decides is read once more, in plainer words. So
    answers that were valid before there was a second look keep their meaning.

    A call of the form's tool is neither.

    Raises InvalidResponse for an answer that is empty or not Unicode, or one call too many,
    MissingPart for one in which the part for a channel is missing, empty or there twice, and
    InvalidDecision for a decision that is none, or is two, or may be meant and may not.
    """
    if form.tool is not None:
        text, call = _take_call(text, form, form.tool)
        if call is not None and form.is_used_up:
            raise InvalidResponse(USED_UP)
        if call is not None:
            return Move(call=call)
    try:
        return _first_look(text, form)
    except InvalidDecision as unclear:
        move = _second_look(text, form)
        if move is None:
            raise unclear from None
        return move


def _take_call(text: str, form: AnswerForm, tool: Tool) -> tuple[str, str | None]:
    """Take the call from an answer, or the move that stands behind it, without the call.

    So a model that invents the result of its call, and decides, has decided, and nobody else reads
    calls.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text, None  # is refused
    call = find_call(without_thinking(text), tool)
    if call is None:
        return text, None
    lines, plain = call.tail.split("\n"), replace(form, tool=None)
    for number, line in enumerate(lines):
        begins = any(line.strip().startswith(header) for header in form.headers.values())
        if begins or _MOVE.match(line):
            return "\n".join(lines[number:]), None
    if not tool.has_lines and _may_decide(call.tail, plain):
        return call.tail, None
    # Where no call is left, a decision before it is one.
    if form.is_used_up and _may_decide(call.lead, plain):
        return call.lead, None
    return text, call.argument


def _may_decide(text: str, form: AnswerForm) -> bool:
    """Tell whether a text decides, or may, so that its agent is asked again."""
    if form.scale is None or not text.strip():
        return False
    try:
        return _first_look(text, form).decision != NO_DECISION
    except InvalidResponse:
        return True


def _second_look(text: str, form: AnswerForm) -> Move | None:
    """Read the decision of an unclear answer in plainer words, if it has one."""
    assert form.scale is not None  # no other form makes an invalid decision
    text = without_thinking(text)
    starts = find_part_starts(AnswerLines(text), form.channels, form.headers, form.has_reasoning)
    if starts or not _reader(form.scale).accepts:
        return None  # it also has a message for a player, or another scale
    plain_text = put_plainly(text)
    try:
        move = None if plain_text is None else _first_look(plain_text, form)
    except InvalidResponse:
        return None
    return move if move is not None and move.decision != NO_DECISION else None


def _first_look(text: str, form: AnswerForm) -> Move:
    if _is_all_message(text, form):
        return Move(messages={form.channels[0]: text.strip()})
    # 1. The text that the agent wrote for others to read.
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidResponse(f"half a surrogate pair at character {error.start}") from None
    text = without_thinking(text)
    if not simplify(text).strip().strip("\0 \t\r\n"):
        raise InvalidResponse(EMPTY)
    # 2. Where its parts begin.
    lines = AnswerLines(text)
    starts = find_part_starts(lines, form.channels, form.headers, form.has_reasoning)
    # 3. The decision, if there is one and the agent may decide.
    if form.scale is not None:
        begin = min(starts, default=0) if form.has_reasoning else 0
        answer = Answer(lines, _reader(form.scale), begin, starts)
        verdict = _verdict(answer, last_counts=form.has_reasoning)
        if verdict is not None:
            value = form.scale.values[verdict]
            return Move(decision=round_value(value), value=value)
    # 4. Otherwise all of it is a message, or each part is one.
    if len(form.channels) == 1 and not starts:
        return Move(messages={form.channels[0]: text.strip()})
    return Move(messages=cut_parts(lines, starts, form.channels, form.headers))


def lacks_decision(move: Move, form: AnswerForm) -> bool:
    """Tell whether a move is a message where only a decision would be of use.

    Then it is asked for again. After the last retry it stands, and the game ends without a verdict.
    """
    return form.must_decide and move.decision == NO_DECISION and move.call is None


def _is_all_message(text: str, form: AnswerForm) -> bool:
    """Tell whether the whole text is a message for the only channel, as it is in most answers.

    True only where what follows in `parse_response` would come to the same.
    """
    if len(form.channels) != 1 or form.has_reasoning or not text.isascii() or "think>" in text:
        return False
    if form.scale is not None:
        reader = _reader(form.scale)
        lower = text.lower()
        if reader.is_numeric or any(word in lower for word in (*reader.stems, *_TELLING)):
            return False
    return bool(text.strip().strip("\0 \t\r\n"))


_READERS: dict[tuple[tuple[str, float], ...], VerdictReader] = {}


def _reader(scale: DecisionScale) -> VerdictReader:
    """Return the scale's reader, the same one at each call."""
    answers = tuple(scale.values.items())
    if answers not in _READERS:
        _READERS[answers] = VerdictReader(scale)
    return _READERS[answers]


def _verdict(answer: Answer, *, last_counts: bool) -> str | None:
    """Find the decided answer of the scale, if any.

    With `last_counts` a decision in the last line makes what is before it reasoning.
    """
    # 1. Decision lines decide, and a fault in one of them makes the answer invalid.
    decisions = _decision_lines(answer, last_counts=last_counts)
    verdicts = {_read(answer, line) for line in decisions}
    # 2. So do verdicts in other words, where they are clear; if not, only without a decision line.
    claimed = find_claims(answer)
    if decisions:
        begin = decisions[0].first if last_counts else answer.begin
        verdicts |= {claim.answer for claim in claimed if claim.answer and claim.first >= begin}
        last = max(line.last for line in decisions)
    else:
        clear = _clear_claims(answer, claimed, last_counts=last_counts)
        if not clear:
            return None
        verdicts = {claim.answer for claim in clear if claim.answer}
        last = max(claim.last for claim in clear)
    # 3. They must agree, and nothing behind them may take them back.
    if len(verdicts) > 1:
        raise InvalidDecision("two contradicting decisions")
    (verdict,) = verdicts
    lines = answer.lines
    later = [line for i, line in enumerate(lines.read) if i > last and lines.free[i]]
    if answer.reader.is_retracted(verdict, "\n".join(later)):
        raise InvalidDecision("a decision that is taken back")
    return verdict


def _decision_lines(answer: Answer, *, last_counts: bool) -> list[LabelledLine]:
    """Choose the decision lines to count."""
    lines = answer.lines
    decisions = find_labelled_lines(answer, decisions=True)
    # 1. One in quotation marks counts only where nothing else stands in the answer.
    covered = {i for line in decisions for i in (line.first, line.last)}
    if not covered.issuperset(answer.filled):
        decisions = [line for line in decisions if not line.is_apart]
    # 2. Where the answer ends with some, those before are reasoning.
    if last_counts and decisions and lines.filled_from(decisions[-1].last + 1) is None:
        first = len(decisions) - 1
        while first and lines.filled_from(decisions[first - 1].last + 1) == decisions[first].first:
            first -= 1
        decisions = decisions[first:]
    return decisions


def _read(answer: Answer, line: LabelledLine) -> str:
    """The verdict in a decision line. Raises InvalidDecision, also if others may have said it."""
    if is_introduced(answer.lines, line.first):
        raise InvalidDecision("a decision that the line before it gives to somebody else")
    if line.first in answer.lines.quoted:
        raise InvalidDecision("a decision in a quotation of several lines")
    return answer.reader.read(line.rest)


def _clear_claims(answer: Answer, claimed: list[Claim], *, last_counts: bool) -> list[Claim]:
    """The clear ones among claims where there is no decision line; none for a message.

    Raises InvalidDecision where it is not clear whether a verdict is meant, or which.
    """
    clear = [claim for claim in claimed if claim.answer is not None]
    if not clear:
        is_meant = any(claim.is_meant for claim in claimed)
        is_meant |= not claimed and _concludes_within(answer)
        if is_meant or (claimed and not _goes_on_asking(answer, claimed)):
            raise InvalidDecision("a verdict that is not clear")
        return []
    at_end = [claim for claim in clear if claim.last == answer.lines.filled[-1]]
    if last_counts and at_end:
        clear = claimed = at_end
    places = {claim.first for claim in clear}
    if any(claim.answer is None and claim.first not in places for claim in claimed):
        raise InvalidDecision("a verdict and another that is not clear")
    if _goes_on_asking(answer, claimed):
        raise InvalidDecision("a verdict before a question")
    return clear


def _concludes_within(answer: Answer) -> bool:
    """Tell whether a line ends with "Accept." or "I accept the solution.", and nothing asks."""
    reader = answer.reader
    if not reader.accepts or _ASKING.search(answer.whole):
        return False
    for _, line in answer.free_with(*reader.stems):
        end = _SENTENCE.split(line)[-1].strip(" *_")
        declaration = reader.declared(end)
        if reader.is_exactly(end) or (declaration and declaration.has_object):
            return True
    return False


def _goes_on_asking(answer: Answer, claimed: list[Claim]) -> bool:
    """Tell whether a question follows the last verdict."""
    lines = answer.lines
    last = max(claim.last for claim in claimed)
    later = (line for i, line in enumerate(lines.read) if i > last and lines.free[i])
    if any("?" in line for line in later):
        return True
    return all("?" in claim.rest for claim in claimed if claim.last == last)
