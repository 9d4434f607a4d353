"""The state of the server, and the moves of its engines.

GET  /health, /version                     without a key
GET  /metrics                              for Prometheus
GET  /nip/status                           everything about the server
GET  /nip/engines, /nip/engines/BASE       the engines, by the base model that they serve
GET  /nip/engines/BASE/address             an engine's own address, for a busy client
POST /nip/engines/BASE/start|stop|sleep|wake
"""

import os
import shutil
from typing import Any, NotRequired, TypedDict

from aiohttp import web

from nip_base.api_errors import ApiError
from nip_base.disk import want_of_space
from nip_base.version import SERVER_VERSION
from nip_lm_server.api.metrics import CONTENT_TYPE
from nip_lm_server.api.plumbing import SERVICES, Services, json_response
from nip_lm_server.engines.base import EngineError, EngineState
from nip_lm_server.serving.engine_lifecycle import Wanted

_ACTIONS: dict[str, Wanted] = {
    "start": "running",
    "wake": "running",
    "sleep": "sleeping",
    "stop": "stopped",
}


class EngineObject(TypedDict):
    """An engine, by the base model that it serves."""

    object: str
    base_model: str
    engine: str
    state: EngineState
    wanted: Wanted
    lent_to_training: bool
    epoch: int
    restarts: int
    last_death: str | None
    adapters: list[str]
    status: dict[str, Any]
    """Facts that only its kind of engine has."""


class EngineHealth(TypedDict):
    """The state of an engine, and the number of its starts."""

    state: EngineState
    epoch: int


class Health(TypedDict):
    """Whether chat and jobs work."""

    lasting: NotRequired[list[str]]
    """The problems that do not pass by themselves, where there are some."""
    status: str
    """ok or error"""
    problems: list[str]
    engine_state: EngineState
    engine_epoch: int
    engines: dict[str, EngineHealth]
    lent_to_training: list[str]
    disk_free_bytes: int | None


async def show_health(request: web.Request) -> web.StreamResponse:
    """200 if chat and jobs work, 503 with the problems. Needs no key and tells no secret."""
    body = _health(request.app[SERVICES])
    return json_response(body, 200 if body["status"] == "ok" else 503)


async def show_version(request: web.Request) -> web.StreamResponse:
    """Answer with the server's version. Clients compare it with their own."""
    return json_response({"version": SERVER_VERSION})


async def show_status(request: web.Request) -> web.StreamResponse:
    """Answer with more than /health: facts of the engines, models with problems, running jobs."""
    services = request.app[SERVICES]
    first = services.pool.base_models()[0]
    return json_response(
        {
            **_health(services),
            "version": SERVER_VERSION,
            "pid": os.getpid(),
            "configuration_digest": services.configuration_digest,
            "base_model": first,
            "max_model_len": services.pool.base(first).max_model_len,
            "engine": _engine(services, first)["status"],
            "engines": [_engine(services, name) for name in services.pool.base_models()],
            "problems": services.places.hide(services.models.problems()),
            "running_jobs": services.supervisor.running_jobs(),
        }
    )


async def show_metrics(request: web.Request) -> web.StreamResponse:
    """Answer with all counters, in Prometheus's text format."""
    services = request.app[SERVICES]
    body = services.metrics.render(services.state_dir, services.database, services.pool)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


async def list_engines(request: web.Request) -> web.StreamResponse:
    """Every engine, by base model."""
    services = request.app[SERVICES]
    engines = [_engine(services, name) for name in services.pool.base_models()]
    return json_response({"object": "list", "data": engines})


async def retrieve_engine(request: web.Request) -> web.StreamResponse:
    """One engine."""
    services = request.app[SERVICES]
    return json_response(_engine(services, _check_base(services, request.match_info["base"])))


async def show_address(request: web.Request) -> web.StreamResponse:
    """Tell a client an engine's own address and its key, to spare it the detour.

    404 for an engine that lives in the server's own process. The engine's key is for clients that
    have the server's key, and changes with each start of the engine.
    """
    services = request.app[SERVICES]
    name = _check_base(services, request.match_info["base"])
    upstream = services.pool.engine_for(name).upstream
    if upstream is None:
        raise ApiError(
            404, f"The engine of {name!r} has no address of its own", code="not_found", param="base"
        )
    return json_response(
        {
            "object": "nip.engine.address",
            "base_url": upstream.url + "/v1",
            "api_key": upstream.api_key,
            "epoch": services.pool.base(name).engine.epoch,
        }
    )


async def move_engine(request: web.Request) -> web.StreamResponse:
    """Start, stop, put to sleep or wake an engine; answers once it is there.

    While a training has the engine's device, that happens after the training. 400 if the engine
    can't do it, 503 if it fails.
    """
    services, action = request.app[SERVICES], request.match_info["action"]
    name = _check_base(services, request.match_info["base"])
    # 1. Refuse impossible actions.
    if action not in _ACTIONS:
        raise ApiError(
            404,
            f"Unknown action {action!r}, expected one of {', '.join(_ACTIONS)}",
            code="unknown_url",
        )
    if action == "sleep" and not services.pool.base(name).engine.capabilities.sleep:
        raise ApiError(
            400, f"The engine of {name!r} can't sleep here: stop it instead", code="unsupported"
        )
    # 2. Do the action before the answer; it may take an engine's start.
    try:
        await services.pool.set_wanted(name, _ACTIONS[action])
    except EngineError as error:
        raise ApiError(
            503, f"The engine of {name!r} did not {action}: {error}", code="engine_error"
        ) from error
    return json_response(_engine(services, name))


def _check_base(services: Services, name: str) -> str:
    if name not in services.pool.base_models():
        names = ", ".join(services.pool.base_models())
        raise ApiError(
            404, f"No engine serves {name!r}; base models: {names}", code="not_found", param="base"
        )
    return name


def _engine(services: Services, name: str) -> EngineObject:
    base = services.pool.base(name)
    engine = base.engine
    facts: EngineObject = {
        "object": "nip.engine",
        "base_model": name,
        "engine": engine.name,
        "state": engine.state,
        "wanted": base.wanted,
        "lent_to_training": base.is_lent,
        "epoch": engine.epoch,
        "restarts": base.restarts,
        "last_death": base.last_death,
        "adapters": list(engine.loaded_adapters()),
        "status": {"name": engine.name, **engine.status()},
    }
    public_facts: EngineObject = services.places.hide(facts)
    return public_facts


def _health(services: Services) -> Health:
    free, wrong, lasting = None, [], []
    # 1. Engines that should run and don't, unless a training has their device.
    engines: dict[str, EngineHealth] = {}
    lent = []
    for name in services.pool.base_models():
        base = services.pool.base(name)
        engines[name] = {"state": base.engine.state, "epoch": base.engine.epoch}
        if base.is_away_for_training and base.wanted == "running":
            lent.append(name)
        if base.wanted == "running" and not base.is_ready:
            wrong.append(f"the engine of {name!r} {base.describe_absence()}")
    first = services.pool.base(services.pool.base_models()[0])
    if not any(services.pool.is_served(name) for name in services.pool.base_models()) and not wrong:
        wrong.append(f"the engine is {first.engine.state}")
    # 2. The disk.
    try:
        free = shutil.disk_usage(services.state_dir).free
        if (problem := want_of_space(services.state_dir)) is not None:
            lasting.append(problem)
    except OSError as error:
        lasting.append(f"the state directory can't be read: {error.strerror}")
    # 3. The queue of jobs.
    if not services.supervisor.is_healthy():
        lasting.append("no jobs are being taken, which a restart of the server mends")
    wrong += lasting
    health: Health = {
        "status": "error" if wrong else "ok",
        "problems": wrong,
        "engine_state": first.engine.state,
        "engine_epoch": first.engine.epoch,
        "engines": engines,
        "lent_to_training": lent,
        "disk_free_bytes": free,
    }
    return {"lasting": lasting, **health} if lasting else health
