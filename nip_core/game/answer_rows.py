"""The columns that the game reads of an answer on record, whichever table has them.

AnswerPlace          the place of an answer in its episode
place_of             the place of a row; place_of_move, of the exchange with a turn's move
take_moves           the answers that ended their turns
Spoken               of which a turn can be made; SpokenRow, the columns for that as a row
make_exchange        the answer as agents and protocols see it
Attempted            an answer with the reason that it is invalid, if it is
RecordedToken        a token of an answer with the likeliest ones in its place; read_tokens, of all

The whole row is `nip_core.rollouts.storage.table_rows.Generation`; a reader of some columns has its
own, which adds to `SpokenRow` where it makes turns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

# Not the one of `typing`: answers stand in pydantic models of programs around nip, and before
# Python 3.12 pydantic takes none of `typing`.
from typing_extensions import TypedDict

from nip_core.protocols import Exchange, TokenChoice, Turn


class TokenLogprob(TypedDict):
    """A token and the natural logarithm of its probability."""

    token: str
    logprob: float


class RecordedToken(TokenLogprob):
    """A token of an answer with the likeliest ones in its place."""

    top: list[TokenLogprob]


class AnswerPlace(NamedTuple):
    """The place of an answer in its episode.

    An agent has one turn in a round. A turn is a list of exchanges, and an exchange takes as many
    attempts as its answers are invalid, and one more.
    """

    round: int
    agent: str
    attempt: int = 0  # invalid answers before it in the exchange
    exchange: int = 0  # exchanges before it in the turn

    @property
    def name_parts(self) -> tuple[int | str, ...]:
        """List the parts that keys and seeds are derived from.

        Exchange 0 is left out. So an answer has the key that it had in tables without exchanges.
        """
        place = (self.round, self.agent, self.attempt)
        return (*place, self.exchange) if self.exchange else place

    @property
    def first(self) -> "AnswerPlace":
        """The first attempt at the same exchange, which stands for the exchange."""
        return self._replace(attempt=0)

    @property
    def next(self) -> "AnswerPlace":
        """The next attempt at the same exchange."""
        return self._replace(attempt=self.attempt + 1)

    def order(self, rank: Callable[[str], Any]) -> tuple[Any, ...]:
        """Make a sort key for the order of play, with the agents of a round by their `rank`."""
        return self.round, rank(self.agent), self.exchange, self.attempt


class Placed(Protocol):
    """A recorded answer with its place."""

    @property
    def round(self) -> int: ...
    @property
    def agent(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def exchange(self) -> int: ...


def place_of(row: Placed) -> AnswerPlace:
    """Return the place of a recorded answer."""
    return AnswerPlace(row.round, row.agent, row.attempt, row.exchange)


def place_of_move(turn: Turn) -> AnswerPlace:
    """Return the place of the exchange that has the turn's move: the first attempt at it."""
    return AnswerPlace(turn.round, turn.agent, exchange=len(turn.earlier))


P = TypeVar("P", bound=Placed)


def take_moves(answers: Sequence[P]) -> list[P]:
    """Take the answers that ended their turns, from valid ones of an episode; they keep order."""
    count: dict[tuple[int, str], int] = {}
    for answer in answers:
        turn = answer.round, answer.agent
        count[turn] = max(count.get(turn, 0), answer.exchange)
    return [answer for answer in answers if answer.exchange == count[answer.round, answer.agent]]


class Attempted(Placed, Protocol):
    """A recorded answer with its place and its verdict of validity."""

    @property
    def text(self) -> str: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def invalid_reason(self) -> str | None: ...


class Spoken(Protocol):
    """A recorded answer with all parts of an exchange."""

    @property
    def round(self) -> int: ...
    @property
    def agent(self) -> str: ...
    @property
    def exchange(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def invalid_reason(self) -> str | None: ...
    @property
    def token_logprobs(self) -> Sequence[RecordedToken] | None: ...
    @property
    def tool_result(self) -> str | None: ...


# Not frozen, which takes twice as long to make: there are millions where rollouts become datasets.
@dataclass(slots=True, kw_only=True)
class SpokenRow:
    """The columns of an answer of which a turn is made; those with a default need not be read."""

    round: int
    agent: str
    exchange: int
    attempt: int
    text: str
    invalid_reason: str | None = None
    token_logprobs: Sequence[RecordedToken] | None = None
    tool_result: str | None = None


def make_exchange(row: Spoken) -> Exchange:
    """Make of a valid answer what agents and protocols see."""
    return Exchange(row.text, read_tokens(row.token_logprobs), row.tool_result)


def read_tokens(entries: Sequence[RecordedToken] | None) -> tuple[TokenChoice, ...] | None:
    """Read the column `token_logprobs` of a generation, as turns have it."""
    if entries is None:
        return None
    return tuple(
        TokenChoice(
            entry["token"],
            entry["logprob"],
            {choice["token"]: choice["logprob"] for choice in entry["top"]},
        )
        for entry in entries
    )
