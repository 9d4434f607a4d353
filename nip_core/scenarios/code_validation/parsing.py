"""From what a model wrote to a message or a decision.

Only a verifier decides. A decision is a line that starts with "Decision:" (markup, case and
spacing aside, an introduction such as "my final" allowed) and goes on with accept or reject, and
that does not name the other one as well. "Decision is" counts where a verdict follows. Quoted
lines ("> Decision: accept") and sentences that mention a decision are messages.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from nip_core.protocols import ACCEPT, NO_DECISION, REJECT, Move
from nip_core.protocols.scales import DecisionScale

_MARKUP = r"[\s*_`#~\"']*"
# What follows is only looked at, so that a line is never swallowed by the one before it.
_LINE = re.compile(
    rf"^{_MARKUP}(?:(?:so|thus|hence|therefore)\b,?\s*)?(?:(?:my|the)\s+)?(?:final\s+)?"
    rf"decision{_MARKUP}(?:[:：]|(?P<sentence>(?<=\s)is\b\s*:?)){_MARKUP}"
    r"(?=(?P<verdict>[^\n]*))",
    re.IGNORECASE | re.MULTILINE,
)
# "accepting" alone is a verdict, "accepting this would be wrong" is none.
_VERDICT = re.compile(
    r"(?:to\s+)?(?:(accept|reject)(?:ed|s)?\b(?!\s*\?)|(accept|reject)ing\b(?=\W*$))", re.IGNORECASE
)
_NEGATION = r"\b(?:not|never|cannot|\w+n['’]t)\s+(?:\w+\s+){0,2}?"
_NEGATED_VERDICT = re.compile(rf"(?:to\s+)?{_NEGATION}(?:accept|reject)", re.IGNORECASE)
_MENTIONED = re.compile(r"\b(accept|reject)(?:s|ed|ing|ance|ion)?\b", re.IGNORECASE)


class InvalidResponse(ValueError):
    """The answer has no valid form; `reason` says why in a few words."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class AnswerForm:
    """What form an answer must have."""

    channels: tuple[str, ...]  # that it is for
    headers: Mapping[str, str]  # by channel, what its part begins with; needed for several
    scale: DecisionScale | None  # answers of a decision; None: the agent may not decide
    has_reasoning: bool = False  # what stands before the message is the agent's own


def parse_response(text: str, form: AnswerForm) -> Move:
    """The move in `text`.

    Raises InvalidResponse for an empty answer, for one that lacks the part for a channel, and for
    a decision that is none, or is two.
    """
    if form.scale is not None:
        decision = parse_decision(text)
        if decision != NO_DECISION:
            return Move(decision=decision, value=1.0 if decision == ACCEPT else -1.0)
    message = text.strip()
    if not message:
        raise InvalidResponse("empty answer")
    if len(form.channels) == 1:
        return Move(messages={form.channels[0]: message})
    starts: dict[str, int] = {}
    for channel in form.channels:
        at = text.lower().find(form.headers[channel].lower())
        if at < 0:
            raise InvalidResponse(f"no part that begins with {form.headers[channel]!r}")
        starts[channel] = at
    ends = [*sorted(starts.values())[1:], len(text)]
    order = sorted(starts, key=starts.__getitem__)
    parts = {c: text[starts[c] : end].strip() for c, end in zip(order, ends, strict=True)}
    return Move(messages={channel: parts[channel] for channel in form.channels})


def parse_decision(text: str) -> int:
    """REJECT, ACCEPT, or NO_DECISION where the text has no decision line."""
    verdicts: set[str] = set()
    for line in _LINE.finditer(text):
        rest = line["verdict"].strip()
        if line["sentence"] and not (_VERDICT.match(rest) or _NEGATED_VERDICT.match(rest)):
            continue  # "the decision is hard": talk
        verdicts.add(_verdict(rest))
    if len(verdicts) > 1:
        raise InvalidResponse("two contradicting decisions")
    if not verdicts:
        return NO_DECISION
    return ACCEPT if verdicts == {"accept"} else REJECT


def _verdict(rest: str) -> str:
    """The one verdict, accept or reject, in what follows "Decision:"."""
    found = _VERDICT.match(rest)
    if found is None:
        raise InvalidResponse(f"invalid decision {rest[:40]!r}")
    verdict = (found[1] or found[2]).lower()
    if {word.lower() for word in _MENTIONED.findall(rest)} != {verdict}:
        raise InvalidResponse(f"decision with both verdicts {rest[:40]!r}")
    if re.search(_NEGATION + verdict, rest, re.IGNORECASE):
        raise InvalidResponse(f"decision with a negation {rest[:40]!r}")
    return verdict
