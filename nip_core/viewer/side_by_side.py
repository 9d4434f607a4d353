"""The page that sets two places of runs side by side: their episodes in pairs.

compare_page      values of the template
read_episodes_at  the episodes of a place
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.compute as pc

from nip_core.evaluation.embedding import thin_out
from nip_core.rollouts.plan import TEST
from nip_core.showing.episode_filters import EpisodeFilters, find_rows
from nip_core.viewer.matrix import KIND_WORDS, KINDS, pair_episodes
from nip_core.viewer.pages import (
    NotThereError,
    Values,
    list_iterations,
    list_splits,
    paginate,
)
from nip_core.viewer.queries import PER_PAGE, Comparison, read_number
from nip_core.viewer.runs import ShownRuns

_MOST_PLACES, _FEWEST_PLACES = 400, 10  # of all runs, and of one


def list_places(tables: Mapping[str, pa.Table], split: str) -> list[str]:
    """List the iterations of every run with this split, as RUN@ITERATION; of long runs some.

    `tables` are those of the indices, by run.
    """
    places = []
    most = max(_FEWEST_PLACES, _MOST_PLACES // max(1, len(tables)))
    for run, table in tables.items():
        played = table.filter(pc.equal(table["split"], split)) if split else table
        places += [f"{run}@{i}" for i in thin_out(list_iterations(played), most)]
    return places


def compare_page(runs: ShownRuns, asked: Mapping[str, str]) -> Values:
    """Show the episodes of two places in pairs, changed verdicts first."""
    query = Comparison.parse(asked, KINDS)
    a, b, kind = query.a, query.b, query.kind
    tables = {run.name: run.episodes(with_calls=False).table for run in runs.all()}
    splits = sorted({split for table in tables.values() for split in list_splits(table)})
    split = query.split or (TEST if TEST in splits else (splits[0] if splits else ""))
    places = list_places(tables, split)
    values: Values = {
        "a": a,
        "b": b,
        "split": split,
        "splits": splits,
        "places": places,
        "kind": kind,
        "kinds": KIND_WORDS,
        "pairs": None,
    }
    if not (a and b):
        return values
    parts = [read_episodes_at(runs, place, split) for place in (a, b)]
    names = [place.rpartition("@")[0] for place in (a, b)]
    shown = pair_episodes(parts[0], parts[1], query.page, PER_PAGE, kind)
    total = shown.counts[kind] if kind else sum(shown.counts.values())
    base = {"a": a, "b": b, "split": split}

    def address(**changes: Any) -> str:
        named = {**base, "kind": kind, **changes}
        return f"?{urlencode({name: v for name, v in named.items() if v not in ('', None)})}"

    rates = [
        (pc.sum(pc.equal(part["verdict"], "right")).as_py() or 0, part.num_rows) for part in parts
    ]
    return {
        **values,
        "pairs": shown,
        "paging": paginate(total, query.page),
        "address": address,
        "names": names,
        "rates": rates,
    }


def choose_split(runs: ShownRuns, asked: str) -> str:
    """Choose the split of a comparison: the one that is asked for, else tests."""
    known = {split for run in runs.all() for split in list_splits(run.episodes().table)}
    return asked or (TEST if TEST in known else min(known, default=""))


def read_episodes_at(runs: ShownRuns, place: str, split: str) -> pa.Table:
    """Read the index of one place, RUN@ITERATION. Raises NotThereError."""
    name, _, iteration = place.rpartition("@")
    run = runs.get(name)
    if run is None:
        raise NotThereError(f"there is no run {name[:60]!r} among those that are shown")
    filters = EpisodeFilters(iteration=read_number(iteration, 0), split=split or None)
    table = run.episodes().table
    return table.take(pa.array(find_rows(table, filters), pa.int64()))
