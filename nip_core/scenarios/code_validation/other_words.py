"""Verdicts in other words than a decision line: what an answer claims besides.

claims  all such places in an answer, each clear or not

1. A label that begins a line or a sentence: "Verdict: reject", "... so. Decision: accept".
2. A label within a sentence, right before a verdict at the end of the line: not clear.
3. A bare verdict that is the whole answer, its first line or its last line.
4. A sentence that declares one: "I reject the solution."
5. The last fence, a box or a part for a channel with a verdict and nothing else: not clear.
6. An answer that is a JSON object with a label among its keys.

A claim is clear where nobody else may be speaking, nothing supposes, hedges or negates it, and no
question follows. What is in quotation marks within a line claims nothing.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from nip_core.scenarios.code_validation.answer_lines import (
    NUMBERING,
    AnswerLines,
    Start,
    begins_question,
)
from nip_core.scenarios.code_validation.decisions import (
    InvalidDecision,
    VerdictReader,
    is_blank,
    plain,
)
from nip_core.scenarios.code_validation.labels import (
    OTHER_SEPARATOR,
    VERDICT,
    WORDS,
    beginning,
    in_quotations,
    is_introduced,
    labelled_lines,
)

_IN_LINE = re.compile(beginning(WORDS, OTHER_SEPARATOR, "{0,9}"), re.IGNORECASE)
_WORD = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)
_SEPARATED = re.compile(r"[ *_`\"')\]]{0,6}(?:[:|→-]|->|=>|is\b|to\b|[ *_`\"'(])*", re.IGNORECASE)
_EDGE = re.compile(r"(?:(?P<sure>[.!;)]|</\w{1,30}>|(?<= )-|→)|[>?:,|])[\"'*_)\] ]{0,4}$")
_CONNECTOR = re.compile(
    r"^(?:so|thus|hence|therefore|finally|overall|in conclusion)\b[,:]? ?", re.I
)
_NUMBER = re.compile(rf"^[ *_]{{0,4}}{NUMBERING}(?=.)")
_PART = re.compile(r"[ *_#]{0,6}(?:question|answer|message|to)\b[^:]{0,30}:[ *_]*", re.IGNORECASE)
_LISTED = re.compile(r"[ *_]*(?:[-•+]|[0-9a-z]{1,2}[.)]) ", re.IGNORECASE)
_BOX = re.compile(r"\\boxed ?\{(?: ?\\text[a-z]{0,2} ?\{)?([^{}]{1,60})\}")
# Before a label: words that give it to somebody else, ask it, suppose it or speak about it.
_NOT_SAID = re.compile(
    r"\b(?:if|unless|suppose|supposing|imagine|assum(?:e|ing)|would|could|should|might|may|must"
    r"|example|e\.g|instruct\w*|format|forms?|writes?|written|wrote|says?|said|claim\w*|told"
    r"|tempt\w*|lean\w*|tentative\w*|preliminary|until|whether|either|options?|refuse"
    r"|quot\w*|not (?:yet|final|my)|too early"
    r"|(?:you|they|he|she|(?:expert|prover|opponent)(?:_?[0-9])?) (?:\w+ )?(?:answer|decid"
    r"|conclud|want|ask|insist|argu|end|repli)\w*)\b",
    re.IGNORECASE,
)
_NEGATION = re.compile(r"\b(?:not|never|no|cannot|without|[a-z]+n't)\b", re.IGNORECASE)
# And those behind which a label is not a verdict of the agent's at all.
_TALK = re.compile(
    r"(?:\b(?:your|his|her|their|its|whose|which|what|any|each|why|whether|how|expected|other"
    r"|print\w*|returns?|(?!let|here|that|it|verifier)[a-z_0-9]+'s)\b"
    r"|(?:^|[.!;:] ?)(?:please )?(?:explain|show|tell|convince|prove)\b)[^.!;:]{0,60}$",
    re.IGNORECASE,
)
_TO_OTHERS = re.compile(
    r"\b(?:you|your|expert|prover|they|want|would|could|should|might|may|if|unless|say|write)\b",
    re.IGNORECASE,
)
_APOSTROPHE = re.compile(r"(?<=\w)'(?=\w)|(?<=s)'(?= )")
_JUDGED = re.compile(
    r"[*_`\"'( ]{0,6}(?:the (?:solution|code|program) is )?(?:not )?(?:(?:in)?correct|right|wrong"
    r"|buggy|(?:in)?valid|approve|pass|fail|yes|no|true|false|sound|accept|reject|(?:dis)?agree)"
    r"(?:e?d|able|ance|ion)?[*_`\"') .!]{0,9}$",
    re.IGNORECASE,
)
_ACCEPTED = re.compile(r"\W{0,6}(?:not )?(?:accept|reject)(?:ed|ion|ance)?\W{0,9}$", re.IGNORECASE)
_STRONG = {"decision", "verdict", "conclusion", "judgment", "judgement", "ruling"}
_NUMBERED = {
    "answer",
    "conclusion",
    "decision",
    "verdict",
    "judgment",
    "judgement",
    "ruling",
    "rating",
    "score",
}
_SHORT_NUMBER = re.compile(r"(?=.*[0-9])[^ =]*(?: [^ =]+){0,3}$")  # "about 85"
_FEW_WORDS = 8
_MARKED = re.compile(
    r"\[x\]|[☑☒🗹]|<(?:[^<>]{0,30}[ =\"'])?(?:accept|reject)\w{0,3}[\"' ]{0,3}/?>", re.I
)
_TAGGED = re.compile(r"<\w{1,30}>([^<>]{1,40})</\w{1,30}>$")
_I = re.compile(r"\b(?:i|we)\b", re.IGNORECASE)
_I_SAY = re.compile(
    r"\b(?:i|i'd|we) (?:say|vote|vote for|choose|select|pick|go with)$", re.IGNORECASE
)
_I_RATE = re.compile(r"(?:i|i'd|i'll|on a scale)\b[^?=]{0,60}[0-9][^ ?]{0,4}$", re.IGNORECASE)
_WHY = re.compile(r"\b(?:why|whether|how|what|explain|show|tell|convince|prove)\b", re.IGNORECASE)
_BEHIND = re.compile(r"(?:[.!?;:,→]| -|[.!;:,→] (?:so|thus|hence|therefore),?)$", re.IGNORECASE)
_OWN = re.compile(
    r"(?:(?:it's|that's|this is|let|i|we|my|our|i'[a-z]{1,2}|probably|likely|maybe|perhaps"
    r"|possibly|lean[a-z]*|presumably|almost|clearly|definitely|certainly|do|don't|never|not)\b|$)",
    re.IGNORECASE,
)
_LOOKED_AT = 400  # characters of a line before a label
_LONGEST = 2000  # and behind it
_MOST = 10  # labels within one line that are looked at


@dataclass(frozen=True)
class Claim:
    """A place that may be meant as a verdict."""

    first: int  # line in which it begins
    last: int  # and in which it ends
    answer: str | None  # of the scale; None: it is not clear that it is meant, or which
    rest: str = ""  # of its line, from the verdict on
    is_meant: bool = False  # it is not clear only because a question or other parts follow


def claims(
    lines: AnswerLines, reader: VerdictReader, own: int, starts: Mapping[int, Start]
) -> list[Claim]:
    """All claims from line `own` on. `starts` are the lines where parts for others begin."""
    whole = lines.whole(own)
    if whole.startswith("{"):
        return list(_in_json(whole, reader, own, len(lines.read) - 1))
    claimed = [
        *_labelled(lines, reader, own),
        *_within_lines(lines, reader, own),
        *_bare(lines, reader, own),
        *_declared(lines, reader, own),
        *_set_apart(lines, reader, own, starts),
        *_at_end(lines, reader, own),
    ]
    if not any(claim.answer for claim in claimed):
        return claimed
    quoted = in_quotations(lines)
    asked = [i for i in lines.free_lines(own) if begins_question(plain(lines.read[i]))]
    parts = [*starts, *asked]

    def judged(claim: Claim) -> Claim:
        if claim.answer is None:
            return claim
        if claim.first in quoted or is_introduced(lines, claim.first):
            return replace(claim, answer=None)
        if asked or (parts and min(parts) != claim.first):
            return replace(claim, answer=None, is_meant=claim.first < min(parts))
        return claim

    return [judged(claim) for claim in claimed]


def _read(reader: VerdictReader, text: str) -> str | None:
    try:
        return reader.read(text)
    except InvalidDecision:
        return None


def _labelled(lines: AnswerLines, reader: VerdictReader, own: int) -> Iterator[Claim]:
    """Lines that begin with a label."""
    try:
        labelled = labelled_lines(lines, reader, VERDICT, WORDS[1:], own)
    except InvalidDecision:
        return  # so many are no verdict
    for line in labelled:
        if line.is_apart and not lines.is_all(line.first, line.last, own):
            continue
        if reader.begins(line.rest):
            answer = _read(reader, line.rest)
            if reader.is_numeric and line.label not in _NUMBERED:
                if not reader.is_exactly(line.rest):
                    continue  # "Result: 3 loops are nested."
                answer = None
            yield Claim(line.first, line.last, answer, line.rest)
        elif _JUDGED.match(line.rest) or _ends_with_verdict(reader, line.rest, line.label):
            yield Claim(line.first, line.last, None, line.rest)


def _within_lines(lines: AnswerLines, reader: VerdictReader, own: int) -> Iterator[Claim]:
    """Labels that do not begin their line."""
    with_word = {i: line for word in WORDS for i, line in lines.free_with(word) if i >= own}
    for i, line in with_word.items():
        first = _IN_LINE.match(line)
        for word in islice(_WORD.finditer(line), _MOST):
            if first is None or first.end("label") != word.end():
                claim = _within_line(line, word, reader)
                if claim is not None:
                    yield replace(claim, first=i, last=i)


def _within_line(line: str, word: re.Match[str], reader: VerdictReader) -> Claim | None:
    # 1. The sentence may begin a few words before the label, as in "so my final decision".
    for begin in _beginnings(line, word.start()):
        start = _IN_LINE.match(line, begin)
        if start is None or start.end("label") != word.end():
            continue
        before, rest = (
            line[max(0, begin - _LOOKED_AT) : begin],
            line[start.end() :][:_LONGEST].strip(),
        )
        if _is_open(before):
            return None  # in quotation marks
        is_number = reader.is_numeric and not reader.is_exactly(rest)
        if not reader.begins(rest) or (is_number and word[0].lower() not in _STRONG):
            break
        edge = _EDGE.search(before)
        sure = edge is not None and edge["sure"] and not _NOT_SAID.search(before)
        if sure and edge is not None and edge["sure"] not in ".!;":
            sure = _NEGATION.search(before) is None
        return Claim(0, 0, _read(reader, rest) if sure else None, rest)
    # 2. Otherwise it is a claim only right before a verdict at the end of the line.
    before = line[max(0, word.start() - _LOOKED_AT) : word.start()]
    separated = _SEPARATED.match(line, word.end())
    if separated is None or _is_open(before) or _TALK.search(before):
        return None
    is_strong = word[0].lower() in _STRONG or re.search(r"\b(?:my|final) $", before, re.I)
    if not is_strong and not re.search(r"[:|→>-]", separated[0]):
        return None  # "in this state the result is accept"
    rest = line[separated.end() :][:_LONGEST].strip(" |")
    return Claim(0, 0, None, rest) if reader.is_exactly(rest) else None


def _beginnings(line: str, label: int) -> Iterator[int]:
    """Where in the line the sentence with a label may begin: behind marks before it."""
    near = max(0, label - 60)
    for mark in re.finditer(r"[.!;)>→?:,|\"*_] ?|(?<= )- ", line[near:label]):
        begin = near + mark.end()
        if _EDGE.search(line[max(0, begin - 8) : begin]):
            yield begin


def _is_open(before: str) -> bool:
    """Whether a quotation is open at the end of the text."""
    if "<!" in before:
        return True
    marks = _APOSTROPHE.sub("", before)
    return any(marks.count(mark) % 2 for mark in "\"`'")


def _bare(lines: AnswerLines, reader: VerdictReader, own: int) -> Iterator[Claim]:
    """Verdicts without a label: the first line, the last one, or the whole answer."""
    filled = [i for i in lines.free_lines(own) if not is_blank(lines.read[i])]
    for i in {filled[0], filled[-1]} if filled else ():
        text = _CONNECTOR.sub("", _NUMBER.sub("", plain(lines.read[i])), count=1)
        is_whole = lines.is_all(i, i, own)
        answer, is_exact = _read(reader, text), reader.is_exactly(text)
        if answer is None and not is_exact:
            is_other = _ACCEPTED.match(text) and "?" not in text  # perhaps of another scale
            if is_whole and (is_other or _stands_alone(reader, text)):
                yield Claim(i, i, None, text)
            continue
        is_apart = text.lstrip("*_ ")[:1] in set("\"'`([{<")
        if (is_apart and not is_whole) or (reader.is_numeric and not is_exact):
            continue
        before = lines.next_filled(i - 1, -1)
        above = plain(lines.read[before]) if before is not None and before >= own else ""
        declared = reader.declared(text)
        unclear = (
            (not is_exact and _TO_OTHERS.search(text))
            or (not is_whole and (reader.is_numeric or _LISTED.match(text)))
            or above.endswith("?")
            or reader.is_exactly(above)
            # "I agree" may be meant for the expert.
            or (declared is not None and not declared[1] and not (is_whole and reader.accepts))
        )
        yield Claim(i, i, None if unclear else answer, text)


def _stands_alone(reader: VerdictReader, text: str) -> bool:
    """Whether a line begins with a verdict that is no word of a sentence, or with its negation."""
    rest = reader.behind(text)
    if rest is None:
        return reader.begins(text) and len(text.split()) < 4
    return not re.match(r"[-']?\w|[ *_]+(?!or\b)\w", rest)


def _declared(lines: AnswerLines, reader: VerdictReader, own: int) -> Iterator[Claim]:
    """The last sentence, where it says "I accept the solution"."""
    last = lines.next_filled(len(lines.read) - 1, -1)
    if last is None or last < own or not lines.free[last]:
        return
    line = plain(lines.read[last])[-_LOOKED_AT:].rstrip("*_ ")
    edges = list(re.finditer(r"[.!;:,?](?= )", line[:-1]))
    begin = edges[-1].end() if edges else 0
    before, text = line[:begin], _CONNECTOR.sub("", line[begin:].strip(" *_"), count=1)
    declared = reader.declared(text)
    if declared is None and "?" not in line and not _WHY.search(line):
        at = max((match.start() for match in _I.finditer(line)), default=0)
        inner = reader.declared(line[at:])
        if inner is not None and inner[1] and not _NOT_SAID.search(line[:at]):
            yield Claim(last, last, None)
    is_about = declared is None and "?" not in line and reader.is_about_solution(text)
    if is_about and not (_NOT_SAID.search(before) or _WHY.search(line)):
        yield Claim(last, last, None)
    if declared is None or _is_open(before):
        return
    answer, has_object = declared
    if before or not reader.is_exactly(text):
        is_clear = has_object and before[-1:] not in ",:?" and not _NOT_SAID.search(before)
        yield Claim(last, last, answer if is_clear or (has_object and not before) else None)


def _set_apart(
    lines: AnswerLines, reader: VerdictReader, own: int, starts: Mapping[int, Start]
) -> Iterator[Claim]:
    """Verdicts in the last fence, in a box, or as a whole part of a message: none is clear."""
    last = lines.next_filled(len(lines.read) - 1, -1)
    is_message = any(begins_question(plain(lines.read[i])) for i in lines.free_lines(own))
    if last is not None and last >= own and not is_message:
        is_all = lines.is_all(last, last, own) and not lines.read[last].startswith(">")
        line = "" if is_all else plain(lines.read[last]).lstrip("> ")
        start = _IN_LINE.match(line)
        rest = line if start is None else line[start.end() :]
        is_apart = not lines.free[last] or (start is not None and line[:1] in set("\"'`([{"))
        if is_apart and reader.is_exactly(rest):
            yield Claim(last, last, None)
    whole = lines.whole(own).rstrip("`~ \n")
    if whole.endswith("}") and not is_message and _LOOSE.search(whole, whole.rfind("\n{") + 1):
        yield Claim(len(lines.read) - 1, len(lines.read) - 1, None)
    for i in lines.free_lines(own):
        line = lines.read[i]
        for box in _BOX.finditer(line) if "\\boxed" in line else ():
            if reader.is_exactly(box[1]) and is_blank(line[box.end() :].strip(" .!$}")):
                yield Claim(i, i, None)
        part = _PART.match(line)
        if i in starts or part is not None:
            rest = starts[i].rest if i in starts else plain(line[part.end() if part else 0 :])
            if reader.is_exactly(rest) and not reader.is_numeric:
                yield Claim(i, i, None)


def _ends_with_verdict(reader: VerdictReader, text: str, label: str) -> bool:
    if reader.is_numeric:
        return label in _NUMBERED and re.search(r"[0-9]", text) is not None
    return len(text.split()) <= _FEW_WORDS and reader.at_end(text) is not None


def _at_end(lines: AnswerLines, reader: VerdictReader, own: int) -> Iterator[Claim]:
    """Whatever else ends with a verdict: none is clear."""
    last = lines.next_filled(len(lines.read) - 1, -1)
    if last is None or last < own:
        return
    whole, line = lines.whole(own), plain(lines.read[last])
    is_whole = lines.is_all(last, last, own)
    # 1. Where nothing is asked: a tag, a ticked box, what is almost JSON, a hedged number.
    if "?" not in whole:
        is_marked = _MARKED.search(line) is not None and bool(reader.mentions(line))
        is_number = (
            reader.is_numeric and is_whole and (_SHORT_NUMBER.match(line) or _I_RATE.match(line))
        )
        tagged = _TAGGED.search(line)
        is_marked |= tagged is not None and reader.is_exactly(tagged[1])
        is_marked |= is_whole and " " not in line and any(s in line.lower() for s in reader.stems)
        if is_marked or is_number or (_LOOSE.search(whole) and reader.mentions(whole)):
            yield Claim(last, last, None)
    # 2. A verdict behind a mark, or at the end of a short sentence of the agent's own.
    begin = reader.at_end(line) if lines.free[last] and len(line) < _LOOKED_AT else None
    if begin is None or begins_question(line):
        return
    before = line[:begin].rstrip("\"'`*_([{ ")
    if _I_SAY.search(before):
        yield Claim(last, last, None)
    if _is_open(line[:begin]):
        return
    words = len(before.split())
    is_own = (
        is_whole
        and not re.search("[?=]", line)
        and (words < 3 or (words < 8 and _OWN.match(before)))
    )
    if (is_own or _BEHIND.search(before)) and not _TALK.search(before.rstrip(":,")):
        yield Claim(last, last, None)


# JSON.

_KEY = re.compile(r"[\W_]+")
_OWN_KEYS = {*WORDS, "output", "verifier", "final", "data"}
_DEGREES = re.compile(r"\b(?:strongly|somewhat|slightly)\b", re.IGNORECASE)
_DOUBTFUL = re.compile(r"negat|hypothe|example|quote|^not")
_LOOSE = re.compile(rf"[\"'](?:\w{{1,20}}[_ -])?(?:{'|'.join(WORDS)})[\"'] ?:", re.IGNORECASE)
_OPEN = {"", "none", "null", "undecided", "pending", "unknown", "n/a", "not yet"}
_ASKING = {"question", "questions", "message", "query"}


def _in_json(text: str, reader: VerdictReader, first: int, last: int) -> Iterator[Claim]:
    """What an answer claims that is an object, or was meant to be one."""
    try:
        pairs = list(_pairs(json.loads(text, object_pairs_hook=_Pairs)))
    except (ValueError, RecursionError):
        if _LOOSE.search(text):
            yield Claim(first, last, None)
        return
    asks = any(key in _ASKING and value for key, value in pairs)
    texts = [str(value) for key, value in pairs if not key.endswith(WORDS)]
    in_degrees = not reader.accepts and _DEGREES.search(" ".join(texts)) is not None
    doubtful = (
        asks or in_degrees or any(value is False or _DOUBTFUL.search(key) for key, value in pairs)
    )
    is_clear = False
    for key, value in pairs:
        said = plain("" if value is None else str(value))
        label = key.removeprefix("final").removesuffix("value")
        if label not in WORDS or (asks and said.lower() in _OPEN):
            continue
        answer = _read(reader, said) if reader.is_exactly(said) else None
        if answer is not None and not doubtful:
            is_clear = not reader.is_numeric or label in _NUMBERED
            taken_back = reader.is_retracted(answer, "\n".join(texts))
            is_clear &= not taken_back and reader.mentions(" ".join(texts)) <= {answer}
        yield Claim(first, last, answer if is_clear and not doubtful else None)
    named = any(reader.begins(key) or reader.is_exactly(str(value)) for key, value in pairs)
    if named and not asks and not is_clear:
        yield Claim(first, last, None)


class _Pairs(list[tuple[str, Any]]):
    """An object, in which a key may stand twice."""


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    """Keys, as letters alone, with values that are no objects, at any depth.

    What is within somebody else's key has this key before its own.
    """
    for key, inner in value if isinstance(value, _Pairs) else ():
        letters = _KEY.sub("", key.lower())
        yield letters, None if isinstance(inner, _Pairs) else inner
        for item in inner if isinstance(inner, list) and not isinstance(inner, _Pairs) else [inner]:
            is_own = letters in _OWN_KEYS
            for within, deeper in _pairs(item):
                yield (within if is_own else f"{letters} {within}"), deeper
            if isinstance(item, str) and item is not inner:
                yield f"{letters} ", item
