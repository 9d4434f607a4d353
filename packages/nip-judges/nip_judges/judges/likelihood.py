"""P(accept) at the place where a judge's verdict begins to differ.

estimate_p_accept  by the log-probabilities of the answer's tokens
"""

import math
from collections.abc import Sequence

from nip_core.protocols import TokenChoice


def estimate_p_accept(
    tokens: Sequence[TokenChoice], start: int, tails: tuple[str, str]
) -> float | None:
    """Estimate the probability of accept against reject where character `start` is written.

    `tails` are the texts of accept and of reject from there on. The words before are taken as
    written, and the probabilities as the engine gives them. A tail that is not among the likeliest
    counts as likely as the least likely of them, which is an upper bound. Returns None where no
    token is there, or it has no alternatives.
    """
    end = 0
    for token in tokens:
        begin, end = end, end + len(token.token)
        if end > start:
            break
    else:
        return None
    top = {**token.top, token.token: token.logprob}
    if len(top) < 2:
        return None
    beginning = token.token[: start - begin]
    masses = [0.0, 0.0]
    for text, logprob in top.items():
        if not text.startswith(beginning):
            continue
        rest = text[len(beginning) :].lower()
        for number, tail in enumerate(tails):
            lower_tail = tail.lower()
            if rest and (lower_tail.startswith(rest) or rest.startswith(lower_tail)):
                masses[number] += math.exp(logprob)
    if not any(masses):
        return None
    floor = math.exp(min(top.values()))
    accept, reject = (mass or floor for mass in masses)
    return accept / (accept + reject) if accept + reject > 0 else None
