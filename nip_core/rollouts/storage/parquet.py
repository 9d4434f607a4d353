"""One table of rollouts as one Parquet file."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from nip_core.errors import CorruptionError, StoreError

_VERSION_KEY = b"nip.schema_version"

# Unique strings get no dictionary, which would only add to them.
_LENGTH_ENCODED = {"key", "parent_key", "text", "reasoning"}
_DELTA_ENCODED = {
    "started_at": "DELTA_BINARY_PACKED",
    "seed": "DELTA_BINARY_PACKED",
    "latency_s": "BYTE_STREAM_SPLIT",
    "completion_logprobs.list.element": "BYTE_STREAM_SPLIT",
    "token_logprobs.list.element.logprob": "BYTE_STREAM_SPLIT",
    "token_logprobs.list.element.top.list.element.logprob": "BYTE_STREAM_SPLIT",
    "prompt_tokens": "DELTA_BINARY_PACKED",
    "completion_tokens": "DELTA_BINARY_PACKED",
    "prompt_token_ids.list.element": "DELTA_BINARY_PACKED",
    "completion_token_ids.list.element": "DELTA_BINARY_PACKED",
}


def parquet_bytes(table: pa.Table, compression: str = "zstd") -> bytes:
    """Write `table` as one Parquet file, with encodings chosen to keep the cost of a row small."""
    plain = _LENGTH_ENCODED | set(_DELTA_ENCODED)
    columns = list(_list_leaf_paths(table.schema))
    encoding = {c: "DELTA_LENGTH_BYTE_ARRAY" for c in columns if c in _LENGTH_ENCODED}
    encoding |= {c: _DELTA_ENCODED[c] for c in columns if c in _DELTA_ENCODED}
    buffer = io.BytesIO()
    pq.write_table(
        table,
        buffer,
        compression=compression,
        use_dictionary=[c for c in columns if c not in plain],
        column_encoding=encoding,
        write_statistics=[
            c for c in columns if c not in {"text", "reasoning", "question", "solution", "drawn"}
        ],
        data_page_version="2.0",
    )
    return buffer.getvalue()


def open_parquet(source: bytes | Path) -> pq.ParquetFile:
    """Open a Parquet file. Raises ArrowException or OSError if it is none.

    No object of Python is read, and nothing is read ahead. A thread of Arrow that reads ahead lets
    go of the object some time after the data is here. If Python ends in that moment, the thread
    ends the process by SIGABRT, after all the work is done. So readers of the file ask for no
    threads either (`use_threads=False`).
    """
    reader = pa.BufferReader(source) if isinstance(source, bytes) else source
    return pq.ParquetFile(reader, pre_buffer=False)


def parquet_table(
    data: bytes,
    schema: pa.Schema,
    name: str,
    columns: Sequence[str] | None = None,
    earlier: pa.Schema | None = None,
) -> pa.Table:
    """Read the table in a Parquet file of `schema`, or some of its columns; `name` is for errors.

    Columns that a file of the `earlier` version lacks are null.

    Raises CorruptionError if it is not such a file, StoreError if another version wrote it.
    """
    try:
        file = open_parquet(data)
        file_schema = file.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise _make_damage_error(name, error) from error
    choose_by_version(file_schema, [schema] if earlier is None else [schema, earlier], name)
    names = schema.names if columns is None else columns
    try:
        # A shard is small: its columns are read before Arrow's threads have shared them out.
        table = file.read(columns=names, use_threads=False)
        for lacking in (column for column in names if column not in file_schema.names):
            field = schema.field(lacking)
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
        return table.select(names)
    except (pa.ArrowException, OSError) as error:
        raise _make_damage_error(name, error) from error


def _make_damage_error(name: str, error: Exception) -> CorruptionError:
    return CorruptionError(f"{name}: damaged, not a Parquet file ({error})")


def choose_by_version(file_schema: pa.Schema, schemas: Sequence[pa.Schema], name: str) -> pa.Schema:
    """Choose the schema of the version that a file with `file_schema` has.

    Raises CorruptionError if its columns are others, StoreError if it has another version. `name`
    is for errors.
    """
    version = (file_schema.metadata or {}).get(_VERSION_KEY)
    if version is None:
        raise CorruptionError(f"{name}: no schema version in it, so nip did not write it")
    by_version = {schema.metadata[_VERSION_KEY]: schema for schema in schemas}
    schema = by_version.get(version)
    if schema is None:
        versions = " or ".join(one.decode() for one in by_version)
        raise StoreError(
            f"{name}: schema version {version.decode(errors='replace')}, this version of nip reads "
            f"{versions}; use the version of nip that wrote it, which run.json names, or play again"
        )
    if not file_schema.equals(schema):
        raise CorruptionError(f"{name}: its columns are not those of schema {version.decode()}")
    return schema


def _list_leaf_paths(schema: pa.Schema) -> Iterator[str]:
    """List Parquet's column paths, as its encodings and statistics name them."""
    for column in schema:
        yield from _walk_leaves(column.name, column.type)


def _walk_leaves(path: str, kind: pa.DataType) -> Iterator[str]:
    if pa.types.is_list(kind):
        yield from _walk_leaves(f"{path}.list.element", kind.value_type)
    elif pa.types.is_struct(kind):
        for i in range(kind.num_fields):
            yield from _walk_leaves(f"{path}.{kind.field(i).name}", kind.field(i).type)
    else:
        yield path
