"""Puts a server together: state, engine, tables, trainer, routes; and takes it apart again.

open_server    state directory -> Services, with adapters restored and jobs taken up
make_app       Services -> the aiohttp application with every route
close_server   the reverse; unfinished work continues at the next start

`server` adds the socket and the signals, `command` the command line.
"""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from aiohttp import web

from nip_base.api_errors import ApiError, Places
from nip_base.importing import find_file
from nip_base.spec import ServerSpec
from nip_lm_server.api import (
    generation,
    routes_engines,
    routes_files,
    routes_jobs,
    routes_models,
)
from nip_lm_server.api.joined import Generations
from nip_lm_server.api.metrics import Metrics
from nip_lm_server.api.plumbing import (
    SERVICES,
    BackgroundTasks,
    Handler,
    Services,
    add_request_id,
    guard_route,
    unknown_route,
)
from nip_lm_server.api.tinker.tinker_table import add_tinker_routes
from nip_lm_server.api.upstream.proxy import Proxy
from nip_lm_server.auth import KeyRing
from nip_lm_server.engines.scripted.deterministic_engine import InjectedFault
from nip_lm_server.jobs.supervisor import JobSupervisor
from nip_lm_server.jobs.table import JobTable
from nip_lm_server.placement import make_slots
from nip_lm_server.serving.advance import AdvanceWatch
from nip_lm_server.serving.pool import EnginePool
from nip_lm_server.state.database import UNUSABLE, Database, unusable_error
from nip_lm_server.state.directory import DATABASE, FILES, JOBS, MODELS
from nip_lm_server.state.files import FileStore
from nip_lm_server.state.models import ModelStore
from nip_lm_server.tinker.door import TinkerDoor


async def open_server(
    state_dir: Path,
    spec: ServerSpec,
    keys: KeyRing,
    environment: Mapping[str, str] = os.environ,
) -> Services:
    """Start the engines and everything around them. The caller holds the state directory's lock.

    Raises ValueError for a wrong specification, EngineError if an engine can't start, and
    state.StateError if the state directory is damaged, full, or has another format.
    """
    # 1. The configuration.
    slots = make_slots(spec, environment, state_dir)
    # 2. The state on disk.
    database = Database(state_dir / DATABASE)
    try:
        # Everything that can be damaged comes first: an engine takes long to start.
        models = ModelStore(state_dir / MODELS, database)
        files = FileStore(state_dir / FILES, database, spec.max_upload_bytes)
        pool = EnginePool(slots, database, models)
        jobs = JobTable(database, files, models, pool)
        jobs.refuse_broken_rows()
        supervisor = JobSupervisor(state_dir / JOBS, jobs)
        for path in state_dir.glob("responses.sqlite3*"):
            path.unlink()  # answers that earlier servers kept, for a header that is refused now
        created_at = _created_at(database)
        # 3. The engines, and the jobs that were unfinished.
        try:
            await pool.start()
            supervisor.start()
            tinker = TinkerDoor(
                state_dir,
                pool,
                environment,
                is_served=any(base.engine.capabilities.trains_resident for base in pool.bases()),
            )
            tinker.start()
        except BaseException:
            await pool.stop()
            raise
    except BaseException as error:
        database.close()
        if isinstance(error, UNUSABLE):
            raise unusable_error(database.path, error) from error
        raise
    return Services(
        state_dir=state_dir,
        keys=keys,
        database=database,
        pool=pool,
        files=files,
        models=models,
        jobs=jobs,
        supervisor=supervisor,
        tinker=tinker,
        background=BackgroundTasks(),
        metrics=Metrics(),
        proxy=Proxy(),
        generations=Generations(),
        advances=AdvanceWatch(),
        configuration_digest=spec.digest(),
        created_at=created_at,
        places=_places(state_dir, spec),
    )


def _places(state_dir: Path, spec: ServerSpec) -> Places:
    """List the places of files an error may name: the server's own, its models, its programs."""
    paths = [path for engine in spec.engines() for path in (engine.model, engine.replies) if path]
    paths += [str(file) for engine in spec.engines() if (file := find_file(engine.engine))]
    places = [state_dir, Path(__file__).parents[1], Path.cwd(), Path.home()]
    places += [Path(path).expanduser() for path in (*paths, sys.prefix, sys.base_prefix)]
    return Places([*places, *[place.resolve() for place in places]])


def _created_at(database: Database) -> int:
    """Return the time of the state directory's first start, in seconds since the epoch."""
    created_at = database.get_meta("created_at")
    if not created_at:
        created_at = int(time.time())
        database.set_meta("created_at", created_at)
    return created_at


async def close_server(services: Services) -> None:
    """End the running trainings, the engines, and the database."""
    await services.background.close()
    await services.generations.close()
    await services.tinker.stop()
    await services.supervisor.stop()
    await services.pool.stop()
    await services.proxy.close()
    services.database.close()


def make_app(services: Services) -> web.Application:
    """The application. It owns nothing: closing it leaves `services` as they are."""
    app = web.Application()
    app[SERVICES] = services
    app.on_response_prepare.append(add_request_id)
    # 1. Routes that need a key.
    add = app.router.add_route
    routes: list[tuple[str, str, Handler]] = [
        ("POST", "/tokenize", generation.tokenize),
        ("POST", "/v1/files", routes_files.create_file),
        ("GET", "/v1/files", routes_files.list_files),
        ("GET", "/v1/files/{id}", routes_files.retrieve_file),
        ("DELETE", "/v1/files/{id}", routes_files.delete_file),
        ("GET", "/v1/files/{id}/content", routes_files.file_content),
        ("POST", "/v1/fine_tuning/jobs", routes_jobs.create_job),
        ("GET", "/v1/fine_tuning/jobs", routes_jobs.list_jobs),
        ("GET", "/v1/fine_tuning/jobs/{id}", routes_jobs.retrieve_job),
        ("POST", "/v1/fine_tuning/jobs/{id}/cancel", routes_jobs.cancel_job),
        ("POST", "/v1/fine_tuning/jobs/{id}/pause", routes_jobs.pause_job),
        ("POST", "/v1/fine_tuning/jobs/{id}/resume", routes_jobs.resume_job),
        ("GET", "/v1/fine_tuning/jobs/{id}/events", routes_jobs.list_events),
        ("GET", "/v1/fine_tuning/jobs/{id}/checkpoints", routes_jobs.list_checkpoints),
        ("GET", "/v1/models", routes_models.list_models),
        ("GET", "/v1/models/{id:.+}", routes_models.retrieve_model),
        ("DELETE", "/v1/models/{id:.+}", routes_models.delete_model),
        ("GET", "/metrics", routes_engines.show_metrics),
        ("GET", "/nip/status", routes_engines.show_status),
        ("GET", "/nip/engines", routes_engines.list_engines),
        ("GET", "/nip/engines/{base:.+}/address", routes_engines.show_address),
        ("GET", "/nip/engines/{base:.+}", routes_engines.retrieve_engine),
        ("POST", "/nip/engines/{base:.+}/{action}", routes_engines.move_engine),
    ]
    for path, answer in (
        ("/v1/chat/completions", generation.create_chat_completion),
        ("/v1/completions", generation.create_completion),
    ):
        for prefix in ("", "/oai/api"):  # the second is where Tinker has it
            route = guard_route(_play_faults(answer), abandonable=True)
            add("POST", prefix + path, route)
    for method, path, handler in routes:
        add(method, path, guard_route(handler))
        if method == "GET":
            add("HEAD", path, guard_route(handler))
    # 2. Routes that need none.
    for path, handler in (
        ("/health", routes_engines.show_health),
        ("/version", routes_engines.show_version),
    ):
        for method in ("GET", "HEAD"):
            add(method, path, guard_route(handler, key=False))
    # 3. Tinker's API, with the same keys.
    add_tinker_routes(app)
    # 4. Every other path or method gets an error, or the list of methods.
    add("*", "/{rest:.*}", guard_route(unknown_route))
    return app


def _play_faults(handler: Handler) -> Handler:
    """Wrap a handler: the transport faults of the replies file are played around it."""

    async def play(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except InjectedFault as fault:
            if fault.kind == "dropped":
                if request.transport is not None:
                    request.transport.abort()
                raise ApiError(500, "The connection was dropped", code="injected_fault") from None
            if fault.kind == "rate_limited":
                raise ApiError(
                    429,
                    "Rate limit reached",
                    code="rate_limit_exceeded",
                    headers={"Retry-After": f"{fault.retry_after_s:g}"},
                ) from None
            raise ApiError(500, "An injected server error", code="injected_fault") from None

    return play
