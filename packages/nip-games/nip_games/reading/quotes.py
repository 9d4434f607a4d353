"""Quotes in provers' messages, checked against the passage.

mark_quotes   a message with its quotes marked as verified or not
count_quotes  how many of its quotes are verified, and how many there are

Marks are looked for in the message as it looks (`spellings`), so that none can be faked by how it
is written.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from nip_games.reading.spellings import CLOSES, OPENS, fold

VERIFIED, UNVERIFIED = "v_quote", "u_quote"

# Every repetition is bounded, so that no message takes long.
_OTHER = r"[^\x00-\x7f\ue000\ue001]"  # a letter or sign that looks like none of a mark's
_BETWEEN = r"[\s\\*`~$^{}()|.:=+'\"\-]{0,3}"  # white space and markup between two letters
_QUOTE = _BETWEEN.join(f"(?:{letter}|{_OTHER})" for letter in ("q", "u", "[o0]", "t", "[e3]"))
_LINE = rf"{_BETWEEN}_{_BETWEEN}"
_NAME = rf"(?:[vu]{{0,5}}(?:[vu]|{_OTHER}){_LINE}){{1,4}}{_QUOTE}"
_LOOSE = rf"(?:{_NAME}|(?:[vu][\s\\_.\-~:=|*'\"`$^{{}}()+]{{0,4}}){{1,4}}{_QUOTE}|quote)\b"
_END = r"[\s\\]{0,3}(?P<end%d>/?)[\s\\]{0,3}"
_TAG = (
    rf"<{_END % 1}(?P<name1>{_LOOSE})[^<>&]{{0,100}}>"
    rf"|{OPENS}{_END % 2}(?P<name2>{_LOOSE})[^<>&{OPENS}{CLOSES}]{{0,100}}[>{CLOSES}]"
)
_BEGINS = r"(?=[<vu]|[^\x00-\x7f])"  # for speed alone
_TOKEN = re.compile(rf"{_BEGINS}(?:(?P<tag>{_TAG})|(?P<name>{_NAME}))", re.IGNORECASE)
_LEAST = 3  # of the six letters of a mark's name are these letters, or look like them
_TURNING = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]  # a mark may be written backwards
_UNSEEN = [0xAD, *range(0x200B, 0x2010), *_TURNING, *range(0x2060, 0x2065), 0xFEFF]
_TAG_CHARACTERS = [0xE0001, *range(0xE0020, 0xE0080)]  # invisible letters in ASCII
_WITHOUT_UNSEEN = dict.fromkeys([*_UNSEEN, *_TAG_CHARACTERS])


def mark_quotes(message: str, passage: str) -> str:
    """The message with each ``<quote>...</quote>`` marked as verified or not.

    A quote is verified if its words stand in the passage as they are; white space counts as one
    space. It can't begin or end within a word. Of nested quotes the innermost is checked; a tag
    without a partner stays a plain one, which marks nothing. Marks that stand in the message
    itself are quotes like others, however they are written, so that no agent can set one.
    """
    message = message.translate(_WITHOUT_UNSEEN)
    parts: list[str] = []
    opened: int | None = None
    index = 0
    for start, end, tag in _tokens(message):
        parts.append(message[index:start])
        index = end
        if tag is None:
            parts.append("-quote")  # which makes no mark with the text before it either
        elif not tag:
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
    parts.append(message[index:])
    return "".join(parts)


def _tokens(message: str) -> Iterator[tuple[int, int, str | None]]:
    """From where to where there is a tag or a mark's name, and "", "/" or None for a name alone."""
    looks = fold(message)
    index = 0
    while (token := _TOKEN.search(looks.text, index)) is not None:
        name = token["name"] or token["name1"] or token["name2"]
        if sum(c.isascii() and c.isalnum() for c in name) < _LEAST:
            index = token.start() + 1
            continue
        index = token.end()
        tag = None if token["name"] else token["end1"] or token["end2"] or ""
        yield *looks.span(token.start(), index), tag


def count_quotes(message: str, passage: str) -> tuple[int, int]:
    """Count the message's verified quotes, and all of them."""
    text = mark_quotes(message, passage)
    verified = text.count(f"<{VERIFIED}>")
    return verified, verified + text.count(f"<{UNVERIFIED}>")


@lru_cache(maxsize=4096)
def _stands_in(quote: str, passage: str) -> bool:
    words, text = _in_one_line(quote), _in_one_line(passage)
    if not any(map(str.isalnum, words)):
        return False
    index = text.find(words)
    while index >= 0:
        if not (_cuts_word(text, index) or _cuts_word(text, index + len(words))):
            return True
        index = text.find(words, index + 1)
    return False


@lru_cache(maxsize=256)
def _in_one_line(text: str) -> str:
    return " ".join(text.translate(_WITHOUT_UNSEEN).split())


def _cuts_word(text: str, place: int) -> bool:
    """Tell whether `place` lies within a number, or a word of a script with cases."""
    neighbours = text[place - 1 : place + 1] if place else ""
    return len(neighbours) == 2 and all(c.isdigit() or c.lower() != c.upper() for c in neighbours)
