"""The three messages of Tinker's wire that are protobuf (package `tinker_public`, proto3).

decode_forward_backward   the body of `forward_backward` -> ForwardBackward
encode_output             log-probabilities and metrics -> ForwardBackwardOutput
encode_samples            sampled sequences -> SampleResponse

Field numbers are those of the SDK's schema. The tests compare both directions with Google's library
and the SDK's own schema (`packages/nip-lm-server/tests/tinker`).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt

from nip_lm_server.tinker.protobuf import (
    Budget,
    Fields,
    Kind,
    WireError,
    write_bytes,
    write_double,
    write_number,
    write_packed,
)
from nip_lm_server.training.resident.types import Array, Datum, Output, SparseRows

MOST_DATUMS = 8192
"""Of one body. The SDK sends 1,024 at most."""
MOST_VALUES = 1_000_000
"""Fields of one body, of which each takes about a hundred bytes in memory."""
MOST_TARGETS = 4_000_000
"""Values of one body with its sparse rows written out: a few bytes can say a shape of thousands.
The trainer has 8 bytes for each, of targets and of weights, and the answer on record has 4."""
_FLOAT32, _BFLOAT16 = 1, 4
_DTYPES: Mapping[int, str] = {_FLOAT32: "<f4", 2: "<i8", 3: "<i4", _BFLOAT16: "<u2"}
NO_TOKEN = (0, -99999.0)
"""A cell of the likeliest tokens where there is none."""

_REQUEST: Mapping[int, Kind] = {
    1: "bytes", 2: "number", 3: "bytes", 4: "bytes", 5: "bytes", 6: "number", 7: "bytes",
}  # fmt: skip
_DATUM: Mapping[int, Kind] = {1: "bytes", 2: "bytes", 3: "bytes", 4: "bytes"}
_CHUNK: Mapping[int, Kind] = {1: "bytes", 2: "bytes", 3: "bytes"}
_TEXT: Mapping[int, Kind] = {1: "bytes"}
_ENTRY: Mapping[int, Kind] = {1: "bytes", 2: "bytes"}
_NUMBER_ENTRY: Mapping[int, Kind] = {1: "bytes", 2: "double"}
_NUMBER_OR_TEXT: Mapping[int, Kind] = {1: "double", 2: "bytes"}
_TENSOR: Mapping[int, Kind] = {1: "bytes", 2: "bytes", 3: "number", 4: "bytes"}
_SPARSE: Mapping[int, Kind] = {1: "bytes", 2: "bytes", 3: "bytes"}


@dataclass(frozen=True)
class ForwardBackward:
    """A request: what to compute for a model, and its place in the model's order.

    `refusal` says what it asks for that can't be done here; then `data` is empty.
    """

    model_id: str
    seq_id: int
    loss_fn: str
    config: dict[str, float]
    forward_only: bool
    data: tuple[Datum, ...] = ()
    refusal: str | None = None

    def digest(self) -> str:
        """Digest what is asked for: protobuf may write the same message in other bytes."""
        facts = [self.loss_fn, sorted(self.config.items()), self.forward_only, self.refusal]
        sha = hashlib.sha256(repr(facts).encode())
        for datum in self.data:
            _digest_array(sha, datum.tokens)
            for name, value in sorted(datum.inputs.items()):
                sha.update(f"\n{name} {value.shape} ".encode())
                if isinstance(value, SparseRows):
                    for part in (value.values, value.crow_indices, value.col_indices):
                        _digest_array(sha, part)
                else:
                    _digest_array(sha, value)
        return sha.hexdigest()


def _digest_array(sha: "hashlib._Hash", array: Array) -> None:
    """Add an array's numbers: the same bytes of another type are others."""
    sha.update(f"\n{array.dtype.str} {array.size} ".encode())
    sha.update(array.tobytes())


class _Refused(Exception):
    """Well formed, and nothing that this server does."""


def decode_forward_backward(body: bytes) -> ForwardBackward:
    """Read a request. Raises WireError for what is none; arrays are views of `body`."""
    budget = Budget(MOST_VALUES)
    fields = Fields(memoryview(body), "the body", budget, _REQUEST)
    data, refusal, config = [], None, {}
    loss_fn = fields.text(4)
    try:
        config = _read_config(fields, budget)
        raw = fields.messages(3)
        if len(raw) > MOST_DATUMS:
            raise WireError(f"the body has {len(raw)} datums, at most {MOST_DATUMS} are taken")
        data = [_read_datum(one, f"datum {index}", budget) for index, one in enumerate(raw)]
        _check_targets(data)
    except _Refused as error:
        refusal, data = str(error), []
    return ForwardBackward(
        model_id=fields.text(1),
        seq_id=fields.number(2),
        loss_fn=loss_fn,
        config=config,
        forward_only=bool(fields.number(6)),
        data=tuple(data),
        refusal=refusal,
    )


def _read_config(fields: Fields, budget: Budget) -> dict[str, float]:
    config = {}
    for raw in fields.messages(5):
        entry = Fields(raw, "loss_fn_config", budget, _NUMBER_ENTRY)
        config[entry.text(1)] = entry.double(2)
    for raw in fields.messages(7):
        entry = Fields(raw, "loss_fn_config", budget, _ENTRY)
        value = Fields(entry.raw(2), "loss_fn_config", budget, _NUMBER_OR_TEXT)
        if 2 in value:
            raise _Refused(
                f"loss_fn_config {entry.text(1)!r} is the text {value.text(2)[:40]!r}: losses of "
                "this server take numbers alone"
            )
        config[entry.text(1)] = value.double(1)
    return config


def _check_targets(data: Sequence[Datum]) -> None:
    """Refuse what would take too much memory where all its values are written out."""
    total = 0
    for datum in data:
        shapes = [value.shape for value in datum.inputs.values()]
        total += max((prod(shape) for shape in shapes), default=0)
    if total > MOST_TARGETS:
        raise _Refused(
            f"the targets have {total} values with what sparse ones leave out, at most "
            f"{MOST_TARGETS} are taken in a request: send fewer datums in each, or a smaller K"
        )


def _read_datum(raw: memoryview, where: str, budget: Budget) -> Datum:
    fields = Fields(raw, where, budget, _DATUM)
    parts = []
    for chunk in fields.messages(1):
        content = Fields(chunk, f"{where}: model_input", budget, _CHUNK)
        if 2 in content or 3 in content:
            kind = "an image" if 2 in content else "sound"
            raise _Refused(
                f"{where} has {kind} in its model_input: this server trains on text, so send "
                "encoded_text alone"
            )
        text = Fields(content.raw(1), f"{where}: encoded_text", budget, _TEXT)
        parts.append(_read_array(text.raw(1), "<i4", f"{where}: tokens"))
    tokens = np.concatenate(parts) if parts else np.zeros(0, "<i4")
    inputs: dict[str, Array | SparseRows] = {}
    for entry_raw in fields.messages(2):
        entry = Fields(entry_raw, f"{where}: loss_fn_inputs", budget, _ENTRY)
        name = entry.text(1)
        if name in inputs:
            raise WireError(f"{where}: loss_fn_inputs has {name[:40]!r} twice")
        inputs[name] = _read_tensor(entry.raw(2), f"{where}: {name[:40]}", budget)
    return Datum(tokens, inputs)


def _read_tensor(raw: memoryview, where: str, budget: Budget) -> Array | SparseRows:
    fields = Fields(raw, where, budget, _TENSOR)
    kind = fields.number(3)
    dtype = _DTYPES.get(kind)
    if dtype is None:
        raise WireError(f"{where}: the tensor's dtype is {kind}, expected 1 to 4")
    shape = tuple(fields.numbers(4))
    if any(size < 0 for size in shape) or len(shape) > 2:
        raise WireError(f"{where}: the tensor's shape is {list(shape)[:4]}, expected 1 or 2 sizes")
    if 2 in fields:
        sparse = Fields(fields.raw(2), where, budget, _SPARSE)
        if len(shape) != 2:
            raise WireError(f"{where}: a sparse tensor's shape is {list(shape)}, expected 2 sizes")
        return SparseRows(
            values=_widen(_read_array(sparse.raw(1), dtype, where), kind),
            crow_indices=_read_array(sparse.raw(2), "<i8", where),
            col_indices=_read_array(sparse.raw(3), "<i8", where),
            shape=(shape[0], shape[1]),
        )
    values = _widen(_read_array(fields.raw(1), dtype, where), kind)
    if 4 not in fields:
        return values
    if int(np.prod(shape, dtype=object)) != values.size:
        raise WireError(f"{where}: {values.size} values for the shape {list(shape)}")
    return values.reshape(shape)


def _read_array(raw: memoryview, dtype: str, where: str) -> Array:
    size = np.dtype(dtype).itemsize
    if len(raw) % size:
        raise WireError(f"{where}: {len(raw)} bytes are no whole number of values of {size} bytes")
    # A copy only where the bytes lie so that numpy would compute slowly on them: never here.
    return np.frombuffer(raw, dtype)


def _widen(values: Array, kind: int) -> Array:
    """Return float32 for bfloat16, of which it is the upper half."""
    return (values.astype("<u4") << 16).view("<f4") if kind == _BFLOAT16 else values


# Answers


def encode_output(output: Output) -> bytes:
    """Encode a ForwardBackwardOutput: a record for each run of datums with as many targets."""
    message = [write_bytes(1, b"ArrayRecord")]
    runs: list[list[npt.NDArray[np.float32]]] = []
    for array in output.logprobs:
        if not runs or runs[-1][-1].shape[1:] != array.shape[1:]:
            runs.append([])
        runs[-1].append(array)
    for run in runs:
        ends = np.cumsum([0, *(array.size * 4 for array in run)], dtype="<i8")
        tensor = (
            write_bytes(1, b"".join(array.astype("<f4").tobytes() for array in run))
            + write_bytes(2, ends.tobytes())
            + write_number(3, _FLOAT32)
            + write_packed(4, list(run[0].shape[1:]))
        )
        entry = write_bytes(1, b"logprobs") + write_bytes(2, tensor)
        record = write_bytes(1, b"ArrayRecord") + write_bytes(2, entry) + write_number(3, len(run))
        message.append(write_bytes(2, record))
    for name, value in sorted(output.metrics.items()):
        message.append(write_bytes(3, write_bytes(1, name.encode()) + write_double(2, value)))
    return b"".join(message)


Likeliest = Sequence[Sequence[tuple[int, float]]]
"""For each place the likeliest tokens with their log-probabilities, the first one first."""


@dataclass(frozen=True)
class SampledSequence:
    """A sampled sequence: its tokens, the one that stopped it included."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    stopped: bool
    """False: its tokens ran out."""
    likeliest: Likeliest = ()


@dataclass(frozen=True)
class Samples:
    """The answer to a sample. A place of the prompt without a log-probability has None."""

    sequences: Sequence[SampledSequence]
    prompt_logprobs: Sequence[float | None] | None = None
    prompt_likeliest: Likeliest | None = None
    prompt_width: int = 0
    sample_width: int = 0
    cached_tokens: int = field(default=0)


def encode_samples(samples: Samples) -> bytes:
    """Encode a SampleResponse."""
    message = []
    for sequence in samples.sequences:
        one = write_number(1, 0 if sequence.stopped else 1)
        one += write_bytes(2, np.asarray(sequence.tokens, "<i4").tobytes())
        one += write_bytes(3, np.asarray(sequence.logprobs, "<f4").tobytes())
        if samples.sample_width:
            one += write_bytes(4, _encode_likeliest(sequence.likeliest, samples.sample_width))
        message.append(write_bytes(1, one))
    if samples.prompt_logprobs is not None:
        known = [np.nan if value is None else value for value in samples.prompt_logprobs]
        message.append(write_bytes(2, np.asarray(known, "<f4").tobytes()))
    if samples.prompt_likeliest is not None and samples.prompt_width:
        message.append(
            write_bytes(3, _encode_likeliest(samples.prompt_likeliest, samples.prompt_width))
        )
    message.append(write_number(4, samples.cached_tokens))
    return b"".join(message)


def _encode_likeliest(places: Likeliest, width: int) -> bytes:
    cells = [[*place, *[NO_TOKEN] * (width - len(place))] for place in places]
    ids = np.asarray([[token for token, _ in row] for row in cells], "<i4")
    logprobs = np.asarray([[logprob for _, logprob in row] for row in cells], "<f4")
    return (
        write_bytes(1, ids.tobytes())
        + write_bytes(2, logprobs.tobytes())
        + write_number(3, width)
        + write_number(4, len(cells))
    )
