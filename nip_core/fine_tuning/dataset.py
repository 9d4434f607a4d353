"""Training examples as Parquet, the source of every back-end's format.

SCHEMAS, FILES    by method, the table's schema and its file's name
write_examples    examples -> a file, a row group at a time
Dataset           such a file: its rows in batches, its columns
open_dataset      the committed one of a directory, checked
validation_side   the questions whose examples are held out
dataset_digest    what two equal datasets agree on
to_table          a few examples as a table

Each row names the rollouts it came from. What a back-end wants is derived from the rows by
`nip_core.fine_tuning.lines`.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nip_core.errors import CorruptionError
from nip_core.hashing import derive_seed
from nip_core.parameters import Method
from nip_core.rollouts.tables import check_version, in_current_version
from nip_core.run_store.manifest import read_file, read_manifest, verify
from nip_core.run_store.store import Store
from nip_core.trainers.base import AnyExample, Example, Pair, Trajectory

SCHEMA_VERSION = 2
"""Version 2 added `question_id` and `tokens`, and the tables of pairs and trajectories."""

Row = dict[str, Any]

_METADATA = {"nip.schema_version": str(SCHEMA_VERSION)}
_ROWS_PER_GROUP = 500
_TOKENS = {"prompt_token_ids": "<i4", "completion_token_ids": "<i4", "logprobs": "<f4"}
_LINEAGE = [
    pa.field("key", pa.string(), nullable=False),
    pa.field("agent", pa.string(), nullable=False),
    pa.field("episode", pa.string(), nullable=False),  # key in the episodes table
    pa.field("generations", pa.list_(pa.string()), nullable=False),  # keys of those learned
    pa.field("iteration", pa.int32(), nullable=False),  # of the rollout
    pa.field("problem", pa.string(), nullable=False),
    pa.field("question_id", pa.string()),  # null in version 1 only
    pa.field("y", pa.int8(), nullable=False),
    pa.field("reward", pa.float64(), nullable=False),
    pa.field("reason", pa.string(), nullable=False),
    pa.field("tokens", pa.int64()),  # null: not reported
]
_MESSAGE = pa.struct(
    [
        pa.field("role", pa.string(), nullable=False),
        pa.field("content", pa.string(), nullable=False),
        pa.field("name", pa.string()),
    ]
)
_MESSAGES = pa.field("messages", pa.list_(_MESSAGE), nullable=False)
_TURN = pa.struct(
    [
        pa.field("prompt_token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("completion_token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("logprobs", pa.list_(pa.float32())),  # null: the engine reported none
    ]
)

EXAMPLES = pa.schema([*_LINEAGE, _MESSAGES], metadata=_METADATA)
PAIRS = pa.schema(
    [
        *_LINEAGE,
        _MESSAGES,
        pa.field("chosen", pa.string(), nullable=False),
        pa.field("rejected", pa.string(), nullable=False),
        pa.field("rejected_reward", pa.float64(), nullable=False),
    ],
    metadata=_METADATA,
)
TRAJECTORIES = pa.schema(
    [
        *_LINEAGE,
        pa.field("turns", pa.list_(_TURN), nullable=False),
        pa.field("group_id", pa.string(), nullable=False),
        pa.field("advantage", pa.float64(), nullable=False),
    ],
    metadata=_METADATA,
)
SCHEMAS: Mapping[Method, pa.Schema] = {
    "supervised": EXAMPLES,
    "dpo": PAIRS,
    "trajectories": TRAJECTORIES,
}
FILES: Mapping[Method, str] = {
    "supervised": "examples.parquet",
    "dpo": "pairs.parquet",
    "trajectories": "trajectories.parquet",
}


# Writing ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """What was written to a file."""

    examples: int
    digest: str


def write_examples(file: Path, method: Method, examples: Iterable[AnyExample]) -> Written:
    """Write `examples` to a new Parquet file, in their order.

    Equal examples give equal bytes. A few hundred examples are in memory at a time.
    """
    examples, hashes = iter(examples), _RowHashes(method)
    with pq.ParquetWriter(file, SCHEMAS[method], compression="zstd") as writer:
        while batch := list(islice(examples, _ROWS_PER_GROUP)):
            hashes.add(_row(example) for example in batch)
            writer.write_table(to_table(batch, method))
    return Written(hashes.count, hashes.digest())


def to_table(examples: Sequence[AnyExample], method: Method = "supervised") -> pa.Table:
    """The examples as a table with the schema of the method, in the order given."""
    schema = SCHEMAS[method]
    columns = []
    for field in schema:
        values = [getattr(example, field.name) for example in examples]
        if field.name == "messages":
            columns.append(_message_lists(values))
        elif field.name == "turns":
            columns.append(_turn_lists(values))
        else:
            columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _message_lists(chats: Sequence[Sequence[Mapping[str, str]]]) -> pa.Array:
    flat = [message for chat in chats for message in chat]
    parts = [
        pa.array([message.get(field.name) for message in flat], field.type) for field in _MESSAGE
    ]
    messages = pa.StructArray.from_arrays(parts, fields=list(_MESSAGE))
    return _lists(chats, messages, _MESSAGES.type)


def _turn_lists(trajectories: Sequence[Sequence[Any]]) -> pa.Array:
    flat = [turn for turns in trajectories for turn in turns]
    parts = []
    for field in _TURN:
        lists = [getattr(turn, field.name) for turn in flat]
        kind = field.type.value_type.to_pandas_dtype()
        arrays = [np.asarray(values, kind) for values in lists if values is not None]
        values = np.concatenate(arrays) if arrays else np.empty(0, kind)
        parts.append(_lists(lists, pa.array(values, field.type.value_type), field.type))
    turns = pa.StructArray.from_arrays(parts, fields=list(_TURN))
    return _lists(trajectories, turns, TRAJECTORIES.field("turns").type)


def _lists(lengths_of: Sequence[Sequence[Any] | None], values: pa.Array, kind: Any) -> pa.Array:
    ends = accumulate(len(part) if part is not None else 0 for part in lengths_of)
    offsets = pa.array([0, *ends], pa.int32())
    missing = [part is None for part in lengths_of]
    mask = pa.array(missing, pa.bool_()) if any(missing) else None
    return pa.ListArray.from_arrays(offsets, values, type=kind, mask=mask)


def _row(example: AnyExample) -> Row:
    """The example as its row in the table."""
    row = {
        "key": example.key,
        "agent": example.agent,
        "episode": example.episode,
        "generations": list(example.generations),
        "iteration": example.iteration,
        "problem": example.problem,
        "question_id": example.question_id,
        "y": example.y,
        "reward": example.reward,
        "reason": example.reason,
        "tokens": example.tokens,
    }
    match example:
        case Example():
            row["messages"] = [{"name": None, **message} for message in example.messages]
        case Pair():
            row["messages"] = [{"name": None, **message} for message in example.messages]
            row |= {"chosen": example.chosen, "rejected": example.rejected}
            row["rejected_reward"] = example.rejected_reward
        case Trajectory():
            row["turns"] = [_turn_row(turn) for turn in example.turns]
            row |= {"group_id": example.group_id, "advantage": example.advantage}
    return row


def _turn_row(turn: Any) -> Row:
    logprobs = turn.logprobs
    return {
        "prompt_token_ids": np.asarray(turn.prompt_token_ids, np.int32).tolist(),
        "completion_token_ids": np.asarray(turn.completion_token_ids, np.int32).tolist(),
        "logprobs": None if logprobs is None else np.asarray(logprobs, np.float32).tolist(),
    }


class _RowHashes:
    """A digest that grows row by row and does not depend on their order; 48 bytes per row."""

    def __init__(self, method: Method) -> None:
        self._method, self._rows = method, list[bytes]()

    @property
    def count(self) -> int:
        """Rows so far."""
        return len(self._rows)

    def add(self, rows: Iterable[Row]) -> None:
        self._rows.extend(
            row["key"].encode() + hashlib.sha256(_canonical(row)).digest() for row in rows
        )

    def digest(self) -> str:
        total = hashlib.sha256(f"nip {self._method} {SCHEMA_VERSION} {self.count}\n".encode())
        for row in sorted(self._rows):
            total.update(row)
        return total.hexdigest()


def _canonical(row: Row) -> bytes:
    """All of a row: as JSON what is short, then the texts and tokens, whose lengths that says."""
    short, long = row.copy(), []
    if "messages" in row:
        texts = [message["content"] for message in row["messages"]]
        short["messages"] = [[m["role"], m["name"], len(m["content"])] for m in row["messages"]]
        long.append("".join(texts).encode("utf-8", "surrogatepass"))
    if "turns" in row:
        turns = [[(turn[name], kind) for name, kind in _TOKENS.items()] for turn in row["turns"]]
        short["turns"] = [[None if v is None else len(v) for v, _ in turn] for turn in turns]
        long += [np.asarray(v, kind).tobytes() for turn in turns for v, kind in turn if v]
    # NaN, which a table can hold, is written as such.
    text = json.dumps(short, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return b"\0".join((text.encode("utf-8", "surrogatepass"), *long))


def dataset_digest(rows: Iterable[Row], method: Method = "supervised") -> str:
    """SHA-256 over all columns of all rows, sorted by key."""
    hashes = _RowHashes(method)
    hashes.add(rows)
    return hashes.digest()


# Reading ------------------------------------------------------------------------------------------


class Dataset:
    """A file of examples."""

    def __init__(self, source: Path | bytes, method: Method, name: str) -> None:
        """`source` is the file or its content, `name` is for errors.

        Raises CorruptionError if it is no such file, StoreError if another version wrote it.
        """
        self.method, self._schema, self._name = method, SCHEMAS[method], name
        self._source = source
        with self._open() as file:
            self.examples: int = file.metadata.num_rows
            self._is_current = check_version(file.schema_arrow, self._schema, name)

    def rows(self) -> Iterator[Row]:
        """The rows in order; a few hundred are in memory at a time."""
        with self._open() as file:
            for batch in file.iter_batches(_ROWS_PER_GROUP):
                table = self._current(pa.Table.from_batches([batch]))
                columns = [_values(column) for column in table.columns]
                for values in zip(*columns, strict=True):
                    yield dict(zip(table.column_names, values, strict=True))

    def column(self, name: str) -> list[Any]:
        """A column as a list, null everywhere if the file's version did not have it."""
        with self._open() as file:
            if name not in file.schema_arrow.names:
                return [None] * self.examples
            values: list[Any] = file.read([name])[name].to_pylist()
            return values

    def _open(self) -> pq.ParquetFile:
        source = io.BytesIO(self._source) if isinstance(self._source, bytes) else self._source
        try:
            return pq.ParquetFile(source)
        except (pa.ArrowException, OSError) as error:
            raise CorruptionError(f"{self._name}: damaged, not a Parquet file ({error})") from error

    def _current(self, table: pa.Table) -> pa.Table:
        if self._is_current:
            return table
        table = in_current_version(table, self._schema)
        if not table.schema.equals(self._schema):
            raise CorruptionError(
                f"{self._name}: its columns are not those of schema {SCHEMA_VERSION}"
            )
        return table


def open_dataset(store: Store, directory: str) -> Dataset:
    """The committed dataset of a directory, checked against its manifest.

    Raises MissingFileError if there is none, CorruptionError if it is damaged, and as `Dataset`.
    """
    manifest = read_manifest(store, directory)
    method: Method = manifest.extra.get("method", "supervised")
    name = FILES[method]
    place = manifest.path(name)
    local = store.local_path(place)
    if local is None or not local.exists():
        return Dataset(read_file(store, manifest, name), method, place)
    verify(store, directory)
    return Dataset(local, method, place)


def _values(column: pa.ChunkedArray) -> list[Any]:
    """As `to_pylist`, but much faster for conversations."""
    if column.type != _MESSAGES.type:
        values: list[Any] = column.to_pylist()
        return values
    chats: list[Any] = []
    for chunk in column.chunks:
        flat = chunk.flatten()
        parts = [flat.field(i).to_pylist() for i in range(len(_MESSAGE))]
        names = [field.name for field in _MESSAGE]
        messages = [dict(zip(names, part, strict=True)) for part in zip(*parts, strict=True)]
        ends = accumulate(chunk.value_lengths().to_pylist(), initial=0)
        chats += [messages[a:b] for a, b in pairwise(ends)]
    return chats


# What is held out ---------------------------------------------------------------------------------


def validation_side(questions: Iterable[str], fraction: float, seed: int) -> frozenset[str]:
    """The questions, about this share of them, whose examples are not trained on.

    A question is on the same side whatever others there are, except for the last one, which is
    trained on.
    """
    drawn = {question: derive_seed("validation", seed, question) / 2**31 for question in questions}
    held_out = {question for question, number in drawn.items() if number < fraction}
    if held_out and len(held_out) == len(drawn):
        held_out.remove(max(held_out, key=lambda question: (drawn[question], question)))
    return frozenset(held_out)
