"""How long to wait between calls, and when to stop calling."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from nip_core.errors import JobError
from nip_core.jobs.job import Busy, Clock, NoAnswer, Refused

_T = TypeVar("_T")

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0
_GROWTH = 1.5


class Pauses:
    """Growing waits, in seconds."""

    def __init__(self, first_s: float = FIRST_PAUSE_S, longest_s: float = LONGEST_PAUSE_S) -> None:
        self._first_s = self._next_s = first_s
        self.longest_s = longest_s

    def next(self, asked_s: float | None = None) -> float:
        """Give the next wait, at least as long as `asked_s`."""
        pause_s = self._next_s
        self._next_s = min(self.longest_s, self._next_s * _GROWTH)
        return max(pause_s, asked_s or 0.0)

    def reset(self) -> None:
        """Begin with the first wait again."""
        self._next_s = self._first_s


@dataclass(frozen=True)
class Waiting:
    """`settle_s`: how long lists may lag behind; `patience_s`: how long to bear with a back-end."""

    address: str
    clock: Clock
    settle_s: float
    patience_s: float

    async def until_answered(
        self, call: Callable[[], Awaitable[_T]], *, repeat_unknown: bool = True
    ) -> _T:
        """Make a `call`, repeated while the back-end is busy; return its answer.

        With `repeat_unknown` it is repeated when there is no answer, too: for calls that change
        nothing. Raises JobError when patience ends, Refused, and NoAnswer if not repeated.
        """
        give_up_s = self.clock.monotonic() + self.patience_s
        pauses = Pauses()
        while True:
            try:
                return await call()
            except (Busy, NoAnswer) as error:
                if isinstance(error, NoAnswer) and not repeat_unknown:
                    raise
                pause_s = pauses.next(error.retry_after_s)
                if self.clock.monotonic() + pause_s > give_up_s:
                    trouble = "too busy" if isinstance(error, Busy) else "without an answer"
                    raise JobError(
                        f"{self.address}: {trouble} for {self.patience_s:g} s: {error}; run again "
                        "when the server is well"
                    ) from error
                await self.clock.sleep(pause_s)

    async def until_settled(self, find: Callable[[], Awaitable[_T | None]]) -> _T | None:
        """Repeat `find` until it finds something, or finds nothing `settle_s` from now (None).

        Only a `find` that began late enough and was answered counts as nothing found. Raises
        JobError if there is none within another `patience_s`.
        """
        start_s = self.clock.monotonic()
        pauses = Pauses()
        while True:
            # A list counts as empty only if it was asked for late enough.
            began_s = self.clock.monotonic()
            asked_s: float | None = None
            try:
                result = await find()
                if result is not None or began_s - start_s >= self.settle_s:
                    return result
                left_s = start_s + self.settle_s - self.clock.monotonic()
            except Refused as error:
                raise self._unknown("is refused", error) from error
            except (Busy, NoAnswer) as error:
                asked_s = error.retry_after_s
                left_s = start_s + self.settle_s + self.patience_s - self.clock.monotonic()
                if left_s <= 0 or (asked_s or 0.0) > left_s:
                    raise self._unknown("can't be read", error) from error
            await self.clock.sleep(max(0.0, min(pauses.next(asked_s), left_s)))

    def _unknown(self, trouble: str, error: Exception) -> JobError:
        return JobError(
            f"{self.address}: whether the call arrived can't be learned, because the list "
            f"{trouble}: {error}; nothing was sent again; run again when the server is well"
        )
