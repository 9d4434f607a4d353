"""Passing the events of an upstream's stream on, without a look at most of them.

relay         an upstream's streamed answer -> the client's, its end or its error included
WholeEvents   the bytes of a stream that may be sent on
find_aborted  the place where an answer says that the upstream broke it off
read_usage    the token counts in a body

Each piece from the upstream's socket is searched for the few words that matter, and written to the
client's socket in the same turn of the event loop: no task is woken and no JSON read for a token.
"""

import asyncio
import json
import re
from collections.abc import Callable

from aiohttp import HttpVersion11, web

from nip_base.api_errors import ApiError
from nip_lm_server.api.streaming import CONTENT_TYPE, ClientGone, send_end, send_piece
from nip_lm_server.api.upstream.engine_http import Answer, EngineLost

RETRY_AFTER_S = 5
_UNSENT_BYTES = 64 * 1024
"""With so much unsent to a slow client, no more is read from the upstream."""
_ABORTED = re.compile(rb'"finish_reason":\s*"abort"')
"""An answer that the upstream broke off. Quoted in a text its quotation marks have backslashes."""
_EVENT_END = b"\n\n"
_GENERATED = b'"completion_tokens":'
_COUNTS = {
    name: re.compile(re.escape(name) + rb"\s*([0-9]{1,11})")
    for name in (b'"prompt_tokens":', _GENERATED)
}


async def relay(
    request: web.Request, answer: Answer, deadline: float, explain: Callable[[Exception], ApiError]
) -> tuple[web.StreamResponse, tuple[int, int]]:
    """Send the events on as they come, ``[DONE]`` among them, until `deadline` of the loop's clock.

    Returns the response and (prompt tokens, generated tokens). Raises an error before the first
    event: ApiError 503 for an answer that was broken off, EngineLost, TimeoutError. After it, an
    event with `explain`'s error object ends the stream, without ``[DONE]``. Raises ClientGone if
    the client has left.
    """
    stream = _Stream(request, answer)
    try:
        async with asyncio.timeout_at(deadline):
            await stream.send_all()
    except (ApiError, EngineLost, TimeoutError) as error:
        if not stream.response.prepared:
            raise
        event = b"data: " + json.dumps(explain(error).body()).encode() + _EVENT_END
        await send_piece(request, stream.response, event)
    await send_end(stream.response)
    return stream.response, stream.events.usage


class _Stream:
    """A streamed answer on its way from an upstream to a client."""

    def __init__(self, request: web.Request, answer: Answer):
        self._request, self._answer = request, answer
        self._transport = request.transport
        self.events = WholeEvents()
        self._first = b""
        headers = {"Content-Type": CONTENT_TYPE, "Cache-Control": "no-cache"}
        self.response = web.StreamResponse(headers=headers)
        if request.version >= HttpVersion11:
            self.response.enable_chunked_encoding()

    async def send_all(self) -> None:
        """Send all events. Raises ApiError 503 where the upstream reports a broken answer."""
        events, answer = self.events, self._answer
        # 1. The first events start the response; a failure before them can still be a status.
        has_ended = await answer.pass_on(self._hold)
        if has_ended and not events.broken_off:
            self._first += events.rest()
        if events.broken_off and not self._first:
            raise broken_off_error()
        await send_piece(self._request, self.response, self._first)
        # 2. The others, straight from socket to socket; a client that is slow is waited for.
        while not has_ended and not events.broken_off:
            has_ended = await answer.pass_on(self._write)
            await self._drain()
        # 3. The end: a stream need not end with a whole event.
        if has_ended and not events.broken_off:
            await send_piece(self._request, self.response, events.rest())
        if events.broken_off:
            raise broken_off_error()

    async def _drain(self) -> None:
        try:
            await self._request.writer.drain()
        except ConnectionError as error:
            raise ClientGone from error

    def _hold(self, data: bytes) -> bool:
        """Keep the first whole events; true once there are any."""
        self._first += self.events.take(data)
        return bool(self._first) or self.events.broken_off

    def _write(self, data: bytes) -> bool:
        """Write whole events to the client's socket; true if no more may come for now."""
        events = self.events.take(data)
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ClientGone
        if events:
            # Framed here: aiohttp's own framing is a coroutine.
            if self.response.chunked:
                events = b"%x\r\n%b\r\n" % (len(events), events)
            transport.write(events)
        return self.events.broken_off or transport.get_write_buffer_size() > _UNSENT_BYTES


class WholeEvents:
    """Lets the whole events of a stream through, up to the upstream's word of a broken answer.

    Half an event could not be taken back. `usage` is (prompt tokens, generated tokens), zeros until
    an event has the counts.
    """

    def __init__(self) -> None:
        self.broken_off = False
        self.usage = (0, 0)
        self._part = b""

    def take(self, data: bytes) -> bytes:
        """Add `data` and return the whole events it completes."""
        if self.broken_off:
            return b""
        # 1. Whole events only.
        events, part = (self._part + data if self._part else data), b""
        if not events.endswith(_EVENT_END):
            events, part = _split(events, len(events))
        self._part = part
        # 2. Neither the event with the upstream's word, nor anything after it.
        place = find_aborted(events)
        if place is not None:
            self.broken_off = True
            events, _ = _split(events, place)
        # 3. The counts stand in the last event, if the client wants them.
        if _GENERATED in events:
            self.usage = read_usage(events)
        return events

    def rest(self) -> bytes:
        """Return an unfinished event at the stream's end, as far as it may be sent on."""
        part, self._part = self._part, b""
        self.broken_off = self.broken_off or find_aborted(part) is not None
        return b"" if self.broken_off else part


def _split(data: bytes, place: int) -> tuple[bytes, bytes]:
    """Split `data` behind its last whole event before `place`."""
    end = data.rfind(_EVENT_END, 0, place)
    end = 0 if end < 0 else end + len(_EVENT_END)
    return data[:end], data[end:]


def find_aborted(data: bytes) -> int | None:
    """Return the place of the upstream's word of a broken answer, None without one.

    Most answers have no such word at all, and a plain search finds that out.
    """
    match = _ABORTED.search(data) if b'"abort"' in data else None
    return None if match is None else match.start()


def broken_off_error() -> ApiError:
    """The error of a broken answer. vLLM sends one, with status 200, when it is put to sleep."""
    return ApiError(
        503,
        "The engine broke this answer off, as it leaves its device to a training or sleeps: ask "
        "again",
        code="engine_training",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def read_usage(body: bytes) -> tuple[int, int]:
    """(prompt tokens, generated tokens) as the last numbers of these names in a body.

    Only for the metrics, so the body isn't decoded for it.
    """
    counts = []
    for name, number in _COUNTS.items():
        match = number.match(body, max(0, body.rfind(name)))
        counts.append(int(match[1]) if match else 0)
    return counts[0], counts[1]
