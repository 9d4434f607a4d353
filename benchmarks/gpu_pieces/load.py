"""Chats that go on while something else is measured, in this process.

body_of    a chat of so many tokens
Load       a closed loop of them over HTTP, with how each ended
loop       the same over anything that can be asked
"""

import asyncio
import collections
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from pass_through import Place

PAUSE_S = 0.2


def body_of(model: str, text: str, max_tokens: int) -> dict[str, Any]:
    """A chat whose answer has so many tokens: a model of random weights ends none by itself."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 1.0,
    }


class Load:
    """What came of the chats: how they ended, and when answered ones had begun."""

    def __init__(self) -> None:
        self.ended: collections.Counter[str] = collections.Counter()
        self.answered: list[tuple[float, float]] = []
        """(begun, ended) of each that was answered, by `time.monotonic`."""

    async def ask(self, session: aiohttp.ClientSession, place: Place, body: dict[str, Any]) -> None:
        """Ask once and count how it ended: a finish reason, or a status with its code."""
        began = time.monotonic()
        try:
            async with session.post(
                place.url + "/v1/chat/completions",
                json=body,
                headers={"Authorization": f"Bearer {place.key}"},
            ) as response:
                answer = await response.json(content_type=None)
                if response.status == 200:
                    self.ended[answer["choices"][0]["finish_reason"]] += 1
                    self.answered.append((began, time.monotonic()))
                    return
                how = f"{response.status} {(answer.get('error') or {}).get('code')}"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            how = type(error).__name__
        self.ended[how] += 1
        await asyncio.sleep(PAUSE_S)

    def first_after(self, moment: float) -> float | None:
        """Seconds from a moment to the first answer to a chat that began after it."""
        ends = [ended for began, ended in self.answered if began > moment]
        return round(min(ends) - moment, 3) if ends else None


@asynccontextmanager
async def loop(in_flight: int, ask: Callable[[int], Awaitable[Any]]) -> AsyncIterator[None]:
    """Keep so many running within; `ask` gets a number of its own each time. What it raises ends
    the block.
    """
    numbers = itertools.count()

    async def keep() -> None:
        while True:
            await ask(next(numbers))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(keep()) for _ in range(in_flight)]
        yield
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def chats(
    place: Place, bodies: Sequence[dict[str, Any]], in_flight: int
) -> AsyncIterator[Load]:
    """Keep so many chats in flight within; the bodies are asked in turn."""
    load = Load()
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def ask(number: int) -> None:
            await load.ask(session, place, {**bodies[number % len(bodies)], "seed": number})

        async with loop(in_flight, ask):
            yield load
