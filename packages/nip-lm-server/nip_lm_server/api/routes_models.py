"""/v1/models: list, retrieve, delete of a fine-tune."""

from typing import Any, Literal, TypedDict

from aiohttp import web

from nip_base.api_errors import ApiError, model_not_found
from nip_base.wire import ORGANIZATION_ID
from nip_lm_server.api.plumbing import SERVICES, Services, json_response, refuse_unknown_query
from nip_lm_server.state.database import load
from nip_lm_server.state.rows import ModelRow


class BaseExtension(TypedDict):
    """A base model of the configuration, and the engine that serves it."""

    engine: str
    engine_epoch: int
    served: bool
    max_model_len: int | None


class FineTuneExtension(TypedDict):
    """A model that was made here, with its job, its parent and its latest `Proof`."""

    kind: Literal["adapter", "base"]
    digest: str
    content_digest: str
    job: str
    base_model: str
    parent: str | None
    proof: dict[str, Any]
    engine_epoch: int
    served: bool


class ModelObject(TypedDict):
    """OpenAI's `model`, with the extension object `nip`."""

    id: str
    object: str
    created: int
    owned_by: str
    nip: BaseExtension | FineTuneExtension


async def list_models(request: web.Request) -> web.StreamResponse:
    """The base models, then every fine-tune, oldest first; those with a problem are left out."""
    refuse_unknown_query(request, set())
    services = request.app[SERVICES]
    # A full training's result is a base model and a row: it is listed once, as the row.
    rows = [row for row in services.models.list_rows() if row.problem is None]
    row_names = {row.name for row in rows}
    bases = [name for name in services.pool.base_models() if name not in row_names]
    base_names = {*services.pool.base_models()}
    data = [_base_object(services, name) for name in bases]
    data += [_object(services, row) for row in rows if row.base_model in base_names]
    return json_response({"object": "list", "data": data})


async def retrieve_model(request: web.Request) -> web.StreamResponse:
    """One model's object: 404 if there is none, 503 with the reason if it can't be served."""
    services, name = request.app[SERVICES], request.match_info["id"]
    row = services.models.get_row(name)
    if row is None:
        if name not in services.pool.base_models():
            raise model_not_found(name, services.pool.names())
        return json_response(_base_object(services, name))
    if row.problem is not None or row.base_model not in services.pool.base_models():
        reason = row.problem or f"it belongs to the base model {row.base_model!r}"
        raise ApiError(
            503,
            f"The model {name!r} exists but is not served: {reason}",
            code="model_not_served",
            param="model",
        )
    return json_response(_object(services, row))


async def delete_model(request: web.Request) -> web.StreamResponse:
    """Delete an unneeded fine-tune. Answers 403 for a base model, 409 while others need it."""
    services, name = request.app[SERVICES], request.match_info["id"]
    row = services.models.get_row(name)
    if row is None:
        if name not in services.pool.base_models():
            raise model_not_found(name, services.pool.names())
        raise ApiError(
            403,
            f"{name!r} is a base model of the configuration: only fine-tuned models can be deleted",
            code="base_model",
            param="model",
        )
    # A model that a job or another model needs stays.
    user = services.models.find_user(name)
    if user is not None:
        raise ApiError(409, f"{name!r} is needed by {user}", code="model_in_use", param="model")
    await services.pool.withdraw(name)
    # First, because on a full disk the mark can't be written before.
    services.models.remove(row.digest)
    services.models.mark_deleted(name)
    return json_response({"id": name, "object": "model", "deleted": True})


def _base_object(services: Services, name: str) -> ModelObject:
    engine = services.pool.base(name).engine
    extension: BaseExtension = {
        "engine": engine.name,
        "engine_epoch": engine.epoch,
        "served": services.pool.is_served(name),
        "max_model_len": services.pool.base(name).max_model_len,
    }
    return _model(name, services.created_at, "nip", extension)


def _object(services: Services, row: ModelRow) -> ModelObject:
    extension: FineTuneExtension = {
        "kind": row.kind,
        "digest": row.digest,
        "content_digest": row.content_digest,
        "job": row.job_id,
        "base_model": row.base_model,
        "parent": row.parent,
        "proof": load(row.proof),
        "engine_epoch": row.engine_epoch,
        "served": services.pool.is_served(row.name),
    }
    return _model(row.name, row.created_at, ORGANIZATION_ID, extension)


def _model(
    id: str, created_at: float, owner: str, extension: BaseExtension | FineTuneExtension
) -> ModelObject:
    return {
        "id": id,
        "object": "model",
        "created": int(created_at),
        "owned_by": owner,
        "nip": extension,
    }
