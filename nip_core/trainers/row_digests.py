"""The digest of a dataset: over its rows, however they are cut into files and chunks."""

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nip_core.parameters import Method


def digest_rows(hashes: list[bytes], method: Method, version: int) -> str:
    """Compute a SHA-256 over all columns of all rows, sorted by key.

    Equal rows give an equal digest, in any order, shards, row groups and chunks.
    """
    total = hashlib.sha256(f"nip {method} {version} {len(hashes)}\n".encode())
    for row in sorted(hashes):
        total.update(row)
    return total.hexdigest()


def hash_rows(table: pa.Table) -> list[bytes]:
    """Make for each row its key and a SHA-256 of all its columns; 48 bytes.

    Hashed are, column by column, numbers in little-endian bytes, a text's or a list's length in
    four bytes (-1: null) and then what is in it. Of other columns that may be null, a byte each
    says which value is there. So no two different rows give the same bytes.
    """
    if not table.num_rows:
        return []
    # 1. Lay out each column as bytes, with the places where its rows begin.
    table, bounds = table.combine_chunks(), np.arange(table.num_rows + 1)
    pieces = [
        piece
        for field, column in zip(table.schema, table.columns, strict=True)
        for piece in _lay_out(column.chunk(0), bounds, is_nullable=field.nullable)
    ]
    # 2. Put together the pieces of each row, and hash them.
    rows = zip(*(_cut(*piece) for piece in pieces), strict=True)
    keys = table["key"].to_pylist()
    return [
        key.encode() + hashlib.sha256(b"".join(row)).digest()
        for key, row in zip(keys, rows, strict=True)
    ]


_Piece = tuple[memoryview, np.ndarray[Any, Any]]  # bytes, and where each row of the table begins


def _lay_out(array: pa.Array, ends: np.ndarray[Any, Any], *, is_nullable: bool) -> Iterator[_Piece]:
    """Lay out an array as bytes. `ends`: where in it the rows of the table begin, and its
    length."""
    kind = array.type
    if pa.types.is_struct(kind):
        for field, child in zip(kind, array.flatten(), strict=True):
            yield from _lay_out(child, ends, is_nullable=field.nullable)
        return
    if pa.types.is_list(kind) or pa.types.is_string(kind):
        is_list = pa.types.is_list(kind)
        lengths = pc.list_value_length(array) if is_list else pc.binary_length(array)
        yield _encode_numbers(lengths.fill_null(-1), "<i4"), ends * 4
        offsets = np.concatenate(([0], np.cumsum(lengths.fill_null(0).to_numpy(), dtype=np.int64)))
        if is_list:
            items = kind.value_field.nullable
            yield from _lay_out(array.flatten(), offsets[ends], is_nullable=items)
        else:
            yield _join_texts(array), offsets[ends]
        return
    if is_nullable:
        yield _encode_numbers(array.is_valid().cast(pa.int8()), "<i1"), ends
        array = array.fill_null(0)
    dtype = np.dtype(kind.to_pandas_dtype()).newbyteorder("<")
    yield _encode_numbers(array, dtype), ends * dtype.itemsize


def _encode_numbers(array: pa.Array, dtype: Any) -> memoryview:
    values = array.to_numpy(zero_copy_only=False).astype(dtype)
    if values.dtype.kind == "f":
        values[np.isnan(values)] = np.nan  # of which there are many kinds
    return memoryview(values.tobytes())


def _join_texts(array: pa.Array) -> memoryview:
    """Join all texts of a string array, one after the other."""
    array = array.fill_null("")
    _, offsets, data = array.buffers()
    if data is None:
        return memoryview(b"")
    begin, end = np.frombuffer(offsets, np.int32)[[array.offset, array.offset + len(array)]]
    return memoryview(data)[begin:end]


def _cut(data: memoryview, ends: np.ndarray[Any, Any]) -> Iterator[memoryview]:
    return (data[a:b] for a, b in pairwise(ends.tolist()))
