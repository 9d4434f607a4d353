"""What an address asks for of a run's episodes: filters, an order, a page.

Query       the filters of an address, checked
QueryError  an address that asks for something that there is not
find_rows   the rows of the index that a query asks for, in its order; all but its texts
filter_rows, sort_rows   the two halves of it
CHOICES     filters with a fixed set of values; SORTS, orders

The address is the state: what a page shows follows from it alone, so that it can be sent, and gone
back to.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nip_core.viewer.index import FAILED, RIGHT, WRONG

PER_PAGE = 50
MOST_TEXT = 200  # characters of what is looked for
CHOICES: Mapping[str, Mapping[str, str]] = {
    "verdict": {WRONG: "wrong", RIGHT: "right", FAILED: "failed", "not-right": "wrong or failed"},
    "outcome": {"finished": "finished", "terminated": "terminated", "failed": "failed"},
    "decision": {"1": "accept", "0": "reject", "3": "neither", "2": "no decision"},
    "label": {"1": "1", "0": "0", "-1": "none"},
    "invalid": {"1": "some", "0": "none"},
}
SORTS: Mapping[str, str] = {
    "failures": "failures first",
    "played": "as played",
    "problem": "by problem",
    "tokens": "most tokens",
    "invalid": "most invalid answers",
    "reward": "lowest reward",
    "rounds": "most rounds",
}
_EQUAL = {
    "split": "split",
    "difficulty": "difficulty",
    "mutation": "mutation",
    "outcome": "outcome",
}
_EQUAL_NUMBER = {"iteration": "iteration", "decision": "decision", "label": "y"}
"""Filters that a row passes if its column, beside them, has their value."""
_NONE = "none"  # stands for a value that is not there
_WORST_FIRST = pa.array([FAILED, WRONG, RIGHT])


class QueryError(ValueError):
    """An address asks for something no page has; the message says what it may ask for."""


@dataclass(frozen=True)
class Query:
    """The filters of an address; "" asks for everything."""

    iteration: str = ""
    split: str = ""
    verdict: str = ""
    outcome: str = ""
    decision: str = ""
    label: str = ""
    difficulty: str = ""
    mutation: str = ""
    model: str = ""
    invalid: str = ""
    problem: str = ""
    """A part of the problem's name; in quotation marks, all of it."""
    text: str = ""
    """What was written in a message or a thought."""
    agent: str = ""
    """Who wrote the text; without a text, who took a turn."""
    round: str = ""
    """When that was."""
    sort: str = "failures"
    page: int = 1

    @classmethod
    def parse(cls, asked: Iterable[tuple[str, str]], beside: Iterable[str] = ()) -> "Query":
        """Return the query of an address; names in `beside` are for others. Raises QueryError."""
        names, passed_over = {field.name for field in fields(cls)}, set(beside)
        values: dict[str, Any] = {}
        for name, value in asked:
            if name in passed_over:
                continue
            if name not in names:
                raise QueryError(f"{name}: no such filter; there are {', '.join(sorted(names))}")
            values[name] = value.strip()
        for name, choices in (*CHOICES.items(), ("sort", SORTS)):
            value = values.get(name, "")
            if value and value not in choices:
                raise QueryError(f"{name}={value}: use one of {', '.join(choices)}")
        for name in ("iteration", "round", "page"):
            value = values.get(name, "")
            if value and not (value.isascii() and value.isdigit() and len(value) < 10):
                raise QueryError(f"{name}={value}: a number was expected")
        if len(values.get("text", "")) > MOST_TEXT:
            raise QueryError(f"text: at most {MOST_TEXT} characters")
        values["page"] = max(1, int(values.get("page") or 1))
        values["sort"] = values.get("sort") or "failures"
        return cls(**values)

    @property
    def asks_for_calls(self) -> bool:
        """Say whether it takes what models wrote to answer, and not the index alone."""
        return bool(self.text or self.agent or self.round)

    @property
    def filters(self) -> dict[str, str]:
        """The filters in use, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {n: str(v) for n, v in values.items() if v != "" and n not in ("sort", "page")}

    def address(self, **changes: Any) -> str:
        """The query with changes as the end of an address, "" where nothing is asked for.

        Whatever else changes, the first page is shown.
        """
        changed = replace(self, **{"page": 1, **changes})
        named = {**changed.filters}
        if changed.sort != "failures":
            named["sort"] = changed.sort
        if changed.page > 1:
            named["page"] = str(changed.page)
        return f"?{urlencode(named)}" if named else ""


@dataclass(frozen=True)
class Comparison:
    """What the address of a comparison asks for: two places, RUN@ITERATION, and which pairs."""

    a: str = ""
    b: str = ""
    split: str = ""
    kind: str = ""
    page: int = 1

    @classmethod
    def parse(cls, asked: Mapping[str, str], kinds: Collection[str]) -> "Comparison":
        """Read an address; `kinds` are those that pairs have. Raises QueryError."""
        unknown = {*asked} - {field.name for field in fields(cls)}
        if unknown:
            raise QueryError(
                f"{', '.join(sorted(unknown))}: a comparison has a, b, split, kind and page"
            )
        values: dict[str, Any] = {**asked}
        compared = cls(**{**values, "page": max(1, read_number(values.get("page"), 1))})
        if compared.kind and compared.kind not in kinds:
            raise QueryError(f"kind={compared.kind}: use one of {', '.join(kinds)}")
        return compared


def read_number(text: str | None, default: int) -> int:
    """Read a number of an address; without one, `default`. Raises QueryError."""
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise QueryError(f"{text}: a number was expected")
    return int(text)


def find_rows(table: pa.Table, query: Query) -> NDArray[np.int64]:
    """Find the rows of the index a query asks for, in its order, whatever was written in them."""
    return sort_rows(table, filter_rows(table, query), query.sort)


def filter_rows(table: pa.Table, query: Query) -> NDArray[np.int64]:
    """Find the rows of the index that pass the filters of a query."""
    mask = None
    for condition in _build_conditions(table, query):
        mask = condition if mask is None else pc.and_kleene(mask, condition)
    if mask is None:
        return np.arange(table.num_rows)
    return np.flatnonzero(pc.fill_null(mask, False).to_numpy(zero_copy_only=False))


def _build_conditions(table: pa.Table, query: Query) -> Iterable[Any]:
    for name, column in _EQUAL_NUMBER.items():
        if value := getattr(query, name):
            yield pc.equal(table[column], int(value))
    for name, column in _EQUAL.items():
        if value := getattr(query, name):
            is_none = value == _NONE and name in ("difficulty", "mutation")
            yield pc.is_null(table[column]) if is_none else pc.equal(table[column], value)
    if query.verdict:
        verdicts, is_other = table["verdict"], query.verdict == "not-right"
        yield pc.not_equal(verdicts, RIGHT) if is_other else pc.equal(verdicts, query.verdict)
    if query.invalid:
        compare = pc.greater if query.invalid == "1" else pc.equal
        yield compare(table["invalid"], 0)
    if query.model:
        yield _has_model(table["models"], query.model)
    if query.problem:
        names = table["problem"]
        exact = len(query.problem) > 1 and query.problem[0] == query.problem[-1] == '"'
        if exact:
            yield pc.equal(names, query.problem[1:-1])
        else:
            yield pc.match_substring(names, query.problem, ignore_case=True)


def _has_model(models: Any, name: str) -> Any:
    """Tell for each set of names whether it has this one. There are few different sets."""
    encoded = pc.dictionary_encode(models).combine_chunks()
    having = [name in (of or "").split("\n") for of in encoded.dictionary.to_pylist()]
    return pc.take(pa.array(having, pa.bool_()), encoded.indices)


def list_models(table: pa.Table) -> list[str]:
    """List the names of all models in the index."""
    sets = pc.unique(table["models"]).to_pylist()
    return sorted({name for of in sets if of for name in of.split("\n")})


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
    else:
        names = {"tokens": "completion_tokens", "invalid": "invalid", "rounds": "rounds"}
        first = -numbers(names[sort]).astype(np.int64)
    return rows[np.lexsort((np.arange(len(rows)), newest, first))]
