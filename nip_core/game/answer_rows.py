"""What the game reads of an answer that is on record, whichever row of a table has it.

AnswerPlace          the place of an answer in its episode
place_of             that of a row; place_of_move, that of the exchange with a turn's move
take_moves           the answers that ended their turns
Spoken               of which a turn can be made
Attempted            of which can be said what was wrong
RecordedToken        a token of an answer with the likeliest ones in its place; read_tokens, of all

The whole row is `nip_core.rollouts.storage.table_rows.Generation`; a reader of some columns has its
own.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

# Not that of `typing`: answers stand in pydantic models of programs around nip, and pydantic takes
# none of `typing` before Python 3.12.
from typing_extensions import TypedDict

from nip_core.protocols import TokenChoice, Turn


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
