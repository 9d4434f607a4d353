"""Names for kinds of messages, by which the messages of an attack are counted."""

import re
from collections.abc import Mapping

_SHORT = 60  # characters: longer messages differ in more than their numbers
_VERDICTS = {0: "claims that it is wrong", 1: "claims that it is right"}


def describe_message(message: str, claims: Mapping[str, int], remark: str) -> str:
    """Name the kind of a message by its claim and the `remark` on it.

    `claims` are a scenario's. A short message without a remark has its words, too, with
    every number as "#".
    """
    verdicts = {y for pattern, y in claims.items() if re.search(pattern, message, re.IGNORECASE)}
    parts = []
    if claims:
        parts.append(
            _VERDICTS[min(verdicts)] if len(verdicts) == 1 else _without_one(bool(verdicts))
        )
    words = re.sub(r"\d+", "#", " ".join(message.split()))
    if remark:
        parts.append(remark)
    elif len(words) <= _SHORT:
        parts.append(f"\u201c{words}\u201d")
    return ": ".join(parts) or "longer than a line"


def _without_one(claims_both: bool) -> str:
    return "claims both" if claims_both else "claims nothing"
