"""The page that sets two places of runs side by side: their episodes in pairs.

compare_page         values of the template
ComparedPlace        the episodes of a place; find_place finds them
describe_difference  the differences, in sentences
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nip_core.evaluation.change_words import describe_changes, describe_pairs
from nip_core.evaluation.verdict_changes import JudgedEpisodes, measure_changes
from nip_core.report.embedding import thin_out
from nip_core.rollouts.plan import TEST
from nip_core.showing.episodes.episode_filters import EpisodeFilters, find_rows
from nip_view.pages import (
    NotThereError,
    Values,
    list_iterations,
    list_splits,
    paginate,
)
from nip_view.parts.judged import MOST_READ
from nip_view.parts.matrix import KIND_WORDS, KINDS, pair_episodes
from nip_view.parts.queries import PER_PAGE, Comparison, read_number
from nip_view.parts.run_index import Episodes
from nip_view.runs import ShownRun, ShownRuns

_MOST_PLACES, _FEWEST_PLACES = 400, 10  # of all runs, and of one


def list_places(tables: Mapping[str, pa.Table], split: str) -> list[str]:
    """List the iterations of every run with this split, as RUN@ITERATION; of long runs some.

    `tables` are those of the indices, by run.
    """
    places = []
    limit = max(_FEWEST_PLACES, _MOST_PLACES // max(1, len(tables)))
    for run, table in tables.items():
        tests = table.filter(pc.equal(table["split"], split)) if split else table
        places += [f"{run}@{i}" for i in thin_out(list_iterations(tests), limit)]
    return places


def compare_page(runs: ShownRuns, parameters: Mapping[str, str]) -> Values:
    """Show the episodes of two places in pairs, changed verdicts first."""
    query = Comparison.parse(parameters, KINDS)
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
    sides = [find_place(runs, place, split) for place in (a, b)]
    parts = [side.table for side in sides]
    names = [place.rpartition("@")[0] for place in (a, b)]
    pairs = pair_episodes(parts[0], parts[1], query.page, PER_PAGE, kind)
    total = pairs.counts[kind] if kind else sum(pairs.counts.values())
    base = {"a": a, "b": b, "split": split}

    def address(**changes: Any) -> str:
        parameters = {**base, "kind": kind, "follows": query.follows, **changes}
        return f"?{urlencode({name: v for name, v in parameters.items() if v not in ('', None)})}"

    is_read = bool(query.follows) or max(part.num_rows for part in parts) <= MOST_READ
    rates = [
        (pc.sum(pc.equal(part["verdict"], "right")).as_py() or 0, part.num_rows) for part in parts
    ]
    return {
        **values,
        "pairs": pairs,
        "paging": paginate(total, query.page),
        "address": address,
        "names": names,
        "rates": rates,
        "difference": describe_difference(sides[0], sides[1], is_read),
        "is_read": is_read,
        "missing": [words for side in sides for words in side.find_damage()],
    }


def choose_compared_split(runs: ShownRuns, wanted_split: str) -> str:
    """Choose the split of a comparison: the one that is asked for, else tests."""
    splits = {split for run in runs.all() for split in list_splits(run.episodes().table)}
    return wanted_split or (TEST if TEST in splits else min(splits, default=""))


@dataclass(frozen=True)
class ComparedPlace:
    """The episodes of one split in an iteration of a run."""

    name: str
    """RUN@ITERATION."""
    run: ShownRun
    iteration: int
    split: str
    """All of them where it is ""."""
    episodes: Episodes
    rows: NDArray[np.int64]
    """Of the index."""

    @property
    def table(self) -> pa.Table:
        """Take its rows from the index."""
        return self.episodes.table.take(pa.array(self.rows, pa.int64()))

    def find_damage(self) -> tuple[str, ...]:
        """Say in words which parts of its split can't be read."""
        return self.episodes.find_damage(self.iteration, self.split or None)

    def judged(self, with_arguments: bool) -> JudgedEpisodes | None:
        """Read its verdicts, and the arguments; None where a file can't be read."""
        return self.run.judged.read(self.episodes, self.rows, self.run.game, with_arguments)


def find_place(runs: ShownRuns, place: str, split: str) -> ComparedPlace:
    """Find the episodes of a place, RUN@ITERATION, in the index. Raises NotThereError."""
    name, _, number = place.rpartition("@")
    run = runs.get(name)
    if run is None:
        raise NotThereError(f"there is no run {name[:60]!r} among those that are shown")
    iteration, episodes = read_number(number, 0), run.episodes(with_calls=False)
    filters = EpisodeFilters(iteration=iteration, split=split or None)
    return ComparedPlace(place, run, iteration, split, episodes, find_rows(episodes.table, filters))


def describe_difference(a: ComparedPlace, b: ComparedPlace, with_arguments: bool) -> list[str]:
    """Say the differences between two places: on which episodes, then sentences; [] for nothing."""
    if a.name == b.name:
        return []
    sides = a.judged(with_arguments), b.judged(with_arguments)
    if sides[0] is None or sides[1] is None:
        return []
    changes = measure_changes(sides[0], sides[1])
    if changes is None:
        return []
    # Only iterations of one run have an order.
    is_later = a.run is b.run and a.iteration < b.iteration
    names = None if is_later else (a.name, b.name)
    place = f"On the {describe_pairs(changes)} that both have:"
    return [place, *describe_changes(changes, names)]
