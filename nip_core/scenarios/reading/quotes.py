"""Quotes in what provers say, checked against the passage.

marked          a message with its quotes marked as verified or not
count_quotes    how many of its quotes are verified, and how many there are
"""

import re
from functools import lru_cache

VERIFIED, UNVERIFIED = "v_quote", "u_quote"

# Every repetition is bounded, so that no message takes long.
_NAME = r"[vu][\s\\]{0,3}_[\s\\]{0,3}quote"
_TAG = rf"(?:<|&lt;)\s{{0,3}}(?P<end>/?)\s{{0,3}}(?:{_NAME}|quote)\b[^<>&]{{0,100}}(?:>|&gt;)"
_TOKEN = re.compile(rf"(?P<tag>{_TAG})|{_NAME}", re.IGNORECASE)
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_WITHOUT_WIDTH = dict.fromkeys([0xAD, *range(0x200B, 0x2010), *range(0x2060, 0x2065), 0xFEFF])


def marked(message: str, passage: str) -> str:
    """The message with each ``<quote>...</quote>`` marked as verified or not.

    A quote is verified if its words stand in the passage as they are; white space counts as one
    space. It can't begin or end within a word. Of nested quotes the innermost is checked; a tag
    without a partner stays a plain one, which marks nothing. Marks that stand in the message
    itself are quotes like others, however they are written, so that nobody can set one.
    """
    message = message.translate(_WITHOUT_WIDTH)
    parts: list[str] = []
    opened: int | None = None
    at = 0
    # Full width counts as ASCII where tags are looked for, and stays as it is elsewhere.
    for token in _TOKEN.finditer(message.translate(_FULL_WIDTH)):
        parts.append(message[at : token.start()])
        at = token.end()
        if not token["tag"]:
            parts.append("-quote")  # which makes no mark with what stands before it either
        elif not token["end"]:
            opened = len(parts)
            parts.append("<quote>")
        elif opened is None:
            parts.append("</quote>")
        else:
            quote = "".join(parts[opened + 1 :])
            mark = VERIFIED if _stands_in(quote, passage) else UNVERIFIED
            parts[opened] = f"<{mark}>"
            parts.append(f"</{mark}>")
            opened = None
    parts.append(message[at:])
    return "".join(parts)


def count_quotes(message: str, passage: str) -> tuple[int, int]:
    """Count the message's quotes that are verified, and all of them."""
    text = marked(message, passage)
    verified = text.count(f"<{VERIFIED}>")
    return verified, verified + text.count(f"<{UNVERIFIED}>")


@lru_cache(maxsize=4096)
def _stands_in(quote: str, passage: str) -> bool:
    words, text = _in_one_line(quote), _in_one_line(passage)
    if not any(map(str.isalnum, words)):
        return False
    at = text.find(words)
    while at >= 0:
        if not (_cuts_word(text, at) or _cuts_word(text, at + len(words))):
            return True
        at = text.find(words, at + 1)
    return False


@lru_cache(maxsize=256)
def _in_one_line(text: str) -> str:
    return " ".join(text.translate(_WITHOUT_WIDTH).split())


def _cuts_word(text: str, place: int) -> bool:
    """Tell whether `place` lies within a word, in scripts that have cases or in a number."""
    around = text[place - 1 : place + 1] if place else ""
    return len(around) == 2 and all(c.isdigit() or c.lower() != c.upper() for c in around)
