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
    """A loop asks or answers out of turn, has given the episode up, or does not run."""


@dataclass(frozen=True)
class FinishedEpisode(PlayedEpisodes):
    """A single episode, with its rewards."""

    rewards: Mapping[str, float]  # by agent
    failed: bool
    """Whether it came to no end: then no agent is paid, and none is to be trained on it."""


@dataclass
class _Seat:
    requests: asyncio.Queue[Request | None] = field(default_factory=asyncio.Queue)
    answer: asyncio.Future[Any] | None = None
    is_asked: bool = False  # the loop waits for a request, or owes the answer
    mistake: str | None = None

    async def __call__(self, **request: Any) -> Any:
        self.answer = asyncio.get_running_loop().create_future()
        self.requests.put_nowait(request)
        return await self.answer


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
        plays, an agent without a function, and a choice among messages.
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
        self._seats = {name: _Seat() for name in seats if _pick(agents, name)}
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
        place.is_asked, request = True, None
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

        A seat that was asked has to answer first, or the episode be given up: otherwise this waits.
        """
        result = await self._wait()
        [row], records = result.episodes, result.records
        generations, timings = [r.generation for r in records], [r.timing for r in records]
        tables = build_tables([row], generations, timings)
        return FinishedEpisode(self._game, tables, row.rewards, row.outcome == "failed")

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
        for place in self._seats.values():
            place.requests.put_nowait(None)

    async def _wait(self) -> Played:
        await asyncio.wait({self._play})  # a waiter that is cancelled leaves the play alone
        if self._play.cancelled():
            raise SeatError(f"{self._problem}: the episode was given up; begin another one")
        return self._play.result()
