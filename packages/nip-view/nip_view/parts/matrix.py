"""Problems by iterations, and the episodes of two places in pairs.

count_matrix   by problem and iteration how its episodes ended, failures first
order_pairs    episodes of one problem and sample in two places, changed verdicts first
pair_episodes  some of these
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nip_core.showing.episodes.episode_index import FAILED, RIGHT, WRONG

_ENDS = (RIGHT, WRONG, FAILED)
MOST_COLUMNS = 24
Order = Literal["failures", "changed", "problem"]
MATRIX_SORTS = {
    "failures": "failures first",
    "changed": "changed first",
    "problem": "by problem",
}


@dataclass(frozen=True)
class Cell:
    """The episodes of a problem in an iteration."""

    right: int
    wrong: int
    failed: int
    key: str  # of the first of them that is not right, or of the first

    @property
    def played(self) -> int:
        """Count them."""
        return self.right + self.wrong + self.failed

    @property
    def kind(self) -> str:
        """The worst end of an episode here: failed, wrong, mixed, right."""
        if self.failed:
            return FAILED
        if self.wrong:
            return "mixed" if self.right else WRONG
        return RIGHT


@dataclass(frozen=True)
class ProblemRow:
    """A problem."""

    problem: str
    about: str
    """The beginning of its question."""
    y: int
    difficulty: str | None
    mutation: str | None
    cells: tuple[Cell | None, ...]  # by iteration of the matrix; None: not played


@dataclass(frozen=True)
class Matrix:
    """Some of the problems, and some of the iterations."""

    iterations: tuple[int, ...]
    rows: tuple[ProblemRow, ...]
    problems: int  # of all
    totals: tuple[
        tuple[int, int], ...
    ]  # by iteration, how many of all episodes are right, of how many


@dataclass(frozen=True)
class _CellEpisode:
    """Columns of an episode that a row of the matrix needs."""

    key: str
    about: str
    y: int
    difficulty: str | None
    mutation: str | None


def count_matrix(
    table: pa.Table, iterations: Sequence[int], first: int, count: int, sort: str
) -> Matrix:
    """Count how episodes of one split ended, for `count` problems from the `first` on."""
    # 1. Number problems, iterations and ends, and count in one pass.
    names = pc.dictionary_encode(table["problem"].combine_chunks())
    problem = names.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    ids = names.dictionary
    indices = pc.index_in(table["iteration"], value_set=pa.array(iterations, pa.int32()))
    column = pc.fill_null(indices, -1).to_numpy().astype(np.int64)
    ends = pc.index_in(table["verdict"], value_set=pa.array(_ENDS)).to_numpy().astype(np.int64)
    width, height = len(iterations), len(ids)
    is_shown = column >= 0
    flat = (problem[is_shown] * width + column[is_shown]) * 3 + ends[is_shown]
    counts = np.bincount(flat, minlength=height * width * 3).reshape(height, width, 3)
    # 2. Which problems come first.
    order = _order_problems(counts, ids, sort)[first : first + count]
    # 3. The facts of those.
    rows = _read_rows(table, order, ids, problem, column, ends, counts)
    totals = counts.sum(axis=0)
    return Matrix(
        tuple(iterations),
        tuple(rows),
        height,
        tuple((int(column_counts[0]), int(column_counts.sum())) for column_counts in totals),
    )


def _order_problems(counts: NDArray[np.int64], ids: pa.Array, sort: str) -> NDArray[np.int64]:
    """Order the numbers of problems: the ones to look at first come first."""
    by_name = np.argsort(np.array(pc.rank(ids).to_pylist(), dtype=np.int64), kind="stable")
    if sort == "problem" or not counts.shape[1]:
        return by_name
    # 1. Shares by problem and iteration.
    episode_counts = counts.sum(axis=2)
    bad, failed = (
        np.where(episode_counts > 0, numerators / np.maximum(episode_counts, 1), np.nan)
        for numerators in (episode_counts - counts[:, :, 0], counts[:, :, 2])
    )
    if sort == "changed":
        score = np.nansum(np.abs(np.diff(_carry_forward(bad), axis=1)), axis=1)
        return by_name[np.lexsort((np.arange(len(by_name)), -score[by_name]))]
    # 2. Failed before wrong, in the last iteration that played the problem; then wrong in all.
    last = [np.nan_to_num(_carry_forward(shares)[:, -1]) for shares in (failed, bad)]
    keys = (np.nansum(bad, axis=1), last[1], last[0])
    return by_name[np.lexsort((np.arange(len(by_name)), *(-key[by_name] for key in keys)))]


def _carry_forward(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fill the gaps of shares: a problem not played in an iteration keeps its share before."""
    indices = np.where(np.isnan(shares), 0, np.arange(shares.shape[1]))
    return np.take_along_axis(shares, np.maximum.accumulate(indices, axis=1), axis=1)


def _read_rows(
    table: pa.Table,
    order: NDArray[np.int64],
    ids: pa.Array,
    problem: NDArray[np.int64],
    column: NDArray[np.int64],
    ends: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> Iterable[ProblemRow]:
    on_page = np.flatnonzero(np.isin(problem, order) & (column >= 0))
    # Of these columns alone, as thousands of episodes stand behind a page.
    columns = [field.name for field in fields(_CellEpisode)]
    row_dicts = table.take(pa.array(on_page)).select(columns).to_pylist()
    first: dict[tuple[int, int], tuple[int, str]] = {}  # by cell, the worst end with its key
    about: dict[int, _CellEpisode] = {}
    for row, values in zip(on_page, row_dicts, strict=True):
        fact = _CellEpisode(**values)
        about.setdefault(int(problem[row]), fact)
        place, end = (int(problem[row]), int(column[row])), int(ends[row])
        if place not in first or end > first[place][0]:
            first[place] = (end, fact.key)
    for number in map(int, order):
        facts = about.get(number)
        yield ProblemRow(
            ids[number].as_py(),
            "" if facts is None else facts.about,
            -1 if facts is None else facts.y,
            None if facts is None else facts.difficulty,
            None if facts is None else facts.mutation,
            tuple(
                _make_cell(counts[number, k], first[number, k][1]) if (number, k) in first else None
                for k in range(counts.shape[1])
            ),
        )


def _make_cell(counts: NDArray[np.int64], key: str) -> Cell:
    right, wrong, failed = map(int, counts)
    return Cell(right, wrong, failed, key)


@dataclass(frozen=True)
class PairedEpisode:
    """An episode of a pair, with the columns of the index that a comparison shows."""

    key: str
    verdict: str
    decision: int
    decision_value: float | None
    reward: float
    outcome: str
    rounds: int


@dataclass(frozen=True)
class EpisodePair:
    """One problem and sample in two places."""

    problem: str
    about: str
    """The beginning of its question, as the first place has it."""
    sample: int
    y: int
    a: PairedEpisode
    b: PairedEpisode

    @property
    def kind(self) -> str:
        """The change: mended, broken, other (another verdict, as right as before), same."""
        rights = self.a.verdict == RIGHT, self.b.verdict == RIGHT
        if rights[0] != rights[1]:
            return "mended" if rights[1] else "broken"
        return "same" if self.a.decision == self.b.decision else "other"


KIND_WORDS = {
    "broken": "right, then wrong",
    "mended": "wrong, then right",
    "other": "another verdict",
    "same": "the same",
}
KINDS = tuple(KIND_WORDS)
_OF_BOTH = ("problem", "about", "sample", "y")
_OF_EACH = tuple(field.name for field in fields(PairedEpisode))


@dataclass(frozen=True)
class EpisodePairs:
    """Some pairs, those whose verdict changed first."""

    shown: tuple[EpisodePair, ...]
    counts: dict[str, int]  # by kind, of all
    alone: tuple[int, int]  # episodes that the other place has not


@dataclass(frozen=True)
class OrderedPairs:
    """All pairs of two places, and in which order those of a kind are shown."""

    joined: pa.Table
    rows: NDArray[np.int64]  # of `joined`, in their order
    counts: dict[str, int]

    def take(self, first: int, count: int) -> tuple[EpisodePair, ...]:
        """Read `count` pairs in their order, from the `first` on."""
        pair_rows = self.joined.take(pa.array(self.rows[first : first + count])).to_pylist()
        return tuple(
            EpisodePair(
                **{name: row[name] for name in _OF_BOTH},
                a=PairedEpisode(**{name: row[f"{name} a"] for name in _OF_EACH}),
                b=PairedEpisode(**{name: row[f"{name} b"] for name in _OF_EACH}),
            )
            for row in pair_rows
        )

    def find(self, a: str, b: str) -> int | None:
        """Find the place of the pair with these keys in the order; None: it is not among them."""
        same = pc.and_(pc.equal(self.joined["key a"], a), pc.equal(self.joined["key b"], b))
        places = np.flatnonzero(self.rows == pc.index(same, True).as_py())
        return int(places[0]) if len(places) else None


def order_pairs(a: pa.Table, b: pa.Table, kind: str = "") -> OrderedPairs:
    """Pair the episodes of two places by problem, sample and, in trees, branch."""
    # 1. Join on the columns that name an episode in its place.
    names = ["problem", "sample", "branch_path"]
    columns = [*names, "about", "y", *_OF_EACH]
    joined = a.select(columns).join(
        b.select([*names, *_OF_EACH]),
        names,
        join_type="inner",
        left_suffix=" a",
        right_suffix=" b",
        use_threads=False,
    )
    # 2. Count the kinds, and put changes first.
    right = [pc.equal(joined[f"verdict {side}"], RIGHT) for side in "ab"]
    same = pc.equal(joined["decision a"], joined["decision b"])
    kinds = pc.if_else(
        pc.equal(*right),
        pc.if_else(same, KINDS.index("same"), KINDS.index("other")),
        pc.if_else(right[1], KINDS.index("mended"), KINDS.index("broken")),
    )
    numbers = np.asarray(kinds.to_numpy(), dtype=np.int64)
    counts = np.bincount(numbers, minlength=len(KINDS))
    rows = np.arange(len(numbers)) if not kind else np.flatnonzero(numbers == KINDS.index(kind))
    names_rank = np.asarray(pc.rank(joined["problem"], tiebreaker="dense").to_numpy())
    sample = np.asarray(joined["sample"].to_numpy())
    # The leaves of a tree differ in their branch alone; without it their order would be Arrow's.
    branch = np.asarray(pc.rank(joined["branch_path"], tiebreaker="dense").to_numpy())
    keys = (branch.astype(np.int64), sample, names_rank.astype(np.int64), numbers)
    rows = rows[np.lexsort([key[rows] for key in keys])]
    return OrderedPairs(joined, rows, {name: int(counts[k]) for k, name in enumerate(KINDS)})


def pair_episodes(
    a: pa.Table, b: pa.Table, page: int, per_page: int, kind: str = ""
) -> EpisodePairs:
    """Read the pairs of a `page` of two places, counted from 1; behind the last it is the last."""
    pairs = order_pairs(a, b, kind)
    first = per_page * (min(page, max(1, -(-len(pairs.rows) // per_page))) - 1)
    paired = pairs.joined.num_rows
    lone_counts = (a.num_rows - paired, b.num_rows - paired)
    return EpisodePairs(pairs.take(first, per_page), pairs.counts, lone_counts)
