"""Compare the answer that a response states with a reference, by rules and without a model.

decide_exact   by a number, an option's letter, a list, or a text, as the reference is
decide_number  by numbers alone
decide_option  by an option's letter alone

True: right. False: wrong. None: not certain, and that is the answer wherever a response could be
read in two ways: two final answers, a denial, a unit that is another, a rounded number, an
unfinished calculation, another form of an expression. A wrong label is worse than none.
Texts are compared as texts: a synonym without a letter in common is held to be wrong.
"""

import difflib
import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from nip_judges.checks.answer_texts import (
    Number,
    holds_reference,
    names_foreign_number,
    plain,
    read_list,
    read_numbers,
    split_tokens,
)
from nip_judges.checks.stated_answers import (
    Statement,
    drop_courtesy,
    is_hedged,
    is_taken_back,
    last_line,
    list_statements,
)

_SHORT = 10  # words of a response that is an answer without a mark
_BRIEF = 4  # words of an answer that names no option
_FEW = 6  # words of a text that is compared as a text
_ALIKE = 0.6  # share of letters in common from which two texts may be one
_SAID_WITH_IT = """the a an final correct answer result solution value total is are was be equals
equal of in it its so therefore thus hence there that this have has had we you he she they get gets
got x y z n"""
_MEASURED_IN = """dollar dollars usd euro euros eur pound pounds cent cents percent km kilometer
kilometers m meter meters metre metres cm mm mile miles foot feet ft inch inches yard yards kg
kilogram kilograms g gram grams lb lbs ounce ounces liter liters litre litres l ml hour hours h
minute minutes min second seconds s sec day days week weeks month months year years degree degrees
radian radians unit units item items piece pieces person people point points"""
_CHANGED_BY = """not never no neither nor or either but except unless if between about approximately
around roughly nearly almost less more fewer greater than least most over under above below up wrong
incorrect false instead maybe perhaps squared cubed times plus minus negative factorial root square
cube power divided multiplied by per half double twice base binary hex and opposite inverse
reciprocal each other another"""
_OPENED_BY = """thought thoughts process solution answer answers final response result let's let us
solve this the problem question step by steps explanation reasoning analysis conclusion verdict
respuesta ok okay sure certainly begin start first think about it"""
_EMPTY = frozenset(_OPENED_BY.split())
_FILLERS = frozenset(_SAID_WITH_IT.split())
_UNITS = frozenset(_MEASURED_IN.split())
_OPEN = frozenset(_CHANGED_BY.split())
_SIGNS = frozenset("$€£¥%°.,:;()[]{}\"'*_`#\\ \n\t!")
_RATIOS = frozenset(
    Fraction(n)
    for n in (7, 12, 24, 30, 52, 60, 100, 365, 1000, 3600, 10**6, "1.609344", "2.54", "0.3048")
)
_TWINS = (frozenset(("yes", "no")), frozenset(("true", "false")))
_DESCRIBED = re.compile(
    r"\b(?:no|not|none|nobody|never|empty|nil|null|number|many|much|same|amount|count|half)\b|n't\b",
    re.IGNORECASE,
)
_MONEY = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "usd": "dollar", "eur": "euro"}
_MARKUP = re.compile(r"\s*(?:#.*|[`~*_=-]{2,}\w*\s*)?$")
_LAST = re.compile(r"\d")
_LETTER = re.compile(
    r"\W*(?:(?:option|choice|answer)\W+)?\(?([A-Ja-j])(?:\W*$|[).:](?!\w)(.*)$)",
    re.DOTALL | re.IGNORECASE,
)


@dataclass(frozen=True)
class _Amount:
    """A number with the words of its unit."""

    number: Number
    unit: tuple[str, ...]
    """In one form: singular, money by its name."""


def decide_exact(response: str, question: str, reference: str) -> bool | None:
    """Decide by whatever the reference is: a number, an option's letter, a list, or a text."""
    key = find_key(reference)
    if not key:
        return None
    if says_nothing(response, key):
        return False
    if re.fullmatch(r"\W*[A-J]\W*", key) or re.match(r"\(?[A-J][).:]\s", key):
        return decide_option(response, question, key)
    if _read_amount(key, key) is not None:
        return decide_number(response, question, key)
    chunk, is_marked = _find_chunk(response)
    if chunk is None:
        return None
    if read_list(key) is not None:
        return _compare_lists(chunk, key)
    return _compare_texts(chunk, key, is_marked)


def decide_number(response: str, question: str, reference: str) -> bool | None:
    """Decide by numbers: 1,000 is 1000.0 and 1e3, and a unit may be left out."""
    key = find_key(reference)
    target = _read_amount(key, key) if key else None
    if target is None:
        return None
    if says_nothing(response, key):
        return False
    statements = list_statements(response)
    if _has_no_number(response):
        return None if _DESCRIBED.search(response) else False
    chunks = _take_chunks(response, statements)
    amounts = [_read_amount(chunk, question) for chunk in chunks]
    verdicts = {None if amount is None else _compare(amount, target) for amount in amounts}
    values = {None if amount is None else amount.number.value for amount in amounts}
    if len(verdicts) != 1 or (False in verdicts and len(values) != 1):
        return None
    verdict = verdicts.pop()
    if verdict is False and not statements and holds_reference(response, key):
        return None
    return verdict


def decide_option(response: str, question: str, reference: str) -> bool | None:
    """Decide by an option's letter, or by the option's text where the question lists options."""
    match = re.match(r"\W*([A-J])(?:\W|$)", find_key(reference))
    if match is None:
        return None
    letter = match.group(1)
    if says_nothing(response, letter):
        return False
    options = dict(re.findall(r"^\s*\(?([A-J])[).:]\s*(\S.*?)\s*$", question, re.MULTILINE))
    statements = list_statements(response)
    chunks = _take_chunks(response, statements)
    has_letter = re.search(r"(?<![\w'])[A-Ja-j](?![\w'])", plain(response))
    is_brief = all(len(chunk.split()) <= _BRIEF and chunk != "?" for chunk in chunks)
    names_option = any(holds_reference(response, text) for text in options.values())
    if options and is_brief and not has_letter and not names_option:
        return False
    letters = {_read_letter(chunk, options) for chunk in chunks}
    if len(letters) != 1 or None in letters:
        return None
    return letters.pop() == letter


def says_nothing(response: str, key: str) -> bool:
    """Tell whether a response has no word by which it could answer, such as "Solution"."""
    words = re.findall(r"[\w']+", plain(drop_courtesy(response)).lower())
    return set(words) <= _EMPTY and not holds_reference(response, key)


def find_key(reference: str) -> str:
    """Take the answer of a reference: behind four hashes, in a box, behind "answer:", or all."""
    stated = list_statements(reference)
    key = stated[-1].chunk if stated else reference
    return key.strip()


def _take_chunks(response: str, statements: list[Statement]) -> list[str]:
    """Take the texts that may be the final answer; one that no rule reads, where it is open."""
    if statements:
        tail = plain(response[statements[-1].end :])
        if any(s.is_hedged for s in statements) or is_taken_back(tail) or read_numbers(tail):
            return ["?"]
        return [statement.chunk for statement in statements]
    line = last_line(response)
    start = response.rfind(line) if line else 0
    head = [text for text in response[:start].splitlines() if not _MARKUP.match(text)]
    if is_hedged(response, start) or (head and is_taken_back(_LAST.sub("", head[-1]))):
        return ["?"]
    return [line] if len(line.split()) <= (3 if head else _SHORT) else ["?"]


def _find_chunk(response: str) -> tuple[str | None, bool]:
    """Find the one text that is the final answer; None where there is none, or several."""
    statements = list_statements(response)
    chunks = _take_chunks(response, statements)
    if "?" in chunks or len({tuple(split_tokens(chunk)) for chunk in chunks}) != 1:
        return None, False
    return chunks[0], bool(statements)


def _read_amount(chunk: str, question: str) -> _Amount | None:
    """Read a text that is one number, with a unit at most."""
    if re.search(r"[~<>≈≤≥±|]|\d [0-9]{3}\b", chunk):
        return None
    text = plain(chunk).strip()
    if "=" in text:
        text = text.rpartition("=")[2].strip()
    numbers = read_numbers(text)
    if len(numbers) != 1 or not numbers[0].is_certain:
        return None
    number = numbers[0]
    head, tail = text[: number.start], text[number.end :]
    if tail.startswith("!") or re.search(r"[\w)]$", head) or re.match(r"[\w(]", tail):
        joined = re.match(r"([a-zA-Z]+)\b", tail)
        if joined is None or joined.group(1).lower() not in _UNITS:
            return None
    words_around = f"{head} {tail}"
    words = [word.lower() for word in re.findall(r"[^\W\d_]+", words_around)]
    question_words = {word.lower() for word in re.findall(r"[^\W\d_]+", question)}
    for word in words:
        if word in _OPEN or not (word in _FILLERS or word in _UNITS or word in question_words):
            return None
    if any(not c.isalpha() and c not in _SIGNS for c in words_around) or (
        "(" in words_around and words == []
    ):
        return None
    is_pronoun = text[number.start : number.end].lower() == "one" and bool(words)
    if is_pronoun and not set(words) <= _UNITS | {"answer", "is", "the"}:
        return None
    signs = [sign for sign in "$€£¥" if chunk.count(sign) == 1]  # two are a formula's
    units = {
        _MONEY.get(word, word.rstrip("s")) for word in [*words, *signs] if word not in _FILLERS
    }
    return _Amount(number, tuple(sorted(units)))


def _compare(amount: _Amount, target: _Amount) -> bool | None:
    number, reference = amount.number, target.number
    if number.is_percent and not reference.is_percent:
        return None
    scaled = {number.value} if number.is_percent else {number.value, number.value * 100}
    if number.value == reference.value or (reference.is_percent and reference.value in scaled):
        return None if amount.unit and target.unit and amount.unit != target.unit else True
    if _is_rounded(number, reference) or _is_rounded(reference, number):
        return None
    if amount.unit and target.unit and amount.unit != target.unit:
        return None
    has_unit = bool(amount.unit or target.unit)
    if number.value and reference.value:
        ratio = abs(number.value / reference.value)
        ratios = _RATIOS if has_unit else (Fraction(100), Fraction(1000))
        if ratio in ratios or 1 / ratio in ratios:
            return None
    return False


def _is_rounded(short: Number, long: Number) -> bool:
    """Tell whether one number may be the other, rounded or cut."""
    if short.decimals < 0:
        return False
    difference = abs(short.value - long.value)
    return difference < Fraction(1, 10**short.decimals) and long.value.denominator != 1


def _has_no_number(response: str) -> bool:
    """Tell whether nothing in a response can be a number, in this language."""
    text = plain(response)
    return not (
        read_numbers(text)
        or names_foreign_number(text)
        or re.search(r"[^\W\d_]", re.sub(r"[ -~]", "", text))
    )


def _read_letter(chunk: str, options: dict[str, str]) -> str | None:
    text = plain(re.sub(r"[*_`]", "", chunk)).strip()
    tokens = split_tokens(text)
    for letter, option in options.items():
        if tokens and tokens == split_tokens(option):
            return letter
    match = _LETTER.fullmatch(text)
    if match is None:
        return None
    tail = match.group(2) or ""
    letter = match.group(1).upper()
    if re.search(r"(?<![\w'])[B-J](?![\w'])", tail) or set(split_tokens(tail)) & _OPEN:
        return None
    if tail.strip() and letter in options:
        return letter if holds_reference(tail, options[letter]) else None
    return letter


def _compare_lists(chunk: str, key: str) -> bool | None:
    """Compare two lists; another order, or a text for a part of the list, is not certain."""
    target, answer = read_list(key) or [key], read_list(find_key(chunk)) or [chunk]
    answer_parts, target_parts = ([_reduce(part) for part in parts] for parts in (answer, target))
    if answer_parts == target_parts:
        return True
    numbers = [_read_amount(part, part) for part in [*answer, *target]]
    if Counter(answer_parts) == Counter(target_parts) or set(answer_parts) & set(target_parts):
        is_number = all(number is not None for number in numbers)
        has_order = Counter(answer_parts) == Counter(target_parts)
        return (
            False
            if is_number and not has_order and len(answer_parts) == len(target_parts)
            else None
        )
    if len(answer_parts) == 1 or holds_reference(chunk, key):
        return None
    verdicts = {_compare_texts(a, b, True) for a in answer for b in target}
    return False if verdicts == {False} else None


def _reduce(part: str) -> str:
    amount = _read_amount(part, part)
    if amount is not None and not amount.unit:
        return str(amount.number.value)
    return " ".join(word for word in split_tokens(part) if word not in ("a", "an", "the"))


def _compare_texts(chunk: str, key: str, is_marked: bool) -> bool | None:
    """Compare two short texts; alike ones that differ are not certain."""
    if " ".join(chunk.split()).strip("*_` ").rstrip(".") == " ".join(key.split()).rstrip("."):
        return True
    answer, target = _reduce(chunk), _reduce(key)
    has_signs = bool(re.search(r"[^\w\s.,'\"-]", plain(key))) or "\\" in key
    if answer == target and answer:
        has_case = any(word[1:] != word[1:].lower() for word in key.split())
        return None if has_signs or has_case else True
    pair = frozenset((answer, target))
    if pair in _TWINS:
        return False
    if not answer:
        return None if is_marked else False
    if has_signs or max(len(answer.split()), len(target.split())) > _FEW:
        return None
    return _tell_apart(answer, target)


def _tell_apart(answer: str, target: str) -> bool | None:
    """Return False where two texts can't be one by another spelling, else None."""
    if re.search(r"\d", answer + target):
        return False if re.sub(r"\d", "0", answer) == re.sub(r"\d", "0", target) else None
    if any(answer in twins or target in twins for twins in _TWINS):
        return None
    if set(answer.split()) & (set(target.split()) | _OPEN) or answer in target or target in answer:
        return None
    if not (answer.isascii() and target.isascii()) or names_foreign_number(answer):
        return None
    if read_numbers(answer) or read_numbers(target):
        return None
    if answer[0] == target[0] and min(len(answer), len(target)) <= 5:  # perhaps an abbreviation
        return None
    return None if difflib.SequenceMatcher(None, answer, target).ratio() >= _ALIKE else False
