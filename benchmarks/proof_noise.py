"""How seldom the proof of a swap errs, under noise as it was published: exact, not drawn.

    python benchmarks/proof_noise.py [--draws 20000] [--out docs/results/proof_noise.json]

The noise of a token's log-probability is taken as a Student t with 3 degrees of freedom, scaled to
what was published of bfloat16 on a GPU:

vllm#53842    vLLM with itself, one request and many at once, Qwen3.5-4B: mean 0.06, largest 0.92
trl#6789      vLLM and trainer, Qwen2.5-0.5B: standard deviation 0.05, largest 0.48 of 3,916
vllm#18352    vLLM and transformers, Qwen3-1.7B: largest 0.32 of 25

Its tails are heavier than those figures ask for. A token counts up to the cap of
`probes.LIMITS`, so a sum of tokens has a law on a grid, which convolution gives. Rows:

no     one scoring of the right weights is refused: too far, or a rival or half the change nearer
yes    weights of a rival, of the base or of half the change pass as the model's, in one scoring,
       where the two are just far enough apart to be told from each other

A proof that is refused is scored again, so that "no" is for noise that never changes, which is the
worst case; "yes" has `SCORINGS` chances. `--draws` lets the judge itself decide on drawn noise.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from measured_commit import describe_commit

from nip_lm_server.engines.vllm.adapter_proof import PLACES, RIVALS, SCORINGS
from nip_lm_server.lora.probes import (
    CLEARLY,
    LIMITS,
    OVER_NOISE,
    Limits,
    Probe,
    Scores,
    judge_probe,
)

Array = np.ndarray[Any, Any]

DEGREES = 3
MEAN_OF_T = 2 * np.sqrt(3) / np.pi  # of the absolute value, at 3 degrees of freedom
SCALES = {
    "vllm#53842": 0.06 / MEAN_OF_T,
    "trl#6789": 0.05 / np.sqrt(3),
    # The median of the largest of 25 is where the two tails together have 1 - 0.5 ** (1 / 25).
    "vllm#18352": 0.32 / 3.9,
}
"""Scales of the t distribution that give the published figures."""
STEP = 0.002  # of the grid, in nats
COMPARED = RIVALS + 3  # rivals, base, parent, half of the change


def tail(x: Array) -> Array:
    """P(T > x) of Student's t with 3 degrees of freedom, in closed form."""
    u = x / np.sqrt(3)
    return 0.5 - (u / (1 + u * u) + np.arctan(u)) / np.pi


def noise_law(scale: float) -> tuple[Array, Array]:
    """Values on the grid within 60 scales, and their probabilities; the tails lie at its ends."""
    edge = np.ceil(60 * scale / STEP) * STEP
    values = np.arange(-round(edge / STEP), round(edge / STEP) + 1) * STEP
    above = tail((values[:-1] + STEP / 2) / scale)
    return values, -np.diff(np.concatenate(([1.0], above, [0.0])))


def sum_law(values: Array, weights: Array, count: int) -> tuple[float, Array]:
    """The law of a sum of `count` independent draws: its least value, and weights on the grid."""
    steps = np.rint(values / STEP).astype(int)
    low = int(steps.min())
    single = np.bincount(steps - low, weights)
    size = 1 << int(np.ceil(np.log2(count * (len(single) - 1) + 1)))
    total = np.fft.irfft(np.fft.rfft(single, size) ** count, size)
    return count * low * STEP, np.clip(total[: count * (len(single) - 1) + 1], 0, None)


def distance_law(scale: float, limits: Limits, places: int) -> tuple[Array, Array]:
    """Distances of right weights from themselves, and their probabilities."""
    values, weights = noise_law(scale)
    low, law = sum_law(np.minimum(np.abs(values), limits.cap), weights, places)
    return (low + STEP * np.arange(len(law))) / places, law


def too_far(scale: float, limits: Limits, places: int) -> float:
    """P(right weights are refused for their distance, or for that of their base)."""
    distances, law = distance_law(scale, limits, places)
    above = np.concatenate((np.cumsum(law[::-1])[::-1], [0.0]))
    allowed = np.minimum(np.maximum(limits.mean, OVER_NOISE * distances), limits.most)
    miss = float((law * above[np.searchsorted(distances, allowed, side="right")]).sum())
    return miss + float(law[distances > limits.most].sum())


def mistaken(scale: float, limits: Limits, places: int) -> float:
    """P(what is served seems nearer to other weights, which can be told from its own).

    By symmetry also that other weights pass as these. The largest over all changes, spread over
    all places or a part of them; that two are told apart depends on the noise of the base.
    """
    values, weights = noise_law(scale)
    distances, law = distance_law(scale, limits, places)
    worst = 0.0
    for part in (1.0, 0.75, 0.5, 0.375, 0.25):
        changed = max(1, round(part * places))
        for change in np.arange(CLEARLY * limits.noise, 1.0, 0.02):
            change = np.rint(change / STEP) * STEP
            apart = min(change, limits.cap) * changed / places
            told_apart = float(law[CLEARLY * np.maximum(limits.noise, distances) < apart].sum())
            own = np.minimum(np.abs(values), limits.cap)
            other = np.minimum(np.abs(values + change), limits.cap)
            low, sums = sum_law(other - own, weights, changed)
            at_most_0 = sums[: max(0, round(-low / STEP) + 1)].sum()
            worst = max(worst, told_apart * float(at_most_0))
    return worst


def drawn(scale: float, count: int, places: int, seed: int = 0) -> dict[str, int]:
    """Let the judge decide `count` times on drawn noise: how often it errs, by what is served."""
    random = np.random.default_rng(seed)
    errors = {"right": 0, "base": 0, "rival": 0, "half": 0}
    for _ in range(count):
        base, change, other = random.normal(-1.0, 0.5, places), *random.normal(0, 3, (2, places))
        saved = {"right": base + change, "base": base, "rival": base + other}
        saved["half"] = base + change / 2

        def heard(values: Array) -> list[float]:
            return list(values + scale * random.standard_t(DEGREES, places))

        probe = Probe(tuple(range(places + 1)), tuple(saved["right"]), tuple(base), "bfloat16")
        rivals = {"base": Scores(heard(base)), "rival": Scores(heard(saved["rival"]))}
        for name, values in saved.items():
            passes, _ = judge_probe(probe, heard(values), rivals, base="base", dtype="bfloat16")
            errors[name] += passes != (name == "right")
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draws", type=int, default=20_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    limits = LIMITS["bfloat16"]
    rows = []
    for name, scale in SCALES.items():
        far, wrong = too_far(scale, limits, PLACES), mistaken(scale, limits, PLACES)
        row = {
            "noise": name,
            "mean": round(float(scale * MEAN_OF_T), 4),
            "places": PLACES,
            "no": far + COMPARED * wrong,
            "no_too_far": far,
            "yes": SCORINGS * wrong,
            "drawn": {"draws": options.draws, **drawn(scale, options.draws, PLACES)},
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
    if options.out:
        result = {"commit": describe_commit(), "limits": vars(limits), "rows": rows}
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
