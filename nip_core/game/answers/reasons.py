"""Why an answer is asked for again: a small set of kinds, from its record.

A kind follows from an answer's columns in the tables: the reason in words, why it ended, the text.
So it is no column of its own, and runs of earlier versions are counted by the same kinds.
"""

import re
from typing import Literal

Kind = Literal[
    "no_decision",
    "two_verdicts",
    "taken_back",
    "not_own",
    "json",
    "unclear",
    "cut_off",
    "empty",
    "missing_part",
    "used_up",
    "bad_call",
    "other",
]

NO_DECISION_GIVEN = "no decision, where nothing else is of use"
NO_CONTENT = "no content"
EMPTY = "empty answer"
USED_UP = "a call of a tool of which no use is left"

KINDS: dict[Kind, str] = {
    "no_decision": "no decision where one was due",
    "two_verdicts": "more than one verdict",
    "taken_back": "a verdict that is negated, asked, doubted or taken back",
    "not_own": "a decision that may be somebody else's words",
    "json": "JSON without a clear verdict",
    "unclear": "no clear verdict",
    "cut_off": "cut off by the token limit",
    "empty": "empty",
    "missing_part": "a part for somebody is missing",
    "used_up": "a call of a tool that was used up",
    "bad_call": "a call of a tool that can't be read",
    "other": "other reasons",
}
"""The meaning of each kind, in the order in which they are shown."""

_OF_DECISIONS = frozenset(
    {"no_decision", "two_verdicts", "taken_back", "not_own", "json", "unclear"}
)
_BY_BEGINNING: tuple[tuple[Kind, str], ...] = (
    ("no_decision", re.escape(NO_DECISION_GIVEN)),
    ("empty", f"{EMPTY}|{NO_CONTENT}"),
    ("cut_off", "the thinking does not end"),
    ("used_up", re.escape(USED_UP)),
    ("bad_call", "a call (?:of|without|whose) "),
    ("missing_part", "no part that begins|two parts that begin|an empty part that begins"),
    (
        "two_verdicts",
        "two contradicting decisions|decision with (?:a second answer|another number)",
    ),
    ("taken_back", "a decision that is taken back|a verdict before a question"),
    (
        "taken_back",
        "decision with (?:its contrary|struck-out letters"
        "|a (?:question mark|negation|doubt|retraction|condition|cross))",
    ),
    ("not_own", "a decision that the line before it gives|a decision in a quotation"),
    ("unclear", "invalid decision|decision with |a verdict |more than [0-9]+ lines that begin"),
)
_JSON = re.compile(r"^\s*(?:```\w*\s*)?\{|\}\s*(?:```)?\s*$")
_PATTERNS = [(kind, re.compile(beginning)) for kind, beginning in _BY_BEGINNING]


def sort_reason(reason: str, finish_reason: str = "stop", text: str = "") -> Kind:
    """Sort an invalid answer by its `invalid_reason` and its `finish_reason`.

    An answer that was cut off has this kind, even with another fault before the cut.
    """
    if finish_reason == "length":
        return "cut_off"
    for kind, pattern in _PATTERNS:
        if pattern.match(reason):
            return "json" if kind == "unclear" and _JSON.search(text) else kind
    return "other"


def is_about_decision(kind: str) -> bool:
    """Tell whether a verdict could not be read."""
    return kind in _OF_DECISIONS
