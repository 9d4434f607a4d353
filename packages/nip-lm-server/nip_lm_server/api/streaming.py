"""Server-sent events: a streamed answer is sent, or broken off.

send_events    an iterator of encoded events -> the response, ``data: [DONE]`` at its end
merge_streams  several iterators as one, in the order in which their items come

An error before the first event is raised, and becomes a plain HTTP error. After it, an event with
the error object ends the stream, without ``[DONE]``.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar, cast

from aiohttp import web

CONTENT_TYPE = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"

_T = TypeVar("_T")


class ClientGone(ConnectionError):
    """The client has closed its connection. (aiohttp's own error could be an upstream's.)"""


async def send_events(
    request: web.Request,
    events: AsyncGenerator[bytes, None],
    error_body: Callable[[Exception], bytes],
) -> web.StreamResponse:
    """Send the items of `events`, then ``[DONE]``; each item is one event or several, encoded.

    An exception of `events` before its first item goes on up. Raises ClientGone if the client has
    left. The iterator is closed in any case.
    """
    headers = {"Content-Type": CONTENT_TYPE, "Cache-Control": "no-cache"}
    response = web.StreamResponse(headers=headers)
    async with aclosing(events):
        try:
            async for data in events:
                await send_piece(request, response, data)
            await send_piece(request, response, DONE)
        except ClientGone:
            raise
        except Exception as error:
            # After the first byte there is no way back to an HTTP status.
            if not response.prepared:
                raise
            await send_piece(request, response, b"data: " + error_body(error) + b"\n\n")
        await send_end(response)
        return response


async def send_piece(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """Send data, the response's head first if need be. Raises ClientGone."""
    try:
        if not response.prepared:
            await response.prepare(request)
        await response.write(data)
    except ConnectionError as error:
        raise ClientGone from error


async def send_end(response: web.StreamResponse) -> None:
    """End a response already begun. Raises ClientGone: the last piece may not have gone out."""
    try:
        await response.write_eof()
    except ConnectionError as error:
        raise ClientGone from error


async def merge_streams(
    iterators: Sequence[AsyncIterator[_T]],
) -> AsyncGenerator[tuple[int, _T], None]:
    """Yield (index of the iterator, item) as they come. The first exception of any is raised.

    Closing this closes all of them.
    """
    if len(iterators) == 1:
        async with closing(iterators[0]):
            async for item in iterators[0]:
                yield 0, item
        return
    # A queue as long as there are iterators: none runs far ahead of a slow client.
    ready: asyncio.Queue[tuple[int, Any]] = asyncio.Queue(maxsize=len(iterators))
    end = object()

    async def pump(index: int, iterator: AsyncIterator[_T]) -> None:
        try:
            async with closing(iterator):
                async for item in iterator:
                    await ready.put((index, item))
        except Exception as error:
            await ready.put((-1, error))
        else:
            await ready.put((index, end))

    # 1. One task for each iterator, begun one after the other: others have their turn.
    pumps: list[asyncio.Task[None]] = []

    async def begin() -> None:
        for index, iterator in enumerate(iterators):
            pumps.append(asyncio.create_task(pump(index, iterator)))
            await asyncio.sleep(0)

    beginning = asyncio.create_task(begin())
    try:
        # 2. Their items, until all have ended or one fails.
        running = len(iterators)
        while running:
            index, item = await ready.get()
            if index < 0:
                raise item
            if item is end:
                running -= 1
            else:
                yield index, item
    finally:
        # 3. Those that still run abandon their requests.
        tasks = [beginning, *pumps]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def closing(iterator: AsyncIterator[_T]) -> aclosing[AsyncGenerator[_T, None]]:
    """Close an engine's stream at the end of a ``with``, and so abandon its request."""
    return aclosing(cast(AsyncGenerator[_T, None], iterator))
