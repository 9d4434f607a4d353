"""Checks that refuse bad input before anything is computed or changed, with one line.

check_loss     a loss's name and configuration -> the loss and its numbers
check_datum    one datum -> Checked
check_adam     the numbers of an optimizer step
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from nip_lm_server.training.resident.losses import CLIPPING, LOSSES, Loss
from nip_lm_server.training.resident.types import (
    AdamParams,
    Array,
    Datum,
    ResidentError,
    SparseRows,
)

WIDEST = 1024
"""Most targets of a token. A rule of thumb: teachers send about twenty."""
LARGEST = math.sqrt(float(np.finfo(np.float32).max))
"""Largest number with a square in float32, about 1.8e19: AdamW squares every gradient."""
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Checked:
    """A datum ready to compute: `targets` [N, K], `inputs` [N] or [N, K], `is_learned` [N]."""

    tokens: Ints
    targets: Ints
    inputs: dict[str, Floats]
    is_learned: npt.NDArray[np.bool_]
    shape: tuple[int, ...]
    """The shape of its `target_tokens`, and of the log-probabilities in the answer."""


def refuse(code: str, message: str) -> ResidentError:
    """Build the error for a mistake of the caller's."""
    return ResidentError("user", code, message)


def check_loss(name: str, config: Mapping[str, float]) -> tuple[Loss, dict[str, float]]:
    """Return the loss and its numbers, with defaults. Raises ResidentError."""
    loss = LOSSES.get(name)
    if loss is None:
        raise refuse(
            "unknown_loss", f"there is no loss {name!r}; there are {', '.join(sorted(LOSSES))}"
        )
    for key, value in config.items():
        if key not in loss.config:
            names = ", ".join(loss.config) or "none"
            raise refuse("unknown_loss_config", f"{name} has no {key!r}; it has {names}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise refuse("invalid_loss_config", f"{key} is {value!r}, expected a number from 0 on")
        if not math.isfinite(value):
            raise refuse("invalid_loss_config", f"{key} is {value!r}, expected a finite number")
    numbers = {key: float(config.get(key, default)) for key, default in loss.config.items()}
    if loss.per_token:
        low, high = (numbers[key] for key in CLIPPING)
        if low > high:
            raise refuse(
                "invalid_loss_config",
                f"clip_low_threshold {low} is above clip_high_threshold {high}",
            )
    return loss, numbers


def check_datum(
    index: int,
    datum: Datum,
    name: str,
    loss: Loss,
    numbers: Mapping[str, float],
    *,
    context: int,
    vocabulary: int,
) -> Checked:
    """Check a datum for a loss; `numbers` has the thresholds that it lacks.

    Raises ResidentError, naming the datum by its place in the call.
    """
    place = f"datum {index}"
    tokens = _check_ids(f"{place}: tokens", datum.tokens, vocabulary)
    if tokens.ndim != 1 or not len(tokens):
        raise refuse("invalid_tokens", f"{place}: tokens are {tokens.shape}, expected (N,), N >= 1")
    if len(tokens) > context:
        raise refuse(
            "sequence_too_long",
            f"{place} has {len(tokens)} tokens, the model's context is {context}: cut it",
        )
    # 1. Check the names of its inputs.
    _check_names(place, datum, name, loss)
    # 2. Check the targets, then the other inputs.
    raw = _dense(f"{place}: target_tokens", datum.inputs["target_tokens"], len(tokens))
    targets = _check_ids(f"{place}: target_tokens", raw, vocabulary)
    if targets.ndim == 2 and name != "cross_entropy":
        raise refuse("invalid_loss_input", f"{place}: {name} takes one target per token, (N,)")
    inputs = {
        key: _check_numbers(
            f"{place}: {key}",
            _dense(f"{place}: {key}", value, len(tokens)),
            targets.shape if key == "weights" else tokens.shape,
            # A threshold is only compared, and may be very large: it then means no bound.
            math.inf if key in loss.per_token else LARGEST,
        )
        for key, value in datum.inputs.items()
        if key != "target_tokens"
    }
    for key, value in numbers.items():
        inputs.setdefault(key, np.full(tokens.shape, value))
    if loss.per_token and bool((inputs[CLIPPING[0]] > inputs[CLIPPING[1]]).any()):
        raise refuse(
            "invalid_loss_input", f"{place}: a clip_low_threshold is above its clip_high_threshold"
        )
    if "sequence_ratio_mask" in inputs and not inputs["sequence_ratio_mask"].any():
        raise refuse("invalid_loss_input", f"{place}: sequence_ratio_mask marks no token")
    # 3. Find the tokens that have a term in the loss.
    is_learned: npt.NDArray[np.bool_] = np.ones(tokens.shape, dtype=bool)
    if loss.learned_by is not None:
        is_learned = (inputs[loss.learned_by].reshape(len(tokens), -1) != 0).any(-1)
    shape, wide = targets.shape, targets.reshape(len(tokens), -1)
    if "weights" in inputs:
        inputs["weights"] = inputs["weights"].reshape(wide.shape)
    return Checked(tokens, wide, inputs, is_learned, shape)


def _check_names(place: str, datum: Datum, name: str, loss: Loss) -> None:
    allowed = ("target_tokens", *loss.inputs, *loss.per_token)
    for key in datum.inputs:
        if key not in allowed:
            raise refuse(
                "unknown_loss_input",
                f"{place}: {name} takes no {key!r}; it takes {', '.join(allowed)}",
            )
    for key in ("target_tokens", *loss.inputs):
        if key not in datum.inputs:
            raise refuse("missing_loss_input", f"{place}: {name} needs {key!r}")


def check_adam(adam: AdamParams) -> None:
    """Raise ResidentError for unusable numbers of AdamW."""
    for part in fields(adam):
        value = getattr(adam, part.name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise refuse("invalid_adam", f"{part.name} is {value!r}, expected a number from 0 on")
        if not math.isfinite(value):
            raise refuse("invalid_adam", f"{part.name} is {value!r}, expected a finite number")
        if part.name != "grad_clip_norm" and value > LARGEST:
            raise refuse(
                "invalid_adam", f"{part.name} is {value:g}, expected at most {LARGEST:.3g}"
            )
    for name in ("beta1", "beta2"):
        if getattr(adam, name) >= 1:
            raise refuse("invalid_adam", f"{name} is {getattr(adam, name)}, expected less than 1")
    if adam.eps == 0:
        raise refuse("invalid_adam", "eps is 0, expected more: a gradient of 0 is divided by it")


def _check_ids(subject: str, values: Array, vocabulary: int) -> Ints:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise refuse("invalid_tokens", f"{subject} are {array.dtype}, expected integers")
    if array.size and (array.min() < 0 or array.max() >= vocabulary):
        wrong = int(array.min()) if array.min() < 0 else int(array.max())
        raise refuse(
            "token_out_of_vocabulary",
            f"{subject} have {wrong}, the vocabulary goes from 0 to {vocabulary - 1}",
        )
    return array.astype(np.int64)


def _check_numbers(subject: str, array: Array, shape: tuple[int, ...], largest: float) -> Floats:
    if array.dtype.kind not in "fiub":
        raise refuse("invalid_loss_input", f"{subject} are {array.dtype}, expected numbers")
    if array.shape != shape:
        raise refuse("invalid_loss_input", f"{subject} have shape {array.shape}, expected {shape}")
    numbers = array.astype(np.float64)
    if not np.isfinite(numbers).all():
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(numbers))[0])
        raise refuse("invalid_loss_input", f"{subject} have {numbers[index]} at {list(index)}")
    if numbers.size and np.abs(numbers).max() > largest:
        index = tuple(int(i) for i in np.argwhere(np.abs(numbers) > largest)[0])
        raise refuse(
            "invalid_loss_input",
            f"{subject} have {numbers[index]:g} at {list(index)}, expected {-largest:.3g} to "
            f"{largest:.3g}, whose squares float32 has: send smaller ones",
        )
    return numbers


def _dense(subject: str, value: Array | SparseRows, rows: int) -> Array:
    """Return the array, or the array of sparse rows, after a check of its shape and indices."""
    if not isinstance(value, SparseRows):
        array = np.asarray(value)
        right = array.shape == (rows,) or (
            array.ndim == 2 and array.shape[0] == rows and 1 <= array.shape[1] <= WIDEST
        )
        if not right:
            raise refuse(
                "invalid_loss_input",
                f"{subject} have shape {array.shape}, expected ({rows},), one for each token, or "
                f"({rows}, K) with K from 1 to {WIDEST}",
            )
        return array
    starts, columns, values = (
        np.asarray(part) for part in (value.crow_indices, value.col_indices, value.values)
    )
    width = value.shape[1] if len(value.shape) == 2 else 0
    if value.shape != (rows, width) or not 1 <= width <= WIDEST:
        raise refuse(
            "invalid_loss_input",
            f"{subject} have shape {tuple(value.shape)}, expected ({rows}, K) with K from 1 to "
            f"{WIDEST}",
        )
    right = (
        all(part.ndim == 1 for part in (starts, columns, values))
        and starts.dtype.kind in "iu"
        and columns.dtype.kind in "iu"
        and len(starts) == rows + 1
        and int(starts[0]) == 0
        and int(starts[-1]) == len(values) == len(columns)
        and bool((starts[1:] >= starts[:-1]).all())
        and (not len(columns) or (columns.min() >= 0 and columns.max() < width))
    )
    if not right:
        raise refuse("invalid_loss_input", f"{subject}: the indices of its sparse rows don't fit")
    dense = np.zeros((rows, width), dtype=values.dtype)
    counts = (starts[1:] - starts[:-1]).astype(np.int64)
    dense[np.repeat(np.arange(rows), counts), columns] = values
    return dense
