"""What the game reads of an answer that is on record, whichever row of a table has it.

Spoken               of which a turn can be made
Attempted            of which can be said what was wrong
RecordedToken        a token of an answer with the likeliest ones in its place; read_tokens, of all

The whole row is `nip_core.rollouts.storage.table_rows.Generation`; a reader of some columns has its
own.
"""

from collections.abc import Sequence
from typing import Protocol

# Not that of `typing`: answers stand in pydantic models of programs around nip, and pydantic takes
# none of `typing` before Python 3.12.
from typing_extensions import TypedDict

from nip_core.protocols import TokenChoice


class TokenLogprob(TypedDict):
    """A token and the natural logarithm of its probability."""

    token: str
    logprob: float


class RecordedToken(TokenLogprob):
    """A token of an answer with the likeliest ones in its place."""

    top: list[TokenLogprob]


class Attempted(Protocol):
    """A recorded answer with its turn, its attempt and its verdict of validity."""

    @property
    def round(self) -> int: ...
    @property
    def agent(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def invalid_reason(self) -> str | None: ...


class Spoken(Protocol):
    """A recorded answer with all parts of a turn."""

    @property
    def round(self) -> int: ...
    @property
    def agent(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def invalid_reason(self) -> str | None: ...
    @property
    def token_logprobs(self) -> Sequence[RecordedToken] | None: ...


def read_tokens(recorded: Sequence[RecordedToken] | None) -> tuple[TokenChoice, ...] | None:
    """Read the column `token_logprobs` of a generation, as turns have it."""
    if recorded is None:
        return None
    return tuple(
        TokenChoice(
            entry["token"],
            entry["logprob"],
            {other["token"]: other["logprob"] for other in entry["top"]},
        )
        for entry in recorded
    )
