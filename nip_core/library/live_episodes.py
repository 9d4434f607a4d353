"""An episode that a loop goes through step by step, as environments of other trainers do.

A seat is an agent that the loop asks. For the game it is a model function that waits for the loop.
"""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from nip_core.errors import NipError, SettingsError
from nip_core.game.render import Game
from nip_core.library.games import PlayableGame
from nip_core.library.played_games import Models, PlayedEpisodes, make_calls, make_context
from nip_core.nearest import did_you_mean
from nip_core.rollouts.episode import play_episode
from nip_core.rollouts.plan import ATTACK, EpisodeSpec
from nip_core.rollouts.storage.row_tables import build_tables
from nip_core.rollouts.storage.table_rows import Record
from nip_core.rollouts.turns import Played

T = TypeVar("T")
NOBODY: Models = {}
Request = dict[str, Any]
"""The next chat of a seat, as a model function gets it by name: `messages`, `seed`, and others."""
_PLACES: WeakValueDictionary[tuple[Game, asyncio.AbstractEventLoop], asyncio.Semaphore] = (
    WeakValueDictionary()
)
"""For calls of functions, those of all episodes of a game together, while any is played."""


class SeatError(NipError, RuntimeError):
    """A loop asks or answers out of turn, waits for itself, has given up, or does not run."""


@dataclass(frozen=True)
class FinishedEpisode(PlayedEpisodes):
    """A single episode, with its rewards."""

    rewards: Mapping[str, float]  # by agent
    failed: bool
    """Whether it came to no end: then no agent is paid, and none is to be trained on it."""
    error: str | None
    """Why it failed: which agent in which round, and why its last answer was invalid."""


@dataclass
class _Seat:
    news: asyncio.Event  # set where any seat is asked, and at the end
    requests: asyncio.Queue[Request | None] = field(default_factory=asyncio.Queue)
    answer: asyncio.Future[Any] | None = None
    is_asked: bool = False  # the loop waits for a request, or owes the answer
    asked_by: "asyncio.Task[Any] | None" = None  # the task of the last `next_request`
    mistake: str | None = None

    async def __call__(self, **request: Any) -> Any:
        self.answer = asyncio.get_running_loop().create_future()
        self.requests.put_nowait(request)
        self.news.set()
        return await self.answer

    def owes(self) -> bool:
        """Tell whether the play waits for this seat."""
        return self.answer is not None and not self.answer.done()

    def is_left_by(self, task: "asyncio.Task[Any] | None") -> bool:
        """Tell whether `task` asked last, or who did failed with the request in hand."""
        by = self.asked_by
        has_failed = by is not None and by.done() and (by.cancelled() or by.exception() is not None)
        # One that ended well may have only brought the request, as `asyncio.wait_for` has it.
        return by is task or (self.is_asked and has_failed)


def _pick(seats: Mapping[str, T], name: str) -> T:
    if name not in seats:
        hint = did_you_mean(name, seats)
        raise SettingsError(f"{name!r} is no seat{hint}; there are {', '.join(seats) or 'none'}")
    return seats[name]


class LiveEpisode(AbstractAsyncContextManager["LiveEpisode"]):
    """An episode while it is played. ``async with`` gives it up where a loop leaves early.

    A seat whose turn it is not waits, so several seats are asked by a task each.
    """

    def __init__(
        self,
        game: PlayableGame,
        spec: EpisodeSpec,
        seats: Iterable[str],
        models: Models = NOBODY,
        *,
        records_tokens: bool = False,
    ) -> None:
        """Begin an episode of ``game.plan(...)`` in the running event loop.

        The loop asks `seats`, and `models` play the others, as in `play`, at most
        `rollouts.concurrency` calls at a time in all episodes of a game. With `records_tokens` the
        seats are asked for tokens, as `play` asks. Raises SettingsError for a seat that no model
        plays, an agent without a function or with a seat and a function of its own, and a choice
        among messages.
        """
        if isinstance(seats, str):
            raise SettingsError(f"seats: got the text {seats!r}; give a list of names: [{seats!r}]")
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise SeatError(
                "LiveEpisode: there is no running event loop; make it in an async function"
            ) from None
        agents = game.parameters.model_agents
        if spec.split == ATTACK and game.parameters.choice is not None:
            raise SettingsError("split attack: it is played by attack(...); use the split test")
        self._game, self._problem = game.game, spec.problem.id
        self._news = asyncio.Event()
        self._seats = {name: _Seat(self._news) for name in seats if _pick(agents, name)}
        by_agent = models if isinstance(models, Mapping) else {}
        if twice := [name for name in self._seats if name in by_agent]:
            raise SettingsError(
                f"models: {', '.join(twice)} has a seat, so its function would never be called; "
                "take the agent out of seats, or out of models"
            )
        places = asyncio.Semaphore(game.parameters.rollouts.concurrency)
        places = _PLACES.setdefault((game.game, loop), places)
        calls = make_calls(game.game, models, places, self._seats)
        model_names = {name: agent.model_name for name, agent in agents.items()}
        with_tokens = self._seats if records_tokens else ()
        context = make_context(game.game, model_names, calls, self, with_tokens)
        self._play: asyncio.Task[Played] = asyncio.create_task(play_episode(spec, context))
        self._play.add_done_callback(self._end)

    async def next_request(self, seat: str) -> Request | None:
        """Wait for the next chat of a seat; None: the episode is over.

        Raises the error that ended the play, at every seat, and SeatError for one already asked.
        """
        place = _pick(self._seats, seat)
        if place.is_asked:
            raise SeatError(f"{seat} is asked already; give its answer before the next request")
        place.is_asked, request, place.asked_by = True, None, asyncio.current_task()
        self._news.set()
        try:
            if not self._is_over():
                request = await place.requests.get()
            if self._is_over():  # the game has ended, and a request that still stood there with it
                request = None
        finally:
            place.is_asked = request is not None
        if request is None:
            await self._wait()
        return request

    def answer(self, seat: str, answer: Any) -> None:
        """Answer the last request as a model function does; an exception counts as raised by it.

        Raises SeatError if there is no request.
        """
        place = _pick(self._seats, seat)
        future = place.answer
        if not place.is_asked or future is None or (future.done() and not future.cancelled()):
            raise SeatError(f"{seat}: no answer is awaited; take next_request({seat!r}) first")
        if future.cancelled():
            pass  # by the end of the play, for which the next request says why
        elif isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        place.is_asked = False

    def find_mistake(self, seat: str) -> str | None:
        """Find why the last answer was invalid, once the next request is there; None: it wasn't."""
        return _pick(self._seats, seat).mistake

    async def finish(self) -> FinishedEpisode:
        """Wait for the end. Raises the error that ended the play.

        Raises SeatError where a seat owes an answer, comes to owe one to the task that waits here,
        or is left by a task that failed: the play would wait for ever.
        """
        owing = [name for name, place in self._seats.items() if place.owes()]
        while not self._is_over():
            if owing:
                seat = owing[0]
                take = "" if self._seats[seat].is_asked else f"take next_request({seat!r}), then "
                raise SeatError(
                    f"{self._problem}: {seat} owes an answer, so the episode can't end; {take}give "
                    f"answer({seat!r}, ...), or leave the episode by aclose()"
                )
            self._news.clear()
            this, news = asyncio.current_task(), asyncio.create_task(self._news.wait())
            askers = {p.asked_by for p in self._seats.values() if p.asked_by is not None} - {this}
            waits = [news, *(asker for asker in askers if not asker.done())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
            # Another task may still go on with its seats.
            owing = [n for n, p in self._seats.items() if p.owes() and p.is_left_by(this)]
        result = await self._wait()
        [row], records = result.episodes, result.records
        generations, timings = [r.generation for r in records], [r.timing for r in records]
        tables = build_tables([row], generations, timings)
        return FinishedEpisode(self._game, tables, row.rewards, row.outcome == "failed", row.error)

    def give_up(self) -> None:
        """Give the episode up, unless it is over: no seat waits any more."""
        self._play.cancel()

    async def aclose(self) -> None:
        """Give the episode up, and wait until its calls have ended."""
        self.give_up()
        await asyncio.wait({self._play})

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def append(self, record: Record) -> None:
        """Note whether an answer is valid, in the place of a journal."""
        row = record.get("generation")
        if row is not None and row["agent"] in self._seats:
            self._seats[row["agent"]].mistake = row["invalid_reason"]

    def _is_over(self) -> bool:
        return self._play.done() or self._play.cancelling() > 0

    def _end(self, play: "asyncio.Task[Played]") -> None:
        if not play.cancelled():
            play.exception()  # raised at the seats, if a loop still asks
        self._news.set()
        for place in self._seats.values():
            place.requests.put_nowait(None)

    async def _wait(self) -> Played:
        await asyncio.wait({self._play})  # a waiter that is cancelled leaves the play alone
        if self._play.cancelled():
            raise SeatError(f"{self._problem}: the episode was given up; begin another one")
        return self._play.result()
