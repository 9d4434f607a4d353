"""Texts in a form in which answers can be compared: numbers, words, LaTeX, markup.

plain            a text without markup, LaTeX and typographic signs
split_tokens     its numbers, words and signs, in order
Number           a number as it stands in a text, and its value
read_numbers     all numbers of a text: digits, words, fractions, powers of ten
holds_reference  whether a text holds a reference in any of these forms

`holds_reference` errs towards yes: a text that only resembles the reference is not attacked with.
Number words are English; those of other languages are seen as numbers of no certain value.
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

_MINUS = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2212\ufe63\uff0d"), "-")
_QUOTES = {ord(a): b for a, b in zip("\u2018\u2019\u201c\u201d", "''\"\"", strict=True)}
_UNSEEN = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u00ad"), None)
_SIGNS = _MINUS | _QUOTES | _UNSEEN
_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")
_WRAPPED = re.compile(
    r"\\(?:boxed|text|mathrm|mathbf|textbf|mbox|operatorname|fbox)\s*\{([^{}]*)\}"
)
_TIMES = re.compile(r"\\(?:times|cdot)(?![a-zA-Z])|[×·⋅]")
_LATEX_SPACE = re.compile(r"\\[,;:! ]|\\q?quad|~|\\left|\\right|\\[()\[\]]|\$")
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,]|\.\d+,)")
_SPACED = re.compile(r"(?<![\d.,])\d{1,3}(?:[\u00a0\u2009\u202f ]\d{3})+(?![\d,])")
_TOKEN = re.compile(r"\d+(?:\.\d+)?|\.\d+|[^\W\d_]+|[^\w\s]")
_DROPPED = frozenset("*#_`$\\{}\"'~|>,;:!?.()[]")
_NUMBER = re.compile(
    r"(?P<whole>\d+)\s+(?P<top>\d+)\s*/\s*(?P<under>\d+)(?![\d.])"
    r"|(?P<over>\d+(?:\.\d+)?|\.\d+)\s*/\s*(?P<below>\d+(?:\.\d+)?|\.\d+)"
    r"|(?P<figure>\d+(?:\.\d+)?|\d+\.(?!\d)|\.\d+)"
    r"(?:[eE](?P<power>[+-]?\d{1,3})(?!\w)|\s*[x*]\s*10\s*(?:\^|\*\*)\s*\{?(?P<ten>-?\d{1,3})\}?)?"
)
_TO_NINETEEN = """zero one two three four five six seven eight nine ten eleven twelve thirteen
fourteen fifteen sixteen seventeen eighteen nineteen"""
_TO_NINETY = "twenty thirty forty fifty sixty seventy eighty ninety"
_UNITS = {word: value for value, word in enumerate(_TO_NINETEEN.split())}
_TENS = {word: 10 * value for value, word in enumerate(_TO_NINETY.split(), start=2)}
_SCALES = {
    "hundred": 100,
    "thousand": 1000,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_LOOSE = {
    **{"half": Fraction(1, 2), "halves": Fraction(1, 2), "quarter": Fraction(1, 4)},
    **{"quarters": Fraction(1, 4), "third": Fraction(1, 3), "thirds": Fraction(1, 3)},
    **{"once": Fraction(1), "twice": Fraction(2), "thrice": Fraction(3), "dozen": Fraction(12)},
    **{"none": Fraction(0), "nothing": Fraction(0), "nil": Fraction(0), "pair": Fraction(2)},
    **{"single": Fraction(1), "double": Fraction(2), "both": Fraction(2), "triple": Fraction(3)},
}
"""Words that name a number loosely: they are held to hold it, and are no certain answer."""
_ELSEWHERE = """null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf
un deux trois quatre cinq sept huit neuf dix onze douze
uno dos tres cuatro cinco seis siete ocho nueve diez doce
due tre quattro cinque sei sette otto nove dieci"""
_FOREIGN = frozenset(_ELSEWHERE.split())
_ROMAN = re.compile(r"[IVXLCDM]{2,}|[VXLCDM]")
_LONGEST = 400  # characters of a number that is read: longer ones are compared as text


@dataclass(frozen=True)
class Number:
    """A number as it stands in a plain text."""

    value: Fraction
    start: int
    end: int
    is_percent: bool
    is_certain: bool
    """Whether nothing but the value is meant: not for words such as "half" or "twice"."""
    decimals: int
    """Digits behind the point; -1 for fractions and words."""


def plain(text: str) -> str:
    """Write a text without LaTeX commands, typographic signs and separators of thousands."""
    if not text.isascii():
        text = "".join(_write_numeral(character) for character in text).translate(_SIGNS)
        text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
    for _ in range(4):  # braces stand in braces
        text = _FRACTION.sub(_write_fraction, _WRAPPED.sub(r" \1 ", text))
    text = text.replace("{,}", ",").replace("\\%", "%")
    text = _LATEX_SPACE.sub(" ", _TIMES.sub("*", text))
    text = _COMMAND.sub(r" \1 ", text)
    text = _SPACED.sub(lambda match: re.sub(r"\s", "", match.group()), text)
    return _THOUSANDS.sub(lambda match: match.group().replace(",", ""), text)


def _write_numeral(character: str) -> str:
    """Write ½ and 七 in digits of this alphabet."""
    if character.isascii():
        return character
    value = unicodedata.numeric(character, None)
    if value is None:
        return character
    if unicodedata.decimal(character, None) is not None:
        return str(int(value))
    exact = Fraction(value).limit_denominator(1000)
    return f" {exact} "


def _write_fraction(match: re.Match[str]) -> str:
    top = match.group(1) if match.group(1) is not None else match.group(2)
    denominator = match.group(3) if match.group(3) is not None else match.group(4)
    return f" {_enclose(top)}/{_enclose(denominator)} "


def _enclose(part: str) -> str:
    return part.strip() if re.fullmatch(r"\s*[\w.]*\s*", part) else f"({part.strip()})"


def split_tokens(text: str) -> list[str]:
    """Split a text into numbers, words and signs, in small letters and without markup."""
    tokens = _TOKEN.findall(plain(text).casefold())
    return [token for token in tokens if token not in _DROPPED]


def read_numbers(text: str) -> list[Number]:
    """Read all numbers of a plain text, in their order."""
    numbers = [*_read_figures(text), *_read_words(text)]
    return sorted(numbers, key=lambda number: (number.start, -number.end))


def _read_figures(text: str) -> Iterator[Number]:
    for match in _NUMBER.finditer(text):
        if match.end() - match.start() > _LONGEST:
            continue
        groups = match.groupdict()
        decimals = -1
        try:
            if groups["whole"]:
                part = Fraction(int(groups["top"]), int(groups["under"]))
                value = int(groups["whole"]) + part
            elif groups["over"]:
                value = Fraction("0" + groups["over"]) / Fraction("0" + groups["below"])
            else:
                figure = groups["figure"].rstrip(".")
                power = int(groups["power"] or groups["ten"] or 0)
                value = Fraction("0" + figure) * Fraction(10) ** power
                decimals = max(0, len(figure.partition(".")[2]) - power)
        except ZeroDivisionError:
            continue
        head = text[: match.start()].rstrip()
        is_negative = head.endswith("-") and not re.search(r"[\w)]\s*-$", head)
        tail = text[match.end() : match.end() + 12]
        is_percent = bool(re.match(r"\s*(?:%|percent|per cent)", tail))
        start = match.start() - 1 if is_negative else match.start()
        yield Number(
            -value if is_negative else value, start, match.end(), is_percent, True, decimals
        )


def _read_words(text: str) -> Iterator[Number]:
    """Read number words: each run as one number, and each word of it where it has several."""
    run: list[re.Match[str]] = []
    words = [m for m in re.finditer(r"[^\W\d_]+", text)]
    for word in [*words, None]:
        if word is not None and _names_number(word.group().lower()):
            gap = text[run[-1].end() : word.start()] if run else ""
            if not run or re.fullmatch(r"[\s-]+(?:and\s+)?", gap):
                run.append(word)
                continue
        elif word is not None and run and word.group().lower() == "and":
            continue
        if run:
            yield from _read_run(text, run)
        run = [word] if word is not None and _names_number(word.group().lower()) else []


def _names_number(word: str) -> bool:
    return word in _UNITS or word in _TENS or word in _SCALES or word in _LOOSE


def _read_run(text: str, run: list[re.Match[str]]) -> Iterator[Number]:
    words = [match.group().lower() for match in run]
    head = text[: run[0].start()].rstrip().lower()
    sign = -1 if head.endswith(("minus", "negative")) else 1
    percent = bool(re.match(r"\s*(?:%|percent|per cent)", text[run[-1].end() :]))
    is_certain = not any(word in _LOOSE for word in words)
    total, part, last = Fraction(0), Fraction(0), 0
    for word in words:
        if word in _SCALES and word != "hundred":
            total, part, last = total + (part or 1) * _SCALES[word], Fraction(0), 0
        elif word == "hundred":
            part, last = (part or Fraction(1)) * 100, 100
        elif word in _LOOSE:
            part = (part or 1) * _LOOSE[word]
        else:
            small = _UNITS.get(word, _TENS.get(word, 0))
            is_certain = is_certain and (last == 0 or (last > small and last in _ENDS))
            part, last = part + small, 20 if word in _TENS else small
    yield Number(sign * (total + part), run[0].start(), run[-1].end(), percent, is_certain, -1)
    if len(words) > 1 and not is_certain:
        for match in run:
            word = match.group().lower()
            small_value = Fraction(_UNITS.get(word, _TENS.get(word, _SCALES.get(word, 0))))
            yield Number(
                _LOOSE.get(word, small_value), match.start(), match.end(), False, False, -1
            )


_ENDS = frozenset((20, 100))


def names_foreign_number(text: str) -> bool:
    """Tell whether a word of a plain text may be a number in another language, or a Roman one."""
    words = re.findall(r"[^\W\d_]+", text)
    return any(word.lower() in _FOREIGN or _ROMAN.fullmatch(word) for word in words)


def split_reference(reference: str) -> list[str]:
    """Split a reference into the answers that it may consist of, itself first."""
    parts = [reference.strip()]
    with_hashes = re.search(r"####\s*(\S.*)$", reference.strip(), re.MULTILINE)
    if with_hashes:
        parts.append(with_hashes.group(1).strip())
    parts += [match.group(1) for match in re.finditer(r"\\boxed\s*\{([^{}]+)\}", reference)]
    parts += re.findall(r"(?i)\banswer\s*(?:is|:|=)\s*(\S[^\n]*?)\.?\s*$", reference.strip())
    listed = read_list(reference)
    if listed:
        parts += listed
    return [part for part in dict.fromkeys(parts) if part]


def read_list(reference: str) -> list[str] | None:
    """Read a reference that is a list: in JSON, or by commas with spaces; None for no list."""
    text = reference.strip()
    if text.startswith("["):
        try:
            values = json.loads(text)
        except ValueError:
            values = None
        if (
            isinstance(values, list)
            and values
            and not any(isinstance(v, dict | list) for v in values)
        ):
            return [str(value) for value in values]
    text = text.strip("()[]{} ")
    parts = [part.strip() for part in re.split(r",\s+|;\s*|\s+and\s+", text) if part.strip()]
    if len(parts) > 1 and all(len(part.split()) <= 4 for part in parts):
        return parts
    return None


def holds_reference(text: str, reference: str) -> bool:
    """Tell whether a text holds the reference: in digits, words, LaTeX, or a part of a list.

    An empty reference is held by all texts: nothing could be shown not to meet it.
    """
    parts = split_reference(reference)
    return not parts or any(_holds(text, part) for part in parts)


@lru_cache(maxsize=512)
def _read(text: str) -> tuple[str, list[str], frozenset[Fraction]]:
    """Read a text once: attacks look for many references in the same few texts."""
    as_plain = plain(text)
    values = (value for number in read_numbers(as_plain) for value in _list_values(number))
    return as_plain, split_tokens(text), frozenset(values)


def _holds(text: str, part: str) -> bool:
    letter = re.fullmatch(r"\W*([A-Za-z])\W*", plain(part))
    if letter:
        return _holds_letter(_read(text)[0], letter.group(1))
    tokens = split_tokens(part)
    if not tokens:  # signs alone
        return part in text
    _, text_tokens, values = _read(text)
    if _stands_in(tokens, text_tokens):
        return True
    numbers = read_numbers(plain(part).strip())
    if len(numbers) == 1 or (numbers and len(re.findall(r"[^\W\d_]+", part)) <= 3):
        key_values = {value for number in numbers for value in _list_values(number)}
        return not key_values.isdisjoint(values)
    squeezed = "".join(tokens)
    return len(squeezed) > 5 and squeezed in "".join(text_tokens)


def _holds_letter(text: str, letter: str) -> bool:
    """Tell whether a letter stands by itself: not the article, nor the pronoun."""
    upper, lower = letter.upper(), letter.lower()
    if re.search(rf"(?<![\w'])(?:{lower}\)|\({lower}\)|{lower}\s*[.:]?\s*$)", text, re.MULTILINE):
        return True
    prose = r"(?!\s+[a-z])" if upper in "AI" else ""
    return bool(re.search(rf"(?<![\w']){upper}(?![\w'+]){prose}", text)) or bool(
        lower not in "ai" and re.search(rf"(?<![\w']){lower}(?![\w'])", text)
    )


def _stands_in(tokens: list[str], all_tokens: list[str]) -> bool:
    size = len(tokens)
    for start in range(len(all_tokens) - size + 1):
        part = all_tokens[start : start + size]
        if part[:-1] == tokens[:-1] and part[-1] in (tokens[-1], tokens[-1] + "s"):
            return True
    return False


def _list_values(number: Number) -> list[Fraction]:
    value = abs(number.value)
    return [value, value / 100] if number.is_percent else [value]
