"""The comparison behind a proof: is what a model serves what its saved weights give? No torch.

judge               served against saved, and against everything else that answers
Probe, read_probe   what the training wrote beside the weights: tokens and their log-probabilities
judge_probe         the same for a model whose saved log-probabilities are those of a probe
choose_limits       what two precisions, or quantized weights, may differ by
choose_places       the places of a probe that are compared

All log-probabilities are in nats. Distances are means over the probe's tokens of the absolute
difference, each counted up to a cap. Kernels that sum in another order, which is what one does for
another batch, move some tokens far and most of them hardly at all: a single token says little, and
under a cap none outweighs the others. `benchmarks/proof_noise.py` computes how seldom the rules
err under noise as it was published.

What this can't see: weights that give the same on the probe, within the rounding of the
precision. They are listed as indistinguishable.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from nip_base.formats.bounds import parse_json

PROBE = "probe.json"
MAX_RIVALS = 14
"""So many other adapters the embedded engine compares with, those that were loaded last. A rule of
thumb: with the model and its base they are the 16 rows of one pass, for which all requests wait."""
CLEARLY = 4.0
"""Two models can be told apart if they differ by this many times the noise. With less, noise would
decide which is nearer; with more, more pass as indistinguishable. `benchmarks/proof_noise.py`
computes how seldom these two factors err."""
OVER_NOISE = 3.0
"""A model may be so many times as far from what was saved of it as its base is. The base is one
sample of the noise, so once is too strict; `Limits.most` bounds what many times would let pass."""


@dataclass(frozen=True)
class Limits:
    """Mean distances of two computations of the same weights, in nats."""

    mean: float
    """Allowed whatever the base does."""
    most: float
    """Never exceeded, and the most for the base, however noisy it is."""
    noise: float
    """What the precision alone makes, the least that is assumed."""
    cap: float
    """What a single token counts at most."""


LIMITS = {
    # vLLM on a CPU and transformers, the tiny model: 2e-6 in float32, 0.032 in bfloat16.
    "float32": Limits(mean=1e-3, most=2e-3, noise=1e-5, cap=1e-2),
    # What was saved is float32, and the training computed in it.
    "float64": Limits(mean=1e-3, most=2e-3, noise=1e-5, cap=1e-2),
    # Not measured: an eighth to a quarter of bfloat16's, for three more bits of a number.
    "float16": Limits(mean=0.02, most=0.04, noise=5e-3, cap=0.1),
    # vLLM with itself on a GPU, alone and in company: 0.06 (vllm-project/vllm#53842).
    "bfloat16": Limits(mean=0.15, most=0.3, noise=0.03, cap=0.4),
}
"""By the coarser of the two precisions."""
QUANTIZED = Limits(mean=0.4, most=0.8, noise=0.1, cap=1.0)
"""Where one side is quantized and the other is not, or by another method. Not measured."""


class ProbeError(ValueError):
    """There is no probe, or it is not one."""


@dataclass(frozen=True)
class Probe:
    """Log-probabilities of the saved weights of a model, and of its base, on fixed tokens.

    As it is read, place p of the log-probabilities is for token p + 1, given all before it.
    `parent_logprobs` are those of the adapter that the training started from, if there was one.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    base_logprobs: tuple[float, ...]
    dtype: str
    quantization: str = "none"
    parent_logprobs: tuple[float, ...] | None = None

    def at(self, positions: Sequence[int]) -> "Probe":
        """The same with the log-probabilities at these places only, counted from 0."""

        def pick(values: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(values[p] for p in positions)

        return replace(
            self,
            logprobs=pick(self.logprobs),
            base_logprobs=pick(self.base_logprobs),
            parent_logprobs=None if self.parent_logprobs is None else pick(self.parent_logprobs),
        )


@dataclass(frozen=True)
class Scores:
    """Log-probabilities of a served model on some tokens, and those known of it (None: unknown).

    As a rival, it may have the same weights as the model in question, or nearly the same: then it
    may be as near, but must not be listed as another.
    """

    served: Sequence[float]
    saved: Sequence[float] | None = None
    same_weights: bool = False
    nearly_same_weights: bool = False


@dataclass
class _Comparison:
    """How the rivals compare, by name."""

    distances: dict[str, float] = field(default_factory=dict)
    same: list[str] = field(default_factory=list)
    alike: list[str] = field(default_factory=list)
    nearer: list[str] = field(default_factory=list)


def read_probe(directory: Path) -> Probe:
    """The probe of the model in `directory`. Raises ProbeError, saying what is wrong."""
    path = directory / PROBE
    try:
        value = parse_json(path.read_text())
    # Apart, as it needs other words: nothing is broken, the training wrote none.
    except FileNotFoundError:
        raise ProbeError(
            f"{path} is missing: without the log-probabilities that the training wrote beside the "
            "weights, nothing can prove that they are what is served"
        ) from None
    # Whatever is wrong with the file, callers know one error: nothing can be proved by it.
    except (OSError, ValueError) as error:
        raise ProbeError(f"{path} can't be read: {error!r}") from None
    return parse_probe(value, path)


def parse_probe(value: Any, path: Path) -> Probe:
    """The probe in a document; `path` is where it is from. Raises ProbeError."""
    try:
        parent = value.get("parent_logprobs")
        probe = Probe(
            tokens=tuple(int(token) for token in value["tokens"]),
            logprobs=tuple(float(number) for number in value["logprobs"]),
            base_logprobs=tuple(float(number) for number in value["base_logprobs"]),
            dtype=str(value["dtype"]),
            quantization=str(value.get("quantization") or "none"),
            parent_logprobs=None if parent is None else tuple(map(float, parent)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ProbeError(f"{path} can't be read: {error!r}") from None
    expected = len(probe.tokens) - 1
    lists = (probe.logprobs, probe.base_logprobs, probe.parent_logprobs or probe.logprobs)
    if expected < 1 or set(map(len, lists)) != {expected}:
        raise ProbeError(
            f"{path} has {len(probe.tokens)} tokens, {len(probe.logprobs)} logprobs, "
            f"{len(probe.base_logprobs)} base_logprobs and {len(probe.parent_logprobs or ())} "
            "parent_logprobs; expected one less than tokens of each that is there"
        )
    # JSON as Python reads it may have NaN, with which every comparison below would be a failure
    # that names the served model.
    if not all(math.isfinite(number) for values in lists for number in values):
        raise ProbeError(f"{path} has log-probabilities that are not finite")
    if probe.dtype not in LIMITS:
        raise ProbeError(f"{path} has dtype {probe.dtype!r}, expected {', '.join(LIMITS)}")
    return probe


def choose_places(count: int, limit: int) -> list[int]:
    """Choose at most `limit` places among `count`: spread evenly, the last among them."""
    size = min(count, limit)
    return [(number + 1) * count // size - 1 for number in range(size)]


def saved_logprobs(
    path: Path, tokens: tuple[int, ...], places: Sequence[int]
) -> tuple[float, ...] | None:
    """Read what is saved of an adapter at these places of the tokens; None: nothing."""
    # Without it a rival is judged by what it serves alone.
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
    cap: float,
) -> tuple[bool, dict[str, Any]]:
    """(whether what is served is what is saved, the figures).

    It is if the distance is at most `tolerance`, and smaller than that to what is known of every
    rival which the model can be told from: `noise` is the distance that two computations of the
    same weights have. A NaN or an infinity anywhere is a failure.
    """
    largest, mean = measure_differences(served, saved)
    own_distance = mean_difference(served, saved, cap)
    compared = _Comparison()
    for name, rival in rivals.items():
        # 1. The same weights under another name are no rival.
        if rival.same_weights:
            compared.same.append(name)
            continue
        compared.distances[name] = measure_differences(rival.served, saved)[1]
        # 2. Nor is what can't be told from the model, neither by what is served nor by what is
        #    saved.
        references = [
            reference
            for reference in (rival.served, rival.saved)
            if reference is not None and is_apart(reference, saved, noise, cap)
        ]
        if rival.nearly_same_weights or not references:
            compared.alike.append(name)
        # 3. From all others, what is served must be farther than from what is saved; and they
        #    must not serve the model instead of themselves.
        elif any(
            not own_distance < mean_difference(served, reference, cap) for reference in references
        ) or _serves_another(rival, saved, noise, cap):
            compared.nearer.append(name)
    # 4. Where the model is not near itself, tell who is. It has failed already: this only moves
    #    names for whoever looks for the reason.
    if own_distance > tolerance:
        for name in [*compared.alike]:
            if mean_difference(rivals[name].served, saved, cap) < own_distance:
                compared.alike.remove(name)
                compared.nearer.append(name)
    nearest = min(compared.distances, key=lambda key: compared.distances[key], default=None)
    return own_distance <= tolerance and not compared.nearer, {
        "tolerance": tolerance,
        "distance": own_distance,
        "distance_max": largest,
        "distance_mean": mean,
        "nearest_other": nearest,
        "nearest_other_distance_mean": compared.distances[nearest] if nearest is not None else None,
        "nearer_than_own": compared.nearer,
        "indistinguishable": compared.alike,
        "same_weights_as": compared.same,
    }


def _serves_another(rival: Scores, saved: Sequence[float], noise: float, cap: float) -> bool:
    """Say whether a rival with other weights gives what is `saved` of the model in question."""
    # What can't be told from the model by its saved figures may give the model's by right.
    if rival.saved is None or not is_apart(rival.saved, saved, noise, cap):
        return False
    return mean_difference(rival.served, saved, cap) < mean_difference(
        rival.served, rival.saved, cap
    )


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

    A quantized engine is compared with its own base: by how much a model differs from the base as
    it is served, and as it was saved.
    """
    allowed = choose_limits(probe, dtype, quantization)
    tolerance, noise = allowed.mean, allowed.noise
    base_largest, base_distance = None, 0.0
    if base is None:
        base_scores = Scores(probe.base_logprobs, probe.base_logprobs)
        rivals = {**rivals, "(what it was trained from)": base_scores}
    else:
        # 1. The noise is what the base differs from itself by.
        served_base = rivals[base].served
        base_largest, _ = measure_differences(served_base, probe.base_logprobs)
        base_distance = mean_difference(served_base, probe.base_logprobs, allowed.cap)
        rivals = {**rivals, base: replace(rivals[base], saved=probe.base_logprobs)}
        if allowed is QUANTIZED:
            # 2. What quantization does to the base it does to all: it is taken off.
            error = [a - b for a, b in zip(served_base, probe.base_logprobs, strict=True)]
            served = _less(served, error)
            rivals = {
                name: rival
                if rival.same_weights
                else replace(rival, served=_less(rival.served, error))
                for name, rival in rivals.items()
            }
            tolerance = max(tolerance, base_distance)
        else:
            noise = max(noise, base_distance)
            tolerance = max(tolerance, OVER_NOISE * base_distance)
    # A training that changed nothing to speak of gives its parent, which is then no rival.
    if probe.parent_logprobs is not None:
        parent = Scores(probe.parent_logprobs)
        if is_apart(parent.served, probe.logprobs, noise, allowed.cap):
            rivals = {**rivals, "(the adapter it continues)": parent}
    tolerance = min(tolerance, allowed.most)
    # 3. Compare, with half of the change too: that is what a cut adapter gives.
    matches, figures = judge(served, probe.logprobs, rivals, tolerance, noise, allowed.cap)
    is_half = _is_half(probe, served, noise, allowed.cap)
    # A base that is too far from itself is another base, or noise in which nothing can be judged.
    return matches and not is_half and base_distance <= allowed.most, {
        "dtype": dtype,
        "quantization": quantization,
        "probe_dtype": probe.dtype,
        "probe_quantization": probe.quantization,
        "probe_tokens": len(probe.logprobs),
        "noise_mean": noise,
        "base_distance": base_distance if base is not None else None,
        "base_distance_max": base_largest,
        "half_of_the_change": is_half,
        **figures,
    }


def _is_half(probe: Probe, served: Sequence[float], noise: float, cap: float) -> bool:
    """Say whether `served` is nearer to half of what the training changed than to all of it."""
    # Only where half and whole can be told apart: else it would be chance which is nearer.
    half = [(a + b) / 2 for a, b in zip(probe.logprobs, probe.base_logprobs, strict=True)]
    return is_apart(half, probe.logprobs, noise, cap) and not (
        mean_difference(served, probe.logprobs, cap) < mean_difference(served, half, cap)
    )


def _less(values: Sequence[float], error: Sequence[float]) -> list[float]:
    return [value - wrong for value, wrong in zip(values, error, strict=True)]


def choose_limits(probe: Probe, dtype: str, quantization: str = "none") -> Limits:
    """The limits for these precisions."""
    # Quantized alike, both sides have the same error, and rounding alone is left.
    if quantization != probe.quantization:
        return QUANTIZED
    # The coarser of the two bounds how near the figures can be.
    return max((LIMITS[precision] for precision in (probe.dtype, dtype)), key=lambda it: it.mean)


def is_apart(left: Sequence[float], right: Sequence[float], noise: float, cap: float) -> bool:
    """Say whether two models can be told from each other; True if a number is none."""
    # Written so that a NaN counts as apart: what is no number must not pass as the same.
    return not mean_difference(left, right, cap) <= CLEARLY * noise


def mean_difference(left: Sequence[float], right: Sequence[float], cap: float) -> float:
    """The mean absolute difference, each counted up to `cap`; NaN if any is not finite."""
    each = [abs(a - b) for a, b in zip(left, right, strict=True)]
    return fmean(min(value, cap) for value in each) if all(map(math.isfinite, each)) else math.nan


def measure_differences(left: Sequence[float], right: Sequence[float]) -> tuple[float, float]:
    """(largest, mean) absolute difference; NaN if any is."""
    each = [abs(a - b) for a, b in zip(left, right, strict=True)]
    # By hand, as `max` returns a NaN only where it comes first.
    if any(map(math.isnan, each)):
        return math.nan, math.nan
    return max(each), fmean(each)
