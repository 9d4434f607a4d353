"""How similar what two agents did is: the payment of the zero-knowledge protocols.

text_similarity    of two messages: cosine of their counts of three-character pieces
token_similarity   of two answers by the log-probabilities of their tokens
move_similarity    of two turns, messages or decisions

All are symmetric, in [0, 1], and 1 for equal inputs (for tokens: for equal distributions of which
nearly all is reported). What they can't see: a paraphrase has little text in common with the
original; and tokens are compared only as long as both answers have begun alike, because after the
first difference the two models were not asked the same question any more.
"""

import math
from collections import Counter
from collections.abc import Sequence

from nip_core.protocols.base import NO_DECISION, TokenChoice, Turn

_PIECE = 3


def text_similarity(a: str, b: str) -> float:
    """Cosine of the counts of three-character pieces; case and spacing are ignored."""
    first, second = _pieces(a), _pieces(b)
    if first == second:
        return 1.0
    dot = sum(count * second[piece] for piece, count in first.items())
    norms = math.sqrt(sum(c * c for c in first.values()) * sum(c * c for c in second.values()))
    return min(dot / norms, 1.0) if norms else 0.0


def token_similarity(a: Sequence[TokenChoice], b: Sequence[TokenChoice]) -> float:
    """Mean overlap of the two next-token distributions over the longer answer's length.

    The overlap at a position is the sum over tokens of the lesser probability, of those tokens
    that both engines report. Positions after the first different token count 0.
    """
    if not a and not b:
        return 1.0
    overlap = 0.0
    for one, other in zip(a, b, strict=False):
        p = {**one.top, one.token: one.logprob}
        q = {**other.top, other.token: other.logprob}
        overlap += sum(math.exp(min(p[token], q[token])) for token in sorted(p.keys() & q.keys()))
        if one.token != other.token:
            break
    return min(overlap / max(len(a), len(b)), 1.0)


def move_similarity(a: Turn, b: Turn | None, by_tokens: bool) -> float:
    """Of what two agents did in a round; 0 where one decided and the other did not.

    Messages are paired by the order of their channels. Decisions are compared by value: equal
    ones count 1, opposite ones 0.
    """
    if b is None:
        return 0.0
    if by_tokens:
        return token_similarity(a.tokens or (), b.tokens or ())
    if (a.move.decision == NO_DECISION) != (b.move.decision == NO_DECISION):
        return 0.0
    if a.move.decision != NO_DECISION:
        return 1 - abs((a.move.value or 0.0) - (b.move.value or 0.0)) / 2
    pairs = list(zip(a.move.messages.values(), b.move.messages.values(), strict=False))
    if not pairs:
        return 0.0
    return sum(text_similarity(x, y) for x, y in pairs) / len(pairs)


def _pieces(text: str) -> Counter[str]:
    plain = f" {' '.join(text.lower().split())} "
    return Counter(plain[i : i + _PIECE] for i in range(len(plain) - _PIECE + 1))
