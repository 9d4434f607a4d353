"""Compare the log-probabilities of an answer with an adapter's probe, its base and other models.

guess_dtype    a server's precision, by the distance of its base from the probe's base
judge_answer   whether an answer agrees with a probe, by the rules of `lora.probes`
name_answer    the models that another answer agrees with

`probes.LIMITS` has the largest distance of right weights, and docs/results/proof_noise.json the
rate of its errors. This module allows no larger one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nip_lm_server.engines.vllm.adapter_proof import PLACES
from nip_lm_server.lora.probes import (
    LIMITS,
    Limits,
    Probe,
    Scores,
    choose_limits,
    is_apart,
    judge_probe,
    mean_difference,
)
from nip_lm_server.proving.scoring import FEW_PLACES, ScoredAnswer

BASE = "the base model"
PARENT = "the adapter that its training began with"


@dataclass(frozen=True)
class Surroundings:
    """A server's precision, and the answers of its other models to one probe's tokens."""

    dtype: str
    quantization: str = "none"
    base_name: str | None = None
    base: ScoredAnswer | None = None
    rivals: Mapping[str, ScoredAnswer] | None = None
    """The answers of other adapters, by name."""

    def limits(self, probe: Probe) -> Limits:
        """Return the limits of the distance between two computations of the same weights."""
        return choose_limits(probe, self.dtype, self.quantization)


@dataclass(frozen=True)
class Judgement:
    """An answer compared with a probe: whether they agree, and the figures."""

    matches: bool
    places: int
    figures: dict[str, Any]

    @property
    def is_base_told_apart(self) -> bool:
        """Say whether the probe tells the adapter from its base at all."""
        return not any(
            name in self.figures["indistinguishable"] for name in self.figures["base_names"]
        )


def guess_dtype(probe: Probe, base: ScoredAnswer | None, answers: Sequence[ScoredAnswer]) -> str:
    """Guess the precision: the finest that explains the base's distance from the probe's base.

    Without an answer of the base, it is the finest in which all answers could be the probe's:
    answers that near agree in any precision.
    """
    pairs = [] if base is None else [(base, probe.base_logprobs)]
    if not any(pair_answer.telling(saved) for pair_answer, saved in pairs):
        pairs = [(answer, probe.logprobs) for answer in answers]
    for dtype, limits in sorted(LIMITS.items(), key=lambda item: item[1].mean):
        if all(_measure(*pair, limits.cap) <= limits.mean for pair in pairs):
            return dtype
    return "bfloat16"


def _measure(answer: ScoredAnswer, saved: Sequence[float], cap: float) -> float:
    """The mean distance at the telling places; infinite if there are none."""
    places = answer.telling(saved)
    if not places:
        return math.inf
    return mean_difference(_pick(answer.fill(saved), places), _pick(saved, places), cap)


def fewest_places(probe: Probe, dtype: str) -> int:
    """The least number of places that an answer must have.

    A training with little text leaves a probe of fewer than 32 places. Then all of them count, and
    never fewer than 12: at one place, another model may be near by chance.
    """
    full_count = FEW_PLACES if dtype == "float32" else PLACES
    return min(full_count, max(FEW_PLACES, len(probe.logprobs)))


def judge_answer(probe: Probe, answer: ScoredAnswer, surroundings: Surroundings) -> Judgement:
    """Compare an answer with a probe, at all telling places."""
    places = answer.telling(probe.logprobs)
    if not places:
        return Judgement(False, 0, {"indistinguishable": [], "base_names": [], "tolerance": 0.0})
    logprobs = _pick(answer.fill(probe.logprobs), places)
    rivals: dict[str, Scores] = {}
    base = None
    # Bounds don't give the distance of two other models, so such answers are compared with the
    # probe alone.
    if answer.is_exact:
        for name, rival in (surroundings.rivals or {}).items():
            if rival.is_exact:
                rivals[name] = Scores(_pick(rival.fill(probe.logprobs), places))
        if surroundings.base is not None and surroundings.base.is_exact:
            base = surroundings.base_name
            if base is not None:
                rivals[base] = Scores(_pick(surroundings.base.fill(probe.base_logprobs), places))
    matches, figures = judge_probe(
        probe.at(places),
        logprobs,
        rivals,
        base=base,
        dtype=surroundings.dtype,
        quantization=surroundings.quantization,
    )
    figures["base_names"] = [base or "(what it was trained from)"]
    return Judgement(matches, len(places), figures)


def name_answer(
    probe: Probe, answer: ScoredAnswer, surroundings: Surroundings, judgement: Judgement
) -> list[str]:
    """Name the models in agreement with an answer: the base, the parent, other names."""
    known_logprobs: dict[str, Sequence[float]] = {BASE: probe.base_logprobs}
    if probe.parent_logprobs is not None:
        known_logprobs[PARENT] = probe.parent_logprobs
    # The server's own answers are used: a quantized base is far from its files, and a rival's files
    # are not here.
    if surroundings.base is not None and surroundings.base.is_exact and answer.is_exact:
        known_logprobs[BASE] = surroundings.base.fill(probe.base_logprobs)
    for name, rival in (surroundings.rivals or {}).items():
        if rival.is_exact and answer.is_exact:
            known_logprobs[f"the model {name!r}"] = rival.fill(probe.logprobs)
    limits = surroundings.limits(probe)
    noise = judgement.figures.get("noise_mean", limits.noise)
    tolerance = judgement.figures["tolerance"] or limits.mean
    fewest = fewest_places(probe, surroundings.dtype)
    return [
        name
        for name, values in known_logprobs.items()
        if is_apart(values, probe.logprobs, noise, limits.cap)
        and len(answer.telling(values)) >= fewest
        and _measure(answer, values, limits.cap) <= tolerance
    ]


def _pick(values: Sequence[float], places: Sequence[int]) -> list[float]:
    return [values[place] for place in places]
