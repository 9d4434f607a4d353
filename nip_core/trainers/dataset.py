"""Training examples as Parquet, the source of every back-end's format.

SCHEMAS, FILES    by method, the table's schema and its file's name
WITH_REASONING    the schemas of examples that have thoughts
WITH_WEIGHTS      the schema of conversations with answers that are not learned
write_examples    examples -> a file, a row group at a time, made by several processes
Dataset           such a file: its rows in batches, its columns
open_dataset      the committed one of a directory, checked
choose_held_out   the questions with examples that are held out
to_table          a few examples as a table

Each row names the rollouts it came from. The lines for a back-end are made from the rows by
`nip_core.trainers.lines`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nip_core.errors import CorruptionError
from nip_core.hashing import derive_seed
from nip_core.parameters import Method
from nip_core.processes import count_processes, map_in_processes
from nip_core.rollouts.storage.parquet import choose_by_version, open_parquet
from nip_core.run_store.facts import DatasetFacts
from nip_core.run_store.manifest import read_committed_file, read_manifest, verify
from nip_core.run_store.store import Store
from nip_core.trainers.base import AnyExample, InParts
from nip_core.trainers.row_digests import digest_rows, hash_rows

SCHEMA_VERSION = 2
"""Version 2 added `question_id` and `tokens`, and the tables of pairs and trajectories."""
REASONING_VERSION = 3
"""Of the tables of examples with thoughts. All others keep version 2, and so their digests."""
WEIGHTS_VERSION = 4
"""Of the tables of conversations with answers that are not learned, with or without thoughts."""

Row = dict[str, Any]

_VERSION_KEY = b"nip.schema_version"
_METADATA = {"nip.schema_version": str(SCHEMA_VERSION)}
_ROWS_PER_GROUP = 500
_LINEAGE = [
    pa.field("key", pa.string(), nullable=False),
    pa.field("agent", pa.string(), nullable=False),
    pa.field("episode", pa.string(), nullable=False),  # key in the episodes table
    pa.field("generations", pa.list_(pa.string()), nullable=False),  # keys of those learned
    pa.field("iteration", pa.int32(), nullable=False),  # of the rollout
    pa.field("problem", pa.string(), nullable=False),
    pa.field("question_id", pa.string()),  # never null
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
_REASONING: Mapping[Method, list[pa.Field]] = {
    "supervised": [pa.field("reasoning", pa.list_(pa.string()))],  # by message; null: none
    "dpo": [pa.field(f"{answer}_reasoning", pa.string()) for answer in ("chosen", "rejected")],
}
WITH_REASONING: Mapping[Method, pa.Schema] = {
    method: pa.schema(
        [*SCHEMAS[method], *fields], metadata={"nip.schema_version": str(REASONING_VERSION)}
    )
    for method, fields in _REASONING.items()
}
WITH_WEIGHTS = pa.schema(
    [*WITH_REASONING["supervised"], pa.field("weights", pa.list_(pa.int8()))],
    metadata={"nip.schema_version": str(WEIGHTS_VERSION)},
)
FILES: Mapping[Method, str] = {
    "supervised": "examples.parquet",
    "dpo": "pairs.parquet",
    "trajectories": "trajectories.parquet",
}


# Writing ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WrittenDataset:
    """The number and digest of the examples in a file."""

    examples: int
    digest: str


def write_examples(
    file: Path,
    method: Method,
    examples: Iterable[AnyExample],
    processes: int | None = None,
    *,
    has_reasoning: bool = False,
    has_weights: bool = False,
) -> WrittenDataset:
    """Write `examples` to a new Parquet file, in their order.

    Equal examples give equal bytes and an equal digest, however many processes make them. A few
    hundred examples per process are in memory at a time. `processes`: None, as many as are worth
    it; they are used for examples that are made in parts. `has_reasoning`: with their thoughts;
    `has_weights`: of conversations, with the messages of them that are learned.
    """
    schema = (WITH_REASONING if has_reasoning else SCHEMAS)[method]
    if has_weights and method == "supervised":
        schema = WITH_WEIGHTS
    # 1. Make the tables of examples here, or part by part in other processes.
    tables: Iterator[_Made]
    if processes is None:
        processes = 1
        if isinstance(examples, InParts):
            processes = min(count_processes(examples.size), len(examples.parts))
    if isinstance(examples, InParts) and processes > 1:
        make = partial(_make_part, schema, examples.make)
        tables = map_in_processes(make, examples.parts, processes)
    else:
        tables = _make(schema, examples)
    # 2. Write them in row groups of one size, and hash every row on its way.
    hashes: list[bytes] = []
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in _regroup_rows(tables, hashes):
            writer.write_table(table)
    version = int(schema.metadata[_VERSION_KEY])
    return WrittenDataset(len(hashes), digest_rows(hashes, method, version))


_Made = tuple[pa.Table, list[bytes]]  # examples and the hashes of their rows


def _make(schema: pa.Schema, examples: Iterable[AnyExample]) -> Iterator[_Made]:
    examples = iter(examples)
    while batch := list(islice(examples, _ROWS_PER_GROUP)):
        table = _make_table(batch, schema)
        yield table, hash_rows(table)


def _make_part(schema: pa.Schema, make: Callable[[Any], Iterable[AnyExample]], part: Any) -> _Made:
    """Make a part, in a process of its own."""
    pairs = list(_make(schema, make(part)))
    tables = [schema.empty_table(), *(table for table, _ in pairs)]
    return pa.concat_tables(tables), [one for _, hashes in pairs for one in hashes]


def _regroup_rows(pairs: Iterable[_Made], hashes: list[bytes]) -> Iterator[pa.Table]:
    """Cut the tables anew, so no row group depends on how they came; collect `hashes`."""
    waiting: pa.Table | None = None
    for table, of_rows in pairs:
        hashes += of_rows
        waiting = table if waiting is None else pa.concat_tables([waiting, table])
        while waiting.num_rows >= _ROWS_PER_GROUP:
            yield waiting.slice(0, _ROWS_PER_GROUP).combine_chunks()
            waiting = waiting.slice(_ROWS_PER_GROUP)
    if waiting is not None and waiting.num_rows:
        yield waiting.combine_chunks()


def to_table(examples: Sequence[AnyExample], method: Method = "supervised") -> pa.Table:
    """Make a table of the examples with the schema of the method, in the order given."""
    return _make_table(examples, SCHEMAS[method])


def _make_table(examples: Sequence[AnyExample], schema: pa.Schema) -> pa.Table:
    columns = []
    for field in schema:
        values = [getattr(example, field.name) for example in examples]
        if field.name == "messages":
            columns.append(_make_message_lists(values))
        elif field.name == "turns":
            columns.append(_make_turn_lists(values))
        else:
            columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _make_message_lists(chats: Sequence[Sequence[Mapping[str, str]]]) -> pa.Array:
    flat = [message for chat in chats for message in chat]
    columns: list[list[str | None]] = [
        [message["role"] for message in flat],
        [message["content"] for message in flat],
        [message.get("name") for message in flat],
    ]
    parts = [pa.array(c, field.type) for c, field in zip(columns, _MESSAGE, strict=True)]
    messages = pa.StructArray.from_arrays(parts, fields=list(_MESSAGE))
    return _make_lists(chats, messages, _MESSAGES.type)


def _make_turn_lists(trajectories: Sequence[Sequence[Any]]) -> pa.Array:
    flat = [turn for turns in trajectories for turn in turns]
    parts = []
    for field in _TURN:
        lists = [getattr(turn, field.name) for turn in flat]
        kind = field.type.value_type.to_pandas_dtype()
        arrays = [np.asarray(values, kind) for values in lists if values is not None]
        values = np.concatenate(arrays) if arrays else np.empty(0, kind)
        parts.append(_make_lists(lists, pa.array(values, field.type.value_type), field.type))
    turns = pa.StructArray.from_arrays(parts, fields=list(_TURN))
    return _make_lists(trajectories, turns, TRAJECTORIES.field("turns").type)


def _make_lists(
    lengths_of: Sequence[Sequence[Any] | None], values: pa.Array, kind: Any
) -> pa.Array:
    ends = accumulate(len(part) if part is not None else 0 for part in lengths_of)
    offsets = pa.array([0, *ends], pa.int32())
    is_missing = [part is None for part in lengths_of]
    mask = pa.array(is_missing, pa.bool_()) if any(is_missing) else None
    return pa.ListArray.from_arrays(offsets, values, type=kind, mask=mask)


# Reading ------------------------------------------------------------------------------------------


class Dataset:
    """A file of examples."""

    def __init__(self, source: Path | bytes, method: Method, name: str) -> None:
        """Open a file or its content, `source`; `name` is for errors.

        Raises CorruptionError if it is no such file, StoreError if another version wrote it.
        """
        self.method, self._name = method, name
        self._source = source
        with self._open() as file:
            self.examples: int = file.metadata.num_rows
            choose_schema(file.schema_arrow, method, name)

    def rows(self) -> Iterator[Row]:
        """Yield the rows in order; a few hundred are in memory at a time."""
        with self._open() as file:
            for batch in file.iter_batches(_ROWS_PER_GROUP):
                table = pa.Table.from_batches([batch])
                columns = [_read_values(column) for column in table.columns]
                for values in zip(*columns, strict=True):
                    yield dict(zip(table.column_names, values, strict=True))

    def table(self) -> pa.Table:
        """Read all rows."""
        with self._open() as file:
            return file.read(use_threads=False)

    def column(self, name: str) -> list[Any]:
        """Read a column as a list."""
        with self._open() as file:
            values: list[Any] = file.read([name], use_threads=False)[name].to_pylist()
            return values

    def _open(self) -> pq.ParquetFile:
        try:
            return open_parquet(self._source)
        except (pa.ArrowException, OSError) as error:
            raise CorruptionError(f"{self._name}: damaged, not a Parquet file ({error})") from error


def open_dataset(store: Store, directory: str) -> Dataset:
    """Open the committed dataset of a directory, checked against its manifest.

    Raises MissingFileError if there is none, CorruptionError if it is damaged, and as `Dataset`.
    """
    manifest = read_manifest(store, directory)
    method = DatasetFacts.from_manifest(manifest).method
    name = FILES[method]
    place = manifest.path(name)
    local = store.local_path(place)
    if local is None or not local.exists():
        return Dataset(read_committed_file(store, manifest, name), method, place)
    verify(store, directory)
    return Dataset(local, method, place)


def choose_schema(file_schema: pa.Schema, method: Method, name: str) -> pa.Schema:
    """Choose the schema of a file of the method by its version. Raises as `choose_by_version`."""
    schemas = [schemas[method] for schemas in (SCHEMAS, WITH_REASONING) if method in schemas]
    return choose_by_version(
        file_schema, [*schemas, *([WITH_WEIGHTS] if method == "supervised" else [])], name
    )


def _read_values(column: pa.ChunkedArray) -> list[Any]:
    """Read a column as `to_pylist` does, but much faster for conversations."""
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


# Held-out questions -------------------------------------------------------------------------------


def choose_held_out(questions: Iterable[str], fraction: float, seed: int) -> frozenset[str]:
    """Draw about this share of the questions; their examples are not trained on.

    A question is on the same side beside any others, except for the last one, which is trained on.
    """
    draws = {question: derive_seed("validation", seed, question) / 2**31 for question in questions}
    held_out = {question for question, number in draws.items() if number < fraction}
    if held_out and len(held_out) == len(draws):
        held_out.remove(max(held_out, key=lambda question: (draws[question], question)))
    return frozenset(held_out)
