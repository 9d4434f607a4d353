"""Whether a server answers from a prefix cache that other weights have filled.

An adapter that is loaded again under its name, from where the last one lay, may find the keys and
values of the last one in the cache of prompts (vLLM says so in its log, and leaves them there). So
one text is asked twice: with a salt, for which nothing can be in the cache, and without, as clients
ask. The same weights must give the same to the same tokens: twice without the cache as well, which
shows the noise. What differs is asked again before it counts. The text is the same each time, so
what the last proof asked is what the cache has, if nobody has used its place meanwhile.

What this can't see: a cache of other texts than this one, where no proof was made before the
weights were changed, or its text has left the cache.
"""

import hashlib
import secrets
from dataclasses import dataclass

from nip_lm_server.engines.vllm.adapter_proof import CPU_PLACES, PLACES
from nip_lm_server.lora.probes import LIMITS, OVER_NOISE, Limits, mean_difference
from nip_lm_server.proving.scoring import NoLogprobsError, score_at
from nip_lm_server.proving.stranger import RefusedError, Stranger

LONGEST = 320
"""Tokens of the text: two of the largest blocks that vLLM keeps by itself, of 128 on a CPU, and the
places after them."""
_STEP = 4  # tokens between two places, or fewer in a short context
_FIRST_ID, _IDS = 10, 190  # that every vocabulary has
REPEATS = 2
"""How often it is asked as clients ask: of several replicas one may have the old text."""


@dataclass(frozen=True)
class CacheCheck:
    """Whether a cache is stale; None: it can't be told, and `why`."""

    is_stale: bool | None
    distance: float | None = None
    why: str = ""


async def check_prefix_cache(
    server: Stranger, model: str, context: int | None, limits: Limits, rank: int | None = None
) -> CacheCheck:
    """Compare what `model` answers from the cache with what it answers without."""
    length = min(LONGEST, (context or LONGEST) - 1)
    count = CPU_PLACES if limits == LIMITS["float32"] else PLACES
    step = min(_STEP, length // (2 * count))
    if step < 1:
        return CacheCheck(None, why=f"its context of {context} tokens is too short")
    tokens = canary(length + 1)
    places = [length - 1 - step * number for number in range(count)]

    async def ask(salt: str | None) -> list[float]:
        return await score_at(server, model, tokens, places, rank, salt)

    async def compare() -> tuple[float, float]:
        """(distance of the cache from no cache, distance of two answers without one)"""
        cached = [await ask(None) for _ in range(REPEATS)]
        fresh, again = [await ask(secrets.token_hex(8)) for _ in range(2)]
        nearest = [
            min(mean_difference(one, other, limits.cap) for other in (fresh, again))
            for one in cached
        ]
        return max(nearest), mean_difference(fresh, again, limits.cap)

    try:
        distance, noise = await compare()
        # Noise may be large once. A stale cache stays so.
        if distance > limits.mean:
            second, noise_then = await compare()
            distance, noise = min(distance, second), max(noise, noise_then)
    except (RefusedError, NoLogprobsError) as error:
        return CacheCheck(None, why=f"it can't be asked without its cache ({error})")
    allowed = min(max(limits.mean, OVER_NOISE * noise), limits.most)
    if noise > limits.mean and distance > limits.mean:
        return CacheCheck(None, why=f"two answers without it are {noise:.2g} nats apart")
    return CacheCheck(distance > allowed, distance)


def canary(length: int) -> list[int]:
    """Make a text of so many tokens that is the same each time, of ids that all models have."""
    digests = (hashlib.sha256(f"prefix {number}".encode()).digest() for number in range(length))
    return [_FIRST_ID + int.from_bytes(raw[:4], "big") % _IDS for raw in digests]
