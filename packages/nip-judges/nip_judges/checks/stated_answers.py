"""The final answers that a response states.

Statement       a final answer as it is stated, and its place
list_statements all that a response marks as its final answer, in order
drop_courtesy   a response without its polite lines
is_hedged       whether the sentence before a place denies or doubts it
is_taken_back   whether the text behind a final answer may change it
last_line       the last line that has more than signs

A mark is a box, four hashes, `<answer>`, or "answer:" and "answer is". Markup is left off.
"""

import re
from dataclasses import dataclass

_LONGEST = 400  # characters in a box
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_HASHES = re.compile(r"^\s*####[ \t]+(?P<chunk>\S.*)$", re.MULTILINE)
_TAGGED = re.compile(r"<answer>\s*(?P<chunk>.*?)\s*</answer>", re.DOTALL | re.IGNORECASE)
_SAID = re.compile(
    r"\b(?:answers?|(?:correct|right)\s+(?:option|choice))"
    # A sign or a leading point belongs to the answer.
    r"(?:\W{0,4}(?:is|are|was|would be|equals)\b[^\w.+\-\u2010-\u2015\u2212]{0,3}"
    r"|[ \t*_`\"')\]]*[:=]+)"
    r"[\s*_`]*(?P<chunk>[^\n]+)",
    re.IGNORECASE,
)
_COURTESY = re.compile(
    r"\W*(?:i hope|hope (?:this|that)|let me know|thanks?\b|feel free|please let|happy to|"
    r"you're welcome)",
    re.IGNORECASE,
)
_NEGATED = re.compile(
    r"\b(?:not|never|no|wrong|incorrect|false|cannot|if|unless|whether|doubt\w*|unlikely|first|"
    r"previous|another|other|intermediate|partial|someone|some|think|thought|say|says|said|claim\w*|"
    r"guess\w*|maybe|perhaps|might|could|may|would|ignore|suppose|assume|example|students?|his|her|"
    r"their|instead)\b|n't\b|\?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Statement:
    """A final answer as a response states it."""

    chunk: str
    start: int
    end: int
    is_hedged: bool
    """The words before it deny it, quote it, or doubt it."""


def list_statements(response: str) -> list[Statement]:
    """List all that a response marks as its final answer, in their order.

    A mark inside of another is not listed twice: `Answer: \\boxed{7}` is one statement.
    """
    statements = [
        *_list_boxes(response),
        *(_state(response, match) for match in _HASHES.finditer(response)),
        *(_state(response, match) for match in _TAGGED.finditer(response)),
    ]
    places = [(statement.start, statement.end) for statement in statements]
    for match in _SAID.finditer(response):
        inner = [s for s in places if s[0] < match.end() and match.start() < s[1]]
        if not inner:
            statements.append(_state(response, match))
        elif is_hedged(response, match.start()):
            statements = [_hedge(s) if (s.start, s.end) in inner else s for s in statements]
    return sorted(statements, key=lambda statement: statement.start)


def _list_boxes(response: str) -> list[Statement]:
    boxes = []
    for match in _BOX.finditer(response):
        depth, end = 1, match.end()
        longest = min(len(response), end + _LONGEST)
        while end < longest and depth:
            depth += {"{": 1, "}": -1}.get(response[end], 0)
            end += 1
        if not depth:
            chunk = response[match.end() : end - 1]
            hedged = is_hedged(response, match.start())
            boxes.append(Statement(chunk, match.start(), end, hedged))
    return boxes


def _state(response: str, match: re.Match[str]) -> Statement:
    chunk = match.group("chunk")
    sentence = re.match(r".*?[.!?](?=[*_`\"')\]]*\s+[A-Z])", chunk)
    chunk = sentence.group() if sentence else chunk
    end = match.start("chunk") + len(chunk)
    return Statement(chunk, match.start(), end, is_hedged(response, match.start()))


def _hedge(statement: Statement) -> Statement:
    return Statement(statement.chunk, statement.start, statement.end, True)


def is_hedged(response: str, start: int) -> bool:
    """Tell whether the sentence before a mark denies, doubts or quotes it."""
    sentence = " ".join(re.split(r"[.!;]\s", response[max(0, start - 1000) : start])[-1].split())
    return bool(_NEGATED.search(sentence[-200:]))


def drop_courtesy(response: str) -> str:
    """Leave out the lines that are polite, such as "I hope that this helps."."""
    return "\n".join(line for line in response.splitlines() if not _COURTESY.match(line))


def last_line(response: str) -> str:
    """Take the last line that has more than signs of markup, without its white space.

    A polite line at the end is passed over: "I hope that this helps."
    """
    lines = [line.strip() for line in drop_courtesy(response).splitlines()]
    return next((line for line in reversed(lines) if re.search(r"\w", line)), "")


_RETURNS = re.compile(
    r"\b(?:wait|actually|correction|however|but|mistake\w*|not|never|wrong|incorrect|false|instead|"
    r"should|sorry|no|rather|kidding|joke|joking|scratch|ignore|disregard|opposite|reverse\w*|before|except|unless|if|or|alternatively|error|again|check)\b|n't\b|\?",
    re.IGNORECASE,
)


def is_taken_back(tail: str) -> bool:
    """Tell whether the text behind a final answer may change it, by a number or such a word."""
    return bool(_RETURNS.search(tail) or re.search(r"\d", tail))
