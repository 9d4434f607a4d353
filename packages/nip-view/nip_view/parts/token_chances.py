"""The tokens of an answer with their probabilities, as an episode's page shows them.

lay_out_tokens  of a recorded answer, None where nothing was recorded
write_closely   a probability with as many digits as tell it from 0 and 1
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nip_core.game.answer_rows import RecordedToken, TokenLogprob

_MOST_TOKENS = 500  # a page of more is slow to open; the rest is in the table
_MOST_OTHERS = 5
_SIGNS = {" ": "␣", "\n": "⏎", "\t": "⇥"}


@dataclass(frozen=True)
class TokenChance:
    """A token as one can read it, and its probability."""

    text: str
    p: float


@dataclass(frozen=True)
class ShownToken(TokenChance):
    """A token of the answer, with the likeliest others in its place."""

    others: tuple[TokenChance, ...]


@dataclass(frozen=True)
class ShownTokens:
    """The first tokens of an answer."""

    tokens: tuple[ShownToken, ...]
    left_out: int


def lay_out_tokens(tokens: Sequence[RecordedToken] | None) -> ShownTokens | None:
    """Lay out the tokens of an answer, as the column `token_logprobs` has them."""
    if not tokens:
        return None
    shown_tokens = []
    for token in tokens[:_MOST_TOKENS]:
        other_chances = [chance for chance in token["top"] if chance["token"] != token["token"]]
        chances = tuple(_read_chance(chance) for chance in other_chances[:_MOST_OTHERS])
        own = _read_chance(token)
        shown_tokens.append(ShownToken(own.text, own.p, chances))
    return ShownTokens(tuple(shown_tokens), len(tokens) - len(shown_tokens))


def write_closely(p: float) -> str:
    """Write a probability with two digits of its distance from 0 or 1, as "0.9999988"."""
    if not 0.5 < p < 1:
        return f"{p:.2g}"
    return f"{p:.{1 - math.floor(math.log10(1 - p))}f}".rstrip("0")


def _read_chance(token: RecordedToken | TokenLogprob) -> TokenChance:
    signs = (_SIGNS.get(c, c if c.isprintable() else f"\\u{ord(c):04x}") for c in token["token"])
    return TokenChance("".join(signs) or "∅", math.exp(min(0.0, token["logprob"])))
