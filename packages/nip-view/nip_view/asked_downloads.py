"""Which rows an address asks for as a file.

find_episode_download  the rows of a list, all pages of it
find_pair_download     the pairs of a comparison
read_format            the end of an address

Unreadable files are left out of a page, which names them. A file would not say what it lacks, so
there is none: as the line of Python has no rows then.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nip_core.errors import CorruptionError
from nip_view.downloads import (
    FORMATS,
    ComparedSide,
    Download,
    Format,
    download_episodes,
    download_pairs,
)
from nip_view.pages import NotThereError, find_asked_rows
from nip_view.parts.matrix import KINDS, order_pairs
from nip_view.parts.queries import Comparison, Query, QueryError
from nip_view.runs import ShownRun, ShownRuns
from nip_view.side_by_side import choose_compared_split, find_place

_MOST_NAMED = 3


def read_format(end: str) -> Format:
    """Read the end of an address. Raises NotThereError for another than rows have."""
    for kind in FORMATS:
        if end == kind:
            return kind
    raise NotThereError(f"rows are there as {' and '.join(FORMATS)}, not as {end[:20]!r}")


def find_episode_download(
    run: ShownRun, parameters: Iterable[tuple[str, str]], kind: Format
) -> Download:
    """Find the rows of a list, in its order; with `asked=yes` they have the requests."""
    pairs = [*parameters]
    with_asked = dict(pairs).get("asked", "")
    if with_asked not in ("", "yes"):
        raise QueryError(f"asked={with_asked}: use yes")
    episodes, query = run.episodes(), Query.parse(pairs, ("asked",))
    rows = find_asked_rows(run, episodes, query)
    filters = query.to_filters()
    _refuse_damage(episodes.find_damage(filters.iteration, filters.split))
    return download_episodes(run, episodes, rows, filters, kind, with_asked == "yes")


def find_pair_download(runs: ShownRuns, parameters: Mapping[str, str], kind: Format) -> Download:
    """Find the pairs of a comparison, in its order."""
    query = Comparison.parse(parameters, KINDS)
    if not (query.a and query.b):
        raise QueryError("a and b: a comparison is of two places, RUN@ITERATION")
    split = choose_compared_split(runs, query.split)
    places = (query.a, query.b)
    found_places = [find_place(runs, place, split) for place in places]
    for side in found_places:
        _refuse_damage(side.find_damage())
    ordered = order_pairs(found_places[0].table, found_places[1].table, query.kind)
    pairs = ordered.take(0, len(ordered.rows))
    sides = []
    for place, keys in zip(
        places, ([pair.a.key for pair in pairs], [pair.b.key for pair in pairs]), strict=True
    ):
        run = runs.get(place.rpartition("@")[0])
        assert run is not None  # its episodes were read
        episodes = run.episodes()
        row = pc.index_in(pa.array(keys, pa.string()), value_set=episodes.table["key"])
        rows = np.asarray(row.to_numpy(zero_copy_only=False)).astype(np.int64)
        sides.append(ComparedSide(place, run, episodes, rows))
    return download_pairs((sides[0], sides[1]), [pair.kind for pair in pairs], kind)


def _refuse_damage(damage: Sequence[str]) -> None:
    """Raise CorruptionError if a part of the wanted rows can't be read."""
    if damage:
        more = len(damage) - _MOST_NAMED
        message = "; ".join(damage[:_MOST_NAMED]) + (f"; and {more:,} more" if more > 0 else "")
        raise CorruptionError(
            f"{message}. A file of these rows would lack episodes and not say so. Choose an "
            "iteration and a split that are whole; nip verify looks at every file"
        )
