"""Which episodes a user asks for: filters and an order, over the columns of the index.

EpisodeFilters  the filters, checked; the same for a page's address and for a line of Python
find_rows       the rows of the index that they ask for, in their order
filter_rows, sort_rows  the two halves of it
find_in_calls   the episodes in which a text stands, or an agent took a turn
CHOICES         filters with a fixed set of values, and their words; SORTS, orders
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nip_core.errors import SettingsError
from nip_core.evaluation.episode_transcripts import DECISION_WORDS
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.rollouts.trees import TREE_COLUMNS, for_each_episode
from nip_core.showing.episodes.episode_index import FAILED, RIGHT, WRONG

NOT_RIGHT = "not-right"
CHOICES: Mapping[str, Mapping[str, str]] = {
    "verdict": {WRONG: "wrong", RIGHT: "right", FAILED: "failed", NOT_RIGHT: "wrong or failed"},
    "outcome": {"finished": "finished", "terminated": "terminated", "failed": "failed"},
    "decision": {"1": "accept", "0": "reject", "3": "neither", "2": "no decision"},
    "label": {"1": "1", "0": "0", "-1": "none"},
    "invalid": {"1": "some", "0": "none"},
    "noted": {"starred": "starred", "note": "with a note", "any": "starred or with a note"},
}
"""By filter its values in an address, and their words."""
SORTS: Mapping[str, str] = {
    "failures": "failures first",
    "played": "as played",
    "problem": "by problem",
    "tokens": "most tokens",
    "invalid": "most invalid answers",
    "reward": "lowest reward",
    "confident": "confident and wrong first",
    "unsure": "least sure first",
    "rounds": "most rounds",
}
DECISIONS = {words: number for number, words in DECISION_WORDS.items()}
_EQUAL = ("split", "difficulty", "mutation", "outcome")
_NONE = "none"  # stands for a value that is not there
_WORST_FIRST = pa.array([FAILED, WRONG, RIGHT])
_SEARCHED = ("text", "reasoning")
_MOST = 2**31 - 1
_HALF = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class EpisodeFilters:
    """Filters of episodes; None asks for everything. Raises SettingsError for a wrong value."""

    iteration: int | None = None
    split: str | None = None
    verdict: str | None = None
    """``right``, ``wrong``, ``failed``, or ``not-right`` for the last two."""
    decision: str | None = None
    """``accept``, ``reject``, ``neither`` or ``no decision``."""
    label: int | None = None
    """Of the solution: 1 right, 0 wrong, -1 none."""
    p_from: float | None = None
    """The lowest P(accept), from 0 to 1; episodes without one are left out."""
    p_to: float | None = None
    """The highest."""
    outcome: str | None = None
    """``finished``, ``terminated`` or ``failed``."""
    invalid: bool | None = None
    """With an invalid answer, or without one."""
    difficulty: str | None = None
    """``none``: of problems without one."""
    mutation: str | None = None
    model: str | None = None
    """One that answered."""
    problem: str | None = None
    """A part of the problem's name; in quotation marks, all of it."""
    text: str | None = None
    """A part of a message or a thought; upper and lower case are the same."""
    agent: str | None = None
    """Who wrote the text; without a text, who took a turn."""
    round: int | None = None
    """When that was."""
    noted: str | None = None
    """``starred``, ``note`` (with one), or ``any`` of both."""
    note: str | None = None
    """A part of the note; upper and lower case are the same."""
    order: str | None = None
    """One of `SORTS`; None: as played."""

    def __post_init__(self) -> None:
        for name, value in self.given.items():
            _check_kind(name, value)
        choices: dict[str, Iterable[str]] = {
            **{name: CHOICES[name] for name in ("verdict", "outcome", "noted")},
            "decision": DECISIONS,
            "order": SORTS,
        }
        for name, words in choices.items():
            value = getattr(self, name)
            if value is not None and value not in words:
                raise SettingsError(f"{name} {value!r}: use one of {', '.join(words)}")
        if self.label not in (None, -1, 0, 1):
            raise SettingsError(f"label {self.label!r}: use 1 (right), 0 (wrong) or -1 (none)")
        lowest, highest = (0 if self.p_from is None else self.p_from), self.p_to
        if highest is not None and lowest > highest:
            raise SettingsError(
                f"p_from {lowest!r} is above p_to {highest!r}: no P(accept) is both"
            )

    @property
    def given(self) -> dict[str, str | float | bool]:
        """The filters in use by name, in the order of the fields, the order among them."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def asks_for_calls(self) -> bool:
        """Say whether it takes the texts of models to answer, and not the index alone."""
        return self.text is not None or self.agent is not None or self.round is not None

    @property
    def asks_for_notes(self) -> bool:
        """Say whether it takes the notes of the run to answer."""
        return self.noted is not None or self.note is not None

    @property
    def is_of_places(self) -> bool:
        """Say whether all that is asked for is an iteration or a split."""
        return self.given.keys() <= {"iteration", "split"}


def _check_kind(name: str, value: object) -> None:
    """Raise SettingsError for a value of another kind than its filter has.

    Numbers of NumPy are numbers too, as notebooks get them from tables.
    """
    if name == "invalid":
        if not isinstance(value, bool | np.bool_):
            raise SettingsError(f"{name} {value!r}: use True or False")
    elif name in ("p_from", "p_to"):
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
            raise SettingsError(f"{name} {value!r}: use a probability, a number from 0 to 1")
    elif name in ("iteration", "round", "label"):
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise SettingsError(f"{name} {value!r}: use a whole number")
        if name != "label" and not 0 <= int(value) <= _MOST:
            raise SettingsError(f"{name} {value!r}: use a number from 0 on")
    elif not isinstance(value, str):
        raise SettingsError(f"{name} {value!r}: use a text")
    elif _HALF.search(value):
        raise SettingsError(
            f"{name} {value!r}: this has half of a pair of code units, which no text of a table has"
        )


def find_rows(
    table: pa.Table, filters: EpisodeFilters, *among: pa.Array | None
) -> NDArray[np.int64]:
    """Find the rows of the index that filters ask for, in their order, but for filters on texts.

    `among` are keys of episodes that were found in other places; None: no others are.
    """
    return sort_rows(table, filter_rows(table, filters, *among), filters.order or "played")


def filter_rows(
    table: pa.Table, filters: EpisodeFilters, *among: pa.Array | None
) -> NDArray[np.int64]:
    """Find the rows of the index that pass filters."""
    mask = None
    conditions = [*_build_conditions(table, filters)]
    conditions += [pc.is_in(table["key"], value_set=keys) for keys in among if keys is not None]
    for condition in conditions:
        mask = condition if mask is None else pc.and_kleene(mask, condition)
    if mask is None:
        return np.arange(table.num_rows)
    return np.flatnonzero(pc.fill_null(mask, False).to_numpy(zero_copy_only=False))


def _build_conditions(table: pa.Table, filters: EpisodeFilters) -> Iterable[Any]:
    if filters.iteration is not None:
        yield pc.equal(table["iteration"], filters.iteration)
    if filters.decision is not None:
        yield pc.equal(table["decision"], DECISIONS[filters.decision])
    if filters.label is not None:
        yield pc.equal(table["y"], filters.label)
    if filters.p_from is not None:
        yield pc.greater_equal(table["p_accept"], filters.p_from)
    if filters.p_to is not None:
        yield pc.less_equal(table["p_accept"], filters.p_to)
    for name in _EQUAL:
        if (value := getattr(filters, name)) is not None:
            is_none = value == _NONE and name in ("difficulty", "mutation")
            yield pc.is_null(table[name]) if is_none else pc.equal(table[name], value)
    if filters.verdict is not None:
        verdicts, is_other = table["verdict"], filters.verdict == NOT_RIGHT
        yield pc.not_equal(verdicts, RIGHT) if is_other else pc.equal(verdicts, filters.verdict)
    if filters.invalid is not None:
        compare = pc.greater if filters.invalid else pc.equal
        yield compare(table["invalid"], 0)
    if filters.model is not None:
        yield _has_model(table["models"], filters.model)
    if filters.problem is not None:
        names, wish = table["problem"], filters.problem
        if len(wish) > 1 and wish[0] == wish[-1] == '"':
            yield pc.equal(names, wish[1:-1])
        else:
            yield pc.match_substring(names, wish, ignore_case=True)


def _has_model(models: Any, name: str) -> Any:
    """Tell for each set of names whether it has this one. There are few different sets."""
    encoded = pc.dictionary_encode(models).combine_chunks()
    having = [name in (joined or "").split("\n") for joined in encoded.dictionary.to_pylist()]
    return pc.take(pa.array(having, pa.bool_()), encoded.indices)


def list_models(table: pa.Table) -> list[str]:
    """List the names of all models in the index."""
    sets = pc.unique(table["models"]).to_pylist()
    return sorted({name for joined in sets if joined for name in joined.split("\n")})


def sort_rows(table: pa.Table, rows: NDArray[np.int64], sort: str) -> NDArray[np.int64]:
    """Sort rows; equal ones stay as they were played, the newest iteration first."""

    def numbers(name: str) -> NDArray[Any]:
        column = table[name].combine_chunks()
        return np.asarray(column.to_numpy(zero_copy_only=False))[rows]

    newest = -numbers("iteration").astype(np.int64)
    if sort == "played":
        return rows
    if sort == "failures":
        worst = pc.index_in(table["verdict"], value_set=_WORST_FIRST)
        first = np.asarray(worst.to_numpy())[rows]
    elif sort == "problem":
        ranks = pc.rank(table["problem"], tiebreaker="dense")
        first = np.asarray(ranks.to_numpy())[rows].astype(np.int64)
    elif sort == "reward":
        first = numbers("reward")
    elif sort in ("confident", "unsure"):
        first = _rank_by_acceptance(table, sort == "confident")[rows]
    else:
        names = {"tokens": "completion_tokens", "invalid": "invalid", "rounds": "rounds"}
        first = -numbers(names[sort]).astype(np.int64)
    return rows[np.lexsort((np.arange(len(rows)), newest, first))]


def _rank_by_acceptance(table: pa.Table, wrong_first: bool) -> NDArray[np.float64]:
    """Rank by how sure verdicts were, the least sure first; those without P(accept) come last.

    With `wrong_first` the wrong ones come before the others, the surest of them first; then the
    right ones, those first that were nearest to being wrong.
    """
    columns = {
        name: np.asarray(table[name].combine_chunks().to_numpy(zero_copy_only=False))
        for name in ("p_accept", "y", "decision", "verdict")
    }
    likely = columns["p_accept"].astype(np.float64)  # null is NaN
    if not wrong_first:
        return np.where(np.isnan(likely), np.inf, np.abs(likely - 0.5))
    off = np.abs(likely - columns["y"])
    rank = np.where(columns["verdict"] == WRONG, -off - 1, -off)
    return np.where(np.isnan(likely) | (columns["y"] < 0), np.inf, rank)


def find_in_calls(rollouts: StoredRollouts, filters: EpisodeFilters) -> pa.Array:
    """Find the keys of episodes with a text in a message or a thought, by reading all of them.

    The filters may say by whom, and in which round. Raises CorruptionError.
    """
    generations = rollouts.generations(("episode", "branch_path", "agent", "round", *_SEARCHED))
    if filters.agent is not None:
        generations = generations.filter(pc.equal(generations["agent"], filters.agent))
    if filters.round is not None:
        generations = generations.filter(pc.equal(generations["round"], filters.round))
    if filters.text is not None:
        having = [
            pc.fill_null(
                pc.match_substring(generations[name], filters.text, ignore_case=True), False
            )
            for name in _SEARCHED
        ]
        generations = generations.filter(pc.or_(*having))
    matching = generations.select(["episode", "branch_path"])
    if not matching.num_rows:
        return pa.array([], pa.string())
    episodes = rollouts.episodes(("key", "branch_path", *TREE_COLUMNS))
    keys = for_each_episode(episodes, matching)["episode"]
    return pc.unique(keys).cast(pa.string())
