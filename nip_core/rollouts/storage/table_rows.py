"""The rows of the tables that a played shard leaves behind, as types.

Episode, Generation, Timing, MessageChoice   a row of each table; the columns' meanings stand in
                                            `nip_core.rollouts.storage.schema`
RoundReward       the payment of a round to an agent
Record, Appends   a line of a journal, and the part of a journal used by playing
CallRecord, ResultRow, LabelRow   the journal's rows of an answer, of a tool's result, and of a
                  solution labelled in play
recorded_calls, recorded_labels   these of a journal's records
row_columns       the columns that a kind of row has
read_rows         a table as rows, of these kinds or of a reader's own
stored_row        a row as Arrow and JSON take it

A reader that needs some columns only makes a NamedTuple of them and gives it to `read_rows`; its
fields are the columns. Rows of 100,000 generations take a fifth of the memory of dictionaries, and
a third of a second longer to make.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from nip_core.errors import CorruptionError
from nip_core.game.answer_rows import RecordedToken

if TYPE_CHECKING:
    # A command that looks at runs reads rows of journals, and would wait for Arrow.
    import pyarrow as pa

R = TypeVar("R")
Record = dict[str, Any]
"""A JSON object of a journal. Play appends these rows, other rooms other ones."""


class Appends(Protocol):
    """The part of a journal used by playing."""

    async def append(self, record: Record) -> None:
        """Add a record and return when it is kept."""


class RoundReward(NamedTuple):
    """The payment of a round to an agent."""

    round: int
    agent: str
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """An episode: its problem, its end, and the reward of each agent."""

    key: str
    run: str
    split: str
    iteration: int
    problem: str
    question_id: str
    sample: int
    branch_path: str
    protocol: str
    question: str
    solution: str
    columns: str | None = None
    drawn: str | None = None
    y: int
    difficulty: str | None = None
    mutation: str | None = None
    seed: int
    prover_stance: int | None = None
    opponent: str | None = None
    opponent_iteration: int | None = None
    opponent_run: str | None = None
    rounds: int
    decision: int
    decision_value: float | None = None
    outcome: str
    error: str | None = None
    rewards: Mapping[str, float]
    """By agent, in the order of play. In the table it is a list."""
    round_rewards: Sequence[RoundReward] | None = None
    """In the order of rounds, without zeros; their sums are the `rewards`. None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One answer of a model, valid or not."""

    key: str
    parent_key: str | None = None
    episode: str
    branch_path: str
    round: int
    agent: str
    exchange: int = 0
    attempt: int
    model_asked: str
    model_served: str
    text: str
    decision: int
    decision_value: float | None = None
    p_accept: float | None = None
    finish_reason: str
    invalid_reason: str | None = None
    prompt_tokens: int
    completion_tokens: int
    reasoning: str | None = None
    reasoning_tokens: int | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    completion_logprobs: list[float] | None = None
    token_logprobs: list[RecordedToken] | None = None
    tool_result: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When a generation was asked for, how long it took, and how much was read before."""

    key: str
    started_at: datetime
    latency_s: float
    transport_retries: int
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageChoice:
    """The episode chosen for one n of an attack on a problem."""

    key: str
    problem: str
    sample: int
    n: int
    episode: str
    p_accept: float | None = None
    distinct: int | None = None


@cache
def row_columns(kind: Callable[..., Any]) -> tuple[str, ...]:
    """Name the columns of a kind of row, in the order of its fields."""
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    return tuple(inspect.get_annotations(kind))


@cache
def _reader(kind: Callable[..., Any]) -> Callable[[object], tuple[Any, ...]]:
    return attrgetter(*row_columns(kind))


def read_rows(table: "pa.Table", kind: Callable[..., R]) -> Iterator[R]:
    """Make a row of this kind from each row of a table.

    The table may have further columns.

    A column that was not read has its default in the rows. Column by column, which is much faster
    than `to_pylist`. Raises TypeError for a column that is missing and has no default.
    """
    names = [name for name in row_columns(kind) if name in table.column_names]
    columns = [_read_column(table, name) for name in names]
    for values in zip(*columns, strict=True):
        yield kind(**dict(zip(names, values, strict=True)))


def _read_column(table: "pa.Table", name: str) -> list[Any]:
    values: list[Any] = table[name].to_pylist()
    if name == "rewards":
        return [{entry["agent"]: entry["reward"] for entry in entries} for entries in values]
    if name == "round_rewards":
        return [
            None if entries is None else tuple(RoundReward(**entry) for entry in entries)
            for entries in values
        ]
    return values


def stored_row(row: Episode | Generation | Timing | MessageChoice) -> dict[str, Any]:
    """Return the row by column, in the order of the schema."""
    kind: Callable[..., Any] = type(row)
    columns = dict(zip(row_columns(kind), _reader(kind)(row), strict=True))
    if isinstance(row, Episode):
        columns["rewards"] = [{"agent": a, "reward": paid} for a, paid in row.rewards.items()]
        if row.round_rewards is not None:
            columns["round_rewards"] = [paid._asdict() for paid in row.round_rewards]
    return columns


# The journal --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallRecord:
    """An answer as the journal has it, with the time and the duration of its call."""

    generation: Generation
    timing: Timing

    def to_json(self) -> Record:
        """Return the record as a line of the journal."""
        timing = {**stored_row(self.timing), "started_at": self.timing.started_at.isoformat()}
        return {"generation": stored_row(self.generation), "timing": timing}


@dataclass(frozen=True, slots=True)
class ResultRow:
    """The result of a tool, as the journal has it behind the call."""

    key: str
    """Of the generation that called it."""
    text: str

    def to_json(self) -> Record:
        """Return the result as a line of the journal."""
        return {"tool_result": {"key": self.key, "text": self.text}}


@dataclass(frozen=True, slots=True)
class LabelRow:
    """The label of a solution written in play, as the journal has it."""

    key: str
    """Of the generation that wrote it."""
    y: int
    mutation: str | None
    seconds: float
    """The time of labelling."""

    def to_json(self) -> Record:
        """Return the label as a line of the journal."""
        return {"label": {name: getattr(self, name) for name in row_columns(LabelRow)}}


def recorded_calls(records: Iterable[Record], name: str) -> dict[str, CallRecord]:
    """Read the answers in a journal's records, by the key of the generation.

    `name` is the journal's. Raises CorruptionError for a record of other columns.
    """
    calls: dict[str, CallRecord] = {}
    for record in records:
        if not {"generation", "tool_result"} & record.keys():
            continue
        try:
            if "tool_result" in record:
                result = ResultRow(**record["tool_result"])
                call = calls[result.key]
                with_result = replace(call.generation, tool_result=result.text)
                calls[result.key] = replace(call, generation=with_result)
                continue
            timing = dict(record["timing"])
            started_at = datetime.fromisoformat(timing.pop("started_at"))
            generation = Generation(**record["generation"])
            call = CallRecord(generation, Timing(started_at=started_at, **timing))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptionError(
                f"{name}: an answer in it is not as this version of nip records them ({error}); "
                "go on with the version that wrote it, or delete the journal to play the shard "
                "again"
            ) from error
        calls[generation.key] = call
    return calls


def recorded_labels(records: Iterable[Record], name: str) -> dict[str, LabelRow]:
    """Read the labels in a journal's records, by the key of the generation with the solution.

    `name` is the journal's. Raises CorruptionError for a record of other columns.
    """
    try:
        labels = [LabelRow(**record["label"]) for record in records if "label" in record]
    except TypeError as error:
        raise CorruptionError(
            f"{name}: a label in it is not as this version of nip records them ({error}); go on "
            "with the version that wrote it, or delete the journal to play the shard again"
        ) from error
    return {label.key: label for label in labels}
