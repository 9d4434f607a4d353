"""Tinker's messages: what was written is read, and whatever else comes is one error."""

import random

import numpy as np
import pytest
import tinker_wire as wire
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_lm_server.tinker import tinker_messages as messages
from nip_lm_server.tinker.schema import WireError
from nip_lm_server.tinker.tinker_messages import (
    decode_forward_backward,
    encode_output,
    encode_samples,
)
from nip_lm_server.training.resident.types import Output, SparseRows

WEIGHTS = np.array([[0.0, 0.5], [0.25, 0.0], [0.0, 0.0]])


def example() -> bytes:
    soft = wire.datum(
        [[1, 2], [3]],
        target_tokens=wire.sparse_tensor([[0, 5], [6, 0], [0, 0]], wire.INT64),
        weights=wire.sparse_tensor(WEIGHTS, wire.FLOAT32),
    )
    plain = wire.datum(
        [[7], [8, 9]],
        target_tokens=wire.tensor([8, 9, 10], wire.INT64),
        logprobs=wire.tensor([-0.5, -1.0, 0.0], wire.BFLOAT16),
    )
    return wire.write_request("m:train:0", 7, [soft, plain], "ppo", config={"clip_low": 0.8})


def test_a_request_is_read_as_it_was_written() -> None:
    asked = decode_forward_backward(example())
    assert (asked.model_id, asked.seq_id, asked.loss_fn) == ("m:train:0", 7, "ppo")
    assert asked.config == {"clip_low": 0.8} and not asked.forward_only
    soft, plain = asked.data
    assert soft.tokens.tolist() == [1, 2, 3]
    weights = soft.inputs["weights"]
    assert isinstance(weights, SparseRows)
    assert (weights.shape, weights.crow_indices.tolist()) == ((3, 2), [0, 1, 2, 2])
    assert (weights.values.tolist(), weights.col_indices.tolist()) == ([0.5, 0.25], [1, 0])
    assert plain.inputs["target_tokens"].tolist() == [8, 9, 10]  # type: ignore[union-attr]
    assert plain.inputs["logprobs"].tolist() == [-0.5, -1.0, 0.0]  # type: ignore[union-attr]


def test_a_negative_number_is_one() -> None:
    assert decode_forward_backward(wire.write_request("m", -3, [])).seq_id == -3


def test_the_digest_is_that_of_what_is_asked_for() -> None:
    first, second = (wire.write_request("m", 1, [wire.learn([1, 2, n])]) for n in (3, 4))
    digests = [decode_forward_backward(body).digest() for body in (first, first, second)]
    assert digests[0] == digests[1] != digests[2]


def test_the_same_bytes_of_another_type_are_another_request() -> None:
    weights = np.zeros(4, "<i4"), np.zeros(4, "<f4")
    digests = [
        decode_forward_backward(
            wire.write_request("m", 1, [wire.datum([[1, 2, 3, 4]], weights=wire.tensor(w, kind))])
        ).digest()
        for w, kind in zip(weights, (wire.INT32, wire.FLOAT32), strict=True)
    ]
    assert digests[0] != digests[1]


def test_an_answer_is_read_as_it_was_written() -> None:
    arrays = (np.arange(3), np.arange(4).reshape(2, 2), np.arange(2))
    output = Output(tuple(a.astype(np.float32) for a in arrays), {"loss:sum": 1.5})
    read, metrics = wire.read_output(encode_output(output))
    assert [one.tolist() for one in read] == [one.tolist() for one in arrays]
    assert metrics == {"loss:sum": 1.5}
    sequence = messages.SampledSequence([3, 4], [-0.5, -0.25], stopped=False)
    body = encode_samples(messages.Samples([sequence], [None, -2.0]))
    ((read_sequence,), prompt) = wire.read_samples(body)
    assert read_sequence == {"tokens": [3, 4], "logprobs": [-0.5, -0.25], "stopped": False}
    assert prompt is not None and np.isnan(prompt[0]) and prompt[1] == -2.0


def test_images_are_refused_by_name() -> None:
    image = wire.write_bytes(1, wire.write_bytes(2, wire.write_bytes(1, b"png")))
    asked = decode_forward_backward(wire.write_request("m", 1, [image]))
    assert asked.refusal is not None and "an image" in asked.refusal and not asked.data


def test_what_a_newer_schema_adds_is_no_silence() -> None:
    new, target = wire.write_number(19, 1), wire.tensor([1], wire.INT64)
    chunk = wire.write_bytes(1, wire.write_bytes(1, b"\1\0\0\0"))
    bodies = [
        wire.write_request("m", 1, []) + new,
        wire.write_request("m", 1, []) + wire.write_bytes(5, new),
        wire.write_request("m", 1, [new]),
        wire.write_request("m", 1, [wire.write_bytes(1, chunk + new)]),
        wire.write_request("m", 1, [wire.write_bytes(1, wire.write_bytes(1, new))]),
        wire.write_request("m", 1, [wire.datum([[1]], target_tokens=target + new)]),
    ]
    for body in bodies:
        with pytest.raises(WireError, match="field 19"):
            decode_forward_backward(body)


def test_a_known_field_of_another_kind_is_refused() -> None:
    body = wire.write_request("m", 1, []) + wire.write_bytes(6, b"yes")
    with pytest.raises(WireError, match="field 6"):
        decode_forward_backward(body)


def test_empty_messages_by_the_million_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    many = wire.write_bytes(3, b"") * (messages.MOST_DATUMS + 1)
    with pytest.raises(WireError, match="at most"):
        decode_forward_backward(many)
    monkeypatch.setattr(messages, "MOST_VALUES", 1000)
    for part in (1, 2):
        datum = wire.write_bytes(part, b"") * 501
        with pytest.raises(WireError, match="too many values"):
            decode_forward_backward(wire.write_request("m", 1, [datum, datum]))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_one_error(body: bytes) -> None:
    _is_request(body)


def test_mutated_requests_are_requests_or_one_error() -> None:
    drawn, body = random.Random(0), example()
    for _ in range(2000):
        mutated = bytearray(body[: drawn.randrange(1, len(body) + 1)])
        for _ in range(drawn.randrange(4)):
            mutated[drawn.randrange(len(mutated))] = drawn.randrange(256)
        _is_request(bytes(mutated))


def _is_request(body: bytes) -> bool:
    try:
        decode_forward_backward(body)
    except WireError:
        return False
    return True
