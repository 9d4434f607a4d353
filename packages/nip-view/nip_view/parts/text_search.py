"""Finds episodes by the texts in them.

TextSearch  finds rows of the index, and remembers the last few searches
TextPart    a piece of a text that was looked for, or that stands between
split_text  cuts a text into these
find_pattern, one_line   the pattern of a searched text; a text as one line

Upper and lower case are the same.
"""

import re
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nip_view.parts.kept_calls import KeptCalls, Shard
from nip_view.parts.queries import Query
from nip_view.parts.run_index import Episodes

_MOST_SEARCHES = 4
_AT_ONCE = 2  # shards, of which a piece is in memory while it is read
# Python takes all of these for one letter; the search tells them apart.
_TURKISH = {
    "i": "(?-i:[iI])",
    "I": "(?-i:[iI])",
    "\u0130": "(?-i:\u0130)",
    "\u0131": "(?-i:\u0131)",
}
_SPACES = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")

_Asked = tuple[str, str, str]
_Rows = NDArray[np.int64]


class TextSearch:
    """Finds episodes by texts in them. Remembers the last few searches."""

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._lock = Lock()
        self._known: OrderedDict[_Asked, dict[tuple[str, str], NDArray[np.int32]]] = OrderedDict()

    def find(self, calls: KeptCalls, episodes: Episodes, rows: _Rows, query: Query) -> _Rows:
        """Find those of the rows in which a call has the text, the agent and the round of a query.

        The text stands in a message or a thought. Raises CorruptionError.
        """
        key = (query.text, query.agent, query.round)
        with self._lock:
            places_by_shard = self._known.setdefault(key, {})
            self._known.move_to_end(key)
            while len(self._known) > _MOST_SEARCHES:
                self._known.popitem(last=False)
        owners = np.asarray(episodes.table["shard"].to_numpy())
        numbers = np.unique(owners[rows])
        fresh = {
            shard.identity: shard
            for shard in map(episodes.shards.__getitem__, numbers)
            if shard.identity not in places_by_shard
        }
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            places = threads.map(lambda shard: _find_places(calls, shard, query), fresh.values())
            places_by_shard.update(zip(fresh, places, strict=True))
        # The rows of a shard stand together, in its order.
        firsts = np.searchsorted(owners, numbers)
        having = np.zeros(len(owners), np.bool_)
        for number, first in zip(numbers, firsts, strict=True):
            having[first + places_by_shard[episodes.shards[number].identity]] = True
        return rows[having[rows]]


def _find_places(calls: KeptCalls, shard: Shard, query: Query) -> NDArray[np.int32]:
    parts = [_search_piece(piece, query) for piece in calls.read(shard)]
    return np.unique(np.concatenate(parts)) if parts else np.array([], np.int32)


def _search_piece(piece: pa.RecordBatch, query: Query) -> NDArray[np.int32]:
    piece = select_calls(piece, query)
    places = piece["places"]
    if query.text:
        having = pc.match_substring(piece["text"], query.text, ignore_case=True)
        thoughts = piece["reasoning"]
        if thoughts.null_count < len(thoughts):
            also = pc.match_substring(thoughts, query.text, ignore_case=True)
            having = pc.or_(having, pc.fill_null(also, False))
        places = places.filter(having)
    return np.asarray(pc.list_flatten(places).to_numpy(zero_copy_only=False))


def select_calls(piece: pa.RecordBatch, query: Query) -> pa.RecordBatch:
    """Keep the calls of the query's agent and round."""
    if query.agent:
        piece = piece.filter(pc.equal(piece["agent"], query.agent))
    if query.round:
        piece = piece.filter(pc.equal(piece["round"], int(query.round)))
    return piece


@dataclass(frozen=True)
class TextPart:
    """A piece of a text; `hit` counts the hits of a page from 1, and is 0 between them."""

    text: str
    hit: int = 0


def find_pattern(text: str) -> re.Pattern[str]:
    """Make the pattern of a searched text, in which letters are the same as for the search."""
    letters = (_TURKISH.get(letter, re.escape(letter)) for letter in text)
    return re.compile("".join(letters), re.IGNORECASE)


def split_text(text: str, pattern: re.Pattern[str], first_hit: int = 0) -> tuple[TextPart, ...]:
    """Cut a text at its hits, which are counted on from `first_hit`."""
    parts, end = [], 0
    for number, match in enumerate(pattern.finditer(text), first_hit + 1):
        parts += [TextPart(text[end : match.start()]), TextPart(match[0], number)]
        end = match.end()
    return tuple(part for part in (*parts, TextPart(text[end:])) if part.text)


def one_line(text: str) -> str:
    """Put a text on one line: spaces, line ends and control codes become one space."""
    return _SPACES.sub(" ", text)
