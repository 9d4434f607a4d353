"""Lines that begin with "Decision:" or another label of a verdict, and the speaker of each.

`decisions` reads the words behind a label, lines come from `answer_lines`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nip_core.game.answers.answer_lines import NUMBERING, AnswerLines, Start, begins_question
from nip_core.game.answers.decisions import (
    CROSSES,
    TICKS,
    InvalidDecision,
    VerdictReader,
    any_case,
    is_blank,
    strip_decoration,
)

_GAP = r"[ *_]{1,6}"
_ADJECTIVE = r"(?:final|overall|new|revised|updated|corrected|correct)"
WORDS = (
    *("decision", "verdict", "conclusion", "judgment", "judgement", "ruling", "determination"),
    *("assessment", "evaluation", "recommendation", "outcome", "result", "answer", "response"),
    *("choice", "vote", "rating", "score"),
)
"""Labels of a verdict, in lower case."""


def write_beginning(words: Sequence[str], separator: str, lead: str = "*") -> str:
    """Write the pattern of a line's beginning, for labels of `words`.

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
_DECISION = any_case(write_beginning(["decision"], _COLON + r"|[-=]>?|→|$"))
_VERDICT = any_case(write_beginning(WORDS[1:], OTHER_SEPARATOR))

_CROSS = set(CROSSES)
_APART = set("`\"'([{")  # before a label they set the line apart, like a quotation
_MOST = 100  # lines that begin like a decision

_INTRODUCTION = any_case(
    r"(?P<speaker>(?:[a-z'_0-9]+ ){0,3})(?:(?:wrote|writes?|written|said|says?|claims?|claimed"
    r"|answers?|answered|states?|stated|told|replied|replies|concludes?|concluded|quotes?|quoted)"
    r"\b[^.!?]{0,60}:|(?:wrote|writes?|said|says?|claimed|stated))$"
)
_OWN_ANSWER = any_case(
    r"[ *_#-]{0,9}(?:so |thus,? |therefore,? )?(?:my |the )?(?:final )?answer(?: is)?[ *_]*:?$"
    r"|[ *_#-]{0,9}(?:after|based on|considering|given|having)\b.*, (?:here is |here's )?"
    r"(?:my (?:final )?(?:decision|answer|conclusion)(?: is)?|i (?:conclude|decide)) ?:$"
)
_SPEAKS_ITSELF = any_case(
    r"(?:i|we|i'll|we'll)(?! (?:not|never|would|could|should|might)\b)(?: [a-z]+)? $"
)
_LABEL = any_case(
    r"[ *_#>-]*(?:the )?(?:expert|prover|opponent|simulator|user|human|you|he|she|they|quote)"
    r"[ _]?[0-9]{0,2}[ *_]*:$"
    r"|[ *_#>\[-]*(?:expert|prover|opponent)[ _]?[0-9]{0,2}[ *_\]]*$"
    r"|.*<(?:blockquote|quote|q|cite|pre|code|del|s|strike|(?:expert|prover)\w{0,3})(?: [^>]*)?>$"
)
_SUPPOSITION = any_case(
    r"[ *_#-]{0,9}(?:if|unless|suppose|assuming)\b.*(?:[,:;]|\bthen)$"
    r"|.*\b(?:examples?|options?)(?: (?:is|are))? ?:$"
    r"|.*\b(?:wants?|wanted|expects?|writes?|say|(?:sample|example|expected)(?: [a-z]+)?)$"
)
# A line that ends with a colon introduces the agent's own words only if it says so.
_HEADING = any_case(
    rf"[ *_#>-]{{0,9}}{NUMBERING}"
    r"(?:(?:the|my|our|final|overall|brief|short|step|verifier(?:'s)?|assistant)"
    r"[ *_:]{1,3}){0,3}"
    r"(?:[0-9]{1,2}|answer|verdict|conclusion|decision|summary|result|output|response|judge?ment"
    r"|reasoning|reasons?|analysis|assessment|evaluation|explanation|justification|review"
    r"|thoughts?|therefore|thus|hence|so|finally|overall|in conclusion|in summary|to conclude"
    r"|verifier|assistant)[^a-z]{0,9}:?$"
)
_OWN_WORDS = any_case(r"\b(?:my|i|we|our|i'll|i've|i'm|we'll|here is|here's)\b")
_NOT_OWN = any_case(
    r"\b(?:not (?:my|our|what)|never|cannot|would|could|should|might|may|can|either|if|supposed"
    r"|asked|told|instructed|allowed|want|wants|wanted|expect(?:s|ed)?|write|type|output|quote"
    r"|instructions?|refuse|examples?|options?)\b"
)
_LOOKED_AT = 400  # characters of the line before a decision


class Answer:
    """The text that is read for verdicts: an answer's lines from line `begin` on, and the scale.

    whole      all of it, as it was written
    filled     the lines with more than markup
    questions  those, outside of quotations, that begin with "Question:"
    """

    def __init__(
        self, lines: AnswerLines, reader: VerdictReader, begin: int, starts: Mapping[int, Start]
    ):
        """Take what stands before `begin` for reasoning; at `starts` parts for others begin."""
        self.lines, self.reader, self.begin, self.starts = lines, reader, begin, starts
        self.whole = "\n".join(lines.raw[begin:]).strip()
        self.filled = [i for i in lines.filled if i >= begin]
        free = (i for i in self.filled if lines.free[i])
        self.questions = [i for i in free if begins_question(strip_decoration(lines.read[i]))]

    def free_with(self, *words: str) -> list[tuple[int, str]]:
        """Find lines with one of some words, quotations aside: their index and plain text."""
        return [(i, line) for i, line in self.lines.free_with(*words) if i >= self.begin]

    def consists_of(self, *lines: int) -> bool:
        """Tell whether it begins and ends with some of these lines, and so is nothing else."""
        return {*self.filled[:1], *self.filled[-1:]} <= {*lines}


@dataclass(frozen=True)
class LabelledLine:
    """A line with a label and, in it or in the next one, a verdict."""

    first: int  # its index
    last: int  # and the line with its verdict
    label: str  # in lower case
    rest: str  # the words behind the label
    is_apart: bool  # in quotation marks, brackets or backticks


def find_labelled_lines(answer: Answer, *, decisions: bool) -> list[LabelledLine]:
    """Find the lines with "Decision:" first, or else with another label.

    Raises InvalidDecision if there are too many.
    """
    lines, reader = answer.lines, answer.reader
    pattern = _DECISION if decisions else _VERDICT
    labelled: list[LabelledLine] = []
    count = 0
    for i, line in answer.free_with(*(WORDS[:1] if decisions else WORDS[1:])):
        start = pattern.match(line)
        if start is None:
            continue
        count += 1
        if count > _MOST:
            raise InvalidDecision(f"more than {_MOST} lines that begin like a decision")
        # 1. The verdict may stand in the next line.
        last, remainder = i, line[start.end() :].strip()
        if is_blank(remainder) and (next_line := lines.filled_from(i + 1)) is not None:
            last, remainder = next_line, strip_decoration(lines.read[next_line])
            second = pattern.match(remainder) if lines.free[next_line] else None
            if second and second["colon"]:
                continue  # a heading of the decision
        if start["colon"] is None and not reader.begins(remainder):
            continue  # "the decision is hard": talk
        # 2. Signs before the label belong to the verdict; quotation marks go around both.
        if not _CROSS.isdisjoint(start["lead"]):
            remainder = f"❌ {remainder}"
        is_apart = not _APART.isdisjoint(start["lead"])
        if not is_apart or reader.is_exactly(remainder):
            labelled.append(LabelledLine(i, last, start["label"].lower(), remainder, is_apart))
    return labelled


def is_introduced(lines: AnswerLines, first: int) -> bool:
    """Say whether the line before `first` gives the decision to another player, or to none."""
    lines_above = (
        strip_decoration(lines.read[i])[-_LOOKED_AT:].rstrip("*_` ")
        for i in lines.filled_above(first)
    )
    introduction = next((line for line in lines_above if not _OWN_ANSWER.match(line)), "")
    if _SUPPOSITION.match(introduction) or _LABEL.match(introduction):
        return True
    reported = _INTRODUCTION.search(introduction)
    if reported is not None and _SPEAKS_ITSELF.search(reported["speaker"]) is None:
        return True
    if not introduction.endswith(":") or _HEADING.match(introduction):
        return False
    return _OWN_WORDS.search(introduction) is None or _NOT_OWN.search(introduction) is not None
