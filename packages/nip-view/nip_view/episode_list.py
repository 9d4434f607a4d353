"""The rows of a list of episodes with their texts.

ListedEpisode   an episode with its problem, a prover's last message, and the hits
list_episodes   reads the texts of some rows
FoundTurn       a turn of an opened episode with its hits
find_in_turns   marks them
write_title     the first words of a question, by which a person knows the problem
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nip_core.errors import NipError
from nip_core.showing.episodes.episode_index import IndexedEpisode
from nip_view.episode_page import ShownTurn
from nip_view.parts.kept_calls import KeptCalls
from nip_view.parts.queries import Query
from nip_view.parts.run_index import Episodes
from nip_view.parts.text_search import TextPart, find_pattern, one_line, split_text

MOST_OF_QUESTION, MOST_OF_MESSAGE = 80, 120  # characters in a row
_MOST_SNIPPETS = 2  # of an episode
_BEFORE, _AFTER = 35, 80  # characters around a hit


@dataclass(frozen=True)
class Snippet:
    """Some words of a call, in one line."""

    agent: str
    round: int
    in_thoughts: bool
    parts: tuple[TextPart, ...]


@dataclass(frozen=True)
class ListedEpisode:
    """A row of the list."""

    row: IndexedEpisode
    title: str
    """The first characters of the question; "" where there is none."""
    last: Snippet | None
    """A prover's last message."""
    found: tuple[Snippet, ...]
    """The first hits with some words around them."""
    hits: int
    """How often the text of the query stands in the episode, where it may."""
    damage: str
    """In words, why texts are missing; "" where they can be read."""


class _Call(NamedTuple):
    agent: str
    round: int
    is_valid: bool
    text: str
    reasoning: str | None


def list_episodes(
    calls: KeptCalls,
    episodes: Episodes,
    rows: Sequence[int],
    query: Query,
    is_prover: Callable[[str], bool],
) -> list[ListedEpisode]:
    """Read some rows of the index with their texts, in this order."""
    table = episodes.take(rows)
    by_shard: dict[int, list[int]] = defaultdict(list)
    for row in table:
        by_shard[row.shard].append(row.place)
    by_row: dict[tuple[int, int], list[_Call]] = {}
    damage: dict[int, str] = {}
    for number, places in by_shard.items():
        try:
            calls_by_place = _read_said(calls.read(episodes.shards[number]), places)
        except (NipError, OSError) as error:
            damage[number] = str(error)
        else:
            by_row |= {
                (number, place): calls_of_row for place, calls_of_row in calls_by_place.items()
            }
    pattern = find_pattern(query.text) if query.text else None
    listed = []
    for row in table:
        row_calls = by_row.get((row.shard, row.place), [])
        snippets, hits = _find_snippets(row_calls, query, pattern)
        last = _find_last(row_calls, is_prover)
        title = write_title(row.about)
        listed.append(ListedEpisode(row, title, last, snippets, hits, damage.get(row.shard, "")))
    return listed


def _read_said(pieces: Iterable[pa.RecordBatch], places: Sequence[int]) -> dict[int, list[_Call]]:
    """Read the calls of some episodes of a shard, in the order of play."""
    by_place: dict[int, list[_Call]] = {place: [] for place in places}
    for piece in pieces:
        owners = piece["places"]
        flat = pc.list_flatten(owners).to_numpy()
        is_wanted = np.isin(flat, places)
        numbers = pc.list_parent_indices(owners).to_numpy()[is_wanted]
        columns = [piece[name].take(pa.array(numbers)).to_pylist() for name in _Call._fields]
        for place, *call in zip(flat[is_wanted], *columns, strict=True):
            by_place[int(place)].append(_Call(*call))
    return by_place


def _find_last(calls: Sequence[_Call], is_prover: Callable[[str], bool]) -> Snippet | None:
    of_provers = [call for call in calls if call.is_valid and is_prover(call.agent)]
    if not of_provers:
        return None
    call = max(reversed(of_provers), key=lambda call: call.round)
    parts = (TextPart(shorten(call.text, MOST_OF_MESSAGE)),)
    return Snippet(call.agent, call.round, False, parts)


def _find_snippets(
    calls: Sequence[_Call], query: Query, pattern: re.Pattern[str] | None
) -> tuple[tuple[Snippet, ...], int]:
    """Cut out the first hits, and count all."""
    snippets: list[Snippet] = []
    hits = 0
    for call in calls:
        if pattern is None or not looks_at(query, call.agent, call.round):
            continue
        for text, in_thoughts in ((call.reasoning or "", True), (call.text, False)):
            matches = [*pattern.finditer(text)]
            hits += len(matches)
            if matches and len(snippets) < _MOST_SNIPPETS:
                parts = _cut_around(text, matches[0], pattern)
                snippets.append(Snippet(call.agent, call.round, in_thoughts, parts))
    return tuple(snippets), hits


@dataclass(frozen=True)
class FoundTurn:
    """A turn of an opened episode, cut at its hits; they are counted through the episode."""

    first: int
    """Of its hits; 0 where it has none."""
    hits: int
    in_thoughts: bool
    """Whether the first one is a thought."""
    thoughts: tuple[TextPart, ...]
    text: tuple[TextPart, ...]


def find_in_turns(turns: Sequence[ShownTurn], query: Query) -> list[FoundTurn]:
    """Cut all turns of an episode at the hits of a query; without a text, none has a hit."""
    pattern = find_pattern(query.text) if query.text else None
    cut, skipped = [], 0
    for turn in turns:
        thoughts, text = turn.row.reasoning or "", turn.message.text
        if pattern is None or not looks_at(query, turn.row.agent, turn.row.round):
            cut.append(FoundTurn(0, 0, False, (TextPart(thoughts),), (TextPart(text),)))
            continue
        of_thoughts = split_text(thoughts, pattern, skipped)
        in_thoughts = sum(1 for part in of_thoughts if part.hit)
        of_text = split_text(text, pattern, skipped + in_thoughts)
        hits = in_thoughts + sum(1 for part in of_text if part.hit)
        first = skipped + 1 if hits else 0
        cut.append(FoundTurn(first, hits, in_thoughts > 0, of_thoughts, of_text))
        skipped += hits
    return cut


def looks_at(query: Query, agent: str, round_: int) -> bool:
    """Tell whether a query looks at an agent's texts of a round."""
    return query.agent in ("", agent) and query.round in ("", str(round_))


def _cut_around(text: str, match: re.Match[str], pattern: re.Pattern[str]) -> tuple[TextPart, ...]:
    """Cut some words around a hit, in one line, in which every hit is a part of its own."""
    start, end = max(0, match.start() - _BEFORE), min(len(text), match.end() + _AFTER)
    if start and (space := text.find(" ", start, match.start())) >= 0:
        start = space + 1
    if end < len(text) and (space := text.rfind(" ", match.end(), end)) >= 0:
        end = space
    parts = [
        TextPart(one_line(part.text), part.hit) for part in split_text(text[start:end], pattern)
    ]
    if start:
        parts.insert(0, TextPart("… "))
    if end < len(text):
        parts.append(TextPart(" …"))
    return tuple(parts)


def write_title(about: str) -> str:
    """Write the first words of a question; "" where there is none."""
    return shorten(about, MOST_OF_QUESTION)


def shorten(text: str, limit: int) -> str:
    """Put the beginning of a text on one line of at most so many characters."""
    line = one_line(text[: 4 * limit]).strip()
    if len(line) <= limit and len(text) <= 4 * limit:
        return line
    if len(line) > limit:
        cut = line[: limit - 1]
        space = cut.rfind(" ", limit * 3 // 4)
        line = cut[:space] if space > 0 else cut
    return line.rstrip("\u200d ") + "…"
