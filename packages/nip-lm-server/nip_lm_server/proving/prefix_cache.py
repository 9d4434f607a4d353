"""Whether a server answers from a prefix cache that other weights have filled.

An adapter that is loaded again under its name, from the same path, may find the last one's keys and
values in the cache of prompts (vLLM says so in its log, and leaves them there). So one text is
asked in two ways: with a salt, for which the cache has no entry, and without, as clients ask. The
same weights must give the same log-probabilities. Two answers with a salt show the noise. A
difference is measured again before it counts. The text is the same in every proof, so the cache may
still have it from the last one.

This can't see a stale cache of other texts only: where no proof was made before the weights
changed, or where its text has left the cache.
"""

import hashlib
import secrets
from dataclasses import dataclass

from nip_lm_server.engines.vllm.adapter_proof import PLACES
from nip_lm_server.lora.probes import LIMITS, OVER_NOISE, Limits, mean_difference
from nip_lm_server.proving.scoring import FEW_PLACES, NoLogprobsError, score_at
from nip_lm_server.proving.stranger import RefusedError, Stranger

LONGEST = 320
"""Tokens of the text: two of vLLM's largest blocks (128 tokens each on a CPU), and the places after
them."""
_STEP = 4  # tokens between two places, or fewer in a short context
_FIRST_ID, _IDS = 10, 190  # every vocabulary has these
REPEATS = 2
"""Requests without a salt: one of several replicas may have the old text."""


@dataclass(frozen=True)
class CacheCheck:
    """Whether a cache is stale; None: it can't be told, for the `reason`."""

    is_stale: bool | None
    distance: float | None = None
    reason: str = ""


async def check_prefix_cache(
    server: Stranger, model: str, context: int | None, limits: Limits, rank: int | None = None
) -> CacheCheck:
    """Compare the answers of `model` from the cache with its answers without it."""
    length = min(LONGEST, (context or LONGEST) - 1)
    count = FEW_PLACES if limits == LIMITS["float32"] else PLACES
    step = min(_STEP, length // (2 * count))
    if step < 1:
        return CacheCheck(None, reason=f"its context of {context} tokens is too short")
    tokens = canary(length + 1)
    places = [length - 1 - step * number for number in range(count)]

    async def ask(salt: str | None) -> list[float]:
        return await score_at(server, model, tokens, places, rank, salt)

    async def compare() -> tuple[float, float]:
        """Return (distance with the cache, distance of two answers without it)."""
        cached = [await ask(None) for _ in range(REPEATS)]
        fresh, fresh_again = [await ask(secrets.token_hex(8)) for _ in range(2)]
        nearest = [
            min(
                mean_difference(answer, fresh_answer, limits.cap)
                for fresh_answer in (fresh, fresh_again)
            )
            for answer in cached
        ]
        return max(nearest), mean_difference(fresh, fresh_again, limits.cap)

    try:
        distance, noise = await compare()
        # Noise may be large once, but a stale cache stays stale.
        if distance > limits.mean:
            second, noise_then = await compare()
            distance, noise = min(distance, second), max(noise, noise_then)
    except (RefusedError, NoLogprobsError) as error:
        return CacheCheck(None, reason=f"it can't be asked without its cache ({error})")
    allowed = min(max(limits.mean, OVER_NOISE * noise), limits.most)
    if noise > limits.mean and distance > limits.mean:
        return CacheCheck(None, reason=f"two answers without it are {noise:.2g} nats apart")
    return CacheCheck(distance > allowed, distance)


def canary(length: int) -> list[int]:
    """Make the same text each time: `length` tokens, with ids that all models have."""
    digests = (hashlib.sha256(f"prefix {number}".encode()).digest() for number in range(length))
    return [_FIRST_ID + int.from_bytes(raw[:4], "big") % _IDS for raw in digests]
