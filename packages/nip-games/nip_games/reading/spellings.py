"""Texts as they look: marks are looked for in these, however they are spelt.

Folded  a text in plain letters, and where each of them stands in the text
fold    makes one

Invisible characters fall away (those that are ignorable or only combine, control and private ones,
comments, tags of emphasis and the like), entities and escapes become the text that they stand for,
compatible forms are their letters (NFKD), letters with a stroke or a hook or in a box are the
letter of their name, and a character that Unicode lists as confusable with a letter of a mark is
that letter. Other letters and signs stay, other punctuation becomes a comma. A folded text is there
to look for marks, and for nothing else.
"""

import html
import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

OPENS, CLOSES = "\ue000", "\ue001"
"""Brackets that look like ``<`` and ``>``; they count as such in the tags of marks alone."""

# Unicode's confusables.txt (UTS #39) for these letters, as the package confusable-homoglyphs 3.3.1
# has it, but for those that NFKD or their name makes plain; a few that it misses are the last ones.
_LOOK_LIKE = {
    "v": "νѵ∨⋁ꮩ𑜆𑣀Ѵ۷Ꮩᐯⴸꓦꛟ𐔝𑢠𖼈𝈍ʌ√",
    "u": "ʋυսꞟ𑣘ՍሀᑌЏ∪⋃𑢸𖽂",
    "q": "ԛգզⵕϙ",
    "o": "οσօ۵०੦૦௦ం౦ಂ೦ംഠ൦ං๐໐ဝ၀ჿᴑ𐐬𑣈𑣗ΟՕ০ଠ୦ዐⵔ〇𐊒𐐄𑓐𑢵𑣠🯰",
    "t": "ΤТᎢ⊤⟙Ⲧꓔ𐊱𐌕𑢼𖼊🝨τт",
    "e": "еҽ℮ΕЕᎬ⋿ⴹ𐊆𑢦𑢮εєэ",
    "/": "᜵⁁⁄∕╱⟋⧸Ⳇノ㇓丿𝈺〳",
    "_": "ˍ▁⎯",
    OPENS: "˂ᐸᚲ‹❮𝈶⟨〈❬❰≺",
    CLOSES: "˃ᐳ›❯𖼿𝈷⟩〉❭❱≻",
    " ": "\u2800",
    "": "\u115f\u1160\u3164\ufffc\ufffd",
}
_PLAIN = {ord(look): plain for plain, looks in _LOOK_LIKE.items() for look in looks}
_NAMED = re.compile(r"(?:LETTER|CAPITAL) (?:SMALL CAPITAL |SMALL |CAPITAL )?([A-Z])(?: WITH .*)?$")
_UNSEEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Mn", "Me", "Mc"}
_CODE = r"(?:\#0{0,4}38|\#x0{0,4}26|amp);?"  # an ampersand, in an entity of an entity
_WITHIN = r"(?:(?![%&<>_\\])[\s!-~]){0,100}"  # so no mark's name is in there
_EMPTY = (
    r"/?(?:a|abbr|b|big|br|cite|code|del|div|em|font|i|ins|kbd|mark|p|s|samp|small|span|strike"
    rf"|strong|sub|sup|tt|u|var|wbr)(?:[\s/]{_WITHIN})?"
)
_ODD = re.compile(
    rf"&(?:{_CODE}){{0,3}}"
    r"(?:\#\d{1,7};?|\#x[0-9a-f]{1,6};?|[a-z][a-z0-9]{1,31};|lt|gt|shy|nbsp)"
    r"|%[2-7][0-9a-f]"
    r"|\\(?:x[0-9a-f]{2}|u0000[0-9a-f]{4}|u[0-9a-f]{4}|u\{[0-9a-f]{1,6}\})"
    r"|\\0?[0-7]{2,3}"
    rf"|<(?:!--{_WITHIN}--|{_EMPTY})>"
    r"|[^\t\n\r -~]",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Folded:
    """A text in plain letters."""

    text: str
    _places: tuple[tuple[int, ...], tuple[int, ...]] | None
    """Where each letter begins and ends in the text that was folded; None: where it stands."""

    def span(self, start: int, end: int) -> tuple[int, int]:
        """From where to where the letters from `start` to before `end` stood; `end` > `start`."""
        if self._places is None:
            return start, end
        starts, ends = self._places
        return starts[start], ends[end - 1]


def fold(text: str) -> Folded:
    """The text as it looks, in lower case where it was not plain."""
    if _ODD.search(text) is None:
        return Folded(text, None)
    letters: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    index = 0
    for odd in _ODD.finditer(text):
        plain = "".join(map(_plain, _meant(odd[0])))
        letters += [text[index : odd.start()], plain]
        starts += [*range(index, odd.start()), *[odd.start()] * len(plain)]
        ends += [*range(index + 1, odd.start() + 1), *[odd.end()] * len(plain)]
        index = odd.end()
    letters.append(text[index:])
    starts += range(index, len(text))
    ends += range(index + 1, len(text) + 1)
    return Folded("".join(letters), (tuple(starts), tuple(ends)))


@lru_cache(maxsize=1024)
def _meant(odd: str) -> str:
    """Decode an entity or an escape, leave out a comment or a tag; all else stays."""
    if odd[0] == "&":
        for _ in range(5):
            odd = html.unescape(odd)
        return odd
    if odd[0] == "<":
        return ""
    if odd[0] in "%\\" and len(odd) > 1:
        is_octal = odd[0] == "\\" and odd[1].isdigit()
        code = int(odd.lstrip("%\\xuU").strip("{}"), 8 if is_octal else 16)
        return chr(code) if code < 0x110000 else ""
    return odd


@lru_cache(maxsize=4096)
def _plain(character: str) -> str:
    return "".join(map(_letter, unicodedata.normalize("NFKD", character))).lower()


def _letter(character: str) -> str:
    """A letter as it looks; "" for an invisible one."""
    if character.isspace():
        return " "
    if " " <= character <= "~":
        return character
    if (plain := _PLAIN.get(ord(character))) is not None:
        return plain
    kind = unicodedata.category(character)
    if kind in _UNSEEN:
        return ""
    if kind in ("Pc", "Pd"):
        return "_" if kind == "Pc" else "-"
    match = _NAMED.search(unicodedata.name(character, ""))
    if match is not None:
        return match[1]
    return "," if kind[0] == "P" or kind in ("Sc", "Sk") else character
