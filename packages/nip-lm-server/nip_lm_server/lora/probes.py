"""The comparison behind a proof: does a model serve the figures of its saved weights? No torch.

judge               compares served figures with saved ones, and with every rival's
Probe, read_probe   the training's file beside the weights: tokens and their log-probabilities
judge_probe         the same for a model whose saved log-probabilities are those of a probe
choose_limits       the distances that two precisions, or quantized weights, may cause
choose_places       the places of a probe that are compared, spread evenly
choose_telling      the ones that tell most for what they cost

All log-probabilities are in nats. Distances are means over the probe's tokens of the absolute
difference, each counted up to a cap. A kernel sums in another order for another batch, which moves
some tokens far and most of them hardly at all: a single token says little, and under a cap none
outweighs the others. `benchmarks/proof_noise.py` computes how seldom the rules err under noise as
it was published.

Not covered: weights that give the same on the probe, within the rounding of the precision. They
are listed as indistinguishable.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from nip_base.formats.bounds import parse_json

PROBE = "probe.json"
MAX_RIVALS = 14
"""The embedded engine compares with so many other adapters, the ones that were loaded last. A rule
of thumb: with model and base at most 16 rows of a pass, for which all requests wait."""
CLEARLY = 4.0
"""Two models can be told apart if they differ by this many times the noise. With a smaller factor,
noise would decide which is nearer; with a larger one, more models pass as indistinguishable.
`benchmarks/proof_noise.py` computes how seldom this factor and the next err."""
OVER_NOISE = 3.0
"""A model may be so many times as far from its saved figures as its base is from its own. The base
is one sample of the noise, so a factor of one is too strict; `Limits.most` bounds the product."""


@dataclass(frozen=True)
class Limits:
    """Mean distances of two computations of the same weights, in nats."""

    mean: float
    """Allowed at any distance of the base."""
    most: float
    """The largest that is allowed at any noise, for the model and for the base."""
    noise: float
    """The noise of the precision alone, the least that is assumed."""
    cap: float
    """The most that a single token counts."""


LIMITS = {
    # vLLM on a CPU and transformers, the tiny model: 2e-6 in float32, 0.032 in bfloat16.
    "float32": Limits(mean=1e-3, most=2e-3, noise=1e-5, cap=1e-2),
    # The saved weights are float32, and the training computed in it.
    "float64": Limits(mean=1e-3, most=2e-3, noise=1e-5, cap=1e-2),
    # Not measured: an eighth to a quarter of bfloat16's, for three more bits per number.
    "float16": Limits(mean=0.02, most=0.04, noise=5e-3, cap=0.1),
    # vLLM with itself on a GPU, alone and in company: 0.06 (vllm-project/vllm#53842).
    "bfloat16": Limits(mean=0.15, most=0.3, noise=0.03, cap=0.4),
}
"""By the coarser of the two precisions."""
QUANTIZED = Limits(mean=0.4, most=0.8, noise=0.1, cap=1.0)
"""Where one side alone is quantized, or both by different methods. Not measured."""


class ProbeError(ValueError):
    """There is no probe, or it is not one."""


@dataclass(frozen=True)
class Probe:
    """Log-probabilities of the saved weights of a model, and of its base, on fixed tokens.

    In a probe as read, place p of the log-probabilities is for token p + 1, given all tokens before
    it. `parent_logprobs` belong to the adapter that the training continued, if there was one.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    base_logprobs: tuple[float, ...]
    dtype: str
    quantization: str = "none"
    parent_logprobs: tuple[float, ...] | None = None

    def at(self, positions: Sequence[int]) -> "Probe":
        """The probe with the log-probabilities at these places only, counted from 0."""

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
    """Log-probabilities of a served model on some tokens, and of its saved weights (None: unknown).

    A rival may have the same weights as the model in question, or nearly the same: then it may be
    as near, but must not be listed as another model.
    """

    served: Sequence[float]
    saved: Sequence[float] | None = None
    same_weights: bool = False
    nearly_same_weights: bool = False


def read_probe(directory: Path) -> Probe:
    """The probe of the model in `directory`. Raises ProbeError, saying what is wrong."""
    path = directory / PROBE
    try:
        value = parse_json(path.read_text())
    # Nothing is broken here, the training wrote no probe: so the error has other words.
    except FileNotFoundError:
        raise ProbeError(
            f"{path} is missing: without the log-probabilities that the training wrote beside the "
            "weights, nothing can prove that they are what is served"
        ) from None
    # Callers handle one error for all faults of the file: it proves nothing.
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
    # JSON as Python reads it may have NaN, with which every comparison below would fail and blame
    # the served model.
    if not all(math.isfinite(number) for values in lists for number in values):
        raise ProbeError(f"{path} has log-probabilities that are not finite")
    if probe.dtype not in LIMITS:
        raise ProbeError(f"{path} has dtype {probe.dtype!r}, expected {', '.join(LIMITS)}")
    return probe


def choose_places(count: int, limit: int) -> list[int]:
    """Choose at most `limit` places among `count`: spread evenly, the last among them."""
    size = min(count, limit)
    return [(number + 1) * count // size - 1 for number in range(size)]


def choose_telling(probe: Probe, count: int, tokens: int) -> list[int]:
    """Choose among the first `count` places those with the largest change for their cost, and last
    a late one, as what is wrong with a position shows at no early place.

    A place costs the tokens up to it, all of them `tokens` at most. The late one takes half of
    that, every other one a sixth of the rest at most, so that there are several.
    """
    late, origins = min(count, tokens // 2) - 1, (probe.base_logprobs, probe.parent_logprobs)

    def worth(place: int) -> float:
        changes = (abs(probe.logprobs[place] - each[place]) for each in origins if each)
        return min(changes) / (place + 1)

    chosen, left = list[int](), tokens - late - 1
    for place in sorted(range(min(late, tokens // 6)), key=worth, reverse=True):
        if place < left:
            chosen.append(place)
            left -= place + 1
    return [*chosen, late]


def saved_logprobs(
    path: Path, tokens: tuple[int, ...], places: Sequence[int]
) -> tuple[float, ...] | None:
    """Read an adapter's saved log-probabilities at these places; None: it has none for `tokens`."""
    # Without a probe a rival is judged by its served figures alone.
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
    """(whether the served figures are the saved ones, the figures of the comparison).

    They are if their distance is at most `tolerance`, and smaller than the distance to the figures
    of every rival that can be told from the model. `noise` is the distance between two computations
    of the same weights. A NaN or an infinity anywhere is a failure.
    """
    largest, mean = measure_differences(served, saved)
    own_distance = mean_difference(served, saved, cap)
    distances: dict[str, float] = {}
    same, alike, nearer = list[str](), list[str](), list[str]()
    for name, rival in rivals.items():
        # 1. The same weights under another name are no rival.
        if rival.same_weights:
            same.append(name)
            continue
        distances[name] = measure_differences(rival.served, saved)[1]
        # 2. Nor is one that can't be told from the model by its served or its saved figures.
        references = [
            reference
            for reference in (rival.served, rival.saved)
            if reference is not None and is_apart(reference, saved, noise, cap)
        ]
        if rival.nearly_same_weights or not references:
            alike.append(name)
        # 3. The served figures must be nearer to the saved ones than to any other rival's; and no
        #    rival may serve the model instead of itself.
        elif any(
            not own_distance < mean_difference(served, reference, cap) for reference in references
        ) or _serves_another(rival, saved, noise, cap):
            nearer.append(name)
    # 4. Where the model is not near itself, name the rivals that are nearer. It has failed already:
    #    the names help to find the reason.
    if own_distance > tolerance:
        for name in [*alike]:
            if mean_difference(rivals[name].served, saved, cap) < own_distance:
                alike.remove(name)
                nearer.append(name)
    nearest = min(distances, key=lambda key: distances[key], default=None)
    return own_distance <= tolerance and not nearer, {
        "tolerance": tolerance,
        "distance": own_distance,
        "distance_max": largest,
        "distance_mean": mean,
        "nearest_other": nearest,
        "nearest_other_distance_mean": None if nearest is None else distances[nearest],
        "nearer_than_own": nearer,
        "indistinguishable": alike,
        "same_weights_as": same,
    }


def _serves_another(rival: Scores, saved: Sequence[float], noise: float, cap: float) -> bool:
    """Say whether a rival with other weights gives the `saved` figures of the model in question."""
    # A rival whose saved figures can't be told from the model's may give the model's by right.
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
    mean: float | None = None,
) -> tuple[bool, dict[str, Any]]:
    """(whether `served` is the probe's model, the figures). All figures are for the same places.

    `mean` is a stricter limit than that of the precisions.

    `base` names the rival that is the base model of the probe: it must give the probe's figures for
    it, and shows how much two computations of the same weights differ. None: the base is not served
    any more, and the probe's figures for it are a rival.

    A quantized engine is compared with its own base: the served difference of model and base with
    the saved difference.
    """
    allowed = choose_limits(probe, dtype, quantization)
    tolerance, noise = mean or allowed.mean, allowed.noise
    base_largest, base_distance = None, 0.0
    if base is None:
        base_scores = Scores(probe.base_logprobs, probe.base_logprobs)
        rivals = {**rivals, "(what it was trained from)": base_scores}
    else:
        # 1. The noise is the distance of the base from itself.
        base_logprobs = rivals[base].served
        base_largest, _ = measure_differences(base_logprobs, probe.base_logprobs)
        base_distance = mean_difference(base_logprobs, probe.base_logprobs, allowed.cap)
        rivals = {**rivals, base: replace(rivals[base], saved=probe.base_logprobs)}
        if allowed is QUANTIZED:
            # 2. Quantization moves all models as it moves the base: that error is taken off.
            error = [a - b for a, b in zip(base_logprobs, probe.base_logprobs, strict=True)]
            served = _subtract(served, error)
            rivals = {
                name: rival
                if rival.same_weights
                else replace(rival, served=_subtract(rival.served, error))
                for name, rival in rivals.items()
            }
            tolerance = max(tolerance, base_distance)
        else:
            noise = max(noise, base_distance)
            tolerance = max(tolerance, OVER_NOISE * base_distance)
    # A training that hardly changed its parent gives the parent's figures: then it is no rival.
    if probe.parent_logprobs is not None:
        parent = Scores(probe.parent_logprobs)
        if is_apart(parent.served, probe.logprobs, noise, allowed.cap):
            rivals = {**rivals, "(the adapter it continues)": parent}
    tolerance = min(tolerance, allowed.most)
    # 3. Compare, with half of the change too: a cut adapter gives that.
    matches, figures = judge(served, probe.logprobs, rivals, tolerance, noise, allowed.cap)
    is_half = _is_half(probe, served, noise, allowed.cap)
    # A base too far from itself is another base, or the noise is too large for a judgement.
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


def _is_half(probe: Probe, logprobs: Sequence[float], noise: float, cap: float) -> bool:
    """Say whether these are nearer to half of the training's change than to all of it."""
    # Only where half and whole can be told apart: else chance decides which is nearer.
    half = [(a + b) / 2 for a, b in zip(probe.logprobs, probe.base_logprobs, strict=True)]
    return is_apart(half, probe.logprobs, noise, cap) and not (
        mean_difference(logprobs, probe.logprobs, cap) < mean_difference(logprobs, half, cap)
    )


def _subtract(values: Sequence[float], error: Sequence[float]) -> list[float]:
    return [value - wrong for value, wrong in zip(values, error, strict=True)]


def choose_limits(probe: Probe, dtype: str, quantization: str = "none") -> Limits:
    """The limits for these precisions."""
    # Quantized alike, both sides have the same error, and differ by rounding alone.
    if quantization != probe.quantization:
        return QUANTIZED
    # The coarser precision bounds how near the figures can be.
    return max((LIMITS[precision] for precision in (probe.dtype, dtype)), key=lambda it: it.mean)


def is_apart(first: Sequence[float], second: Sequence[float], noise: float, cap: float) -> bool:
    """Say whether two models can be told from each other; True if a number is a NaN."""
    # With `not`, so that a NaN counts as apart: it must not pass as the same.
    return not mean_difference(first, second, cap) <= CLEARLY * noise


def mean_difference(first: Sequence[float], second: Sequence[float], cap: float) -> float:
    """The mean absolute difference, each counted up to `cap`; NaN if any is not finite."""
    each = [abs(a - b) for a, b in zip(first, second, strict=True)]
    return fmean(min(value, cap) for value in each) if all(map(math.isfinite, each)) else math.nan


def measure_differences(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """(largest, mean) absolute difference; NaN if any is."""
    each = [abs(a - b) for a, b in zip(first, second, strict=True)]
    # By hand, as `max` returns a NaN only where it comes first.
    if any(map(math.isnan, each)):
        return math.nan, math.nan
    return max(each), fmean(each)
