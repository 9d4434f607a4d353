"""The pages that set episodes side by side: two places of runs, and two episodes.

compare_page  the episodes of two places in pairs
pair_page     two episodes
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.compute as pc

from nip_core.errors import NipError
from nip_core.evaluation.embedding import thin_out
from nip_core.rollouts.plan import TEST
from nip_core.viewer.episode_page import EpisodePage
from nip_core.viewer.index import IndexedEpisode
from nip_core.viewer.matrix import KINDS, pair_episodes
from nip_core.viewer.pages import (
    NotThereError,
    Values,
    find_episode,
    list_iterations,
    list_splits,
    open_episode,
    paginate,
)
from nip_core.viewer.queries import PER_PAGE, Comparison, Query, find_rows, read_number
from nip_core.viewer.runs import ShownRun, ShownRuns

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
        "kinds": KINDS,
        "pairs": None,
    }
    if not (a and b):
        return values
    parts = [_read_episodes_at(runs, place, split) for place in (a, b)]
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


def _read_episodes_at(runs: ShownRuns, place: str, split: str) -> pa.Table:
    name, _, iteration = place.rpartition("@")
    run = runs.get(name)
    if run is None:
        raise NotThereError(f"there is no run {name[:60]!r} among those that are shown")
    query = Query(iteration=str(read_number(iteration, 0)), split=split, sort="played")
    table = run.episodes().table
    return table.take(pa.array(find_rows(table, query), pa.int64()))


@dataclass(frozen=True)
class PairSide:
    """One of two episodes side by side; `page` is None where it can't be read."""

    run: ShownRun
    key: str
    about: IndexedEpisode
    page: EpisodePage | None
    damage: str


def pair_page(runs: ShownRuns, asked: Mapping[str, str]) -> Values:
    """Show two episodes side by side: `a` and `b` are RUN/KEY."""
    sides = []
    for side in ("a", "b"):
        name, _, key = asked.get(side, "").rpartition("/")
        run = runs.get(name)
        if run is None:
            raise NotThereError(f"{side}: there is no run {name[:60]!r} among those that are shown")
        episodes = run.episodes()
        at = find_episode(episodes, key)
        page, damage = None, ""
        try:
            page = open_episode(run, episodes, at)
        except (NipError, OSError) as error:
            damage = str(error)
        sides.append(PairSide(run, key, episodes.take([at])[0], page, damage))
    return {"sides": sides}
