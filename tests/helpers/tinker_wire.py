"""Tinker's wire by bytes: requests as an SDK writes them, answers as it reads them.

write_request   datums -> the body of `forward_backward`
read_output     the answer to it -> log-probabilities of each datum, metrics
read_samples    the answer to a sample -> sequences, log-probabilities of the prompt
Wire            a client over HTTP that keeps numbers, and sends what it is told, twice if told so
"""

import itertools
import struct
from typing import Any

import httpx
import numpy as np

from nip_lm_server.tinker.schema import parse

FLOAT32, INT64, INT32, BFLOAT16 = 1, 2, 3, 4
_DTYPES = {FLOAT32: "<f4", INT64: "<i8", INT32: "<i4", BFLOAT16: "<u2"}


def _write_varint(value: int) -> bytes:
    value, out = value & (2**64 - 1), bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def write_number(number: int, value: int) -> bytes:
    """A field of an integer; 0 is left out."""
    return _write_varint(number << 3) + _write_varint(value) if value else b""


def write_double(number: int, value: float) -> bytes:
    """A field of eight bytes."""
    return _write_varint(number << 3 | 1) + struct.pack("<d", value)


def write_bytes(number: int, value: bytes) -> bytes:
    """A field of bytes, text or a message."""
    return _write_varint(number << 3 | 2) + _write_varint(len(value)) + value


def write_packed(number: int, values: list[int]) -> bytes:
    """A field of several integers; nothing where there is none."""
    packed = b"".join(map(_write_varint, values))
    return write_bytes(number, packed) if packed else b""


def tensor(values: Any, dtype: int) -> bytes:
    array = np.asarray(values)
    if dtype == BFLOAT16:
        raw = (array.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    else:
        raw = array.astype(_DTYPES[dtype]).tobytes()
    return write_bytes(1, raw) + write_number(3, dtype) + write_packed(4, list(array.shape))


def sparse_tensor(dense: Any, dtype: int) -> bytes:
    array = np.asarray(dense)
    rows, columns = np.nonzero(array)
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=array.shape[0]))])
    parts = (array[rows, columns].astype(_DTYPES[dtype]), starts.astype("<i8"))
    csr = b"".join(write_bytes(i, part.tobytes()) for i, part in enumerate(parts, 1))
    csr += write_bytes(3, columns.astype("<i8").tobytes())
    return write_bytes(2, csr) + write_number(3, dtype) + write_packed(4, list(array.shape))


def datum(chunks: list[list[int]], **inputs: bytes) -> bytes:
    message = b""
    for chunk in chunks:
        text = write_bytes(1, np.asarray(chunk, "<i4").tobytes())
        message += write_bytes(1, write_bytes(1, text))
    for name, value in inputs.items():
        message += write_bytes(2, write_bytes(1, name.encode()) + write_bytes(2, value))
    return message


def learn(tokens: list[int]) -> bytes:
    """A datum of cross-entropy: every token after the first is learned."""
    targets, weights = tokens[1:], np.ones(len(tokens) - 1)
    return datum(
        [tokens[:-1]], target_tokens=tensor(targets, INT64), weights=tensor(weights, FLOAT32)
    )


def write_request(
    model_id: str,
    seq_id: int,
    data: list[bytes],
    loss_fn: str = "cross_entropy",
    *,
    forward_only: bool = False,
    config: dict[str, float] | None = None,
) -> bytes:
    message = write_bytes(1, model_id.encode()) + write_number(2, seq_id)
    message += b"".join(write_bytes(3, one) for one in data) + write_bytes(4, loss_fn.encode())
    for name, value in (config or {}).items():
        message += write_bytes(5, write_bytes(1, name.encode()) + write_double(2, value))
    return message + write_number(6, int(forward_only))


def read_output(body: bytes) -> tuple[list[np.ndarray], dict[str, float]]:
    """Log-probabilities of each datum, and the metrics."""
    output, arrays = parse("ForwardBackwardOutput", body), []
    for record in output.loss_fn_outputs:
        (entry,) = record.fields
        assert entry.key == "logprobs"
        values = np.frombuffer(entry.value.data, "<f4")
        ends = np.frombuffer(entry.value.offsets, "<i8") // 4
        for start, end in itertools.pairwise(ends):
            arrays.append(values[start:end].reshape(-1, *entry.value.trailing_shape))
    return arrays, {entry.key: entry.value for entry in output.metrics}


def read_samples(body: bytes) -> tuple[list[dict[str, Any]], list[float] | None]:
    """Sequences with tokens, log-probabilities and whether they stopped; those of the prompt."""
    answer = parse("SampleResponse", body)
    sequences = [
        {
            "tokens": np.frombuffer(one.tokens, "<i4").tolist(),
            "logprobs": np.frombuffer(one.logprobs, "<f4").tolist(),
            "stopped": one.stop_reason == 0,
        }
        for one in answer.sequences
    ]
    has_prompt = answer.HasField("prompt_logprobs")
    prompt = np.frombuffer(answer.prompt_logprobs, "<f4").tolist() if has_prompt else None
    return sequences, prompt


class Wire:
    """A client of one server. With `doubled` every request is sent twice, before its answer."""

    def __init__(self, url: str, key: str, *, doubled: bool = False):
        self.http = httpx.Client(
            base_url=url + "/api/v1/", headers={"X-API-Key": key}, timeout=60, trust_env=False
        )
        self.doubled = doubled

    def post(self, path: str, body: dict[str, Any] | bytes) -> httpx.Response:
        if isinstance(body, bytes):
            headers = {"Content-Type": "application/x-protobuf"}
            return self.http.post(path, content=body, headers=headers)
        return self.http.post(path, json=body)

    def ask(self, path: str, body: dict[str, Any] | bytes) -> dict[str, Any]:
        answers = [self.post(path, body) for _ in range(2 if self.doubled else 1)]
        for answer in answers:
            assert answer.status_code == 200, answer.text
        # A session is begun anew each time; all else has a number.
        assert path == "create_session" or len({answer.text for answer in answers}) == 1
        found: dict[str, Any] = answers[-1].json()
        return found

    def begin(self, base_model: str, *, rank: int = 4, seed: int = 0, number: int = 0) -> str:
        """A session and a model in it; returns the model's id."""
        session = self.ask("create_session", {"tags": [], "sdk_version": "0.38.0"})["session_id"]
        return self.make(session, base_model, rank=rank, seed=seed, number=number)

    def make(self, session: str, base_model: str, *, rank: int, seed: int, number: int) -> str:
        lora = {"rank": rank, "seed": seed, "train_unembed": True}
        body = {
            "session_id": session, "model_seq_id": number, "base_model": base_model,
            "lora_config": lora, "type": "create_model",
        }  # fmt: skip
        made = self.result(self.ask("create_model", body)["request_id"])
        return str(made["model_id"])

    def step(self, model: str, seq: int, rate: float = 1e-2) -> str:
        adam = {"learning_rate": rate, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8}
        body = {"model_id": model, "seq_id": seq, "adam_params": adam, "type": "optim_step"}
        return str(self.ask("optim_step", body)["request_id"])

    def train(self, model: str, seq: int, data: list[bytes], **options: Any) -> str:
        body = write_request(model, seq, data, **options)
        return str(self.ask("forward_backward", body)["request_id"])

    def result(self, id: str) -> Any:
        """The result of a request: JSON, or protobuf's bytes."""
        while True:
            answer = self.post("retrieve_future", {"request_id": id})
            if answer.status_code != 408:
                break
        assert answer.status_code == 200, answer.text
        if answer.headers["Content-Type"] == "application/x-protobuf":
            return answer.content
        return answer.json()

    def logprobs(self, model: str, seq: int, tokens: list[int]) -> list[float]:
        """What a model in training gives, as request `seq` of it."""
        id = self.train(model, seq, [learn(tokens)], forward_only=True)
        return list(read_output(self.result(id))[0][0])
