"""/v1/files: create, list, retrieve, content, delete."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import PurePosixPath, PureWindowsPath

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import BadHttpMessage

from nip_base.api_errors import (
    ApiError,
    doubled_parameter,
    invalid_value,
    missing_parameter,
    other_value,
    unknown_parameter,
    unsupported_header,
)
from nip_lm_server.api.plumbing import SERVICES, json_response, query_int, refuse_unknown_query
from nip_lm_server.state.files import PURPOSES, StagedFile, too_large_error

_FORM_OVERHEAD = 64 * 1024  # of boundaries and other fields, in an upload
_MAX_FIELD_BYTES = 1024
_CHUNK_BYTES = 256 * 1024
DRAIN_S = 120.0
"""Longest time for which a refused upload is read on, so that its client sees the answer."""
DRAIN_IDLE_S = 5.0
"""... and the longest pause in it."""
_EXPIRES_AFTER = ("expires_after[anchor]", "expires_after[seconds]")
_EXPIRY_S = range(3600, 2_592_000 + 1)


async def create_file(request: web.Request) -> web.StreamResponse:
    """Upload a file; its content is streamed to disk and checked before it has an id."""
    try:
        return await _create_file(request)
    except ApiError as error:
        if error.status != 413:
            raise
        return await _refuse_while_sending(request, error)


async def _create_file(request: web.Request) -> web.StreamResponse:
    files = request.app[SERVICES].files
    # 1. A form, of an allowed size.
    if not request.content_type.startswith("multipart/"):
        raise _invalid_form("The body must be multipart/form-data")
    if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise unsupported_header("Content-Encoding", "an upload is taken as it is, not packed")
    if (request.content_length or 0) > files.max_bytes + _FORM_OVERHEAD:
        raise too_large_error(files.max_bytes)
    # 2. Its parts; the file goes to the disk as it comes.
    staged: StagedFile | None = None
    try:
        fields: dict[str, str] = {}
        async for part in _parts(request):
            name = part.name or ""
            if name in fields or (name == "file" and staged is not None):
                raise doubled_parameter(name)
            if name == "file":
                staged = await files.stage(_chunks(part), _basename(part.filename))
            elif name in ("purpose", *_EXPIRES_AFTER):
                fields[name] = await _text(part, name)
            else:
                raise unknown_parameter(name)
        # 3. A complete form becomes a file with an id.
        if staged is None:
            raise missing_parameter("file")
        purpose = fields.get("purpose")
        if purpose is None:
            raise missing_parameter("purpose")
        if purpose not in PURPOSES:
            raise other_value("purpose", purpose, f"one of {', '.join(PURPOSES)}")
        created, staged = files.admit(staged, purpose, _expires_after_s(fields)), None
        return json_response(created)
    finally:
        if staged is not None:
            files.discard(staged)


async def list_files(request: web.Request) -> web.StreamResponse:
    """A page of files, newest first unless `order=asc`."""
    refuse_unknown_query(request, {"purpose", "limit", "order", "after"})
    order = request.query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise other_value("order", order, "asc or desc")
    page = request.app[SERVICES].files.list(
        purpose=request.query.get("purpose"),
        limit=query_int(request, "limit", 10_000, 1, 10_000),
        after=request.query.get("after"),
        descending=order == "desc",
    )
    return json_response(page)


async def retrieve_file(request: web.Request) -> web.StreamResponse:
    """One file's object."""
    return json_response(request.app[SERVICES].files.retrieve(request.match_info["id"]))


async def file_content(request: web.Request) -> web.StreamResponse:
    """One file's content."""
    path = await request.app[SERVICES].files.find_intact(request.match_info["id"])
    return web.FileResponse(path, headers={"Content-Type": "application/octet-stream"})


async def delete_file(request: web.Request) -> web.StreamResponse:
    """Delete a file, unless an unfinished job needs it."""
    return json_response(request.app[SERVICES].files.delete(request.match_info["id"]))


async def _refuse_while_sending(request: web.Request, error: ApiError) -> web.StreamResponse:
    """Answer at once, then read and forget the rest of the upload.

    Most clients read no answer before they have sent everything. If the connection were closed
    while they send, they would report a broken connection and not the answer.
    """
    # 1. The whole answer, at once.
    response = json_response(error.body(), error.status, error.headers)
    await response.prepare(request)
    await response.write_eof()
    # 2. The rest of the upload, until it ends, stops coming, or takes too long.
    with contextlib.suppress(TimeoutError, ConnectionError, web.RequestPayloadError):
        async with asyncio.timeout(DRAIN_S):
            while not request.content.at_eof():
                await asyncio.wait_for(request.content.readany(), DRAIN_IDLE_S)
    return response


async def _parts(request: web.Request) -> AsyncIterator[BodyPartReader]:
    with _readable():
        reader = await request.multipart()
        while (part := await reader.next()) is not None:
            if not isinstance(part, BodyPartReader):
                raise _invalid_form("Nested multipart is not supported")
            _check_encoding(part)
            yield part


async def _chunks(part: BodyPartReader) -> AsyncIterator[bytes]:
    with _readable():
        while chunk := await part.read_chunk(_CHUNK_BYTES):
            yield bytes(chunk)


async def _text(part: BodyPartReader, name: str) -> str:
    """A short field. Raises ApiError 400 if it is long or no UTF-8."""
    content = b""
    async for chunk in _chunks(part):
        content += chunk
        if len(content) > _MAX_FIELD_BYTES:
            break
    with contextlib.suppress(UnicodeDecodeError):
        if len(content) <= _MAX_FIELD_BYTES:
            return content.decode()
    raise invalid_value(name, content, f"UTF-8 text of at most {_MAX_FIELD_BYTES} bytes")


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Turns aiohttp's exceptions for a broken form into an ApiError 400."""
    try:
        yield
    except (ValueError, BadHttpMessage) as error:
        raise _invalid_form(f"The form can't be read: {error}") from None


def _check_encoding(part: BodyPartReader) -> None:
    """Refuse a part that would be stored with another content than its sender meant."""
    encoding = part.headers.get("Content-Encoding", "identity").lower()
    transfer = part.headers.get("Content-Transfer-Encoding", "binary").lower()
    if encoding != "identity" or transfer not in ("binary", "8bit", "7bit"):
        raise _invalid_form(
            f"A part of the form is encoded ({encoding}, {transfer}): send it as it is"
        )


def _invalid_form(message: str) -> ApiError:
    return ApiError(400, message, code="invalid_form")


def _expires_after_s(fields: Mapping[str, str]) -> int | None:
    """Return the seconds from a file's creation to its expiry, None for never."""
    # Both or neither: one alone says nothing.
    anchor, seconds = (fields.get(name) for name in _EXPIRES_AFTER)
    if anchor is None and seconds is None:
        return None
    for name, value in zip(_EXPIRES_AFTER, (anchor, seconds), strict=True):
        if value is None:
            raise missing_parameter(name)
    if anchor != "created_at":
        raise other_value(_EXPIRES_AFTER[0], anchor, "'created_at'")
    if not re.fullmatch(r"[0-9]{1,9}", seconds or "") or int(seconds or "") not in _EXPIRY_S:
        expected = f"an integer from {_EXPIRY_S[0]} to {_EXPIRY_S[-1]}"
        raise other_value(_EXPIRES_AFTER[1], seconds, expected)
    return int(seconds or "")


def _basename(filename: str | None) -> str:
    """The last component of a client's file name; it is only ever shown."""
    # A Windows path's last component first: on POSIX its backslashes are letters.
    name = PurePosixPath(PureWindowsPath(filename or "").name).name
    return "".join(c for c in name if c.isprintable())[:255] or "file"
