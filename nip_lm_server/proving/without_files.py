"""A name of which there are no files here: whether it gives what its base model gives.

It can show that the base answers under an adapter's name, and nothing else: another adapter differs
from the base, too.
"""

import asyncio
import time

from nip_lm_server.engines.probes import LIMITS, OVER_NOISE, mean_difference
from nip_lm_server.proving.judging import BASE
from nip_lm_server.proving.prefix_cache import canary
from nip_lm_server.proving.scoring import Answer, NoLogprobsError, find_way, score
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
    begun = time.monotonic()
    bases = [n for n, served in names.items() if not served.is_adapter and n != name]
    base = base_name or names[name].parent or next(iter(bases), None)
    if base is None or base not in names or base == name:
        raise InputError(
            f"{name!r} can't be compared with its base model, which the server does not name; it "
            f"has {list_names(names)}; give --base-name, or the adapter's directory"
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
    allowed = max(OVER_NOISE * _distance(first, second), LIMITS["float32"].mean)
    distances = [_distance(answer, first) for answer in of_name]
    alike = sum(distance <= allowed for distance in distances)
    kind: Kind
    who: tuple[str, ...]
    if alike == len(distances):
        kind, who = "base", (BASE,)
        says = f"what answers is the base model {base!r}, or an adapter that changes nothing"
    elif alike:
        kind, who = "mixed", (BASE,)
        says = f"replicas disagree: {alike} of {repeats} answers are those of the base {base!r}"
    else:
        kind, who = "cannot_tell", ()
        says = (
            f"can't tell: what answers is not the base model {base!r} ({min(distances):.2g} nats "
            "from it), and no directory says which adapter it should be"
        )
    seconds = round(time.monotonic() - begun, 3)
    figures = {"distance_from_base": min(distances), "base_name": base}
    return Verdict(name, kind, says, who, len(distances), 0, way, figures=figures, seconds=seconds)


def _distance(left: Answer, right: Answer) -> float:
    """The mean distance at the places that both know."""
    pairs = [
        (one, other)
        for one, other in zip(left.logprobs, right.logprobs, strict=True)
        if one is not None and other is not None
    ]
    if not pairs:
        return _CAP
    return mean_difference([one for one, _ in pairs], [other for _, other in pairs], _CAP)
