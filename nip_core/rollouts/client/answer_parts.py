"""The parts of a provider's answer, read strictly.

split_count         a count of all choices over them
refuse_other_model  an answer of another model than the one asked for
make_storable       a text as it can be stored
read_ids, read_logprobs   tokens
"""

import math
import re
from collections.abc import Sequence
from typing import Any

from nip_core.game.answer_rows import RecordedToken, TokenLogprob
from nip_core.rollouts.client.thoughts import MalformedAnswer


def split_count(total: int | None, parts: int) -> Sequence[int | None]:
    """Split a count over the choices; the first has the remainder."""
    if total is None:
        return [None] * parts
    share = total // parts
    return [total - share * (parts - 1)] + [share] * (parts - 1)


def refuse_other_model(names: Sequence[str], served: str) -> None:
    """Raise MalformedAnswer for an answer of another model: the call is sent again.

    A provider may answer an alias with its dated name: gpt-4o-2024-08-06 is gpt-4o, gpt-4o-mini
    is not.
    """
    if not any(
        served == name or re.fullmatch(re.escape(name) + r"-\d[\d-]*", served) for name in names
    ):
        raise MalformedAnswer(
            f"asked for model {names[0]!r} but {served!r} answered; if that is the same model by a "
            "gateway's name, set served_as"
        )


def make_storable(text: Any) -> str:
    """Replace half a surrogate pair: JSON may carry it, UTF-8 and Parquet can't."""
    storable = str(text)
    # Nearly every text is; there may be thousands of tokens in an answer.
    return storable if storable.isascii() else storable.encode("utf-8", "replace").decode()


def read_ids(given: Any) -> list[int] | None:
    """Read token ids."""
    return None if given is None else [int(token) for token in given]


def read_logprobs(logprobs: Any) -> list[RecordedToken] | None:
    """Read tokens with their log-probabilities. Raises ValueError for one that is no number."""
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if content is None:
        return None

    def one(entry: Any) -> TokenLogprob:
        logprob = float(entry["logprob"])
        if not logprob < math.inf:  # JSON as Python writes it has NaN, which would reach rewards
            raise ValueError(f"a log-probability of {logprob}")
        return {"token": make_storable(entry["token"]), "logprob": logprob}

    return [{**one(e), "top": [one(t) for t in e.get("top_logprobs") or ()]} for e in content]
