"""Verdicts in other words than a decision line: the claims of an answer.

1. A label that begins a line or a sentence: "Verdict: reject", "... so. Decision: accept".
2. A label within a sentence, right before a verdict at the end of the line: not clear.
3. A bare verdict that is the whole answer, its first line or its last line.
4. A sentence that declares one: "I reject the solution."
5. The last fence, a box or a part for a channel with a verdict and nothing else: not clear.
6. An answer that is a JSON object with a label among its keys.

A claim is clear where no other player may be speaking, nothing supposes, hedges or negates it, and
no question follows. Words in quotation marks within a line claim nothing.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from nip_core.game.answers.answer_lines import NUMBERING
from nip_core.game.answers.decisions import (
    InvalidDecision,
    VerdictReader,
    any_case,
    is_blank,
    strip_decoration,
)
from nip_core.game.answers.verdict_labels import (
    OTHER_SEPARATOR,
    WORDS,
    Answer,
    find_labelled_lines,
    is_introduced,
    write_beginning,
)

_IN_LINE = any_case(write_beginning(WORDS, OTHER_SEPARATOR, "{0,9}"))
_WORD = any_case(rf"\b(?:{'|'.join(WORDS)})\b")
_SEPARATED = any_case(r"[ *_`\"')\]]{0,6}(?:[:|→-]|->|=>|is\b|to\b|[ *_`\"'(])*")
_EDGE = re.compile(r"(?:(?P<sure>[.!;)]|</\w{1,30}>|(?<= )-|→)|[>?:,|])[\"'*_)\] ]{0,4}$")
_CONNECTOR = any_case(r"^(?:so|thus|hence|therefore|finally|overall|in conclusion)\b[,:]? ?")
_NUMBER = re.compile(rf"^[ *_]{{0,4}}{NUMBERING}(?=.)")
_PART = any_case(r"[ *_#]{0,6}(?:question|answer|message|to)\b[^:]{0,30}:[ *_]*")
_LISTED = any_case(r"[ *_]*(?:[-•+]|[0-9a-z]{1,2}[.)]) ")
_BOX = re.compile(r"\\boxed ?\{(?: ?\\text[a-z]{0,2} ?\{)?([^{}]{1,60})\}")
# Before a label: words that give it to another player, ask it, suppose it or speak about it.
_NOT_SAID = any_case(
    r"\b(?:if|unless|suppose|supposing|imagine|assum(?:e|ing)|would|could|should|might|may|must"
    r"|example|e\.g|instruct\w*|format|forms?|writes?|written|wrote|says?|said|claim\w*|told"
    r"|tempt\w*|lean\w*|tentative\w*|preliminary|until|whether|either|options?|refuse"
    r"|quot\w*|not (?:yet|final|my)|too early"
    r"|(?:you|they|he|she|(?:expert|prover|opponent)(?:_?[0-9])?) (?:\w+ )?(?:answer|decid"
    r"|conclud|want|ask|insist|argu|end|repli)\w*)\b"
)
_NEGATION = any_case(r"\b(?:not|never|no|cannot|without|[a-z]+n't)\b")
# And those behind which a label is not a verdict of the agent's at all.
_TALK = any_case(
    r"(?:\b(?:your|his|her|their|its|whose|which|what|any|each|why|whether|how|expected|other"
    r"|print\w*|returns?|(?!let|here|that|it|verifier)[a-z_0-9]+'s)\b"
    r"|(?:^|[.!;:] ?)(?:please )?(?:explain|show|tell|convince|prove)\b)[^.!;:]{0,60}$"
)
_TO_OTHERS = any_case(
    r"\b(?:you|your|expert|prover|they|want|would|could|should|might|may|if|unless|say|write)\b"
)
_APOSTROPHE = re.compile(r"(?<=\w)'(?=\w)|(?<=s)'(?= )")
_JUDGED = any_case(
    r"[*_`\"'( ]{0,6}(?:the (?:solution|code|program) is )?(?:not )?(?:(?:in)?correct|right|wrong"
    r"|buggy|(?:in)?valid|approve|pass|fail|yes|no|true|false|sound|accept|reject|(?:dis)?agree)"
    r"(?:e?d|able|ance|ion)?[*_`\"') .!]{0,9}$"
)
_ACCEPTED = any_case(r"\W{0,6}(?:not )?(?:accept|reject)(?:ed|ion|ance)?\W{0,9}$")
_STRONG = {"decision", "verdict", "conclusion", "judgment", "judgement", "ruling"}
_NUMBERED = {*_STRONG, "answer", "rating", "score"}
_FEW_WORDS = 8
_MARKED = any_case(r"\[x\]|[☑☒🗹]|<(?:[^<>]{0,30}[ =\"'])?(?:accept|reject)\w{0,3}[\"' ]{0,3}/?>")
_TAGGED = re.compile(r"<\w{1,30}>([^<>]{1,40})</\w{1,30}>$")
_I = any_case(r"\b(?:i|we)\b")
_I_SAY = any_case(r"\b(?:i|i'd|we) (?:say|vote|vote for|choose|select|pick|go with)$")
_HEDGED_NUMBER = any_case(  # "about 85", "I give it a solid 8"
    r"(?=.*[0-9])[^ =]*(?: [^ =]+){0,3}$|(?:i|i'd|i'll|on a scale)\b[^?=]{0,60}[0-9][^ ?]{0,4}$"
)
_MY = any_case(r"\b(?:my|final) $")
_WHY = any_case(r"\b(?:why|whether|how|what|explain|show|tell|convince|prove)\b")
_BEHIND = any_case(r"(?:[.!?;:,→]| -|[.!;:,→] (?:so|thus|hence|therefore),?)$")
_OWN = any_case(
    r"(?:(?:it's|that's|this is|let|i|we|my|our|i'[a-z]{1,2}|probably|likely|maybe|perhaps"
    r"|possibly|lean[a-z]*|presumably|almost|clearly|definitely|certainly|do|don't|never|not)\b|$)"
)
_LOOKED_AT = 400  # characters of a line before a label
_LONGEST = 2000  # and behind it
_MOST = 10  # labels within one line that are looked at


@dataclass(frozen=True)
class Claim:
    """A place that may be meant as a verdict."""

    first: int  # line in which it begins
    last: int  # and in which it ends
    answer: str | None = None  # of the scale; None: it is not clear that it is meant, or which
    rest: str = ""  # of its line, from the verdict on
    is_meant: bool = False  # it is not clear only because a question or other parts follow


def find_claims(answer: Answer) -> list[Claim]:
    """Find every place of the answer with a possible verdict."""
    if answer.whole.startswith("{"):
        return list(_in_json(answer))
    return [_judged(answer, claim) for rule in _RULES for claim in rule(answer)]


def _judged(answer: Answer, claim: Claim) -> Claim:
    """The claim, no longer clear where another player speaks, or is spoken to."""
    if claim.answer is None:
        return claim
    if claim.first in answer.lines.quoted or is_introduced(answer.lines, claim.first):
        return replace(claim, answer=None)
    parts = [*answer.starts, *answer.questions]
    if parts and (answer.questions or min(parts) != claim.first):
        return replace(claim, answer=None, is_meant=claim.first < min(parts))
    return claim


# 1. Labels.


def _labelled(answer: Answer) -> Iterator[Claim]:
    """Look at lines with a label first."""
    reader = answer.reader
    try:
        labelled = find_labelled_lines(answer, decisions=False)
    except InvalidDecision:
        return  # so many are no verdict
    for line in labelled:
        if line.is_apart and not answer.consists_of(line.first, line.last):
            continue
        if not reader.begins(line.rest):
            if _JUDGED.match(line.rest) or _ends_with_verdict(reader, line.rest, line.label):
                yield Claim(line.first, line.last, None, line.rest)
            continue
        is_number = reader.is_numeric and line.label not in _NUMBERED
        if is_number and not reader.is_exactly(line.rest):
            continue  # "Result: 3 loops are nested."
        value = None if is_number else reader.read_if_clear(line.rest)
        yield Claim(line.first, line.last, value, line.rest)


def _ends_with_verdict(reader: VerdictReader, text: str, label: str) -> bool:
    if reader.is_numeric:
        return label in _NUMBERED and re.search(r"[0-9]", text) is not None
    return len(text.split()) <= _FEW_WORDS and reader.at_end(text) is not None


def _within_lines(answer: Answer) -> Iterator[Claim]:
    """Look for labels inside of lines."""
    for i, line in answer.free_with(*WORDS):
        first = _IN_LINE.match(line)
        for word in islice(_WORD.finditer(line), _MOST):
            if first is None or first.end("label") != word.end():
                claim = _within_line(line, word, answer.reader)
                if claim is not None:
                    yield replace(claim, first=i, last=i)


def _within_line(line: str, word: re.Match[str], reader: VerdictReader) -> Claim | None:
    is_strong = word[0].lower() in _STRONG
    # 1. The sentence may begin a few words before the label, as in "so my final decision".
    for begin in _beginnings(line, word.start()):
        start = _IN_LINE.match(line, begin)
        if start is None or start.end("label") != word.end():
            continue
        lead = line[max(0, begin - _LOOKED_AT) : begin]
        verdict = line[start.end() :][:_LONGEST].strip()
        if _is_open(lead):
            return None  # in quotation marks
        is_number = reader.is_numeric and not reader.is_exactly(verdict)
        if not reader.begins(verdict) or (is_number and not is_strong):
            break
        edge = _EDGE.search(lead)
        mark = "" if edge is None or _NOT_SAID.search(lead) else edge["sure"]
        is_sure = mark and (mark in ".!;" or _NEGATION.search(lead) is None)
        return Claim(0, 0, reader.read_if_clear(verdict) if is_sure else None, verdict)
    # 2. Otherwise it is a claim only right before a verdict at the end of the line.
    lead = line[max(0, word.start() - _LOOKED_AT) : word.start()]
    separated = _SEPARATED.match(line, word.end())
    if separated is None or _is_open(lead) or _TALK.search(lead):
        return None
    if not is_strong and not _MY.search(lead) and not re.search(r"[:|→>-]", separated[0]):
        return None  # "in this state the result is accept"
    verdict = line[separated.end() :][:_LONGEST].strip(" |")
    return Claim(0, 0, None, verdict) if reader.is_exactly(verdict) else None


def _beginnings(line: str, label: int) -> Iterator[int]:
    """Tell where in the line the sentence with a label may begin: behind marks before it."""
    start = max(0, label - 60)
    for mark in re.finditer(r"[.!;)>→?:,|\"*_] ?|(?<= )- ", line[start:label]):
        begin = start + mark.end()
        if _EDGE.search(line[max(0, begin - 8) : begin]):
            yield begin


def _is_open(lead: str) -> bool:
    """Tell whether a quotation is open at the end of the text."""
    if "<!" in lead:
        return True
    marks = _APOSTROPHE.sub("", lead)
    return any(marks.count(mark) % 2 for mark in "\"`'")


# 2. Verdicts without a label.


def _bare(answer: Answer) -> Iterator[Claim]:
    """The first line, the last one, or the whole answer."""
    lines, reader = answer.lines, answer.reader
    filled = [i for i in answer.filled if lines.free[i]]
    for i in {*filled[:1], *filled[-1:]}:
        text = _CONNECTOR.sub("", _NUMBER.sub("", strip_decoration(lines.read[i])), count=1)
        is_whole = answer.consists_of(i)
        value, is_exact = reader.read_if_clear(text), reader.is_exactly(text)
        if value is None and not is_exact:
            is_other = _ACCEPTED.match(text) and "?" not in text  # perhaps of another scale
            if is_whole and (is_other or _stands_alone(reader, text)):
                yield Claim(i, i, None, text)
            continue
        is_apart = text.lstrip("*_ ")[:1] in set("\"'`([{<")
        if (is_apart and not is_whole) or (reader.is_numeric and not is_exact):
            continue
        index = next(lines.filled_above(i), -1)
        line_above = strip_decoration(lines.read[index]) if index >= answer.begin else ""
        declaration = reader.declared(text)
        unclear = (
            (not is_exact and _TO_OTHERS.search(text))
            or (not is_whole and (reader.is_numeric or _LISTED.match(text)))
            or line_above.endswith("?")
            or reader.is_exactly(line_above)
            # "I agree" may be meant for the expert.
            or (declaration and not declaration.has_object and not (is_whole and reader.accepts))
        )
        yield Claim(i, i, None if unclear else value, text)


def _stands_alone(reader: VerdictReader, text: str) -> bool:
    """Say whether a line begins with a verdict alone, no word of a sentence, or its negation."""
    remainder = reader.behind(text)
    if remainder is None:
        return reader.begins(text) and len(text.split()) < 4
    return not re.match(r"[-']?\w|[ *_]+(?!or\b)\w", remainder)


def _declared(answer: Answer) -> Iterator[Claim]:
    """The last sentence, where it says "I accept the solution"."""
    lines, reader = answer.lines, answer.reader
    for last in answer.filled[-1:]:
        if not lines.free[last]:
            return
        line = strip_decoration(lines.read[last])[-_LOOKED_AT:].rstrip("*_ ")
        edges = list(re.finditer(r"[.!;:,?](?= )", line[:-1]))
        begin = edges[-1].end() if edges else 0
        lead, text = line[:begin], _CONNECTOR.sub("", line[begin:].strip(" *_"), count=1)
        declaration = reader.declared(text)
        if declaration is None:
            if "?" not in line and not _WHY.search(line):
                start = max((match.start() for match in _I.finditer(line)), default=0)
                inner = reader.declared(line[start:])
                is_said = inner and inner.has_object and not _NOT_SAID.search(line[:start])
                if is_said or (reader.is_about_solution(text) and not _NOT_SAID.search(lead)):
                    yield Claim(last, last)
            return
        if not _is_open(lead) and (lead or not reader.is_exactly(text)):
            is_clear = not lead or (lead[-1] not in ",:?" and not _NOT_SAID.search(lead))
            is_clear = is_clear and declaration.has_object
            yield Claim(last, last, declaration.answer if is_clear else None)


# 3. Places that are never clear.


def _in_last_fence(answer: Answer) -> Iterator[Claim]:
    """A verdict in a fence, in quotation marks or almost in JSON, at the end."""
    if answer.questions:
        return
    lines, reader = answer.lines, answer.reader
    for last in answer.filled[-1:]:
        is_all = answer.consists_of(last) and not lines.read[last].startswith(">")
        line = "" if is_all else strip_decoration(lines.read[last]).lstrip("> ")
        start = _IN_LINE.match(line)
        verdict = line if start is None else line[start.end() :]
        is_apart = not lines.free[last] or (start is not None and line[:1] in set("\"'`([{"))
        if is_apart and reader.is_exactly(verdict):
            yield Claim(last, last)
    whole = answer.whole.rstrip("`~ \n")
    if whole.endswith("}") and _LOOSE.search(whole, whole.rfind("\n{") + 1):
        yield Claim(len(lines.read) - 1, len(lines.read) - 1)


def _boxed_or_part(answer: Answer) -> Iterator[Claim]:
    """A verdict in a box at the end of a line, or as the whole part for a channel."""
    lines, reader = answer.lines, answer.reader
    for i, line in enumerate(lines.read):
        if i < answer.begin or not lines.free[i]:
            continue
        for box in _BOX.finditer(line) if "\\boxed" in line else ():
            if reader.is_exactly(box[1]) and is_blank(line[box.end() :].strip(" .!$}")):
                yield Claim(i, i)
        part = _PART.match(line)
        if not reader.is_numeric and (i in answer.starts or part is not None):
            begin = part.end() if part else 0
            message = (
                answer.starts[i].rest if i in answer.starts else strip_decoration(line[begin:])
            )
            if reader.is_exactly(message):
                yield Claim(i, i)


def _at_end(answer: Answer) -> Iterator[Claim]:
    """Look for any other verdict at the end."""
    lines, reader = answer.lines, answer.reader
    for last in answer.filled[-1:]:
        line, is_whole = strip_decoration(lines.read[last]), answer.consists_of(last)
        # 1. Where nothing is asked: a tag, a ticked box, almost JSON, a hedged number.
        if "?" not in answer.whole:
            tagged = _TAGGED.search(line)
            is_word = is_whole and " " not in line
            if (
                (_MARKED.search(line) and reader.mentions(line))
                or (tagged and reader.is_exactly(tagged[1]))
                or (is_word and any(stem in line.lower() for stem in reader.stems))
                or (reader.is_numeric and is_whole and _HEDGED_NUMBER.match(line))
                or (_LOOSE.search(answer.whole) and reader.mentions(answer.whole))
            ):
                yield Claim(last, last)
        # 2. A verdict behind a mark, or at the end of a short sentence of the agent's own.
        begin = reader.at_end(line) if lines.free[last] and len(line) < _LOOKED_AT else None
        if begin is None or last in answer.questions:
            return
        lead = line[:begin].rstrip("\"'`*_([{ ")
        words = len(lead.split())
        is_own = is_whole and "?" not in line and "=" not in line
        is_own = is_own and (words < 3 or (words < 8 and _OWN.match(lead) is not None))
        is_open = _is_open(line[:begin]) or _TALK.search(lead.rstrip(":,"))
        if _I_SAY.search(lead) or (not is_open and (is_own or _BEHIND.search(lead))):
            yield Claim(last, last)


_RULES = (
    _labelled,
    _within_lines,
    _bare,
    _declared,
    _in_last_fence,
    _boxed_or_part,
    _at_end,
)


# JSON.

_KEY = re.compile(r"[\W_]+")
_OWN_KEYS = {*WORDS, "output", "verifier", "final", "data"}
_DEGREES = any_case(r"\b(?:strongly|somewhat|slightly)\b")
_DOUBTFUL = re.compile(r"negat|hypothe|example|quote|^not")
_LOOSE = any_case(rf"[\"'](?:\w{{1,20}}[_ -])?(?:{'|'.join(WORDS)})[\"'] ?:")
_OPEN = {"", "none", "null", "undecided", "pending", "unknown", "n/a", "not yet"}
_ASKING = {"question", "questions", "message", "query"}


def _in_json(answer: Answer) -> Iterator[Claim]:
    """Read the claims of an answer in JSON, or meant to be in JSON."""
    reader, first, last = answer.reader, answer.begin, len(answer.lines.read) - 1
    try:
        pairs = list(_pairs(json.loads(answer.whole, object_pairs_hook=_Pairs)))
    except (ValueError, RecursionError):
        if _LOOSE.search(answer.whole):
            yield Claim(first, last)
        return
    asks = any(key in _ASKING and value for key, value in pairs)
    texts = [str(value) for key, value in pairs if not key.endswith(WORDS)]
    in_degrees = not reader.accepts and _DEGREES.search(" ".join(texts)) is not None
    doubtful = (
        asks or in_degrees or any(value is False or _DOUBTFUL.search(key) for key, value in pairs)
    )
    is_clear = False
    for key, value in pairs:
        stated = strip_decoration("" if value is None else str(value))
        label = key.removeprefix("final").removesuffix("value")
        if label not in WORDS or (asks and stated.lower() in _OPEN):
            continue
        verdict = reader.read_if_clear(stated) if reader.is_exactly(stated) else None
        if verdict is not None and not doubtful:
            is_clear = not reader.is_numeric or label in _NUMBERED
            taken_back = reader.is_retracted(verdict, "\n".join(texts))
            is_clear &= not taken_back and reader.mentions(" ".join(texts)) <= {verdict}
        yield Claim(first, last, verdict if is_clear and not doubtful else None)
    has_verdict = any(reader.begins(key) or reader.is_exactly(str(value)) for key, value in pairs)
    if has_verdict and not asks and not is_clear:
        yield Claim(first, last)


class _Pairs(list[tuple[str, Any]]):
    """An object, in which a key may stand twice."""


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield keys, as letters alone, with plain values, at any depth.

    A key within another player's key has this key before its own.
    """
    for key, inner in value if isinstance(value, _Pairs) else ():
        letters = _KEY.sub("", key.lower())
        yield letters, None if isinstance(inner, _Pairs) else inner
        for item in inner if isinstance(inner, list) and not isinstance(inner, _Pairs) else [inner]:
            is_own = letters in _OWN_KEYS
            for path, deeper in _pairs(item):
                yield (path if is_own else f"{letters} {path}"), deeper
            if isinstance(item, str) and item is not inner:
                yield f"{letters} ", item
