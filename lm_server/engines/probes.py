"""The comparison behind a proof: is what a model serves what its saved weights give? No torch.

judge               served against saved, and against everything else that answers
Probe, read_probe   what the training wrote beside the weights: tokens and their log-probabilities
judge_probe         the same for a model whose saved log-probabilities are those of a probe
limits              tolerance and noise of two precisions

All log-probabilities are in nats.

What this can't see: weights that give the same on the probe, within the rounding of the
precision. They are listed as indistinguishable.
"""

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

PROBE = "probe.json"
MAX_RIVALS = 14
"""So many other adapters are compared with, those that were loaded last."""
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
    """Log-probabilities that the saved weights of a model, and its base, give on fixed tokens.

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
class Scores:
    """Log-probabilities that a model serves on some tokens, and those known of it (None: unknown).

    As a rival, it may have the same weights as the model in question, or nearly the same: then it
    may be as near, but must not be listed as another.
    """

    served: Sequence[float]
    saved: Sequence[float] | None = None
    same_weights: bool = False
    nearly_same_weights: bool = False


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
    expected = len(probe.tokens) - 1
    if expected < 1 or {len(probe.logprobs), len(probe.base_logprobs)} != {expected}:
        raise ProbeError(
            f"{path} has {len(probe.tokens)} tokens, {len(probe.logprobs)} logprobs and "
            f"{len(probe.base_logprobs)} base_logprobs; expected one less than tokens of both"
        )
    if not all(math.isfinite(number) for number in (*probe.logprobs, *probe.base_logprobs)):
        raise ProbeError(f"{path} has log-probabilities that are not finite")
    if probe.dtype not in TOLERANCES:
        raise ProbeError(f"{path} has dtype {probe.dtype!r}, expected {', '.join(TOLERANCES)}")
    return probe


def saved_logprobs(
    path: Path, tokens: tuple[int, ...], places: Sequence[int]
) -> tuple[float, ...] | None:
    """Read what is saved of an adapter at these places of the tokens; None: nothing."""
    with contextlib.suppress(ProbeError):
        probe = read_probe(path)
        return probe.at(places).logprobs if probe.tokens == tokens else None
    return None


def judge(
    served: Sequence[float],
    saved: Sequence[float],
    rivals: Mapping[str, Scores],
    tolerance: float,
    noise: float,
) -> tuple[bool, dict[str, Any]]:
    """(whether what is served is what is saved, the figures).

    It is if no token differs by more than `tolerance`, and the mean difference is smaller than
    that of every rival which the model can be told from: `noise` is the mean difference that two
    computations of the same weights have. A NaN anywhere is a failure.
    """
    largest, mean = differences(served, saved)
    distances: dict[str, float] = {}
    same, alike, nearer = [], [], []
    for name, rival in rivals.items():
        # 1. The same weights under another name are no rival.
        if rival.same_weights:
            same.append(name)
            continue
        # 2. Nor is what can't be told from the model, neither by what is served nor by what is
        #    saved.
        distances[name] = differences(rival.served, saved)[1]
        apart = differences(rival.served, served)[1]
        if rival.saved is not None:
            apart = max(apart, differences(rival.saved, saved)[1])
        if rival.nearly_same_weights or apart <= CLEARLY * noise:
            alike.append(name)
        # 3. All others must be farther from what is saved.
        elif not mean < distances[name]:
            nearer.append(name)
    nearest = min(distances, key=lambda key: distances[key], default=None)
    return largest <= tolerance and not nearer, {
        "tolerance": tolerance,
        "distance_max": largest,
        "distance_mean": mean,
        "nearest_other": nearest,
        "nearest_other_distance_mean": distances[nearest] if nearest is not None else None,
        "nearer_than_own": nearer,
        "indistinguishable": alike,
        "same_weights_as": same,
    }


def judge_probe(
    probe: Probe,
    served: Sequence[float],
    rivals: Mapping[str, Scores],
    *,
    base: str | None,
    dtype: str,
    quantization: str = "none",
) -> tuple[bool, dict[str, Any]]:
    """(whether `served` is the probe's model, the figures). All of it is at the same places.

    `base` names the rival that is the base model of the probe: it must give what the probe has for
    it, and shows how much two computations of the same weights differ. None: the base does not
    answer any more, and is a rival as the probe has it.
    """
    tolerance, noise = limits(probe, dtype, quantization)
    base_largest = 0.0
    if base is None:
        base_scores = Scores(probe.base_logprobs, probe.base_logprobs)
        rivals = {**rivals, "(what it was trained from)": base_scores}
    else:
        base_largest, base_mean = differences(rivals[base].served, probe.base_logprobs)
        noise = max(noise, base_mean)
        rivals = {**rivals, base: replace(rivals[base], saved=probe.base_logprobs)}
    matches, figures = judge(served, probe.logprobs, rivals, tolerance, noise)
    return matches and base_largest <= tolerance, {
        "dtype": dtype,
        "quantization": quantization,
        "probe_dtype": probe.dtype,
        "probe_quantization": probe.quantization,
        "probe_tokens": len(probe.logprobs),
        "noise_mean": noise,
        "base_distance_max": base_largest if base is not None else None,
        **figures,
    }


def limits(probe: Probe, dtype: str, quantization: str = "none") -> tuple[float, float]:
    """(tolerance of a token, least noise of the mean) for these precisions."""
    precisions = (probe.dtype, dtype)
    tolerance = max(TOLERANCES[precision] for precision in precisions)
    noise = max(NOISE[precision] for precision in precisions)
    if quantization != probe.quantization:
        return max(tolerance, QUANTIZED_TOLERANCE), max(noise, QUANTIZED_NOISE)
    return tolerance, noise


def differences(left: Sequence[float], right: Sequence[float]) -> tuple[float, float]:
    """(largest, mean) absolute difference; NaN if any is."""
    each = [abs(a - b) for a, b in zip(left, right, strict=True)]
    if any(map(math.isnan, each)):
        return math.nan, math.nan
    return max(each), fmean(each)
