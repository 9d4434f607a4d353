"""Whose log-probabilities an answer has: those of an adapter's files, its base's, or others'.

guess_dtype    how exactly a server computes, by how far its base is from what the probe has of it
judge_answer   whether an answer is what a probe says, by the rules of `lora.probes`
name_answer    whose it is otherwise

How far right weights may be is in `probes.LIMITS`, and how seldom that errs in
docs/results/proof_noise.json: nothing here allows more.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nip_lm_server.engines.vllm.adapter_proof import CPU_PLACES, PLACES
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
from nip_lm_server.proving.scoring import ScoredAnswer

BASE = "the base model"
PARENT = "the adapter that its training began with"


@dataclass(frozen=True)
class Surroundings:
    """What else answers at a server, to one probe's tokens, and how it computes."""

    dtype: str
    quantization: str = "none"
    base_name: str | None = None
    base: ScoredAnswer | None = None
    rivals: Mapping[str, ScoredAnswer] | None = None
    """Other names, and what they give."""

    def limits(self, probe: Probe) -> Limits:
        """Return what two computations of the same weights may differ by."""
        return choose_limits(probe, self.dtype, self.quantization)


@dataclass(frozen=True)
class Judged:
    """An answer compared with a probe: whether it is what the probe says, and the figures."""

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
    """Guess the precision: the finest in which the base could be as far from itself as it is.

    Where nothing is known of the base, the finest in which all answers could be the probe's: who is
    that near is so by any precision.
    """
    pairs = [] if base is None else [(base, probe.base_logprobs)]
    if not any(given.telling(saved) for given, saved in pairs):
        pairs = [(answer, probe.logprobs) for answer in answers]
    for dtype, limits in sorted(LIMITS.items(), key=lambda item: item[1].mean):
        if all(_measure(*pair, limits.cap) <= limits.mean for pair in pairs):
            return dtype
    return "bfloat16"


def _measure(answer: ScoredAnswer, saved: Sequence[float], cap: float) -> float:
    """The mean distance at the places that tell something; infinite if there are none."""
    places = answer.telling(saved)
    if not places:
        return math.inf
    return mean_difference(_pick(answer.fill(saved), places), _pick(saved, places), cap)


def fewest_places(probe: Probe, dtype: str) -> int:
    """At how many places an answer must tell something, as the proof of a swap asks.

    A training with little text leaves a probe of fewer than 32. All of it, then, and never fewer
    than 12: at one place others are near by chance.
    """
    most = CPU_PLACES if dtype == "float32" else PLACES
    return min(most, max(CPU_PLACES, len(probe.logprobs)))


def judge_answer(probe: Probe, answer: ScoredAnswer, around: Surroundings) -> Judged:
    """Compare an answer with a probe, at all places that could contradict it."""
    places = answer.telling(probe.logprobs)
    if not places:
        return Judged(False, 0, {"indistinguishable": [], "base_names": [], "tolerance": 0.0})
    served = _pick(answer.fill(probe.logprobs), places)
    rivals: dict[str, Scores] = {}
    base = around.base_name if answer.is_exact and _is_exact(around.base) else None
    # Bounds say nothing of how far two others are, so they are compared with what is saved alone.
    if answer.is_exact:
        for name, rival in (around.rivals or {}).items():
            if rival.is_exact:
                rivals[name] = Scores(_pick(rival.fill(probe.logprobs), places))
    if base is not None and around.base is not None:
        rivals[base] = Scores(_pick(around.base.fill(probe.base_logprobs), places))
    matches, figures = judge_probe(
        probe.at(places),
        served,
        rivals,
        base=base,
        dtype=around.dtype,
        quantization=around.quantization,
    )
    figures["base_names"] = [base or "(what it was trained from)"]
    return Judged(matches, len(places), figures)


def name_answer(
    probe: Probe, answer: ScoredAnswer, around: Surroundings, judged: Judged
) -> list[str]:
    """Name whose an answer is that is not the probe's: the base's, the parent's, another name's."""
    known: dict[str, Sequence[float]] = {BASE: probe.base_logprobs}
    if probe.parent_logprobs is not None:
        known[PARENT] = probe.parent_logprobs
    # As they are served: a quantized base is far from its files, and a rival's files are not here.
    if around.base is not None and around.base.is_exact and answer.is_exact:
        known[BASE] = around.base.fill(probe.base_logprobs)
    for name, rival in (around.rivals or {}).items():
        if rival.is_exact and answer.is_exact:
            known[f"the model {name!r}"] = rival.fill(probe.logprobs)
    limits = around.limits(probe)
    noise = judged.figures.get("noise_mean", limits.noise)
    tolerance = judged.figures["tolerance"] or limits.mean
    fewest = fewest_places(probe, around.dtype)
    return [
        name
        for name, values in known.items()
        if is_apart(values, probe.logprobs, noise, limits.cap)
        and _is_near(answer, values, tolerance, limits.cap, fewest)
    ]


def _is_near(
    answer: ScoredAnswer, values: Sequence[float], tolerance: float, cap: float, fewest: int
) -> bool:
    return len(answer.telling(values)) >= fewest and _measure(answer, values, cap) <= tolerance


def _is_exact(answer: ScoredAnswer | None) -> bool:
    return answer is not None and answer.is_exact


def _pick(values: Sequence[float], places: Sequence[int]) -> list[float]:
    return [values[place] for place in places]
