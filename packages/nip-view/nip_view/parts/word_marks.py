"""Which words of two texts differ, as parts of each text.

mark_words   the parts of two texts
MarkedTexts  these parts, and the steps that finding them took
Piece        a part of a text

Parts put together are the text again, letter by letter: a page need only escape them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

MOST_STEPS = 20_000_000
"""Steps of difflib for two texts, at most a second. Texts of a thousand words take a tenth of them;
of a model that repeats two words a thousand times they would take minutes."""
_WORD = re.compile(r"\w+|[^\w\s]")
_SENTENCE = re.compile(r"[^\s.!?][^\n.!?]*[.!?]*|[.!?]+")
_Span = tuple[int, int]


@dataclass(frozen=True)
class Piece:
    """A part of a text, all of which differs or none."""

    text: str
    differs: bool


@dataclass(frozen=True)
class MarkedTexts:
    """Two texts in parts."""

    first: tuple[Piece, ...]
    second: tuple[Piece, ...]
    is_exact: bool
    """Whether single words are marked; else sentences, or all from the first that differs on."""
    steps: int
    """The steps that it took at most."""


def mark_words(first: str, second: str, limit: int = MOST_STEPS) -> MarkedTexts:
    """Mark the words of two texts that differ. Spaces don't count.

    Where that may take more than `limit` steps, sentences are marked in the place of words.
    """
    for unit in (_WORD, _SENTENCE):
        spans = [[match.span() for match in unit.finditer(text)] for text in (first, second)]
        changes, steps = _compare(_read(first, spans[0]), _read(second, spans[1]), limit)
        if changes is not None:
            break
    else:  # even so: all between the same beginning and the same end
        begin, end = _count_shared_ends(_read(first, spans[0]), _read(second, spans[1]))
        changes = [(begin, len(spans[0]) - end, begin, len(spans[1]) - end)]
    return MarkedTexts(
        _cut(first, spans[0], [(a, b) for a, b, _, _ in changes]),
        _cut(second, spans[1], [(c, d) for _, _, c, d in changes]),
        is_exact=unit is _WORD,
        steps=steps,
    )


def _read(text: str, spans: Sequence[_Span]) -> list[str]:
    return [text[start:end] for start, end in spans]


def _compare(
    first: Sequence[str], second: Sequence[str], limit: int
) -> tuple[list[tuple[int, int, int, int]] | None, int]:
    """Find where two lists differ, and at most how many steps it took; None: it would be too many.

    Each place is from and to in the first, from and to in the second.
    """
    begin, end = _count_shared_ends(first, second)
    a, b = first[begin : len(first) - end], second[begin : len(second) - end]
    matcher = SequenceMatcher(None, a, b)
    # Documented, but not among the types: by word its places in the second, frequent ones left out.
    places_by_word: Mapping[str, Sequence[int]] = vars(matcher)["b2j"]
    # It looks at each pair of equal words once for each stretch that it finds.
    pairs = sum(len(places_by_word.get(word, ())) for word in a)
    steps = pairs * min(len(a), len(b))
    if steps > limit:
        return None, 0
    changes: list[tuple[int, int, int, int]] = []
    for kind, *places in matcher.get_opcodes():
        if kind == "equal":
            continue
        from_a, to_a, from_b, to_b = (begin + place for place in places)
        # Equal signs alone between two changes are no island: "7, 8" for "4, 5" is one change.
        if changes and not any(word[0].isalnum() for word in first[changes[-1][1] : from_a]):
            from_a, from_b = changes[-1][0], changes[-1][2]
            changes.pop()
        changes.append((from_a, to_a, from_b, to_b))
    return changes, steps


def _count_shared_ends(first: Sequence[str], second: Sequence[str]) -> tuple[int, int]:
    """Count how many words at the beginning, and then at the end, are the same."""
    shortest = min(len(first), len(second))
    begin = 0
    while begin < shortest and first[begin] == second[begin]:
        begin += 1
    end = 0
    while end < shortest - begin and first[-1 - end] == second[-1 - end]:
        end += 1
    return begin, end


def _cut(text: str, spans: Sequence[_Span], changed_spans: Sequence[_Span]) -> tuple[Piece, ...]:
    """Cut a text where its words, given by their places, begin and cease to differ."""
    pieces: list[Piece] = []
    position = 0
    for first, last in changed_spans:
        if first == last:  # words that only the other text has
            continue
        start, end = spans[first][0], spans[last - 1][1]
        pieces += [Piece(text[position:start], False), Piece(text[start:end], True)]
        position = end
    pieces.append(Piece(text[position:], False))
    return tuple(piece for piece in pieces if piece.text)
