"""Which answer of a decision scale stands in a line, if any: the reading of single lines.

Knows no channels, headers or lines before and after; see `parsing`. Regular expressions here have
no nested repetition and look-backs are bounded, so that each reading takes linear time.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from nip_core.protocols.scales import DecisionScale

_SHOWN = 40  # characters of an answer in a reason


def any_case(pattern: str) -> re.Pattern[str]:
    """Compile `pattern` for any case."""
    return re.compile(pattern, re.IGNORECASE)


class InvalidResponse(ValueError):
    """The answer has no valid form; `reason` says why in a few words."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


class InvalidDecision(InvalidResponse):
    """An answer that should be a decision is none, or is two."""


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
_LABEL_TAG = any_case(
    r"<(?P<end>/?)(?:final[_ -]?)?(?P<label>decision|verdict|conclusion|judge?ment|ruling)\s{0,3}>"
    r"(?P<clause>\s*[a-z])?"
)
_TAGS = any_case(
    r"</?(?:b|strong|i|em|u|mark|br|p|answer|final_answer)\s{0,3}/?>|</s>|<\|[a-z_]{1,30}\|>"
)


def simplify(text: str) -> str:
    """The text without invisible characters, with ASCII quotation marks, dashes and colons.

    It has the same lines.
    """
    return text if text.isascii() else text.translate(_PLAIN)


def strip_decoration(line: str) -> str:
    """Simplify a line to single spaces, without decorating tags and LaTeX commands.

    A tag like <verdict> becomes a label, "verdict:".
    """
    if "<" in line:
        line = _LABEL_TAG.sub(_as_label, line)
        line = _TAGS.sub("", line)
    if "\\" in line or "$" in line:
        line = _LATEX.sub("", line)
    return " ".join(line.split())


def _as_label(tag: re.Match[str]) -> str:
    clause = tag["clause"] or ""
    if tag["end"]:
        return clause if clause[:1].isspace() and clause[-1].islower() else f".{clause}"
    return f"{tag['label']}: {clause}"


def is_blank(text: str) -> bool:
    """Tell whether there is nothing in a simplified text but spaces and markup."""
    return not text.strip(" \t\r\n\v\f\0\xa0\u3000*_`#~-={}[]()\"'>$\\")


# Verdicts.

TICKS, CROSSES = "✅✔☑👍🟢", "❌✗✘✖✕⨯🚫👎⛔🔴"
_OPENING = f"*_`\"'([{{# {TICKS}{CROSSES}"  # may stand before a verdict, and
_CLOSING = "*_`\"')]}# "  # behind it
_MARKS = r"[*_`\"' ]{0,6}"
_NEGATIONS = {"not", "never", "cannot", "cant", "wont", "dont", "no", "refuse", "decline", "unable"}
_NEGATION_REACH = 3  # words between a negation and the negated one
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
# "The solution should be rejected": meant, but by whom?
_BECOMES = any_case(
    r"(?:(?:it follows|this means|i (?:think|believe|conclude))(?: that)? )?"
    rf"{_OF_THE_SOLUTION} (?:is|was|gets|has been|(?:must|should|will|can|cannot|can't) be|isn't)"
    r" (?:(?:not|therefore|thus|hereby) )?(?:accepted|rejected|(?:un)?acceptable)\W{0,6}$"
)
# The contrary of a verdict: a word right behind it, or a sentence about the solution.
_WRONG = any_case(r"[ *_]*[.!;:,(-] ?(?:wrong|incorrect|denied)[*_]{0,4} ?([.!;,)]|$)")
_JUDGED = any_case(
    r"(?m)(?:^|[.!;] ?)[*_ ]{0,4}(?:(?:however|but|so|thus|therefore|hence),? )?"
    rf"(?!it\b){_OF_THE_SOLUTION} (?:is|(?:must|should|has to) be)"
    r" (?:(?:clearly|therefore|thus|still) )?"
    r"(?:(?P<bad>wrong|incorrect|buggy|not correct|rejected)|correct|accepted)[*_]{0,4}"
    r" ?(?:[.!;,]|because\b|$)"
)
_BECAUSE = r"(?:because|since|due to|based on|given)\b"
# Words that, right behind a verdict, take it back or make it a condition or a guess.
_TAKEN_BACK = (
    r"(?:no|nope|not|false|wait|hm+|actually|correction|sorry)(?= ?(?:[^\w ]|$))|(?:no way|hold on"
    r"|on second thoughts?|(?:scratch|strike) that|just kidding|i mean|i take (?:that|it) back"
    r"|overruled|withdrawn|retracted"
    r"|i(?: have|'ve)? changed my mind|never ?mind|disregard|ignore (?:that|this))\b"
)
_UNDONE = any_case(
    _TAKEN_BACK
    + r"|(?:or|rather|maybe|perhaps|possibly|probably|likely|presumably|tentative(?:ly)?"
    r"|not final|for now|i (?:guess|suppose|think not)|says?|said|according to|wrote|claims?"
    r"|quoted?|(?:the )?(?:expert|prover)[a-z_0-9]*'s)\b|(?:expert|prover)[ _]?[0-9]?\W{0,3}$"
)
_CONDITION = any_case(
    r"(?:but |and |only )*(?:if|unless|provided|assuming|pending|when|once|until"
    r"|as long as|subject to|conditional(?:ly)?)\b"
)
# Words that, anywhere behind a verdict, make it a guess.
_HEDGE = any_case(
    r"\bnot (?:yet |my |a |the )?(?:final|definitive|decided|decision|verdict)\b"
    r"|\b(?:tentative|preliminary|provisional)(?:ly)?\b|\bsubject to change\b"
    r"|\b(?:may|might) (?:still |yet )?change\b"
    r"|\bnot (?:sure|certain)(?: yet\b|[.,;!]|$)|\bsarcas"
    r"|\b(?:caveats?|reservations?)\b"
)
# "I cannot accept this" goes with a rejection; the words must follow each other, in one clause.
_DENIED = any_case(
    r"\b(?:(?:can|could|do|does|did|will|would|must|should|shall)(?:n't| ?not)|can't|won't|never"
    r"|unable to|refuse to|no reason to|rather than|instead of)"
    r"(?: (?!only|merely|simply)[a-z]+ly| yet| ever)? $"
)
_RETRACTING_LINE = any_case(
    rf"(?m)^[ \t*_#\"'(-]{{0,20}}(?:{_TAKEN_BACK}|(?:actually,? (?:no|not|i)|edit"
    r"|do(?: not|n't) take|ignore|quote|(?:this|that)(?: i| wa|')s (?:a quote|what|an? example"
    r"|wrong|not my|the (?:expert|prover))"
    r"|(?:the )?(?:expert|prover)(?:_[0-9])?$)\b)"
)
_SUPPOSED = any_case(r"\b(?:if|had|were|otherwise|unless)\b")
_REPORTED = any_case(r"\b(?:that|if|whether|unless|until|before|why|when|had) $")
# Words that go on with the sentence of the line before.
_CONTINUED = re.compile(r"\s*(?:is|was|isn't|would|will|should|could|may|might|says?|said|or|if)\b")
_ASKED = re.compile(r"[^.!?]*\?")
_OTHER_NUMBER = any_case(r"\b(?:or|maybe|perhaps|possibly|rather|actually)(?: even)? [*_`]*[0-9]")
_DEGREES = any_case(r"\b(?:strongly|somewhat|slightly|partly|partially|neither)\b")
_COMPOUND = re.compile(rf"[-']{_LETTER}|\.[a-z_]")
_ABOUT_SOLUTION = any_case(rf"(?!it\b){_OF_THE_SOLUTION}")
_CROSSED = re.compile(f"[{CROSSES}]|:(?:x|thumbsdown|-1):")
_DOUBTED = re.compile("[❓❔⁉🤔🤷]")


class Declaration(NamedTuple):
    """The verdict that a sentence of the agent's own declares."""

    answer: str
    has_object: bool  # "the solution", or another object that is judged


class VerdictReader:
    """Reads verdicts of one scale. Each text has gone through `strip_decoration` before."""

    def __init__(self, scale: DecisionScale):
        self._scale = scale
        self.is_numeric = scale.is_numeric
        self.accepts = "accept" in scale.values
        """Whether to accept is an answer."""
        self.stems = tuple(sorted({_stem(answer) for answer in scale.values}))
        # In running text only worded answers are looked for: every number would be one.
        words = "|".join(map(_spelled, sorted(scale.values, key=len, reverse=True)))
        answer = r"(?!)" if scale.is_numeric else rf"(?P<answer>{words})"
        self._own = any_case(
            r"\b(?:i|we)(?:'ll|'m)?(?: (?:now|must|will|therefore|thus|hence|hereby|have to"
            r"|have|am|should|shall|would(?! have)|instead|actually|finally|decide to"
            r"|decided to|choose to|vote to)"
            rf"){{0,3}} {answer}(?:ed|d|ing)?(?!{_LETTER})"
        )
        self._concluded = any_case(
            r"(?m)(?:\b(?:so|thus|therefore|hence|then),?|[:(→>]) ?(?:to )?[*_\"'` ]{0,3}"
            rf"{answer}(?:e?d)?[*_\"'`) .!]{{0,6}}$"
        )
        self._mention = any_case(rf"(?<!{_LETTER}){answer}(?:e?d|s|ing|ance|ion)?(?!{_LETTER})")
        self._last = any_case(
            rf"(?<!{_LETTER}){answer}(?:e?d)?"
            r"(?: (?:it|this|that|(?:the|this) (?:solution|code|program)))?[*_\"'`)\]}~ .!]{0,9}$"
        )
        self._start = any_case(
            rf"(?:- )?(?:to |(?:i|we)(?: hereby| will|'ll)? )?{_MARKS}{answer}"
            rf"(?:e?d|s|(?P<noun>ing|ance|ion))?(?!{_LETTER})"
            if not scale.is_numeric
            else r"(?P<answer>[0-9]{1,6})(?:\.0{1,2}(?![0-9]))?(?![0-9])"
            rf"(?:{_MARKS}(?:/|out of|of){_MARKS}(?P<of>[0-9]{{1,6}})(?![0-9])"
            rf"|{_MARKS}(?P<percent>%|percent\b))?(?!{_LETTER})"
        )
        confident = rf"|as (?!long|soon|if)|for (?!now)|{_CONFIDENT}" if self.accepts else ""
        self._reason_follows = any_case(_BECAUSE + confident)
        worded_object = _OF_THE_SOLUTION if self.accepts else _IS_CORRECT
        self._object = any_case(r"(?!)" if scale.is_numeric else worded_object)

    def begins(self, text: str) -> bool:
        """Tell whether the text begins with an answer, be it a negated one."""
        text = text.lstrip(_OPENING)
        if self._start.match(text):
            return True
        return self._is_negated(_WORD.findall(text[:80].lower())[: 2 + _NEGATION_REACH])

    def behind(self, text: str) -> str | None:
        """Return what follows the answer at the beginning; None if none is there."""
        text = text.lstrip(_OPENING)
        start = self._start.match(text)
        return None if start is None else text[start.end() :]

    def mentions(self, text: str) -> set[str]:
        """Find the worded answers anywhere in the text."""
        return {self._canonical(match["answer"]) for match in self._mention.finditer(text)}

    def at_end(self, text: str) -> int | None:
        """Find where a worded answer begins at the end of the text, marks and its object aside."""
        end = self._last.search(text)
        return None if end is None else end.start("answer")

    def is_exactly(self, text: str) -> bool:
        """Tell whether the text is an answer and nothing else, marks aside."""
        remainder = self.behind(text)
        return remainder is not None and not remainder.strip(_CLOSING + ".,;!")

    def read(self, text: str) -> str:
        """Read the answer at the beginning of the text.

        Raises InvalidDecision if there is none, or if the rest of the text names another one,
        negates it, asks it, makes it a condition or takes it back.
        """
        is_crossed = _CROSSED.search(text) is not None
        text = text.lstrip(_OPENING)
        start = self._start.match(text)
        answer = None if start is None else self._answer(start)
        if start is None or answer is None:
            raise InvalidDecision(f"invalid decision {text[:_SHOWN]!r}")
        problem = self._problem(answer, text[start.end() :])
        if is_crossed and self._scale.values[answer] >= 0:
            problem = "a cross"
        elif problem is None and start.groupdict().get("noun") and not self.is_exactly(text):
            problem = "a clause"
        if problem is not None:
            raise InvalidDecision(f"decision with {problem} {text[:_SHOWN]!r}")
        return answer

    def read_if_clear(self, text: str) -> str | None:
        """Read as `read` does, but return None where it raises."""
        try:
            return self.read(text)
        except InvalidDecision:
            return None

    def is_about_solution(self, text: str) -> bool:
        """Tell whether a sentence says what becomes of the solution, in whichever words."""
        if not self.accepts:
            return False
        clause = self._own.match(text)
        if clause is None:
            return _BECOMES.match(text) is not None
        tail = text[clause.end() :].lstrip(_CLOSING).removeprefix("that ")
        return _ABOUT_SOLUTION.match(tail) is not None

    def declared(self, text: str) -> Declaration | None:
        """Return what a sentence like "I reject the solution." declares.

        None for other sentences, and where more follows.
        """
        clause = self._own.match(text)
        if clause is None:
            return None
        tail = text[clause.end() :].lstrip(_CLOSING)
        about = self._object.match(tail)
        if about is not None:
            tail = tail[about.end() :]
        else:
            tail = re.sub(r"^(?:this|that|with (?:that|this|you))\b", "", tail)
        if tail.strip(_CLOSING + ".,;!"):
            return None
        has_object = about is not None and about[0].lower() != "it"
        return Declaration(self._canonical(clause["answer"]), has_object)

    def is_retracted(self, answer: str, later: str) -> bool:
        """Say whether the simplified lines after a decision begin by taking it back, or deny it."""
        if _RETRACTING_LINE.search(later) or _HEDGE.search(later) or _CONTINUED.match(later):
            return True
        if self._is_contradicted(answer, later):
            return True
        if not self.accepts:
            return False
        # 1. "so I reject it", unless it is only supposed, or told of.
        for pattern in (self._own, self._concluded):
            for match in pattern.finditer(later):
                context = later[max(0, match.start() - 20) : match.start()]
                line = later[later.rfind("\n", 0, match.start()) + 1 :].partition("\n")[0]
                supposed = "would" in match[0].lower() and _SUPPOSED.search(line)
                reported = supposed or _REPORTED.search(context)
                if self._canonical(match["answer"]) != answer and not reported:
                    return True
        # 2. "I can't accept it".
        for mention in self._mention.finditer(later):
            words = _WORD.findall(later[max(0, mention.start() - 60) : mention.end()].lower())[-7:]
            denied = mention["answer"].lower() == answer and self._is_negated(words, answer)
            if denied and {"i", "we"} & set(words):
                return True
        return False

    def _is_contradicted(self, answer: str, text: str) -> bool:
        """Tell whether the text behind a verdict judges the solution otherwise."""
        is_wrong = [match["bad"] is not None for match in _JUDGED.finditer(text)]
        if answer == "accept":
            return any(is_wrong) or _WRONG.match(text) is not None
        return answer == "reject" and not all(is_wrong)

    def _is_negated(self, words: Sequence[str], answer: str | None = None) -> bool:
        """Tell whether a negation stands shortly before the answer, or before any."""
        stems = self.stems if answer is None else (_stem(answer),)
        since = _NEGATION_REACH + 1
        for word in words:
            same = word in stems or (word[0].isalpha() and word.startswith(stems))
            if same and since <= _NEGATION_REACH:
                return True
            since = 0 if word in _NEGATIONS or word.endswith("n't") else since + 1
        return False

    def _answer(self, start: re.Match[str]) -> str | None:
        """Return the answer at the beginning; None for a number outside of the scale."""
        text = start["answer"]
        if not self.is_numeric:
            return self._canonical(text)
        highest = self._scale.highest
        in_units = (start["of"] or highest) == highest
        if start["percent"] and highest != "100":
            return None
        return text if in_units and text in self._scale.values else None

    def _canonical(self, text: str) -> str:
        letters = re.sub(r"[\W_]", "", text.lower()).replace("agreeordis", "agreenordis")
        return next(a for a in self._scale.values if a.replace(" ", "") == letters)

    def _problem(self, answer: str, remainder: str) -> str | None:
        """Return what in the `remainder` of the line forbids to take the answer, if anything."""
        # 1. Signs that may stand nowhere behind it.
        anywhere = (
            ("a question mark", _ASKED.match(remainder)),
            ("a second answer", self._names_another(answer, remainder)),
            ("its contrary", self._is_contradicted(answer, remainder)),
            ("a negation", self._is_negated(_WORD.findall(remainder.lower()), answer)),
            ("a doubt", _DOUBTED.search(remainder) or _HEDGE.search(remainder)),
            ("a compound", _COMPOUND.match(remainder)),
            ("a call", remainder.startswith("(") and not self.is_numeric),
        )
        for name, is_there in anywhere:
            if is_there:
                return name
        # 2. A reason for it may follow, and the object that is accepted.
        tail = remainder.lstrip(_CLOSING)
        if about := self._object.match(tail):
            tail = tail[about.end() :].lstrip(_CLOSING)
        if not tail or self._reason_follows.match(tail):
            return None
        # 3. Behind a mark, another sentence may.
        letter = re.search(_LETTER, tail)
        mark, words = (tail[: letter.start()], tail[letter.start() :]) if letter else (tail, "")
        at_start = (
            ("an unclear continuation", tail[0].isalnum() or tail[0] in "?=/<>+&|^~%@\\"),
            ("struck-out letters", unicodedata.category(tail[0]).startswith("M")),
            ("another number", self.is_numeric and words[:1].isdigit()),
            ("a retraction", letter and _UNDONE.match(words)),
            ("a condition", letter and not re.search(r"[.!]", mark) and _CONDITION.match(words)),
        )
        return next((name for name, is_there in at_start if is_there), None)

    def _names_another(self, answer: str, remainder: str) -> bool:
        if self.is_numeric:
            return _OTHER_NUMBER.search(remainder) is not None
        if not self.accepts and _DEGREES.search(remainder):
            return True
        # A denial of the other one says the same again.
        may_deny = self.accepts and "?" not in remainder
        return any(
            self._canonical(mention["answer"]) != answer
            and not (
                may_deny
                and _DENIED.search(remainder[max(0, mention.start() - 40) : mention.start()])
            )
            for mention in self._mention.finditer(remainder)
        )


def _stem(answer: str) -> str:
    return answer.rpartition(" ")[2]


def _spelled(answer: str) -> str:
    """A pattern for a worded answer: its words with any of the usual separators, or none."""
    return r"[ *_`-]{0,4}".join("n?or" if word == "nor" else word for word in answer.split())
