"""Tinker's API: training runs, checkpoints, their lifetimes and files, under ``/api/v1/``."""

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypedDict
from urllib.parse import quote

from aiohttp import web

from nip_base.api_errors import ApiError, wrong_value
from nip_lm_server.api.bodies import MAX_SMALL_BODY_BYTES, read_object
from nip_lm_server.api.plumbing import SERVICES, json_response
from nip_lm_server.api.tinker.routes_tinker import open_service
from nip_lm_server.state.models import AdapterError
from nip_lm_server.tinker import tinker_bodies as bodies
from nip_lm_server.tinker.service import TinkerService
from nip_lm_server.tinker.storage.records import CheckpointRow, TinkerModelRow
from nip_lm_server.tinker.tinker_bodies import read_body

URL_S = 3600.0
"""So long the address of a file answers."""
_MOST_ROWS = 1000
_TYPES = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}
_EXPORTED = ("adapter_config.json", "adapter_model.safetensors")
_secret = secrets.token_bytes(32)  # an address of an earlier server answers no more


class Checkpoint(TypedDict):
    """Tinker's `Checkpoint`: named weights."""

    checkpoint_id: str
    checkpoint_type: str
    time: str
    tinker_path: str
    size_bytes: int
    public: bool
    user_metadata: dict[str, str] | None
    expires_at: str | None


class TrainingRun(TypedDict):
    """Tinker's `TrainingRun`: a model in training, with its latest named weights of two kinds."""

    training_run_id: str
    base_model: str
    model_owner: str
    is_lora: bool
    corrupted: bool
    lora_rank: int
    last_request_time: str
    last_checkpoint: Checkpoint | None
    last_sampler_checkpoint: Checkpoint | None
    user_metadata: dict[str, str] | None


class SignedAddress(TypedDict):
    """The exported adapter that an address gives, until a time in seconds since 1970."""

    path: str
    until: float


async def get_server_capabilities(request: web.Request) -> web.StreamResponse:
    """Answer the base models and their abilities."""
    pool = open_service(request).pool
    models = []
    for base in pool.bases():
        can = base.engine.capabilities
        models.append(
            {
                "model_name": base.name,
                "max_context_length": base.max_model_len,
                "trainable": can.trains_resident,
                "sampleable": can.trains_resident and can.scores_given_tokens,
            }
        )
    return json_response({"supported_models": models})


async def list_training_runs(request: web.Request) -> web.StreamResponse:
    """Answer the models, the newest first."""
    limit, offset = _read_page(request)
    service = open_service(request)
    rows = service.store.list_models(limit, offset)
    runs = [_run(service, row) for row in rows]
    return json_response(
        {"training_runs": runs, "cursor": _cursor(limit, offset, service.store.count("models"))}
    )


async def retrieve_training_run(request: web.Request) -> web.StreamResponse:
    """Answer a model."""
    service = open_service(request)
    return json_response(_run(service, service.model(request.match_info["id"])))


async def list_run_checkpoints(request: web.Request) -> web.StreamResponse:
    """Answer a model's named weights."""
    service = open_service(request)
    model = service.model(request.match_info["id"])
    rows = service.store.list_checkpoints(model.id, _MOST_ROWS, 0)
    return json_response({"checkpoints": [_checkpoint(row) for row in rows]})


async def list_all_checkpoints(request: web.Request) -> web.StreamResponse:
    """Answer all named weights."""
    limit, offset = _read_page(request)
    service = open_service(request)
    rows = service.store.list_checkpoints(None, limit, offset)
    cursor = _cursor(limit, offset, service.store.count_checkpoints())
    return json_response({"checkpoints": [_checkpoint(row) for row in rows], "cursor": cursor})


async def delete_checkpoint(request: web.Request) -> web.StreamResponse:
    """Delete named weights."""
    service = open_service(request)
    await service.delete_checkpoint(_find_checkpoint(request, service))
    return web.Response(status=204)


async def set_expiry(request: web.Request) -> web.StreamResponse:
    """Set the time for which named weights are kept."""
    _, value = await read_object(request, MAX_SMALL_BODY_BYTES)
    service = open_service(request)
    row = _find_checkpoint(request, service)
    service.store.set_expiry(row.path, read_body(bodies.SetExpiry, value).ttl_seconds)
    return web.Response(status=204)


async def refuse_publishing(request: web.Request) -> web.StreamResponse:
    """Refuse to publish: every client with a key of this server reads all of it already."""
    _find_checkpoint(request, open_service(request))
    raise wrong_value(
        "path",
        "Weights are not published here: every key of this server reads all of them. "
        "Download them to publish them elsewhere",
    )


async def weights_info(request: web.Request) -> web.StreamResponse:
    """Answer the facts of a checkpoint's weights."""
    _, value = await read_object(request, MAX_SMALL_BODY_BYTES)
    row = open_service(request).checkpoint(read_body(bodies.WeightsInfo, value).tinker_path)
    return json_response(
        {
            "base_model": row.base_model,
            "is_lora": True,
            "lora_rank": row.lora.rank,
            "train_unembed": row.lora.train_unembed,
            "train_mlp": row.lora.train_mlp,
            "train_attn": row.lora.train_attn,
            "optimizer_config": {"type": "adamw"},
        }
    )


async def list_sessions(request: web.Request) -> web.StreamResponse:
    """Answer the sessions, the newest first."""
    limit, offset = _read_page(request)
    rows = open_service(request).store.list_sessions(limit, offset)
    return json_response({"sessions": [row.id for row in rows]})


async def retrieve_session(request: web.Request) -> web.StreamResponse:
    """Answer a session's models and samplers."""
    service, id = open_service(request), request.match_info["id"]
    service.session(id, open_only=False)
    return json_response(
        {
            "training_run_ids": [row.id for row in service.store.list_models_of(id)],
            "sampler_ids": [row.id for row in service.store.list_samplers_of(id)],
        }
    )


async def external_weights_urls(request: web.Request) -> web.StreamResponse:
    """Answer an address for each file of an exported adapter, good for an hour without a key."""
    service = open_service(request)
    row = _find_checkpoint(request, service)
    if row.kind != "external_weights":
        raise wrong_value("path", f"{row.path!r} is {row.kind}, expected external_weights")
    until = time.time() + URL_S
    token = _sign({"path": row.path, "until": until})
    base = f"{request.scheme}://{request.host}/api/v1/external_weights/{token}"
    return json_response(
        {
            "urls": {name: f"{base}/{quote(name)}" for name in _EXPORTED},
            "expires": _time(until),
        }
    )


async def external_weights_file(request: web.Request) -> web.StreamResponse:
    """Answer a file of an exported adapter; the address is the key."""
    facts = _read_signed(request.match_info["token"])
    name = request.match_info["name"]
    service = open_service(request)
    row = service.checkpoint(facts["path"], "external_weights")
    if name not in _EXPORTED or facts["until"] < time.time():
        raise ApiError(404, "This address is over, or no file's", code="not_found")
    try:
        folder = await service.folders.verify(row.folder, row.content_digest)
    except AdapterError as error:
        raise ApiError(500, str(error), code="file_damaged") from error
    return web.FileResponse(folder / name)


def _find_checkpoint(request: web.Request, service: TinkerService) -> CheckpointRow:
    """The weights that a path below a training run names."""
    parts = request.match_info
    return service.checkpoint(f"tinker://{parts['id']}/{parts['kind']}/{parts['name']}")


def _read_page(request: web.Request) -> tuple[int, int]:
    """Limit and offset of a list. Raises ApiError 400 for other texts than numbers in range."""
    values = []
    for name, default, high in (("limit", 20, _MOST_ROWS), ("offset", 0, 2**31)):
        text = request.query.get(name, str(default))
        if not text.isdecimal() or len(text) > 10 or not int(text) <= high:
            raise wrong_value(name, f"Invalid '{name}': got {text[:40]!r}, expected 0 to {high}")
        values.append(int(text))
    return values[0], values[1]


def _cursor(limit: int, offset: int, total: int) -> dict[str, int]:
    return {"limit": limit, "offset": offset, "total_count": total}


def _run(service: TinkerService, model: TinkerModelRow) -> TrainingRun:
    rows = service.store.list_checkpoints(model.id, _MOST_ROWS, 0)
    return {
        "training_run_id": model.id,
        "base_model": model.base_model,
        "model_owner": "nip",
        "is_lora": True,
        "corrupted": False,
        "lora_rank": model.lora.rank,
        "last_request_time": _time(service.store.find_last_time(model.id) or model.created_at),
        "last_checkpoint": _find_last(rows, "weights"),
        "last_sampler_checkpoint": _find_last(rows, "sampler_weights"),
        "user_metadata": model.user_metadata or None,
    }


def _find_last(rows: Sequence[CheckpointRow], kind: str) -> Checkpoint | None:
    """The newest named weights of a kind; the rows are newest first."""
    return next((_checkpoint(row) for row in rows if row.kind == kind), None)


def _checkpoint(row: CheckpointRow) -> Checkpoint:
    return {
        "checkpoint_id": f"{row.kind}/{row.name}",
        "checkpoint_type": _TYPES[row.kind],
        "time": _time(row.created_at),
        "tinker_path": row.path,
        "size_bytes": row.bytes,
        "public": False,
        "user_metadata": row.user_metadata or None,
        "expires_at": None if row.expires_at is None else _time(row.expires_at),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _sign(facts: SignedAddress) -> str:
    raw = json.dumps(facts).encode()
    mark = hmac.new(_secret, raw, hashlib.sha256).digest()
    return base64.urlsafe_b64encode(mark + raw).decode().rstrip("=")


def _read_signed(token: str) -> SignedAddress:
    try:
        both = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except ValueError:
        both = b""
    mark, raw = both[:32], both[32:]
    if not hmac.compare_digest(mark, hmac.new(_secret, raw, hashlib.sha256).digest()):
        raise ApiError(404, "This address is over, or no file's", code="not_found")
    facts: SignedAddress = json.loads(raw)
    return facts


def refuse_route(reason: str) -> Any:
    """Make the handler of a route that is not here, with the way out."""

    async def refuse(request: web.Request) -> web.StreamResponse:
        request.app[SERVICES].tinker.open()
        raise ApiError(404, reason, code="unknown_url")

    return refuse
