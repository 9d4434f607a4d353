"""Compare a name without files on this machine with its base model.

The comparison can only show that the base answers under an adapter's name: another adapter differs
from the base, too.
"""

import asyncio
import time

from nip_lm_server.lora.probes import LIMITS, OVER_NOISE, mean_difference
from nip_lm_server.proving.judging import BASE
from nip_lm_server.proving.prefix_cache import canary
from nip_lm_server.proving.scoring import FEW_PLACES, NoLogprobsError, ScoredAnswer, find_way, score
from nip_lm_server.proving.stranger import InputError, RefusedError, ServedName, Stranger
from nip_lm_server.proving.verdict import Kind, Verdict, list_names

_LENGTH = 128
_CAP = LIMITS["bfloat16"].cap


async def compare_with_base(
    server: Stranger,
    names: dict[str, ServedName],
    name: str,
    *,
    base_name: str | None,
    repeats: int,
) -> Verdict:
    """Compare a name with its base model, on a text of this program. Raises ProvingError."""
    started_at = time.monotonic()
    # No other name is tried: it may be any model.
    base = base_name or names[name].parent
    if base is None or base not in names or base == name:
        raise InputError(
            f"{name!r} can't be compared with its base model, which the server does not name or "
            f"have; it has {list_names(names)}; give --base-name, or the adapter's directory"
        )
    tokens = canary(min(_LENGTH, names[base].max_model_len or _LENGTH) - 1)
    try:
        way = await find_way(server, name, tokens)
        answers = await asyncio.gather(
            *(score(server, way, name, tokens) for _ in range(repeats)),
            *(score(server, way, base, tokens) for _ in range(2)),
        )
    except (NoLogprobsError, RefusedError) as error:
        says = f"can't tell: the server gives no log-probabilities of given tokens: {error}"
        return Verdict(name, "cannot_tell", says)
    *of_name, first, second = answers
    few = min(sum(value is not None for value in answer.logprobs) for answer in answers)
    if few < FEW_PLACES:
        says = f"can't tell: answers say something of {few} tokens, {FEW_PLACES} are needed"
        return Verdict(name, "cannot_tell", says, answers=len(of_name), way=way)
    allowed = max(OVER_NOISE * _distance(first, second), LIMITS["float32"].mean)
    distances = [_distance(answer, first) for answer in of_name]
    alike = sum(distance <= allowed for distance in distances)
    kind: Kind
    models: tuple[str, ...]
    if alike == len(distances):
        kind, models = "base", (BASE,)
        says = f"what answers is the base model {base!r}, or an adapter that changes nothing"
    # The noise of a low precision depends on the other requests of a batch: an answer within it is
    # no other model.
    elif alike and all(d <= allowed or d > LIMITS["bfloat16"].most for d in distances):
        kind, models = "mixed", (BASE,)
        says = f"replicas disagree: {alike} of {repeats} answers are those of the base {base!r}"
    else:
        kind, models = "cannot_tell", ()
        is_far = min(distances) > LIMITS["bfloat16"].most
        says = (
            f"can't tell: what answers is {min(distances):.2g} to {max(distances):.2g} nats from "
            f"the base model {base!r}"
            + ("" if is_far else ", and that much may be noise or another model")
            + "; no directory says which adapter it should be"
        )
    seconds = round(time.monotonic() - started_at, 3)
    figures = {"distance_from_base": min(distances), "base_name": base}
    return Verdict(
        name, kind, says, models, len(distances), 0, way, figures=figures, seconds=seconds
    )


def _distance(first: ScoredAnswer, second: ScoredAnswer) -> float:
    """The mean distance at the common places of both answers."""
    pairs = [
        (one, other)
        for one, other in zip(first.logprobs, second.logprobs, strict=True)
        if one is not None and other is not None
    ]
    if not pairs:
        return _CAP
    return mean_difference([one for one, _ in pairs], [other for _, other in pairs], _CAP)
