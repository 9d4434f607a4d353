"""A job's examples as tokens, and its steps as the wire has them.

load_text       the tokenizer of a base model, on this machine
encode_rows     the lines of a job's file -> rows, as they are served
digest_rows     what identifies the rows of a job
count_tokens    the tokens of a row that go through the model
make_gradients  the gradients of a step: bodies of `forward_backward`, without their numbers

Position i of a datum's tokens predicts target i, the next token. A step's losses are sums at the
service and means here, so every weight and every advantage is divided by the step's count.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from nip_core.errors import SettingsError
from nip_core.models import BUNDLED, KNOWN, resolve_model
from nip_lm_server.client import make, training_text
from nip_tinker.record.steps import Plan
from nip_tinker.wire import Floats, Send

MOST_DATUMS = 1024
"""Of one request, as the SDK has it."""
MOST_BYTES = 4 * 1024 * 1024
_FLOAT32, _INT64 = 1, 2
_UNLIMITED = 10**9
_loading = Lock()  # two threads that import transformers at once find half of it


@dataclass(frozen=True)
class Row:
    """A training sequence: its ids, the learned ones among them, and the figures of the data."""

    ids: tuple[int, ...]
    learned: tuple[bool, ...]
    logprobs: tuple[float, ...] = ()
    advantage: float = 0.0


@dataclass(frozen=True)
class Pair:
    """The preferred and the rejected answer to a prompt."""

    preferred: Row
    rejected: Row


Example = Row | Pair


def load_text(base: str, folder: str | None, max_length: int | None) -> training_text.Text:
    """Load the tokenizer of a base model: of `folder`, or by its name. Raises SettingsError."""
    place = folder or base
    if folder is None and (base in BUNDLED or base in KNOWN):
        place = str(resolve_model(base))
    try:
        with _loading:
            tokenizer = training_text.load_tokenizer(place)
            stops = training_text.stop_token_ids(tokenizer)
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"the tokenizer of {base!r} needs {error.name}: pip install {error.name}"
        ) from None
    except ValueError as error:
        raise SettingsError(
            f"the tokenizer of the base model {base!r} is not on this machine ({error}); put its "
            "files into a folder of that name here, or name one by the option `tokenizer` of a "
            "provider of your own (docs/with-tinker.md)"
        ) from None
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    context = getattr(tokenizer, "model_max_length", None)
    limit = context if context and 0 < context < _UNLIMITED else None
    return training_text.Text(tokenizer, stops, limit, min(max_length or 2**31, limit or 2**31))


def encode_rows(plan: Plan, file: Path, text: training_text.Text) -> list[Example]:
    """Encode every line of a job's file. Raises an error that names the line."""
    rows: list[list[Example]]
    if plan.method == "supervised":
        rows = training_text.encode_file(
            "supervised", file, "training_file", lambda n, e: _chat(n, e, text)
        )
    elif plan.method == "dpo":
        rows = training_text.encode_file(
            "dpo", file, "training_file", lambda n, e: _pair(n, e, text)
        )
    else:
        rows = training_text.encode_file(
            "trajectories", file, "training_file", lambda n, e: _episode(n, e, text), "given"
        )
    return [row for group in rows for row in group]


def _chat(line: int, example: Any, text: training_text.Text) -> list[Example]:
    sequences = training_text.encode_example(
        text.tokenizer,
        [message.to_dict() for message in example.messages],
        stop_tokens=text.stop_tokens,
        max_length=text.max_length,
        line=line,
    )
    return [Row(sequence.input_ids, sequence.actions) for sequence in sequences]


def _pair(line: int, example: Any, text: training_text.Text) -> list[Example]:
    context = [message.to_dict() for message in example.input]
    rows = []
    for answer in (example.preferred, example.rejected):
        turn = training_text.encode_turn(
            text.tokenizer, [*context, answer.to_dict()], text.stop_tokens, line
        )
        ids = (*turn.prompt, *turn.answer)
        if len(ids) > text.max_length:
            raise training_text.TrainingError(
                "example_too_long",
                f"line {line}: prompt and answer have {len(ids)} tokens, but at most "
                f"{text.max_length} are allowed",
            )
        learned = (*[False] * len(turn.prompt), *[True] * len(turn.answer))
        rows.append(Row(ids, learned))
    return [Pair(*rows)]


def _episode(line: int, example: Any, text: training_text.Text) -> list[Example]:
    episode = training_text.encode_episode(line, example, text)
    rows: list[Example] = []
    for sequence in episode.sequences:
        if any(map(math.isnan, sequence.logprobs)):
            raise training_text.TrainingError(
                "no_logprobs",
                f"line {line}: its tokens have no log-probabilities of the policy that sampled "
                "them, which the loss ppo needs; play where the API gives them",
            )
        rows.append(
            Row(sequence.input_ids, sequence.actions, sequence.logprobs, episode.advantage or 0.0)
        )
    return rows


def _parts(examples: Iterable[Example]) -> Iterator[Row]:
    for example in examples:
        if isinstance(example, Pair):
            yield from (example.preferred, example.rejected)
        else:
            yield example


def digest_rows(examples: Iterable[Example]) -> str:
    """Digest all that a job trains on."""
    sha = hashlib.sha256()
    for row in _parts(examples):
        facts = [row.ids, row.learned, row.logprobs, row.advantage]
        sha.update(json.dumps(facts).encode() + b"\n")
    return sha.hexdigest()


def count_tokens(examples: Iterable[Example]) -> int:
    """Count the tokens that go through the model once, as the service counts them."""
    return sum(len(row.ids) - 1 for row in _parts(examples))


# Requests


def make_gradients(
    plan: Plan, examples: Sequence[Example], weights: Floats | None = None
) -> list["Gradient"]:
    """Make the gradients of a step. `weights`: of pairs, by pair."""
    rows = list(_parts(examples))
    count = max(1, sum(sum(row.learned) for row in rows))
    datums = []
    for index, row in enumerate(rows):
        inputs: dict[str, npt.NDArray[Any]] = {"target_tokens": np.asarray(row.ids[1:], np.int64)}
        mask = np.asarray(row.learned[1:], np.float64)
        if plan.method == "supervised":
            inputs["weights"] = mask / count
        elif plan.method == "dpo":
            sign = 1.0 if index % 2 == 0 else -1.0
            inputs["weights"] = mask * (1.0 if weights is None else sign * weights[index // 2])
        else:
            inputs["advantages"] = mask * row.advantage / count
            inputs["logprobs"] = np.asarray(row.logprobs[1:], np.float64)
        datums.append(_datum(row.ids[:-1], inputs))
    if plan.method == "trajectories":
        high = plan.clip_low if plan.clip_high is None else plan.clip_high
        config = {"clip_low_threshold": 1 - plan.clip_low, "clip_high_threshold": 1 + high}
        return [Gradient("ppo", config, chunk) for chunk in _split(datums)]
    return [Gradient("cross_entropy", {}, chunk) for chunk in _split(datums)]


@dataclass(frozen=True)
class Gradient:
    """A request for a gradient, or for log-probabilities alone, without its number."""

    loss: str
    config: Mapping[str, float]
    datums: Sequence[Any]

    def send(self, model: str, seq: int, *, forward_only: bool = False) -> Send:
        """Make the request under a number of a model."""
        message = make(
            "ForwardBackwardRequest",
            model_id=model,
            seq_id=seq,
            data=self.datums,
            loss_fn=self.loss,
            forward_only=forward_only,
        )
        for name, value in sorted(self.config.items()):
            message.loss_fn_config.add(key=name, value=value)
        body: bytes = message.SerializeToString(deterministic=True)
        return Send("forward_backward", body, is_protobuf=True)


def make_probe(tokens: Sequence[int]) -> Gradient:
    """Make the request for the log-probabilities of a text."""
    inputs: dict[str, npt.NDArray[Any]] = {
        "target_tokens": np.asarray(tokens[1:], np.int64),
        "weights": np.ones(len(tokens) - 1),
    }
    return Gradient("cross_entropy", {}, [_datum(tokens[:-1], inputs)])


def sum_logprobs(examples: Sequence[Example], logprobs: Sequence[Floats]) -> Floats:
    """Sum by row the log-probabilities of its learned tokens."""
    rows = list(_parts(examples))
    sums = [
        float(values[: len(row.ids) - 1] @ np.asarray(row.learned[1:], np.float64))
        for row, values in zip(rows, logprobs, strict=True)
    ]
    return np.asarray(sums)


def mean_loss(examples: Sequence[Example], logprobs: Sequence[Floats]) -> float:
    """Compute the mean negative log-likelihood of the learned tokens."""
    count = sum(sum(row.learned) for row in _parts(examples))
    return -float(sum_logprobs(examples, logprobs).sum()) / max(1, count)


def _datum(tokens: Sequence[int], inputs: Mapping[str, Any]) -> Any:
    datum = make("Datum")
    datum.model_input.add().encoded_text.tokens = np.asarray(tokens, "<i4").tobytes()
    for name, values in sorted(inputs.items()):
        entry = datum.loss_fn_inputs.add(key=name)
        is_integer = values.dtype.kind == "i"
        entry.value.dense = values.astype("<i8" if is_integer else "<f4").tobytes()
        entry.value.dtype = _INT64 if is_integer else _FLOAT32
        entry.value.shape.append(len(values))
    return datum


def _split(datums: Sequence[Any]) -> Iterator[list[Any]]:
    """Split a step's datums, so that no request has too many or too large ones."""
    chunk: list[Any] = []
    size = 0
    for datum in datums:
        bytes_ = datum.ByteSize()
        if chunk and (len(chunk) >= MOST_DATUMS or size + bytes_ > MOST_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(datum)
        size += bytes_
    if chunk:
        yield chunk
