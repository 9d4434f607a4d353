"""The messages between a resident trainer's process and its client. Nothing is pickled.

encode           a message of JSON values and arrays -> bytes
lengths, decode  a message's head and its body back
to_wire          the values of a request or an answer -> values for `encode`
data_from_wire, output_from_wire   datums and outputs back

A message is twelve bytes of lengths, a header in JSON, and the bytes of all arrays, one after the
other. In the header an array is ``{"array": [type, shape]}``, in the order of the bytes.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from nip_lm_server.training.resident.types import (
    AdamParams,
    Datum,
    LoraConfig,
    Output,
    SparseRows,
)

HEAD = struct.Struct("!IQ")
"""Bytes of the header, and of the arrays."""
MOST_HEADER = 2**28
MOST_ARRAYS = 2**34
_KINDS = "biuf"


class FramingError(Exception):
    """The bytes are no message: the connection can't be used any more."""


def encode(value: Mapping[str, Any]) -> bytes:
    """Write a message: JSON values, with numpy arrays of numbers anywhere in them."""
    arrays: list[bytes] = []
    header = json.dumps(_strip(value, arrays)).encode()
    return b"".join((HEAD.pack(len(header), sum(map(len, arrays))), header, *arrays))


def lengths(head: bytes) -> tuple[int, int]:
    """Read the lengths of header and arrays. Raises FramingError."""
    header, arrays = HEAD.unpack(head)
    if header > MOST_HEADER or arrays > MOST_ARRAYS:
        raise FramingError(f"a message of {header} and {arrays} bytes is too long")
    return header, arrays


def decode(header: bytes, arrays: bytes) -> dict[str, Any]:
    """Read a message of `encode` back. Raises FramingError."""
    unread = memoryview(arrays)

    def filled(value: Any) -> Any:
        nonlocal unread
        if isinstance(value, list):
            return [filled(item) for item in value]
        if not isinstance(value, dict):
            return value
        if value.keys() != {"array"}:
            return {key: filled(item) for key, item in value.items()}
        name, shape = value["array"]
        dtype = np.dtype(name)
        if dtype.kind not in _KINDS:
            raise ValueError(f"an array of {name}")
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        mine, unread = unread[:size], unread[size:]
        return np.frombuffer(mine, dtype).reshape(shape)

    try:
        message = filled(json.loads(header))
    except (ValueError, TypeError, KeyError) as error:
        raise FramingError(f"a message can't be read: {error}") from error
    if not isinstance(message, dict) or unread.nbytes:
        raise FramingError("a message has other arrays than it says")
    return message


def to_wire(value: Any) -> Any:
    """Turn the values of `types` into values for `encode`."""
    if isinstance(value, Datum):
        return {"tokens": np.asarray(value.tokens), "inputs": to_wire(value.inputs)}
    if isinstance(value, SparseRows):
        parts = (value.values, value.crow_indices, value.col_indices)
        return {"sparse": list(map(np.asarray, parts)), "shape": list(value.shape)}
    if isinstance(value, LoraConfig | AdamParams):
        return asdict(value)
    if isinstance(value, Output):
        return {"logprobs": list(value.logprobs), "metrics": value.metrics}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: to_wire(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_wire(item) for item in value]
    return value


def data_from_wire(values: Sequence[Mapping[str, Any]]) -> list[Datum]:
    """Read datums back."""

    def tensor(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        values, rows, columns = value["sparse"]
        return SparseRows(values, rows, columns, tuple(value["shape"]))

    return [
        Datum(value["tokens"], {name: tensor(item) for name, item in value["inputs"].items()})
        for value in values
    ]


def output_from_wire(value: Mapping[str, Any]) -> Output:
    """Read the answer of `forward_backward` back."""
    return Output(tuple(value["logprobs"]), dict(value["metrics"]))


def _strip(value: Any, arrays: list[bytes]) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in _KINDS:
            raise FramingError(f"an array of {value.dtype} can't be sent")
        arrays.append(value.tobytes())
        return {"array": [value.dtype.str, list(value.shape)]}
    if isinstance(value, Mapping):
        return {key: _strip(item, arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strip(item, arrays) for item in value]
    return value
