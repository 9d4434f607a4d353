"""Whether a server answers from a prefix cache that other weights have filled.

An adapter that is loaded again under its name, from where the last one lay, may find the keys and
values of the last one in the cache of prompts (vLLM says so in its log, and leaves them there). So
one text is asked twice: with a salt, for which nothing can be in the cache, and without, as clients
ask. The same weights must give the same. The text is the same each time, so what the last proof
asked is what the cache has, if nobody has used its place meanwhile.

What this can't see: a cache of other texts than this one, where no proof was made before the
weights were changed, or its text has left the cache.
"""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nip_lm_server.engines.probes import Limits, mean_difference
from nip_lm_server.proving.stranger import RefusedError, Stranger

LONGEST = 320
"""Tokens of the text: two of the largest blocks that vLLM keeps by itself, of 128 on a CPU, and the
places after them."""
PLACES = 4
_STEP = 4  # tokens between two places
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
    if length <= PLACES * _STEP:
        return CacheCheck(None, why=f"its context of {context} tokens is too short")
    try:
        cached = [await _ask(server, model, length, None, rank) for _ in range(REPEATS)]
        fresh = await _ask(server, model, length, secrets.token_hex(8), rank)
    except (RefusedError, KeyError, TypeError, ValueError, IndexError) as error:
        return CacheCheck(None, why=f"it can't be asked without its cache ({error})")
    distance = max(_compare(one, fresh, limits.cap) for one in cached)
    return CacheCheck(not distance <= limits.mean, distance)


def canary(length: int) -> list[int]:
    """Make a text of so many tokens that is the same each time, of ids that all models have."""
    digests = (hashlib.sha256(f"prefix {number}".encode()).digest() for number in range(length))
    return [_FIRST_ID + int.from_bytes(raw[:4], "big") % _IDS for raw in digests]


async def _ask(
    server: Stranger, model: str, length: int, salt: str | None, rank: int | None
) -> list[tuple[Any, float]]:
    """(token, log-probability) of the likeliest token after each of the text's last beginnings."""
    tokens = canary(length)
    ends = [length - _STEP * number for number in range(PLACES)]
    body: dict[str, Any] = {
        "model": model,
        "prompt": [tokens[:end] for end in ends],
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": 1,
        "return_tokens_as_token_ids": True,
    }
    if salt is not None:
        body["cache_salt"] = salt
    answer = await server.complete(body, rank)
    lists = [choice["logprobs"] for choice in answer["choices"]]
    if len(lists) != PLACES:
        raise ValueError(f"{len(lists)} choices for {PLACES} prompts")
    return [(each["tokens"][0], float(each["token_logprobs"][0])) for each in lists]


def _compare(
    left: Sequence[tuple[Any, float]], right: Sequence[tuple[Any, float]], cap: float
) -> float:
    """The mean distance; where another token is likeliest, the most that a place counts."""
    values = [value for _, value in left]
    others = [
        value if token == other else mine + cap
        for (token, mine), (other, value) in zip(left, right, strict=True)
    ]
    return mean_difference(values, others, cap)
