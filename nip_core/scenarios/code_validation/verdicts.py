"""Which answer of a decision scale stands in a line, if any: the reading of single lines.

plain            a line without what only decorates it
InvalidResponse  an answer has no valid form; its two kinds InvalidDecision and MissingPart
VerdictReader    for a scale: the answer at the start of a text, and whether the rest lets it stand

Knows no channels, headers or lines before and after; see `parsing`. Regular expressions here have
no nested repetition and look-backs are bounded, so that each reading takes linear time.
"""

import re
import unicodedata
from collections.abc import Sequence

from nip_core.protocols.scales import DecisionScale

_SHOWN = 40  # characters of an answer in a reason


class InvalidResponse(ValueError):
    """The answer has no valid form; `reason` says why in a few words."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


class InvalidDecision(InvalidResponse):
    """What should be a decision is none, or is two."""


class MissingPart(InvalidResponse):
    """The part for one of several channels is not there, or is there twice, or is empty."""


# Lines without decoration.

_INVISIBLE = (0xAD, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x206A))
_VARIATION_SELECTORS = range(0xFE00, 0xFE10)
_PLAIN: dict[int, str | None] = {
    **dict.fromkeys((*_INVISIBLE, *_VARIATION_SELECTORS, 0xFEFF)),
    **{0xFF01 + i: chr(0x21 + i) for i in range(94)},  # full-width ASCII
    **dict.fromkeys(map(ord, "“”„‟«»「」『』〝〞"), '"'),
    **dict.fromkeys(map(ord, "‘’‚‛‹›′´"), "'"),
    **dict.fromkeys(map(ord, "‐‑−﹣"), "-"),
    **dict.fromkeys(map(ord, "–—―"), " - "),
    **dict.fromkeys(map(ord, "﹕꞉∶"), ":"),
    # Letters that a pattern without case takes for others.
    **{ord("ſ"): "s", ord("ı"): "i", ord("İ"): "I", 0x212A: "K"},
}
_LATEX = re.compile(
    r"\\(?:boxed|text(?:bf|it|rm|sf|tt)?|math(?:bf|rm|tt)|emph)\s*\{|\\[\[\]()]|\$+"
)
_TAGS = re.compile(
    r"</?(?:b|strong|i|em|u|mark|br|p|answer|final_answer)\s{0,3}/?>|</s>|<\|[a-z_]{1,30}\|>",
    re.IGNORECASE,
)


def simplified(text: str) -> str:
    """The text without invisible characters, with ASCII quotation marks, dashes and colons.

    It has the same lines.
    """
    return text if text.isascii() else text.translate(_PLAIN)


def plain(line: str) -> str:
    """A simplified line, single-spaced, without the tags and LaTeX commands that only decorate."""
    if "<" in line:
        line = _TAGS.sub("", line)
    if "\\" in line or "$" in line:
        line = _LATEX.sub("", line)
    return " ".join(line.split())


def is_blank(text: str) -> bool:
    """Whether there is nothing in a simplified text but spaces and markup."""
    return not text.strip(" \t\r\n\v\f\0\xa0\u3000*_`#~-={}[]()\"'>$\\")


# Verdicts.

TICKS, CROSSES = "✅✔☑👍🟢", "❌✗✘✖🚫👎⛔🔴"
_OPENING = f"*_`\"'([{{# {TICKS}{CROSSES}"  # may stand before a verdict, and
_CLOSING = "*_`\"')]}# "  # behind it
_MARKS = r"[*_`\"' ]{0,6}"
_NEGATIONS = {"not", "never", "cannot", "cant", "wont", "dont", "no", "refuse", "decline", "unable"}
_NEGATION_REACH = 3  # words between a negation and what it negates
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_LETTER = r"[^\W_]"
_CONFIDENT = r"with (?:[a-z]+ |[0-9]{1,3} ?% )?(?:confidence|certainty)\b"
_OF_THE_SOLUTION = (
    r"(?:(?:the|this|your) (?:(?:proposed|given|submitted) )?"
    r"(?:solution|code|program|implementation|submission|answer|function)|it)\b"
)
_IS_CORRECT = (
    r"that (?:the|this) (?:solution|code|program|implementation|function) is correct\b"
    r"(?: for (?:every|all) inputs?(?: that the problem allows)?\b)?"
)
_BECAUSE = r"(?:because|since|due to|based on|given)\b"
# Words that, right behind a verdict, take it back or make it a condition or a guess.
_TAKEN_BACK = (
    r"(?:no|nope|not|false|wait|hm+|actually|correction|sorry)(?= ?(?:[^\w ]|$))|(?:no way|hold on"
    r"|on second thoughts?|scratch that|just kidding|i mean|i take (?:that|it) back"
    r"|i(?: have|'ve)? changed my mind|never ?mind|disregard|ignore (?:that|this))\b"
)
_UNDONE = re.compile(
    _TAKEN_BACK + r"|(?:or|rather|maybe|perhaps|possibly|tentative(?:ly)?|not final|for now)\b",
    re.IGNORECASE,
)
_CONDITION = re.compile(
    r"(?:but |and |only )*(?:if|unless|provided|assuming|pending|when|once|until"
    r"|as long as|subject to|conditional(?:ly)?)\b",
    re.IGNORECASE,
)
_RETRACTING_LINE = re.compile(rf"^[ \t*_#\"'-]{{0,20}}(?:{_TAKEN_BACK})", re.I | re.M)
_ASKED = re.compile(r"[^.!?]*\?")
_OTHER_NUMBER = re.compile(
    r"\b(?:or|maybe|perhaps|possibly|rather|actually)(?: even)? [*_`]*[0-9]", re.IGNORECASE
)
_DEGREES = re.compile(r"\b(?:strongly|somewhat|slightly|partly|partially|neither)\b", re.IGNORECASE)
_CROSSED = re.compile(f"[{CROSSES}]")
_DOUBTED = re.compile("[❓❔⁉🤔🤷]")


class VerdictReader:
    """Reads the answers of one scale. All texts given to it are `plain`."""

    def __init__(self, scale: DecisionScale):
        self._scale = scale
        self._stems = tuple(sorted({_stem(answer) for answer in scale.values}))
        answers = sorted(scale.values, key=len, reverse=True)
        if scale.is_numeric:
            self._start = re.compile(
                r"(?P<answer>[0-9]{1,6})(?:\.0{1,2}(?![0-9]))?(?![0-9])"
                rf"(?:{_MARKS}(?:/|out of|of){_MARKS}(?P<of>[0-9]{{1,6}})(?![0-9])"
                rf"|{_MARKS}(?P<percent>%|percent\b))?(?!{_LETTER})",
                re.IGNORECASE,
            )
            self._mention = None
        else:
            words = "|".join(_spelled(answer) for answer in answers)
            self._start = re.compile(
                rf"(?:- )?(?:to |(?:i|we)(?: hereby| will|'ll)? )?{_MARKS}(?P<answer>{words})"
                rf"(?:e?d|s|(?P<noun>ing|ance|ion))?(?!{_LETTER})",
                re.IGNORECASE,
            )
            self._mention = re.compile(
                rf"(?<!{_LETTER})(?P<answer>{words})(?:e?d|s|ing|ance|ion)?(?!{_LETTER})",
                re.IGNORECASE,
            )
        more = _BECAUSE
        self._object = None
        if "accept" in scale.values:
            more = rf"{_BECAUSE}|as (?!long|soon|if)|for (?!now)|{_CONFIDENT}"
            self._object = re.compile(_OF_THE_SOLUTION, re.IGNORECASE)
        elif not scale.is_numeric:
            self._object = re.compile(_IS_CORRECT, re.IGNORECASE)
        self._reason_follows = re.compile(more, re.IGNORECASE)

    def begins(self, text: str) -> bool:
        """Whether the text begins with an answer, be it a negated one."""
        text = text.lstrip(_OPENING)
        if self._start.match(text):
            return True
        first = _WORD.findall(text[:80].lower())[: 2 + _NEGATION_REACH]
        return _negated(first, self._stems)

    def is_exactly(self, text: str) -> bool:
        """Whether the text is an answer and nothing else, marks aside."""
        text = text.lstrip(_OPENING)
        found = self._start.match(text)
        return found is not None and not text[found.end() :].strip(_CLOSING + ".,;!")

    def read(self, text: str) -> str:
        """The answer with which the text begins.

        Raises InvalidDecision if there is none, or if the rest of the text names another one,
        negates it, asks it, makes it a condition or takes it back.
        """
        is_crossed = _CROSSED.search(text) is not None
        text = text.lstrip(_OPENING)
        found = self._start.match(text)
        answer = None if found is None else self._answer(found)
        if found is None or answer is None:
            raise InvalidDecision(f"invalid decision {text[:_SHOWN]!r}")
        rest = text[found.end() :]
        problem = self._problem(answer, rest)
        if is_crossed and self._scale.values[answer] >= 0:
            problem = "a cross"
        if problem is None and found.groupdict().get("noun") and not self.is_exactly(text):
            problem = "a clause"
        if problem is not None:
            raise InvalidDecision(f"decision with {problem} {text[:_SHOWN]!r}")
        return answer

    def is_retracted(self, answer: str, later: str) -> bool:
        """Whether the simplified lines after a decision begin by taking it back, or deny it."""
        if _RETRACTING_LINE.search(later):
            return True
        if self._mention is None or "accept" not in self._scale.values:
            return False
        for found in self._mention.finditer(later):
            words = _WORD.findall(later[max(0, found.start() - 60) : found.end()].lower())[-7:]
            denied = found["answer"].lower() == answer and _negated(words, (_stem(answer),))
            if denied and {"i", "we"} & set(words):
                return True
        return False

    def _answer(self, found: re.Match[str]) -> str | None:
        text = found["answer"]
        if not self._scale.is_numeric:
            return self._canonical(text)
        highest = self._scale.highest
        in_units = (found["of"] or highest) == highest
        if found["percent"] and highest != "100":
            return None
        return text if in_units and text in self._scale.values else None

    def _canonical(self, text: str) -> str:
        letters = re.sub(r"[\W_]", "", text.lower()).replace("agreeordis", "agreenordis")
        return next(a for a in self._scale.values if a.replace(" ", "") == letters)

    def _problem(self, answer: str, rest: str) -> str | None:
        """What in the rest of the line forbids to take the answer, if anything."""
        if _ASKED.match(rest):
            return "a question mark"
        if self._names_another(answer, rest):
            return "a second answer"
        if _negated(_WORD.findall(rest.lower()), (_stem(answer),)):
            return "a negation"
        if _DOUBTED.search(rest):
            return "a doubt"
        if re.match(rf"[-']{_LETTER}", rest):
            return "a compound"
        tail = rest.lstrip(_CLOSING)
        if self._object is not None and (about := self._object.match(tail)):
            tail = tail[about.end() :].lstrip(_CLOSING)
        if not tail or self._reason_follows.match(tail):
            return None
        if tail[0].isalnum() or tail[0] in "?=/<>+&|^~%@\\":
            return "an unclear continuation"
        if unicodedata.category(tail[0]).startswith("M"):
            return "struck-out letters"
        return self._problem_behind_mark(tail)

    def _problem_behind_mark(self, tail: str) -> str | None:
        said = re.search(_LETTER, tail)
        if said is None:
            return None
        mark, said_text = tail[: said.start()], tail[said.start() :]
        if self._scale.is_numeric and said_text[0].isdigit():
            return "another number"
        if _UNDONE.match(said_text):
            return "a retraction"
        if not re.search(r"[.!]", mark) and _CONDITION.match(said_text):
            return "a condition"
        return None

    def _names_another(self, answer: str, rest: str) -> bool:
        if self._mention is None:
            return _OTHER_NUMBER.search(rest) is not None
        if "accept" not in self._scale.values and _DEGREES.search(rest):
            return True
        return any(self._canonical(m["answer"]) != answer for m in self._mention.finditer(rest))


def _negated(words: Sequence[str], stems: tuple[str, ...]) -> bool:
    """Whether a negation stands shortly before one of the stems."""
    since = _NEGATION_REACH + 1
    for word in words:
        same = word in stems or (word[0].isalpha() and word.startswith(stems))
        if same and since <= _NEGATION_REACH:
            return True
        negates = word in _NEGATIONS or word.endswith("n't")
        since = 0 if negates else since + 1
    return False


def _stem(answer: str) -> str:
    return answer.rpartition(" ")[2]


def _spelled(answer: str) -> str:
    """A pattern for a worded answer: its words with any of the usual separators, or none."""
    return r"[ *_`-]{0,4}".join("n?or" if word == "nor" else word for word in answer.split())
