"""Puts a server together: state, engine, tables, trainer, routes; and takes it apart again.

open_server    state directory -> Services, with adapters restored and jobs taken up
make_app       Services -> the aiohttp application with every route
close_server   the reverse; what was unfinished continues at the next start

`__main__` adds the command line, the socket and the signals.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from aiohttp import web

from nip_core.lm_server import (
    routes_chat,
    routes_files,
    routes_jobs,
    routes_models,
)
from nip_core.lm_server.auth import KeyRing
from nip_core.lm_server.database import Database
from nip_core.lm_server.engines.base import Engine
from nip_core.lm_server.engines.deterministic import (
    DeterministicEngine,
    DeterministicTrainer,
    InjectedFault,
)
from nip_core.lm_server.engines.reply_rules import load_replies
from nip_core.lm_server.errors import ApiError
from nip_core.lm_server.files import FileStore
from nip_core.lm_server.http import SERVICES, Handler, Services, guarded, unknown_route
from nip_core.lm_server.jobs import JobTable
from nip_core.lm_server.models import ModelStore, served_name
from nip_core.lm_server.pool import EnginePool
from nip_core.lm_server.spec import ServerSpec
from nip_core.lm_server.supervisor import JobSupervisor
from nip_core.lm_server.trainers import SubprocessTrainer, Trainer

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Largest body that is not a file upload."""


def make_engine(spec: ServerSpec, environment: Mapping[str, str]) -> tuple[Engine, Trainer]:
    """The engine and the trainer of a specification. Raises ValueError if it makes no sense."""
    name = spec.served_model_name or served_name(spec.model)
    if spec.engine == "deterministic":
        if spec.options:
            raise ValueError(f"the deterministic engine has no options, got {dict(spec.options)}")
        replies = load_replies(Path(spec.replies) if spec.replies else None)
        return DeterministicEngine(name, replies), DeterministicTrainer(replies)
    if spec.engine != "embedded":
        raise ValueError(f"unknown engine {spec.engine!r}")
    if spec.replies is not None:
        raise ValueError("--replies belongs to the deterministic engine")
    try:
        from nip_core.lm_server.engines.embedded import EmbeddedEngine
    except ImportError as error:
        raise ValueError(
            f"the embedded engine needs the extra 'local' (pip install nip[local]): {error}"
        ) from error
    try:
        engine = EmbeddedEngine(spec.model, name, **spec.options)
    except TypeError as error:
        raise ValueError(f"an option of the embedded engine is wrong: {error}") from error
    return engine, SubprocessTrainer("nip_core.lm_server.training.sft", spec.model, environment)


async def open_server(
    state_dir: Path,
    spec: ServerSpec,
    keys: KeyRing,
    environment: Mapping[str, str] = os.environ,
) -> Services:
    """Start the engine and everything around it. The caller holds the state directory's lock.

    Raises ValueError for a wrong specification, EngineError if the engine can't start, and
    database.StateError if the state directory has another format.
    """
    engine, trainer = make_engine(spec, environment)
    database = Database(state_dir / "jobs.sqlite3")
    try:
        engine.epoch = database.get_meta("engine_epoch")
        await engine.start()
        database.set_meta("engine_epoch", engine.epoch)
        files = FileStore(state_dir / "files", database, spec.max_upload_bytes)
        models = ModelStore(state_dir / "models", database, engine)
        await models.restore()
        jobs = JobTable(database, files, models, engine.base_model, engine.max_model_len)
        supervisor = JobSupervisor(
            state_dir / "jobs", database, jobs, files, models, trainer, engine.base_model
        )
        supervisor.start()
    except BaseException:
        await engine.stop()
        database.close()
        raise
    return Services(
        state_dir=state_dir,
        keys=keys,
        database=database,
        engine=engine,
        pool=EnginePool(engine, models),
        files=files,
        models=models,
        jobs=jobs,
        supervisor=supervisor,
        configuration_digest=spec.digest(),
    )


async def close_server(services: Services) -> None:
    """End the training that runs, the engine, and the database."""
    await services.supervisor.stop()
    await services.engine.stop()
    services.database.close()


def make_app(services: Services) -> web.Application:
    """The application. It owns nothing: closing it leaves `services` as they are."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app[SERVICES] = services
    add = app.router.add_route
    routes: list[tuple[str, str, Handler]] = [
        ("POST", "/v1/chat/completions", _with_faults(routes_chat.create_chat_completion)),
        ("POST", "/tokenize", routes_chat.tokenize),
        ("POST", "/v1/files", routes_files.create_file),
        ("GET", "/v1/files", routes_files.list_files),
        ("GET", "/v1/files/{id}", routes_files.retrieve_file),
        ("DELETE", "/v1/files/{id}", routes_files.delete_file),
        ("GET", "/v1/files/{id}/content", routes_files.file_content),
        ("POST", "/v1/fine_tuning/jobs", routes_jobs.create_job),
        ("GET", "/v1/fine_tuning/jobs", routes_jobs.list_jobs),
        ("GET", "/v1/fine_tuning/jobs/{id}", routes_jobs.retrieve_job),
        ("POST", "/v1/fine_tuning/jobs/{id}/cancel", routes_jobs.cancel_job),
        ("GET", "/v1/fine_tuning/jobs/{id}/events", routes_jobs.list_events),
        ("GET", "/v1/fine_tuning/jobs/{id}/checkpoints", routes_jobs.list_checkpoints),
        ("GET", "/v1/models", routes_models.list_models),
        ("GET", "/v1/models/{id:.+}", routes_models.retrieve_model),
        ("DELETE", "/v1/models/{id:.+}", routes_models.delete_model),
        ("GET", "/nip/status", routes_models.status),
    ]
    for method, path, handler in routes:
        add(method, path, guarded(handler))
    add("GET", "/health", routes_models.health)
    add("GET", "/version", routes_models.version)
    add("*", "/{rest:.*}", guarded(unknown_route))
    return app


def _with_faults(handler: Handler) -> Handler:
    """Plays the transport faults that a replies file asks for."""

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
