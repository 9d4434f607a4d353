"""/v1/fine_tuning/jobs: create, list, retrieve, cancel, pause, resume, events, checkpoints."""

import re

from aiohttp import web

from nip_base.api_errors import ApiError, doubled_parameter, wrong_value
from nip_base.disk import want_of_space
from nip_base.wire import CreateJobRequest, parse_object
from nip_lm_server import aside
from nip_lm_server.api.bodies import MAX_SMALL_BODY_BYTES, read_object
from nip_lm_server.api.plumbing import (
    IDEMPOTENCY_KEY,
    SERVICES,
    Services,
    json_response,
    query_int,
    refuse_unknown_query,
)
from nip_lm_server.jobs.objects import JobObject

_MAX_KEY_CHARACTERS = 255
_METADATA_KEY = re.compile(r"metadata\[(.+)\]", re.DOTALL)


async def create_job(request: web.Request) -> web.StreamResponse:
    """Create a job; with an Idempotency-Key, at most once."""
    services = request.app[SERVICES]
    key = _idempotency_key(request)
    raw, plain = await read_object(request, MAX_SMALL_BODY_BYTES)
    body, payload = await aside.run(len(raw), parse_object, CreateJobRequest, plain)

    # Called only for a new job: a repeated request's answer needs no disk.
    def admit() -> None:
        problem = want_of_space(services.state_dir)
        if problem is not None:
            raise ApiError(507, f"The server can take no job: {problem}", code="disk_full")

    job, created = services.jobs.create(body, payload, key, admit)
    if created:
        services.supervisor.submit()
    return json_response(_hide_places(services, job))


def _idempotency_key(request: web.Request) -> str | None:
    """Read the key of a job from the headers. Raises ApiError 400 for a bad one, or for two."""
    keys = request.headers.getall(IDEMPOTENCY_KEY, ())
    if not keys:
        return None
    if len(keys) > 1:
        raise doubled_parameter(IDEMPOTENCY_KEY)
    if not 1 <= len(keys[0]) <= _MAX_KEY_CHARACTERS or not keys[0].isprintable():
        raise wrong_value(
            IDEMPOTENCY_KEY,
            f"Invalid '{IDEMPOTENCY_KEY}': it has {len(keys[0])} characters, expected 1 to "
            f"{_MAX_KEY_CHARACTERS} printable ones",
        )
    return keys[0]


async def list_jobs(request: web.Request) -> web.StreamResponse:
    """A page of jobs, newest first; ``metadata[key]=value`` filters, ``metadata=null`` too."""
    refuse_unknown_query(request, {"limit", "after", "metadata", "metadata["})
    pairs = {
        match[1]: value
        for name, value in request.query.items()
        if (match := _METADATA_KEY.fullmatch(name))
    }
    # OpenAI's word for jobs without any metadata.
    plain = request.query.get("metadata")
    if plain not in (None, "null") or (plain is not None and pairs):
        reason = "Invalid 'metadata': use metadata[key]=value, or metadata=null"
        raise wrong_value("metadata", reason)
    services = request.app[SERVICES]
    page = services.jobs.list(
        limit=query_int(request, "limit", 20, 1, 1000),
        after=request.query.get("after"),
        metadata=pairs if pairs or plain is not None else None,
    )
    return json_response({**page, "data": [_hide_places(services, job) for job in page["data"]]})


async def retrieve_job(request: web.Request) -> web.StreamResponse:
    """One job's object."""
    services = request.app[SERVICES]
    return json_response(_hide_places(services, services.jobs.retrieve(request.match_info["id"])))


async def cancel_job(request: web.Request) -> web.StreamResponse:
    """Cancel an unfinished job."""
    services = request.app[SERVICES]
    id = request.match_info["id"]
    job, is_new = services.jobs.cancel(id)
    if is_new:
        services.supervisor.cancel(id)
    return json_response(_hide_places(services, job))


async def pause_job(request: web.Request) -> web.StreamResponse:
    """Keep a job from running until it is resumed. A running one writes a checkpoint first."""
    services = request.app[SERVICES]
    id = request.match_info["id"]
    job, is_new = services.jobs.pause(id)
    if is_new:
        services.supervisor.pause(id)
    return json_response(_hide_places(services, job))


async def resume_job(request: web.Request) -> web.StreamResponse:
    """Let a paused job go on."""
    services = request.app[SERVICES]
    job = services.jobs.resume(request.match_info["id"])
    services.supervisor.submit()
    return json_response(_hide_places(services, job))


async def list_events(request: web.Request) -> web.StreamResponse:
    """A page of a job's events, newest first."""
    refuse_unknown_query(request, {"limit", "after"})
    services, id = request.app[SERVICES], request.match_info["id"]
    services.jobs.get_row(id)
    page = services.jobs.events.list_page(
        id,
        limit=query_int(request, "limit", 20, 1, 1000),
        after=request.query.get("after"),
    )
    return json_response(services.places.hide(page))


async def list_checkpoints(request: web.Request) -> web.StreamResponse:
    """A job's usable checkpoints: the final one."""
    refuse_unknown_query(request, {"limit", "after"})
    page = request.app[SERVICES].jobs.list_checkpoints(
        request.match_info["id"],
        limit=query_int(request, "limit", 10, 1, 1000),
        after=request.query.get("after"),
    )
    return json_response(page)


def _hide_places(services: Services, job: JobObject) -> JobObject:
    """A job's object as clients see it: its error names no place on this machine."""
    return {**job, "error": services.places.hide(job["error"])}
