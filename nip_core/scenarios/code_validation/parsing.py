"""From what a model wrote to a message or a decision.

Only a verifier decides. A decision is a line that starts with "Decision:" (markup, case and
spacing aside, an introduction such as "my final" allowed) and goes on with accept or reject;
quoted lines ("> Decision: accept") and sentences that mention a decision are messages.
"""

import re

from nip_core.protocols import ACCEPT, NO_DECISION, REJECT, Move

_MARKUP = r"[\s*_`#~\"']*"
_LINE = re.compile(
    rf"^{_MARKUP}(?:(?:so|thus|hence|therefore)\b,?\s*)?(?:(?:my|the)\s+)?(?:final\s+)?"
    rf"decision{_MARKUP}(?::|：|\s+is\b\s*:?){_MARKUP}(?P<verdict>[^\n]*)$",
    re.IGNORECASE | re.MULTILINE,
)
_VERDICT = re.compile(r"(accept|reject)(?:ed|s|ing)?\b", re.IGNORECASE)
_OTHER_VERDICT = re.compile(r"\b(?:decision\W+)(accept|reject)", re.IGNORECASE)


class InvalidResponse(ValueError):
    """The answer has no valid form; `reason` says why in a few words."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


def parse_response(text: str, channels: tuple[str, ...], may_decide: bool) -> Move:
    """The move in `text` by an agent that writes to `channels`.

    Raises InvalidResponse for an empty answer and for a decision that is none, or is two.
    """
    if may_decide:
        decision = parse_decision(text)
        if decision != NO_DECISION:
            return Move(decision=decision)
    message = text.strip()
    if not message:
        raise InvalidResponse("empty answer")
    if len(channels) != 1:
        raise NotImplementedError("several channels for one agent in one round")
    return Move(messages={channels[0]: message})


def parse_decision(text: str) -> int:
    """REJECT, ACCEPT, or NO_DECISION where the text has no decision line."""
    verdicts: set[str] = set()
    for line in _LINE.finditer(text):
        rest = line["verdict"]
        verdict = _VERDICT.match(rest)
        if verdict is None:
            raise InvalidResponse(f"invalid decision {rest.strip()[:40]!r}")
        verdicts.add(verdict[1].lower())
        verdicts.update(other.lower() for other in _OTHER_VERDICT.findall(rest))
    if len(verdicts) > 1:
        raise InvalidResponse("two contradicting decisions")
    if not verdicts:
        return NO_DECISION
    return ACCEPT if verdicts == {"accept"} else REJECT
