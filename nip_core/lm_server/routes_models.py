"""/v1/models, and what says how the server is: /health, /version, /nip/status."""

import os
import shutil
from typing import Any

from aiohttp import web

from nip_core.lm_server.http import SERVICES, Services, json_response
from nip_core.lm_server.routes_jobs import MIN_FREE_BYTES
from nip_core.lm_server.version import SERVER_VERSION


async def list_models(request: web.Request) -> web.StreamResponse:
    """The base model and every served adapter."""
    return json_response(request.app[SERVICES].models.list())


async def retrieve_model(request: web.Request) -> web.StreamResponse:
    """One model's object."""
    return json_response(request.app[SERVICES].models.retrieve(request.match_info["id"]))


async def delete_model(request: web.Request) -> web.StreamResponse:
    """Delete an adapter that nothing refers to."""
    return json_response(await request.app[SERVICES].models.delete(request.match_info["id"]))


async def health(request: web.Request) -> web.StreamResponse:
    """200 if chat and jobs work, 503 with what doesn't. Needs no key and tells no secret."""
    services = request.app[SERVICES]
    body = _health(services)
    return json_response(body, 200 if body["status"] == "ok" else 503)


async def version(request: web.Request) -> web.StreamResponse:
    """The server's version, which clients compare with their own."""
    return json_response({"version": SERVER_VERSION})


async def status(request: web.Request) -> web.StreamResponse:
    """More than /health: the engine's facts, adapters with problems, the running job."""
    services = request.app[SERVICES]
    return json_response(
        {
            **_health(services),
            "version": SERVER_VERSION,
            "pid": os.getpid(),
            "configuration_digest": services.configuration_digest,
            "engine": {"name": services.engine.name, **services.engine.status()},
            "base_model": services.engine.base_model,
            "max_model_len": services.engine.max_model_len,
            "adapters": list(services.engine.loaded_adapters()),
            "problems": services.models.problems(),
            "running_job": services.supervisor.running_job,
        }
    )


def _health(services: Services) -> dict[str, Any]:
    engine_state = str(services.engine.status().get("state", "unknown"))
    free = shutil.disk_usage(services.state_dir).free
    wrong = []
    if engine_state != "running":
        wrong.append(f"the engine is {engine_state}")
    if free < MIN_FREE_BYTES:
        wrong.append(f"the disk has only {free} bytes left")
    if not services.supervisor.healthy():
        wrong.append("no jobs are being taken")
    return {
        "status": "error" if wrong else "ok",
        "problems": wrong,
        "engine_state": engine_state,
        "engine_epoch": services.engine.epoch,
        "disk_free_bytes": free,
    }
