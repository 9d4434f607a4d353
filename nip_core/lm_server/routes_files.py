"""/v1/files: create, list, retrieve, content, delete."""

from collections.abc import AsyncIterator
from pathlib import PurePosixPath, PureWindowsPath

from aiohttp import BodyPartReader, web

from nip_core.lm_server.errors import ApiError
from nip_core.lm_server.files import PURPOSES, StagedFile, too_large
from nip_core.lm_server.http import SERVICES, json_response, query_int, refuse_unknown_query

_FORM_OVERHEAD = 64 * 1024  # what boundaries and other fields may add to an upload


async def create_file(request: web.Request) -> web.StreamResponse:
    """Upload a file; its content is streamed to disk and checked before it has an id."""
    files = request.app[SERVICES].files
    if not request.content_type.startswith("multipart/"):
        raise ApiError(400, "The body must be multipart/form-data", code="invalid_form")
    if (request.content_length or 0) > files.max_bytes + _FORM_OVERHEAD:
        raise too_large(files.max_bytes)
    staged: StagedFile | None = None
    try:
        purpose: str | None = None
        async for part in _parts(request):
            if part.name == "file" and staged is None:
                staged = await files.stage(_chunks(part), _basename(part.filename))
            elif part.name == "purpose":
                purpose = await part.text()
            else:
                raise ApiError(
                    400,
                    f"Unknown parameter: '{part.name}'.",
                    code="unknown_parameter",
                    param=part.name,
                )
        if staged is None:
            raise _missing("file")
        if purpose is None:
            raise _missing("purpose")
        if purpose not in PURPOSES:
            raise ApiError(
                400,
                f"Invalid 'purpose': got {purpose!r}, expected one of {', '.join(PURPOSES)}",
                code="invalid_value",
                param="purpose",
            )
        created, staged = files.admit(staged, purpose), None
        return json_response(created)
    finally:
        if staged is not None:
            files.discard(staged)


async def list_files(request: web.Request) -> web.StreamResponse:
    """A page of files, newest first unless `order=asc`."""
    refuse_unknown_query(request, {"purpose", "limit", "order", "after"})
    order = request.query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise ApiError(
            400,
            f"Invalid 'order': got {order!r}, expected asc or desc",
            code="invalid_value",
            param="order",
        )
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
    path = request.app[SERVICES].files.content(request.match_info["id"])
    return web.FileResponse(path, headers={"Content-Type": "application/octet-stream"})


async def delete_file(request: web.Request) -> web.StreamResponse:
    """Delete a file that no unfinished job needs."""
    return json_response(request.app[SERVICES].files.delete(request.match_info["id"]))


async def _parts(request: web.Request) -> AsyncIterator[BodyPartReader]:
    try:
        reader = await request.multipart()
        while (part := await reader.next()) is not None:
            if not isinstance(part, BodyPartReader):
                raise ApiError(400, "Nested multipart is not supported", code="invalid_form")
            yield part
    except ValueError as error:
        raise ApiError(400, f"The form can't be read: {error}", code="invalid_form") from None


async def _chunks(part: BodyPartReader) -> AsyncIterator[bytes]:
    while chunk := await part.read_chunk(256 * 1024):
        yield bytes(chunk)


def _basename(filename: str | None) -> str:
    """The last component of a client's file name; it is only ever shown."""
    name = PurePosixPath(PureWindowsPath(filename or "").name).name
    return "".join(c for c in name if c.isprintable())[:255] or "file"


def _missing(param: str) -> ApiError:
    return ApiError(
        400,
        f"Missing required parameter: '{param}'.",
        code="missing_required_parameter",
        param=param,
    )
