"""The three messages of Tinker's wire that are protobuf (package `tinker_public`, proto3).

decode_forward_backward   the body of `forward_backward` -> ForwardBackward
encode_output             log-probabilities and metrics -> ForwardBackwardOutput
encode_samples            sampled sequences -> SampleResponse

Google's library reads and writes them, by the `schema`. The tests compare both directions with the
SDK's own (`packages/nip-lm-server/tests/tinker`).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from nip_lm_server.tinker.schema import WireError, check_known, make, parse
from nip_lm_server.training.resident.types import Array, Datum, Output, SparseRows

MOST_DATUMS = 8192
"""Of one body. The SDK sends 1,024 at most."""
MOST_VALUES = 1_000_000
"""Messages of one body, of which each takes about a hundred bytes in memory as it is read."""
MOST_TARGETS = 4_000_000
"""Values of one body with its sparse rows written out: a few bytes can say a shape of thousands.
The trainer has 8 bytes for each, of targets and of weights, and the answer on record has 4."""
_FLOAT32, _BFLOAT16 = 1, 4
_DTYPES: Mapping[int, str] = {_FLOAT32: "<f4", 2: "<i8", 3: "<i4", _BFLOAT16: "<u2"}
NO_TOKEN = (0, -99999.0)
"""A cell of the likeliest tokens where there is none."""


@dataclass(frozen=True)
class ForwardBackward:
    """A request: data and a loss for a model, and its place in the model's order.

    `refusal` names a part of it that can't be done here; then `data` is empty.
    """

    model_id: str
    seq_id: int
    loss_fn: str
    config: dict[str, float]
    forward_only: bool
    data: tuple[Datum, ...] = ()
    refusal: str | None = None

    def digest(self) -> str:
        """Digest the fields: protobuf may write the same message in other bytes."""
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
    """Add an array's numbers and their type: the same bytes of another type are other numbers."""
    sha.update(f"\n{array.dtype.str} {array.size} ".encode())
    sha.update(array.tobytes())


class _Refused(Exception):
    """A well-formed request that this server does not do."""


def decode_forward_backward(body: bytes) -> ForwardBackward:
    """Read a request. Raises WireError for other bytes."""
    request = parse("ForwardBackwardRequest", body)
    check_known(request, "the body")
    if len(request.data) > MOST_DATUMS:
        raise WireError(f"the body has {len(request.data)} datums, at most {MOST_DATUMS} are taken")
    _check_count(request)
    data, refusal, config = [], None, {}
    try:
        config = _read_config(request)
        data = [_read_datum(one, f"datum {index}") for index, one in enumerate(request.data)]
        _check_targets(data)
    except _Refused as error:
        refusal, data = str(error), []
    return ForwardBackward(
        model_id=request.model_id,
        seq_id=request.seq_id,
        loss_fn=request.loss_fn,
        config=config,
        forward_only=request.forward_only,
        data=tuple(data),
        refusal=refusal,
    )


def _check_count(request: Any) -> None:
    """Raise WireError for more parts than a body may have, before each becomes an object."""
    count = len(request.loss_fn_config) + len(request.loss_fn_config_v2)
    count += sum(len(datum.model_input) + len(datum.loss_fn_inputs) for datum in request.data)
    if count > MOST_VALUES:
        raise WireError("the body: the message has too many values; send it in several")


def _read_config(request: Any) -> dict[str, float]:
    config = {}
    for entry in request.loss_fn_config:
        check_known(entry, "loss_fn_config")
        config[entry.key] = entry.value
    for entry in request.loss_fn_config_v2:
        check_known(entry, "loss_fn_config")
        check_known(entry.value, "loss_fn_config")
        if entry.value.HasField("text"):
            raise _Refused(
                f"loss_fn_config {entry.key!r} is the text {entry.value.text[:40]!r}: losses of "
                "this server take numbers alone"
            )
        config[entry.key] = entry.value.number
    return config


def _check_targets(data: Sequence[Datum]) -> None:
    """Refuse targets that would take too much memory with all their values written out."""
    total = 0
    for datum in data:
        shapes = [value.shape for value in datum.inputs.values()]
        total += max((prod(shape) for shape in shapes), default=0)
    if total > MOST_TARGETS:
        raise _Refused(
            f"the targets have {total} values with what sparse ones leave out, at most "
            f"{MOST_TARGETS} are taken in a request: send fewer datums in each, or a smaller K"
        )


def _read_datum(datum: Any, place: str) -> Datum:
    check_known(datum, place)
    parts = []
    for chunk in datum.model_input:
        check_known(chunk, f"{place}: model_input")
        if chunk.HasField("image") or chunk.HasField("dmel"):
            kind = "an image" if chunk.HasField("image") else "sound"
            raise _Refused(
                f"{place} has {kind} in its model_input: this server trains on text, so send "
                "encoded_text alone"
            )
        check_known(chunk.encoded_text, f"{place}: encoded_text")
        parts.append(_read_array(chunk.encoded_text.tokens, "<i4", f"{place}: tokens"))
    tokens = np.concatenate(parts) if parts else np.zeros(0, "<i4")
    inputs: dict[str, Array | SparseRows] = {}
    for entry in datum.loss_fn_inputs:
        check_known(entry, f"{place}: loss_fn_inputs")
        name = entry.key
        if name in inputs:
            raise WireError(f"{place}: loss_fn_inputs has {name[:40]!r} twice")
        inputs[name] = _read_tensor(entry.value, f"{place}: {name[:40]}")
    return Datum(tokens, inputs)


def _read_tensor(tensor: Any, place: str) -> Array | SparseRows:
    check_known(tensor, place)
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise WireError(f"{place}: the tensor's dtype is {tensor.dtype}, expected 1 to 4")
    shape = tuple(tensor.shape[:4])
    if any(size < 0 for size in shape) or len(shape) > 2:
        raise WireError(f"{place}: the tensor's shape is {list(shape)}, expected 1 or 2 sizes")
    if tensor.HasField("sparse_csr"):
        sparse = tensor.sparse_csr
        check_known(sparse, place)
        if len(shape) != 2:
            raise WireError(f"{place}: a sparse tensor's shape is {list(shape)}, expected 2 sizes")
        return SparseRows(
            values=_widen(_read_array(sparse.values, dtype, place), tensor.dtype),
            crow_indices=_read_array(sparse.crow_indices, "<i8", place),
            col_indices=_read_array(sparse.col_indices, "<i8", place),
            shape=(shape[0], shape[1]),
        )
    values = _widen(_read_array(tensor.dense, dtype, place), tensor.dtype)
    if not shape:
        return values
    if prod(shape) != values.size:
        raise WireError(f"{place}: {values.size} values for the shape {list(shape)}")
    return values.reshape(shape)


def _read_array(raw: bytes, dtype: str, place: str) -> Array:
    size = np.dtype(dtype).itemsize
    if len(raw) % size:
        raise WireError(f"{place}: {len(raw)} bytes are no whole number of values of {size} bytes")
    return np.frombuffer(raw, dtype)


def _widen(values: Array, kind: int) -> Array:
    """Return float32 for bfloat16, which is its upper half."""
    return (values.astype("<u4") << 16).view("<f4") if kind == _BFLOAT16 else values


# Answers


def encode_output(output: Output) -> bytes:
    """Encode a ForwardBackwardOutput: a record for each run of datums with as many targets."""
    runs: list[list[npt.NDArray[np.float32]]] = []
    for array in output.logprobs:
        if not runs or runs[-1][-1].shape[1:] != array.shape[1:]:
            runs.append([])
        runs[-1].append(array)
    message = make("ForwardBackwardOutput", loss_fn_output_type="ArrayRecord")
    for run in runs:
        batch = make(
            "BatchedTensor",
            data=b"".join(array.astype("<f4").tobytes() for array in run),
            offsets=np.cumsum([0, *(array.size * 4 for array in run)], dtype="<i8").tobytes(),
            dtype=_FLOAT32,
            trailing_shape=run[0].shape[1:],
        )
        record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(run))
        record.fields.add(key="logprobs", value=batch)
    for name, value in sorted(output.metrics.items()):
        message.metrics.add(key=name, value=value)
    return _serialize(message)


def _serialize(message: Any) -> bytes:
    body: bytes = message.SerializeToString(deterministic=True)
    return body


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


def encode_samples(samples: Samples) -> bytes:
    """Encode a SampleResponse."""
    message = make("SampleResponse")
    for sequence in samples.sequences:
        message.sequences.add(
            stop_reason=0 if sequence.stopped else 1,
            tokens=np.asarray(sequence.tokens, "<i4").tobytes(),
            logprobs=np.asarray(sequence.logprobs, "<f4").tobytes(),
            topk_sampled_logprobs=_encode_likeliest(sequence.likeliest, samples.sample_width),
        )
    if samples.prompt_logprobs is not None:
        logprobs = [np.nan if value is None else value for value in samples.prompt_logprobs]
        message.prompt_logprobs = np.asarray(logprobs, "<f4").tobytes()
    if samples.prompt_likeliest is not None and samples.prompt_width:
        likeliest = _encode_likeliest(samples.prompt_likeliest, samples.prompt_width)
        message.topk_prompt_logprobs.CopyFrom(likeliest)
    return _serialize(message)


def _encode_likeliest(places: Likeliest, width: int) -> Any:
    """Make the table of likeliest tokens; None where the client wants none."""
    if not width:
        return None
    cells = [[*place, *[NO_TOKEN] * (width - len(place))] for place in places]
    ids = np.asarray([[token for token, _ in row] for row in cells], "<i4")
    logprobs = np.asarray([[logprob for _, logprob in row] for row in cells], "<f4")
    return make(
        "TopkLogprobs",
        token_ids=ids.tobytes(),
        logprobs=logprobs.tobytes(),
        k=width,
        length=len(cells),
    )
