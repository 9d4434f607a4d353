"""The JSON body of a request: read, unpacked, parsed and handed out within bounds.

read_object   request -> (bytes, object)
read_bytes    request -> bytes of any kind
unpack        a packed body -> its bytes

aiohttp unpacks nothing here (see `connections.make_runner`): so nothing is unpacked before the key
is checked, for a route that takes no body, or to be thrown away.
"""

import asyncio
import zlib
from typing import Any

from aiohttp import web

from nip_base.api_errors import ApiError
from nip_lm_server import aside
from nip_lm_server.api.plumbing import json_object, take_notes

MAX_BODY_BYTES = 8 * 1024 * 1024
"""Largest JSON body of a generation, unpacked."""
MAX_SMALL_BODY_BYTES = 256 * 1024
"""The same for everything else."""
_STEP_BYTES = 1 << 20


async def read_object(
    request: web.Request, max_bytes: int = MAX_BODY_BYTES
) -> tuple[bytes, dict[str, Any]]:
    """The body of at most `max_bytes`, and the JSON object in it. Raises ApiError 400, 413."""
    raw = await read_bytes(request, max_bytes)
    # Parse; where it is large, beside the event loop.
    take_notes(request).body_bytes = len(raw)
    return raw, await aside.run(len(raw), json_object, raw)


async def read_bytes(request: web.Request, max_bytes: int) -> bytes:
    """The body, unpacked, of at most `max_bytes`. Raises ApiError 400, 413."""
    # 1. Read, no further than to the limit.
    if (request.content_length or 0) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    while chunk := await request.content.readany():
        body += chunk
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    # 2. Unpack, within the same limit.
    raw = bytes(body)
    if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raw = await asyncio.to_thread(unpack, raw, max_bytes)
    return raw


def unpack(packed: bytes, max_bytes: int) -> bytes:
    """Undo gzip or zlib, up to `max_bytes`. Raises ApiError 400, 413."""
    unpacker = zlib.decompressobj(wbits=47)  # either header
    body = bytearray()
    remainder = packed
    try:
        while remainder and not unpacker.eof:
            body += unpacker.decompress(remainder, min(_STEP_BYTES, max_bytes + 1 - len(body)))
            if len(body) > max_bytes:
                raise _too_large(max_bytes)
            remainder = unpacker.unconsumed_tail
    except zlib.error:
        raise _unreadable() from None
    # Broken off, or with something behind its end that no reader would look at.
    if not unpacker.eof or unpacker.unused_data:
        raise _unreadable()
    return bytes(body)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"The body is too large: at most {max_bytes} bytes are taken, unpacked",
        code="request_too_large",
    )


def _unreadable() -> ApiError:
    return ApiError(
        400,
        "The body can't be read: it is broken off, or not encoded as its headers say",
        code="invalid_body",
    )
