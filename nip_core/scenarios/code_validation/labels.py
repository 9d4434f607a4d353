"""Lines that begin with "Decision:" or another label of a verdict, and whose words they are.

DECISION, VERDICT  how such a line begins: with "Decision", with another word for it
labelled_lines     the lines of an answer that begin so and go on with a verdict
is_introduced      whether the line before gives a line to somebody else
in_quotations      the lines within quotations of several lines

What follows a label is read by `verdicts`, lines come from `headers`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nip_core.scenarios.code_validation.answer_lines import NUMBERING, AnswerLines
from nip_core.scenarios.code_validation.decisions import (
    CROSSES,
    TICKS,
    InvalidDecision,
    VerdictReader,
    is_blank,
    plain,
)

_GAP = r"[ *_]{1,6}"
_ADJECTIVE = r"(?:final|overall|new|revised|updated|corrected|correct)"
WORDS = (
    *("decision", "verdict", "conclusion", "judgment", "judgement", "ruling", "determination"),
    *("assessment", "evaluation", "recommendation", "outcome", "result", "answer", "response"),
    *("choice", "vote", "rating", "score"),
)
"""Labels of a verdict, in lower case."""


def beginning(words: Sequence[str], separator: str, lead: str = "*") -> str:
    """The pattern of how a line begins that is labelled with one of `words`.

    `lead` says how many marks may stand before it, as a quantifier.
    """
    return (
        rf"(?P<lead>[ *_#`•⚖→➡👉🔍🎯📌{TICKS}{CROSSES}\"'(\[{{-]{lead}{NUMBERING})"
        rf"(?:(?:final answer|verifier)[ *_]{{0,6}}:[ *_]{{0,6}})?"
        rf"(?:(?:so|thus|hence|therefore|finally|overall|in conclusion)\b,?{_GAP})?"
        rf"(?:(?:here is|here's|this is){_GAP})?(?:(?:my|the|our){_GAP})?"
        rf"(?:{_ADJECTIVE}{_GAP})?"
        rf"(?P<label>{'|'.join(words)})[ *_`\"')\]]*(?:{separator})"
    )


_COLON = r"(?P<colon>:)|(?<=[ *_])is\b ?:?"
# In code "verdict = accept" is an assignment, so that other words take no equals sign.
OTHER_SEPARATOR = _COLON + r"|(?<=[ *_])- |->|=>|→|\||$"
DECISION = re.compile(beginning(["decision"], _COLON + r"|[-=]>?|→|$"), re.IGNORECASE)
VERDICT = re.compile(beginning(WORDS[1:], OTHER_SEPARATOR), re.IGNORECASE)

_CROSS = set(CROSSES)
_APART = set("`\"'([{")  # before a label they set the line apart, like somebody's words
_MOST = 100  # lines that begin like a decision

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
    r"|[ *_#>\[-]*(?:expert|prover|opponent)[ _]?[0-9]{0,2}[ *_\]]*$"
    r"|.*<(?:blockquote|quote|q|cite|pre|code|del|s|strike|(?:expert|prover)\w{0,3})(?: [^>]*)?>$",
    re.IGNORECASE,
)
_SUPPOSITION = re.compile(
    r"[ *_#-]{0,9}(?:if|unless|suppose|assuming)\b.*(?:[,:;]|\bthen)$"
    r"|.*\b(?:examples?|options?)(?: (?:is|are))? ?:$"
    r"|.*\b(?:wants?|wanted|expects?|writes?|say|(?:sample|example|expected)(?: [a-z]+)?)$",
    re.IGNORECASE,
)
# What ends with a colon introduces the agent's own words only if it says so.
_HEADING = re.compile(
    rf"[ *_#>-]{{0,9}}{NUMBERING}"
    r"(?:(?:the|my|our|final|overall|brief|short|step|verifier(?:'s)?|assistant)"
    r"[ *_:]{1,3}){0,3}"
    r"(?:[0-9]{1,2}|answer|verdict|conclusion|decision|summary|result|output|response|judge?ment"
    r"|reasoning|reasons?|analysis|assessment|evaluation|explanation|justification|review"
    r"|thoughts?|therefore|thus|hence|so|finally|overall|in conclusion|in summary|to conclude"
    r"|verifier|assistant)[^a-z]{0,9}:?$",
    re.IGNORECASE,
)
_OWN_WORDS = re.compile(r"\b(?:my|i|we|our|i'll|i've|i'm|we'll|here is|here's)\b", re.IGNORECASE)
_NOT_OWN = re.compile(
    r"\b(?:not (?:my|our|what)|never|cannot|would|could|should|might|may|can|either|if|supposed"
    r"|asked|told|instructed|allowed|want|wants|wanted|expect(?:s|ed)?|write|type|output|quote"
    r"|instructions?|refuse|examples?|options?)\b",
    re.IGNORECASE,
)
_LOOKED_AT = 400  # characters of the line before a decision


@dataclass(frozen=True)
class LabelledLine:
    """A line with a label and, in it or in the next one, a verdict."""

    first: int  # its index
    last: int  # and that of the line with its verdict
    label: str  # in lower case
    rest: str  # what follows the label
    is_apart: bool  # in quotation marks, brackets or backticks


def labelled_lines(
    lines: AnswerLines,
    reader: VerdictReader,
    begins: re.Pattern[str],
    words: Sequence[str],
    own: int,
) -> list[LabelledLine]:
    """The lines from line `own` on that begin so. `words` are those that `begins` may find.

    Raises InvalidDecision if there are too many.
    """
    candidates = {i: line for word in words for i, line in lines.free_with(word) if i >= own}
    labelled: list[LabelledLine] = []
    seen = 0
    for i in sorted(candidates):
        line = candidates[i]
        start = begins.match(line)
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
                if lines.free[below] and (again := begins.match(rest)) and again["colon"]:
                    continue  # a heading of the decision
        if start["colon"] is None and not reader.begins(rest):
            continue  # "the decision is hard": talk
        if not _CROSS.isdisjoint(start["lead"]):
            rest = f"❌ {rest}"
        is_apart = not _APART.isdisjoint(start["lead"])
        if is_apart and not reader.is_exactly(rest):
            continue
        labelled.append(LabelledLine(i, last, start["label"].lower(), rest, is_apart))
    return labelled


def is_introduced(lines: AnswerLines, first: int) -> bool:
    """Whether the line before `first` says that somebody else decides so, or that nobody does."""
    before, said = lines.next_filled(first - 1, -1), ""
    while before is not None:
        said = plain(lines.read[before])[-_LOOKED_AT:].rstrip("*_` ")
        if not _OWN_ANSWER.match(said):
            break
        before, said = lines.next_filled(before - 1, -1), ""
    if _SUPPOSITION.match(said) or _LABEL.match(said):
        return True
    said_by = _INTRODUCTION.search(said)
    if said_by is not None and _SPEAKS_ITSELF.search(said_by["speaker"]) is None:
        return True
    if not said.endswith(":") or _HEADING.match(said):
        return False
    return _OWN_WORDS.search(said) is None or _NOT_OWN.search(said) is not None


def in_quotations(lines: AnswerLines) -> set[int]:
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
