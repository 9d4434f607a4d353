"""How many calls are in flight at a server: as many as make its answers come faster.

A round is as many answers as there may be calls in flight.

Where the server is ours, the limit doubles as long as a round brings a tenth more answers a second
than the best round. After two rounds without such a gain it goes back to the best limit: more
calls would only wait in the server's queue, all of them longer. It tries again now and then, since
a server may become faster. A round may take long. Until it is over, the tokens that the engine has
computed tell the same.

At another provider's server the limit begins with all calls that the settings allow. A 429 cuts it
to seven tenths. Two rounds in which more calls run out of time than are answered cut it to a half
or less: such a server computes one answer at a time and lets the others wait. Slow answers cut it
to the number that fits into half of the time for an answer. From then on it grows by one a round. A
server that has not answered at all gets one call at a time after two rounds. It is given up when
two of these have no answer.

The limit decides when a call is made. Neither the order of episodes nor any seed depends on it. The
reasons stand in docs/decisions/0036.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from nip_core.errors import StageError

GAIN = 1.1
"""A round counts as a gain if it is faster than the best by this factor. Answers differ in length,
so rounds differ by some hundredths by chance."""
FLAT_ROUNDS = 2
"""Rounds without a gain that end the search. In the first of them some answers still belong to
calls that were made with fewer in flight."""
SEARCH_EVERY = 16
"""Rounds until the next look whether more calls in flight are faster."""
STEP_S = 20.0
"""Time between two looks at the engine's tokens; short beside a round where that is slow."""
ANSWER_TOKEN = 6.0
"""The work of one token of an answer, in tokens of a prompt: as measured with a model of 135M
parameters on two cores. It only makes reading and writing comparable."""
_FEWEST_FIRST = 8
_QUICK_ANSWER_S = 2.0
"""Where answers take no longer, all calls may be made at once."""
_CUT, _LATE_ROUNDS = 0.7, 2


class Places:
    """A semaphore whose size may change while it is used. First come, first served."""

    def __init__(self, size: Callable[[], int]):
        """Make places; `size` is called whenever a place may be given."""
        self._size = size
        self.taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        if self.taken < self._size() and not self._waiting:
            self.taken += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            # Its turn may have come in the same moment: then it is the next one's.
            if turn.done() and not turn.cancelled():
                self.taken -= 1
            else:
                self._waiting.remove(turn)
            self.give()
            raise

    async def __aexit__(self, *_: object) -> None:
        self.taken -= 1
        self.give()

    def give(self) -> None:
        """Give the free places to those that wait."""
        while self._waiting and self.taken < self._size():
            turn = self._waiting.popleft()
            if not turn.done():
                self.taken += 1
                turn.set_result(None)


class CallLimit:
    """The calls in flight at one server. Enter `places` for as long as a call is in flight."""

    def __init__(
        self,
        largest: int,
        *,
        deadline_s: float | None,
        tell: Callable[[str], None] = lambda words: None,
        on_change: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Begin with `largest`.

        `deadline_s` is the longest wait for an answer of another provider's server; None: the
        server is ours, which has no deadline. `tell` is given the words for people, `on_change` is
        called when the limit is set.
        """
        self.most, self._deadline_s = largest, deadline_s
        self.limit = largest
        self._tell, self._on_change, self._clock = tell, on_change, clock
        self.places = Places(lambda: self.limit)
        self._best_rate, self._best_limit = 0.0, self.limit
        self._flat = self._rounds = 0
        self._answers, self._seconds, self._began_s = 0, 0.0, clock()
        self._timeouts = self._late_rounds = self._answers_late = self._ended_late = 0
        self._may_cut, self._said_fewest = True, False
        self._has_answered, self._calls_timed_out, self._in_company = False, 0, 0
        self._given_up: str | None = None
        self._step: tuple[float, float] | None = None
        self._best_work, self._flat_steps = 0.0, 0

    def answered(self, seconds: float) -> None:
        """Note an answer, and how long it took."""
        self._answers += 1
        self._has_answered = True
        self._seconds += seconds
        self._end_round()

    def timed_out(self) -> None:
        """Note a call without an answer in time."""
        if self._deadline_s is not None:
            self._calls_timed_out += 1
            if self._in_company > 0:
                self._in_company -= 1
                return
            self._timeouts += 1
            self._seconds += self._deadline_s
            self._end_round()

    def _end_round(self) -> None:
        """Follow the answers of a round, once as many calls have ended as may be in flight."""
        calls = self._answers + self._timeouts
        if calls < self.limit:
            return
        now_s = self._clock()
        rate = self._answers / max(now_s - self._began_s, 1e-6)
        mean_s, answers, is_late = self._seconds / calls, self._answers, self._timeouts > calls / 2
        self._answers, self._timeouts, self._seconds, self._began_s = 0, 0, 0.0, now_s
        self._rounds += 1
        self._may_cut = True
        if self._deadline_s is None:
            self._follow(rate)
        elif is_late:
            self._late(answers, calls)
        else:
            self._late_rounds = self._answers_late = self._ended_late = 0
            fits = mean_s <= self._deadline_s / 2
            self._set(self.limit + 1 if fits else int(self.limit * self._deadline_s / 2 / mean_s))

    def _late(self, answers: int, calls: int) -> None:
        """Cut the calls in flight after rounds in which most of them ran out of time."""
        self._late_rounds += 1
        self._answers_late += answers
        self._ended_late += calls
        if self._late_rounds < _LATE_ROUNDS:
            return
        old_limit, all_answers, all_calls = self.limit, self._answers_late, self._ended_late
        self._late_rounds = self._answers_late = self._ended_late = 0
        # As many as it answers in the time of one; the others would wait in its queue for nothing.
        fewer = (
            min(self.limit // 2, all_answers // _LATE_ROUNDS) if all_answers else self.limit // 2
        )
        if not self._has_answered:
            # One call alone tells whether it answers at all; halves would take hours to get to one.
            fewer = 1
            # Calls that had others in flight beside them tell nothing of one alone.
            self._in_company = max(0, self.places.taken - 1)
            if old_limit == 1:
                self._given_up = (
                    f"none of {self._calls_timed_out} calls was answered within "
                    f"{self._deadline_s:g} s (rollouts.request_timeout_s), nor were the last "
                    f"{all_calls}, made one at a time"
                )
        self._set(fewer)
        if self.limit == old_limit and self._said_fewest:
            return
        self._said_fewest = self.limit == old_limit
        few = f"{self.limit} from here on" if self.limit < old_limit else "which is the fewest"
        were = (
            f"only {all_answers} of {all_calls} calls were"
            if all_answers
            else f"none of {all_calls} calls was"
        )
        self._tell(
            f"{were} answered within {self._deadline_s:g} s (rollouts.request_timeout_s), with "
            f"{old_limit} in flight: {few}"
        )

    def refuse_silent(self, url: str, is_nips: bool) -> None:
        """Raise StageError if a server has never answered, not even one call alone."""
        if self._given_up is not None:
            raise StageError(f"{url}: {self._given_up}; {_advise(is_nips)}")

    def _follow(self, rate: float) -> None:
        """Search for the fewest calls in flight with which answers come fastest."""
        if self._rounds >= SEARCH_EVERY:
            self._rounds = self._flat = 0
            self._best_rate, self._best_limit = rate, self.limit
            self._set(2 * self.limit)
            return
        if self._flat >= FLAT_ROUNDS:
            return
        if rate > GAIN * self._best_rate:
            self._best_rate, self._best_limit, self._flat = rate, self.limit, 0
        else:
            self._flat += 1
        more = self.limit < self.most and self._flat < FLAT_ROUNDS
        self._set(2 * self.limit if more else self._best_limit if self._flat else self.limit)

    def advanced(self, prompt_tokens: int, answer_tokens: int) -> None:
        """Note the tokens that the engine of a server of ours has computed so far."""
        if self._flat_steps >= FLAT_ROUNDS or self.limit == self.most:
            return
        now_s, work = self._clock(), prompt_tokens + ANSWER_TOKEN * answer_tokens
        began_s, old_work = self._step or (now_s, work)
        if self._step is not None and now_s - began_s < STEP_S:
            return
        self._step = now_s, work
        rate = (work - old_work) / max(now_s - began_s, 1e-6)
        if rate > GAIN * self._best_work:
            self._best_work, self._flat_steps = rate, 0
            self._set(2 * self.limit)
        elif now_s > began_s:
            self._flat_steps += 1

    def refused(self) -> None:
        """Note a 429: the server has too much to do."""
        if self._deadline_s is None or not self._may_cut:
            return
        self._may_cut = False  # once a round: the others in flight are refused for the same reason
        self._set(int(_CUT * self.limit))

    def start_with(self, first: int) -> None:
        """Begin anew with `first` calls in flight."""
        self._best_rate = self._best_work = 0.0
        self._flat = self._rounds = self._flat_steps = 0
        self._step = None
        self._set(first)

    def has_no_deadline(self) -> None:
        """Note that the server is ours."""
        self._deadline_s = None

    def _set(self, limit: int) -> None:
        self.limit = max(1, min(self.most, limit))
        self.places.give()
        self._on_change()


def start_with(largest: int, answer_s: float) -> int:
    """Return how many calls to begin with at a server of ours that takes so long for one answer.

    So many answers come quickly even if the server computes them one after the other.
    """
    return max(_FEWEST_FIRST, min(largest, int(largest * _QUICK_ANSWER_S / max(answer_s, 1e-6))))


def _advise(is_nips: bool) -> str:
    """Say how to go on where a server has never answered; `is_nips`: it should be ours."""
    if is_nips:
        return (
            "a nip lm_server would have said how far it is: look at its log and its /health, or, "
            "where another server is behind this address, raise rollouts.request_timeout_s"
        )
    return (
        "raise rollouts.request_timeout_s if one answer alone takes longer there; otherwise ask "
        "this provider for one answer by hand, or take a smaller model or max_tokens_per_message"
    )
