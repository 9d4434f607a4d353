"""How similar the moves of two agents are: the payment of the zero-knowledge protocols.

The measures are symmetric, in [0, 1], and 1 for equal inputs. Their limits: a paraphrase has little
text in common with the original; tokens are compared only as long as both answers have begun
alike, because after the first difference the two models were not asked the same question any
more; and of two distributions only the tokens that the engines report.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from nip_core.protocols.base import Move, TokenChoice, Turn
from nip_core.protocols.scales import ACCEPT, NEITHER, NO_DECISION

_PIECE = 3
_LABEL = re.compile(r"[^\n:]{1,60}:")


def text_similarity(a: str, b: str) -> float:
    """Cosine of the counts of three-character pieces; case and spacing are ignored.

    An empty message is like another empty one, and like nothing else.
    """
    first, second = _pieces(a), _pieces(b)
    if first == second:
        return 1.0
    dot = sum(count * second[piece] for piece, count in first.items())
    norms = math.sqrt(sum(c * c for c in first.values()) * sum(c * c for c in second.values()))
    return min(dot / norms, 1.0) if norms else 0.0


def token_similarity(a: Sequence[TokenChoice], b: Sequence[TokenChoice]) -> float:
    """Mean overlap of the two next-token distributions over the longer answer's length.

    The overlap at a position is the sum over tokens of the lesser probability, as a part of the
    greater of the two sums that the engines report; so equal reports overlap in full, however few
    tokens they list. Positions after the first different token count 0.
    """
    if not a and not b:
        return 1.0
    overlap = 0.0
    for first, second in zip(a, b, strict=False):
        overlap += _overlap(_probabilities(first), _probabilities(second))
        if first.token != second.token:
            break
    return min(overlap / max(len(a), len(b)), 1.0)


def move_similarity(a: Turn, b: Turn | None, by_tokens: bool) -> float:
    """Compare the moves of two agents in a round; 0 where one decided and the other did not.

    Messages are paired by the order of their channels; one that has no partner counts 0. A label
    that both begin with ("Question:", a header) is the game's form and not compared.
    Decisions are compared by value: equal ones count 1, opposite ones 0. By tokens, turns without
    log-probabilities are like nothing.
    """
    if b is None or (a.move.decision == NO_DECISION) != (b.move.decision == NO_DECISION):
        return 0.0
    if by_tokens:
        return 0.0 if a.tokens is None or b.tokens is None else token_similarity(a.tokens, b.tokens)
    if a.move.decision != NO_DECISION:
        return 1 - abs(_value(a.move) - _value(b.move)) / 2
    first, second = list(a.move.messages.values()), list(b.move.messages.values())
    pairs = zip(first, second, strict=False)
    alike = sum(text_similarity(*_without_label(x, y)) for x, y in pairs)
    return alike / max(len(first), len(second), 1)


def _probabilities(choice: TokenChoice) -> dict[str, float]:
    logprobs = {**choice.top, choice.token: choice.logprob}
    return {token: math.exp(min(logprob, 0.0)) for token, logprob in sorted(logprobs.items())}


def _overlap(p: Mapping[str, float], q: Mapping[str, float]) -> float:
    if p == q:
        return 1.0
    reported = max(sum(p.values()), sum(q.values()))
    common = sum(min(p[token], q[token]) for token in p if token in q)
    return common / reported if reported else 0.0


def _value(move: Move) -> float:
    """Of a decision, in [-1, 1]."""
    if move.value is not None:
        return move.value
    return 0.0 if move.decision == NEITHER else (1.0 if move.decision == ACCEPT else -1.0)


def _without_label(a: str, b: str) -> tuple[str, str]:
    """Take a common label, up to a colon, off both texts; markup may differ."""
    first, second = _LABEL.match(a), _LABEL.match(b)
    if first is None or second is None or _plain(first[0]) != _plain(second[0]):
        return a, b
    return a[first.end() :], b[second.end() :]


def _plain(label: str) -> str:
    return "".join(c for c in label.casefold() if c.isalnum())


def _pieces(text: str) -> Counter[str]:
    plain = f" {' '.join(text.lower().split())} "
    return Counter(plain[i : i + _PIECE] for i in range(len(plain) - _PIECE + 1))
