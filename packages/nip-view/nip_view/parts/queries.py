"""The query of an address for a run's episodes: filters, an order, a page.

Query       the filters of an address, checked
QueryError  an address that is not understood
Comparison  the query of a comparison's address

The meaning of the filters stands in `nip_core.showing.episodes.episode_filters`, for a line of
Python alike.

The address is the state: the contents of a page follow from it alone, so that it can be sent, and
gone back to.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlencode

from nip_core.showing.episodes.episode_filters import CHOICES, SORTS, EpisodeFilters

PER_PAGE = 50
MOST_TEXT = 200  # characters of a searched text
_SAME = (
    *("split", "verdict", "outcome", "difficulty", "mutation", "model", "problem"),
    *("text", "agent", "noted", "note"),
)
"""Filters that are called the same, and are texts, in an address and in a line of Python."""


class QueryError(ValueError):
    """An address asks for something no page has; the message lists the possible queries."""


@dataclass(frozen=True)
class Query:
    """The filters of an address; "" asks for everything."""

    iteration: str = ""
    split: str = ""
    verdict: str = ""
    outcome: str = ""
    decision: str = ""
    label: str = ""
    p_from: str = ""
    """The lowest P(accept), from 0 to 1."""
    p_to: str = ""
    """The highest."""
    difficulty: str = ""
    mutation: str = ""
    model: str = ""
    invalid: str = ""
    problem: str = ""
    """A part of the problem's name; in quotation marks, all of it."""
    text: str = ""
    """A text in a message or a thought."""
    agent: str = ""
    """Who wrote the text; without a text, who took a turn."""
    round: str = ""
    """When that was."""
    noted: str = ""
    note: str = ""
    """A text in the note."""
    sort: str = "failures"
    page: int = 1

    @classmethod
    def parse(
        cls, parameters: Iterable[tuple[str, str]], other_names: Iterable[str] = ()
    ) -> "Query":
        """Return the query of an address, without `other_names`. Raises QueryError."""
        names, passed_over = {field.name for field in fields(cls)}, set(other_names)
        values: dict[str, Any] = {}
        for name, value in parameters:
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
        for name in ("p_from", "p_to"):
            if values.get(name):
                read_probability(name, values[name])
        lowest, highest = values.get("p_from"), values.get("p_to")
        if lowest and highest and float(lowest) > float(highest):
            raise QueryError(f"p_from={lowest} is above p_to={highest}: no P(accept) is both")
        for name in ("text", "note"):
            if len(values.get(name, "")) > MOST_TEXT:
                raise QueryError(f"{name}: at most {MOST_TEXT} characters")
        values["page"] = max(1, int(values.get("page") or 1))
        values["sort"] = values.get("sort") or "failures"
        return cls(**values)

    @property
    def asks_for_calls(self) -> bool:
        """Say whether an answer needs the models' texts, and not the index alone."""
        return bool(self.text or self.agent or self.round)

    def to_filters(self) -> EpisodeFilters:
        """Return the query of the address as a line of Python has it."""
        filters = self.filters
        texts = {name: filters.get(name) for name in _SAME}
        return EpisodeFilters(
            iteration=int(self.iteration) if self.iteration else None,
            decision=CHOICES["decision"][self.decision] if self.decision else None,
            label=int(self.label) if self.label else None,
            p_from=read_probability("p_from", self.p_from) if self.p_from else None,
            p_to=read_probability("p_to", self.p_to) if self.p_to else None,
            invalid=self.invalid == "1" if self.invalid else None,
            round=int(self.round) if self.round else None,
            order=self.sort,
            **texts,
        )

    @property
    def filters(self) -> dict[str, str]:
        """The filters in use, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {n: str(v) for n, v in values.items() if v != "" and n not in ("sort", "page")}

    def address(self, **changes: Any) -> str:
        """The query with changes as the end of an address, "" where nothing is asked for.

        After any other change, the first page is shown.
        """
        changed_query = replace(self, **{"page": 1, **changes})
        parameters = {**changed_query.filters}
        if changed_query.sort != "failures":
            parameters["sort"] = changed_query.sort
        if changed_query.page > 1:
            parameters["page"] = str(changed_query.page)
        return f"?{urlencode(parameters)}" if parameters else ""


@dataclass(frozen=True)
class Comparison:
    """The query of a comparison's address: two places, RUN@ITERATION, and which pairs."""

    a: str = ""
    b: str = ""
    split: str = ""
    kind: str = ""
    follows: str = ""
    """Whether to say whom the verifier follows although that takes reading much."""
    page: int = 1

    @classmethod
    def parse(cls, parameters: Mapping[str, str], kinds: Collection[str]) -> "Comparison":
        """Read an address; `kinds` are those that pairs have. Raises QueryError."""
        _check_names(parameters, cls, "a comparison")
        values: dict[str, Any] = {**parameters}
        compared = cls(**{**values, "page": max(1, read_number(values.get("page"), 1))})
        _check_kind(compared.kind, kinds)
        return compared


@dataclass(frozen=True)
class PairQuery:
    """The query of a pair's address: two episodes, RUN/KEY, and among which pairs."""

    a: str = ""
    b: str = ""
    kind: str = ""
    side: str = ""
    """Which of the two the reader came from, a or b; "" for the comparison."""
    list: str = ""
    """The query of the list that this episode was opened from, as in that list's address."""

    @classmethod
    def parse(cls, parameters: Mapping[str, str], kinds: Collection[str]) -> "PairQuery":
        """Read an address; `kinds` are those that pairs have. Raises QueryError."""
        _check_names(parameters, cls, "a pair")
        query = cls(**parameters)
        if query.side not in ("", "a", "b"):
            raise QueryError(f"side={query.side}: use a or b")
        _check_kind(query.kind, kinds)
        return query


def _check_names(parameters: Mapping[str, str], query: type[Any], page: str) -> None:
    """Raise QueryError for a name in an address that is no field of this query."""
    names = [field.name for field in fields(query)]
    if unknown := {*parameters} - {*names}:
        raise QueryError(f"{', '.join(sorted(unknown))}: {page} has {', '.join(names)}")


def _check_kind(kind: str, kinds: Collection[str]) -> None:
    if kind and kind not in kinds:
        raise QueryError(f"kind={kind}: use one of {', '.join(kinds)}")


def read_probability(name: str, text: str) -> float:
    """Read a probability of an address. Raises QueryError."""
    if not re.fullmatch(r"[01]|[01]?\.[0-9]{1,9}", text) or float(text) > 1:
        raise QueryError(f"{name}={text}: a number from 0 to 1 was expected, like 0.9")
    return float(text)


def read_number(text: str | None, default: int) -> int:
    """Read a number of an address; without one, `default`. Raises QueryError."""
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise QueryError(f"{text}: a number was expected")
    return int(text)
