"""The comparison behind a proof: is what a model serves what its saved weights give? No torch.

Probe, read_probe   what the training wrote beside the weights: tokens and their log-probabilities
judge               served against saved, and against everything else that answers

All log-probabilities are in nats.

What this can't see: weights that give the same on the probe, within the rounding of the
precision. They are listed as indistinguishable.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

PROBE = "probe.json"
TOLERANCES = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
"""Largest allowed difference of one token, by the coarser of the two precisions.

vLLM on a CPU and transformers, tiny model: 1e-5 in float32, 0.12 where one computes in bfloat16.
"""
QUANTIZED_TOLERANCE = 2.0
"""... where one side is quantized and the other is not, or by another method."""
NOISE = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 3e-2}
"""Mean difference that the precision alone makes, the least that is assumed. Measured as above:
2e-6 in float32, 0.032 in bfloat16."""
QUANTIZED_NOISE = 0.2
CLEARLY = 4.0
"""Two models can be told apart if they differ by this many times the noise, saved or served."""


class ProbeError(ValueError):
    """There is no probe, or it is not one."""


@dataclass(frozen=True)
class Probe:
    """What the saved weights of a model give on fixed tokens, and what its base gives.

    As it is read, place p of the log-probabilities is for token p + 1, given all before it.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    base_logprobs: tuple[float, ...]
    dtype: str
    quantization: str = "none"

    def at(self, positions: Sequence[int]) -> "Probe":
        """The same with the log-probabilities at these places only, counted from 0."""
        return replace(
            self,
            logprobs=tuple(self.logprobs[p] for p in positions),
            base_logprobs=tuple(self.base_logprobs[p] for p in positions),
        )


@dataclass(frozen=True)
class Rival:
    """Another model that answers: what it serves on the probe, and what it is known to give."""

    served: Sequence[float]
    saved: Sequence[float] | None = None  # None: unknown on these tokens
    same_weights: bool = False


def read_probe(directory: Path) -> Probe:
    """The probe of the model in `directory`. Raises ProbeError, saying what is wrong."""
    path = directory / PROBE
    try:
        value = json.loads(path.read_text())
        probe = Probe(
            tokens=tuple(int(token) for token in value["tokens"]),
            logprobs=tuple(float(number) for number in value["logprobs"]),
            base_logprobs=tuple(float(number) for number in value["base_logprobs"]),
            dtype=str(value["dtype"]),
            quantization=str(value.get("quantization") or "none"),
        )
    except FileNotFoundError:
        raise ProbeError(
            f"{path} is missing: without the log-probabilities that the training wrote beside the "
            "weights, nothing can prove that they are what is served"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProbeError(f"{path} can't be read: {error!r}") from None
    wanted = len(probe.tokens) - 1
    if wanted < 1 or len(probe.logprobs) != wanted or len(probe.base_logprobs) != wanted:
        raise ProbeError(
            f"{path} has {len(probe.tokens)} tokens, {len(probe.logprobs)} logprobs and "
            f"{len(probe.base_logprobs)} base_logprobs; expected one less than tokens of both"
        )
    if not all(math.isfinite(number) for number in (*probe.logprobs, *probe.base_logprobs)):
        raise ProbeError(f"{path} has log-probabilities that are not finite")
    if probe.dtype not in TOLERANCES:
        raise ProbeError(f"{path} has dtype {probe.dtype!r}, expected {', '.join(TOLERANCES)}")
    return probe


def judge(
    probe: Probe,
    served: Sequence[float],
    rivals: Mapping[str, Rival],
    *,
    base: str | None,
    dtype: str,
    quantization: str = "none",
) -> tuple[bool, dict[str, Any]]:
    """(whether `served` is the probe's model, the figures). All of it is at the same places.

    It is if no token differs by more than the tolerance, and the mean difference is smaller than
    that of every rival which the model can be told from, by what is saved or by what is served.
    `base` names the rival that is the base model of the probe: it must give what the probe has for
    it, and shows how much two computations of the same weights differ. None: the base does not
    answer any more, and is a rival as the probe has it.
    """
    tolerance, noise = _limits(probe, dtype, quantization)
    own_max, own = _differences(served, probe.logprobs)
    base_max = 0.0
    everyone = dict(rivals)
    if base is None:
        everyone["(what it was trained from)"] = Rival(probe.base_logprobs, probe.base_logprobs)
    else:
        base_max, base_mean = _differences(rivals[base].served, probe.base_logprobs)
        noise = max(noise, base_mean)
    distances: dict[str, float] = {}
    same, alike, nearer = [], [], []
    for name, rival in everyone.items():
        if rival.same_weights:
            same.append(name)
            continue
        distances[name] = _differences(rival.served, probe.logprobs)[1]
        known = probe.base_logprobs if name == base else rival.saved
        apart = _differences(rival.served, served)[1]
        if known is not None:
            apart = max(apart, _differences(known, probe.logprobs)[1])
        if apart <= CLEARLY * noise:
            alike.append(name)
        elif not own < distances[name]:
            nearer.append(name)
    nearest = min(distances, key=lambda key: distances[key], default=None)
    # Written so that a NaN anywhere is a failure.
    matches = own_max <= tolerance and base_max <= tolerance and not nearer
    return matches, {
        "dtype": dtype,
        "quantization": quantization,
        "probe_dtype": probe.dtype,
        "probe_quantization": probe.quantization,
        "probe_tokens": len(probe.logprobs),
        "tolerance": tolerance,
        "noise_mean": noise,
        "distance_max": own_max,
        "distance_mean": own,
        "base_distance_max": base_max if base is not None else None,
        "nearest_other": nearest,
        "nearest_other_distance_mean": distances[nearest] if nearest is not None else None,
        "nearer_than_own": nearer,
        "indistinguishable": alike,
        "same_weights_as": same,
    }


def _limits(probe: Probe, dtype: str, quantization: str) -> tuple[float, float]:
    """(tolerance of a token, least noise of the mean) for these precisions."""
    precisions: Collection[str] = (probe.dtype, dtype)
    tolerance = max(TOLERANCES[precision] for precision in precisions)
    noise = max(NOISE[precision] for precision in precisions)
    if quantization != probe.quantization:
        return max(tolerance, QUANTIZED_TOLERANCE), max(noise, QUANTIZED_NOISE)
    return tolerance, noise


def _differences(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """(largest, mean) absolute difference; NaN if any is."""
    differences = [abs(a - b) for a, b in zip(one, other, strict=True)]
    if any(math.isnan(difference) for difference in differences):
        return math.nan, math.nan
    return max(differences), fmean(differences)
