"""From what a model wrote to a message or a decision. docs/answers.md has the rules with examples.

Only a verifier decides. A decision has a line of its own, which begins with "Decision:" and goes
on with an answer of the scale; a verdict in other words is taken for one where it is unmistakable.
What may be somebody else's words is no decision: text behind ">", in a code fence, in quotation
marks, within a sentence. What is unclear is invalid, so that the model is asked again, and never
guessed.

AnswerForm      what an answer must look like
parse_response  the move in a text
parse_decision  the answer of the scale in a text, if it decides
lacks_decision  whether a move is a message where only a decision is of use

Lines and parts come from `headers`, decision lines from `labels`, other words from `other_words`,
what follows a label is read by `verdicts`. All of it takes linear time in the length of the text.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nip_core.protocols import NO_DECISION, Move
from nip_core.protocols.scales import DecisionScale, discrete
from nip_core.scenarios.code_validation.answer_lines import (
    AnswerLines,
    Start,
    header_starts,
    last_message_start,
    parts,
    without_thinking,
)
from nip_core.scenarios.code_validation.decisions import (
    InvalidDecision,
    InvalidResponse,
    VerdictReader,
    is_blank,
    simplified,
)
from nip_core.scenarios.code_validation.labels import (
    DECISION,
    WORDS,
    LabelledLine,
    in_quotations,
    is_introduced,
    labelled_lines,
)
from nip_core.scenarios.code_validation.other_words import Claim, claims

NO_DECISION_GIVEN = "no decision, where nothing else is of use"  # why such a move is invalid
# What asks or supposes something, so that a verdict in it may be meant otherwise.
_ASKING = re.compile(
    r"\?|\b(?:why|whether|how|what|which|explain|show|tell|trace|describe|convince|prove|please"
    r"|if|unless|would|could|should|might|may)\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!;]) ")
_TELLING = ("accept", "reject", *WORDS)  # words without which no answer decides


@dataclass(frozen=True)
class AnswerForm:
    """What form an answer must have."""

    channels: tuple[str, ...]  # that it is for
    headers: Mapping[str, str]  # by channel, what its part begins with; needed for several
    scale: DecisionScale | None  # answers of a decision; None: the agent may not decide
    has_reasoning: bool = False  # what stands before the message is the agent's own
    must_decide: bool = False  # a message would be of no use, so that it is asked for again


def parse_response(text: str, form: AnswerForm) -> Move:
    """The move in `text`: a decision where it has one and the agent may decide, else messages.

    Raises InvalidResponse for an answer that is empty or not Unicode, MissingPart for one in which
    the part for a channel is missing, empty or there twice, and InvalidDecision for a decision
    that is none, or is two, or may be meant and may not.
    """
    if _is_all_message(text, form):
        return Move(messages={form.channels[0]: text.strip()})
    # 1. What the agent wrote for others to read.
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidResponse(f"half a surrogate pair at character {error.start}") from None
    text = without_thinking(text)
    if not simplified(text).strip().strip("\0 \t\r\n"):
        raise InvalidResponse("empty answer")
    # 2. Where its parts begin.
    lines = AnswerLines(text)
    starts: dict[int, Start] = {}
    if len(form.channels) > 1:
        starts = header_starts(lines, {c: form.headers[c] for c in form.channels})
    elif form.has_reasoning:
        starts = last_message_start(lines, form.channels[0])
    # 3. The decision, if there is one and the agent may decide.
    if form.scale is not None:
        own = min(starts, default=0) if form.has_reasoning else 0
        answer = _decision(lines, form.scale, own, starts, last_counts=form.has_reasoning)
        if answer is not None:
            value = form.scale.values[answer]
            return Move(decision=discrete(value), value=value)
    # 4. Otherwise all of it is a message, or each part is one.
    if len(form.channels) == 1 and not starts:
        return Move(messages={form.channels[0]: text.strip()})
    return Move(messages=parts(lines, starts, form.channels, form.headers))


def lacks_decision(move: Move, form: AnswerForm) -> bool:
    """Whether a move is a message where only a decision would be of use.

    Then it is asked for again. After the last retry it stands, and the game ends without a verdict.
    """
    return form.must_decide and move.decision == NO_DECISION


def _is_all_message(text: str, form: AnswerForm) -> bool:
    """Whether the whole text is a message for the only channel, as it is in most answers.

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


def parse_decision(text: str, scale: DecisionScale) -> str | None:
    """The answer of the scale that `text` decides for; None where it decides for none.

    Raises InvalidDecision.
    """
    return _decision(AnswerLines(text), scale, 0, {}, last_counts=False)


_READERS: dict[tuple[tuple[str, float], ...], VerdictReader] = {}


def _reader(scale: DecisionScale) -> VerdictReader:
    """The scale's reader, of which there need not be more than one."""
    answers = tuple(scale.values.items())
    if answers not in _READERS:
        _READERS[answers] = VerdictReader(scale)
    return _READERS[answers]


def _decision(
    lines: AnswerLines,
    scale: DecisionScale,
    own: int,
    starts: Mapping[int, Start],
    *,
    last_counts: bool,
) -> str | None:
    """The answer that is decided for in line `own` or behind it, if any.

    With `last_counts` a decision in the last line makes what is before it reasoning.
    """
    reader = _reader(scale)
    # 1. Decision lines decide, and what is wrong with one of them makes the answer invalid.
    decisions = labelled_lines(lines, reader, DECISION, ["decision"], own)
    if any(line.is_apart for line in decisions) and not _are_all(lines, decisions, own):
        decisions = [line for line in decisions if not line.is_apart]
    if last_counts and decisions and lines.next_filled(decisions[-1].last + 1, 1) is None:
        decisions = _final_run(lines, decisions)
    quoted = in_quotations(lines) if decisions else set()
    answers: set[str] = set()
    for line in decisions:
        if is_introduced(lines, line.first):
            raise InvalidDecision("a decision that the line before it gives to somebody else")
        if line.first in quoted:
            raise InvalidDecision("a decision in a quotation of several lines")
        answers.add(reader.read(line.rest))
    # 2. So do verdicts in other words, where they are clear; if not, only without a decision line.
    claimed = claims(lines, reader, own, starts)
    clear = [claim for claim in claimed if claim.answer is not None]
    if decisions:
        begin = decisions[0].first if last_counts else own
        answers |= {claim.answer for claim in clear if claim.answer and claim.first >= begin}
    elif not clear:
        is_meant = any(claim.is_meant for claim in claimed)
        is_meant |= not claimed and _concludes_within(lines, reader, own)
        if is_meant or (claimed and not _goes_on_asking(lines, claimed)):
            raise InvalidDecision("a verdict that is not clear")
        return None
    else:
        end = lines.next_filled(len(lines.read) - 1, -1)
        if last_counts and any(claim.last == end for claim in clear):
            clear = claimed = [claim for claim in clear if claim.last == end]
        answers = {claim.answer for claim in clear if claim.answer}
        places = {claim.first for claim in clear}
        if any(claim.answer is None and claim.first not in places for claim in claimed):
            raise InvalidDecision("a verdict and another that is not clear")
        if _goes_on_asking(lines, claimed):
            raise InvalidDecision("a verdict before a question")
    # 3. They must agree, and nothing behind them may take them back.
    if len(answers) > 1:
        raise InvalidDecision("two contradicting decisions")
    (answer,) = answers
    after = 1 + max(line.last for line in (decisions or clear))
    later = [line for i, line in enumerate(lines.read[after:], after) if lines.free[i]]
    if reader.is_retracted(answer, "\n".join(later)):
        raise InvalidDecision("a decision that is taken back")
    return answer


def _are_all(lines: AnswerLines, decisions: Sequence[LabelledLine], own: int) -> bool:
    """Whether nothing else stands in the answer."""
    covered = {i for line in decisions for i in (line.first, line.last)}
    return all(i in covered or is_blank(line) for i, line in enumerate(lines.read) if i >= own)


def _final_run(lines: AnswerLines, decisions: Sequence[LabelledLine]) -> list[LabelledLine]:
    """The last decision lines, as many as have nothing between them."""
    first = len(decisions) - 1
    while first and lines.next_filled(decisions[first - 1].last + 1, 1) == decisions[first].first:
        first -= 1
    return list(decisions[first:])


def _concludes_within(lines: AnswerLines, reader: VerdictReader, own: int) -> bool:
    """Whether a line ends with "Accept." or "I accept the solution.", and nothing asks."""
    if not reader.accepts or _ASKING.search(lines.whole(own)):
        return False
    ends = [
        _SENTENCE.split(line)[-1].strip(" *_")
        for stem in reader.stems
        for i, line in lines.free_with(stem)
        if i >= own
    ]
    declared = map(reader.declared, ends)
    return any(map(reader.is_exactly, ends)) or any(found and found[1] for found in declared)


def _goes_on_asking(lines: AnswerLines, claimed: Sequence[Claim]) -> bool:
    """Whether a question follows the last verdict."""
    last = max(claim.last for claim in claimed)
    if any("?" in lines.read[i] for i in lines.free_lines(last + 1)):
        return True
    return all("?" in claim.rest for claim in claimed if claim.last == last)
