"""Which form a scenario's words must have, so that prompts made of them are English sentences.

The prompts of versions "v3" and "v4" are right for all words of these forms. Prompts of earlier
versions are not right for all, and took any; scenarios that were played in them are not refused.
"""

import re
from collections.abc import Callable

from nip_core.scenarios.base import Words

_ARTICLES = ("a", "an", "the")
_ASKING = ("whether", "which", "what", "how", "who", "whose", "where", "when", "why")
_VERBS = ("is", "are", "was", "were", "has", "have", "does", "do", "can", "will", "not")
_BEGINNINGS = re.compile(
    r"(A|An|The|This|That|These|Those|It|They|There|Each|Every|All|Both|No|One|Some|Any|If"
    r"|Whether|What|Which|Who)\b"
)
"""Words with which a sentence begins, so that they tell one from a part of a sentence."""


def check_words(words: Words, kind: str) -> None:
    """Raise ValueError, naming class and field, for words that fit into no sentence of a prompt."""
    for name, check in _CHECKS.items():
        text = getattr(words, name)
        if text == "" and name in _OPTIONAL:
            continue
        reason = _say_unfit(text) or check(text)
        if reason:
            raise ValueError(f"{kind}.words.{name} {reason} (got {text!r:.80})")
    for name in ("labels", "stances"):
        for text in getattr(words, name):
            reason = _say_unfit(text) if text or name == "labels" else ""
            if reason:
                raise ValueError(f"{kind}.words.{name} {reason} (got {text!r:.80})")


def _say_unfit(text: object) -> str:
    if not isinstance(text, str) or not text.strip():
        return "must be a text"
    if text != text.strip() or "\n" in text:
        return "must be one line, without space around it"
    return ""


def _say_of_who(text: str) -> str:
    if _first(text) not in _ARTICLES or _ends(text):
        return 'stands in "You are ... who takes part in a test": begin it with "a", "an" or "the"'
    return ""


def _say_of_thing(text: str) -> str:
    if _first(text).lower() in _ARTICLES or _ends(text):
        return 'stands after "the": write a noun without an article, such as "solution"'
    return ""


def _say_of_clause(text: str) -> str:
    is_whole = _BEGINNINGS.match(text) or _ends(text) or _first(text) in (*_ASKING, *_VERBS, "if")
    if is_whole or len(text.split()) < 2:
        return (
            'stands after "whether" and "if": write a clause without a capital and without a full '
            'stop, such as "the solution is correct"'
        )
    return ""


def _say_of_sentence(text: str) -> str:
    if not text.endswith((".", "!", "?")) or text[0].islower():
        return "is a sentence: begin it with a capital and end it with a full stop"
    return ""


def _say_of_beginning(text: str) -> str:
    if _ends(text) or text[0].islower():
        return 'is a sentence\'s beginning, before ", and": a capital, and no full stop'
    return ""


def _say_of_noun(text: str) -> str:
    if _BEGINNINGS.match(text) or _ends(text):
        return 'stands within a sentence: write it without a capital, such as "the code"'
    return ""


def _say_of_question(text: str) -> str:
    if _first(text) not in _ASKING or _ends(text):
        return 'stands after "The expert says": begin it with "whether", "which" or the like'
    return ""


def _first(text: str) -> str:
    return text.split(maxsplit=1)[0]


def _ends(text: str) -> bool:
    return text.endswith((".", "!", "?", ",", ";", ":"))


_CHECKS: dict[str, Callable[[str], str]] = {
    "expert": _say_of_who,
    "thing": _say_of_thing,
    "claim": _say_of_clause,
    "full_claim": _say_of_clause,
    "correct": _say_of_clause,
    "correct_in_short": _say_of_clause,
    "doubt": _say_of_sentence,
    "open_claim": _say_of_beginning,
    "evidence": _say_of_noun,
    "source": _say_of_noun,
    "materials": _say_of_noun,
    "asked_in_short": _say_of_question,
}
_OPTIONAL = ("source", "full_claim", "correct_in_short", "open_claim", "materials")
