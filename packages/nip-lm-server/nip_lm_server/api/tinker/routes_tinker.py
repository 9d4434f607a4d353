"""Tinker's API: sessions, models, numbered requests, futures and samples, under ``/api/v1/``.

Every body is checked, entered under its number and answered with the request's id. The client gets
the result from `retrieve_future`. `routes_tinker_weights` has training runs and checkpoints.
"""

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from nip_base.api_errors import ApiError, wrong_value
from nip_lm_server import aside
from nip_lm_server.api.bodies import MAX_BODY_BYTES, read_bytes, read_object
from nip_lm_server.api.plumbing import SERVICES, json_response, take_notes
from nip_lm_server.auth import is_loopback
from nip_lm_server.tinker import tinker_bodies as bodies
from nip_lm_server.tinker.samples import check_sample, give_seed
from nip_lm_server.tinker.schema import WireError
from nip_lm_server.tinker.service import TinkerService, is_local_directory
from nip_lm_server.tinker.storage.records import LoraShape
from nip_lm_server.tinker.tinker_bodies import Refused, digest, read_body
from nip_lm_server.tinker.tinker_messages import ForwardBackward, decode_forward_backward

PROTOBUF = "application/x-protobuf"
MAX_DATA_BYTES = 32 * 1024 * 1024
"""Largest `forward_backward`. The SDK sends about 5 MB, unless a single datum is larger."""
MAX_REQUEST_BYTES = 1024 * 1024
_FLAGS: Mapping[str, Any] = {
    # Chunks then come in order, and none is waited for.
    "parallel_fwdbwd_chunks": False,
    "pjwt_auth_enabled": False,
    "proto_compress_fwdbwd": False,
    "custom_loss_server_side": False,
    "sample_use_retrieve_futures": False,
    "sample_join_sampling_session": False,
}


def open_service(request: web.Request) -> TinkerService:
    """Return the service of the routes. Raises ApiError 404 where no engine serves this API."""
    return request.app[SERVICES].tinker.open()


async def client_config(request: web.Request) -> web.StreamResponse:
    """Answer the flags that a client begins with."""
    _, value = await read_object(request, MAX_REQUEST_BYTES)
    read_body(bodies.ClientConfig, value)
    open_service(request)
    return json_response(_FLAGS)


async def client_dynamic_config(request: web.Request) -> web.StreamResponse:
    """Answer the flags that a client asks for again and again: the SDK's defaults."""
    _, value = await read_object(request, MAX_REQUEST_BYTES)
    read_body(bodies.ClientConfig, value)
    return json_response({})


async def healthz(_request: web.Request) -> web.StreamResponse:
    """Answer that the server is here."""
    return json_response({"status": "ok"})


async def telemetry(request: web.Request) -> web.StreamResponse:
    """Take a client's reports about itself, and keep nothing of them."""
    await read_bytes(request, MAX_BODY_BYTES)
    return json_response({"status": "accepted"})


async def create_session(request: web.Request) -> web.StreamResponse:
    """Begin a session."""
    _, value = await read_object(request, MAX_REQUEST_BYTES)
    body = read_body(bodies.CreateSession, value)
    metadata = {**(body.user_metadata or {})}
    if body.project_id is not None:
        raise wrong_value("project_id", "There are no projects here: leave project_id out")
    id = open_service(request).create_session(metadata, body.sdk_version)
    return json_response({"session_id": id, "type": "create_session"})


async def session_heartbeat(request: web.Request) -> web.StreamResponse:
    """Note that a client is alive."""
    _, value = await read_object(request, MAX_REQUEST_BYTES)
    id = read_body(bodies.Heartbeat, value).session_id
    service = open_service(request)
    service.session(id)
    service.store.hear_of(id)
    return json_response({"type": "session_heartbeat"})


async def finish_session(request: web.Request) -> web.StreamResponse:
    """End a session."""
    raw, value = await read_object(request, MAX_REQUEST_BYTES)
    read_body(bodies.Finish, value)
    open_service(request).finish_session(request.match_info["id"], raw.decode()[:2000])
    return web.Response(status=204)


async def create_model(request: web.Request) -> web.StreamResponse:
    """Begin a model: request 0 of it."""
    raw, value = await read_object(request, MAX_REQUEST_BYTES)
    body = read_body(bodies.CreateModel, value)
    service, kind, payload = open_service(request), "create_model", raw
    lora = body.lora_config
    try:
        bodies.check_optimizer(body.optimizer_config)
        if lora is None:
            raise Refused("only LoRA is trained through this API: give lora_config with a rank")
    except Refused as error:
        kind, payload = "refused_call", str(error).encode()
    shape = LoraShape(1) if lora is None else LoraShape(**lora.model_dump(exclude={"type"}))
    _, id = service.add_model(
        body.session_id,
        body.model_seq_id,
        body.base_model,
        shape,
        body.user_metadata,
        kind,
        digest("create_model", value),
        payload,
    )
    return json_response({"request_id": id})


async def load_weights(request: web.Request) -> web.StreamResponse:
    """Begin a model with weights of a checkpoint, or load them as a model's first request."""
    raw, value = await read_object(request, MAX_REQUEST_BYTES)
    body = read_body(bodies.LoadWeights, value)
    service, body_digest = open_service(request), digest("load_weights", value)
    if body.weights_access_token is not None:
        raise wrong_value(
            "weights_access_token", "Weights are not published here: leave the token out"
        )
    checkpoint = service.checkpoint(body.path, "weights", "sampler_weights")
    if body.optimizer and not checkpoint.has_optimizer:
        raise wrong_value(
            "optimizer",
            f"{body.path!r} was saved without the optimizer's state: load the weights alone, or "
            "name a path with /weights/",
        )
    try:
        bodies.check_optimizer(body.optimizer_config)
    except Refused as error:
        raise wrong_value("optimizer_config", str(error)) from error
    if body.session_id is not None and body.model_seq_id is not None:
        base = body.base_model or checkpoint.base_model
        if base != checkpoint.base_model:
            raise wrong_value(
                "base_model", f"{body.path!r} is over {checkpoint.base_model!r}, not {base[:120]!r}"
            )
        _, id = service.add_model(
            body.session_id,
            body.model_seq_id,
            base,
            checkpoint.lora,
            body.user_metadata,
            "load_weights",
            body_digest,
            raw,
        )
        return json_response({"request_id": id})
    if body.model_id is None or body.seq_id is None:
        raise wrong_value("session_id", "Give session_id and model_seq_id, or model_id and seq_id")
    if body.seq_id != 1:
        return _refuse(
            service, body.model_id, body.seq_id, body_digest,
            "weights are loaded as a model's first request: make another model for them",
        )  # fmt: skip
    id = service.submit(body.model_id, 1, "load_weights", body_digest, raw)
    return json_response({"request_id": id})


async def get_info(request: web.Request) -> web.StreamResponse:
    """Answer the facts of a model."""
    _, value = await read_object(request, MAX_REQUEST_BYTES)
    service = open_service(request)
    model = service.model(read_body(bodies.GetInfo, value).model_id)
    service.check_served(model.base_model)
    data: dict[str, Any] = {"model_name": model.base_model}
    path = service.pool.base(model.base_model).path
    # A client on this machine can read the tokenizer where it lies; others learn no places.
    if is_local_directory(path) and is_loopback(request.remote or "") and ":" not in path:
        data["tokenizer_id"] = path
    return json_response(
        {
            "type": "get_info",
            "model_id": model.id,
            "model_data": data,
            "is_lora": True,
            "lora_rank": model.lora.rank,
            "model_name": model.base_model,
            "optimizer_config": {"type": "adamw"},
        }
    )


async def forward_backward(request: web.Request) -> web.StreamResponse:
    """Submit a `forward` or `forward_backward` request and answer with the request's id."""
    service = open_service(request)
    if request.content_type != PROTOBUF:
        raise ApiError(
            415,
            f"The body is {request.content_type!r}, expected {PROTOBUF}: use the SDK from 0.25 on",
            code="unsupported_value",
            param="Content-Type",
        )
    raw = await read_bytes(request, MAX_DATA_BYTES)
    take_notes(request).body_bytes = len(raw)
    call, body_digest = await aside.run(len(raw), _decode, raw)
    reason = call.refusal or bodies.refuse_loss(call.loss_fn)
    if reason is None and not call.data:
        reason = "there is no datum in the request"
    if reason is not None:
        kind = "refused_call" if call.forward_only else "refused"
        return _refuse(service, call.model_id, call.seq_id, body_digest, reason, kind)
    kind = "forward" if call.forward_only else "forward_backward"
    id = service.submit(call.model_id, call.seq_id, kind, body_digest, raw)
    return json_response({"request_id": id, "model_id": call.model_id})


def _decode(raw: bytes) -> tuple[ForwardBackward, str]:
    try:
        call = decode_forward_backward(raw)
    except WireError as error:
        raise ApiError(
            400, f"The body is no ForwardBackwardRequest: {error}", code="invalid_protobuf"
        ) from None
    return call, call.digest()


def _refuse(
    service: TinkerService,
    model_id: str,
    seq: int,
    body_digest: str,
    reason: str,
    kind: str = "refused_call",
) -> web.Response:
    """Enter a refused request under its number, with the reason as its result."""
    id = service.submit(model_id, seq, kind, body_digest, reason.encode())
    return json_response({"request_id": id})


async def optim_step(request: web.Request) -> web.StreamResponse:
    """Enter an optimizer step."""
    raw, value = await read_object(request, MAX_REQUEST_BYTES)
    body = read_body(bodies.OptimStep, value)
    service, body_digest = open_service(request), digest("optim_step", value)
    if body.optimizer_params is not None:
        name = str(body.optimizer_params.get("type", "another optimizer"))[:40]
        reason = (
            f"{name!r} is not here: send adam_params, the models are optimized with AdamW; the "
            "gradient so far stays, so its forward_backward is not to be sent again"
        )
        return _refuse(service, body.model_id, body.seq_id, body_digest, reason)
    id = service.submit(body.model_id, body.seq_id, "optim_step", body_digest, raw)
    return json_response({"request_id": id})


async def save_weights(request: web.Request) -> web.StreamResponse:
    """Enter the writing of a checkpoint."""
    return await _save(request, bodies.SaveWeights, "save_weights")


async def save_weights_external(request: web.Request) -> web.StreamResponse:
    """Enter the writing of an adapter that is to be downloaded."""
    return await _save(request, bodies.SaveExternal, "save_weights_external")


async def save_weights_for_sampler(request: web.Request) -> web.StreamResponse:
    """Enter the handing over of the weights to the engine."""
    return await _save(request, bodies.SaveForSampler, "save_weights_for_sampler")


async def _save(request: web.Request, shape: type[bodies.Body], kind: str) -> web.StreamResponse:
    raw, value = await read_object(request, MAX_REQUEST_BYTES)
    body: Any = read_body(shape, value)
    service, body_digest = open_service(request), digest(kind, value)
    try:
        if body.path is not None:
            bodies.check_name(body.path)
        if kind == "save_weights_for_sampler":
            if body.kind != "snapshot":
                raise Refused(
                    f"kind {body.kind[:40]!r} is not here: weights would change under a sampler "
                    "that runs; save a snapshot for each, as save_weights_and_get_sampling_client "
                    "does"
                )
            if body.path is None and body.sampling_session_seq_id is None:
                raise Refused("give path, or sampling_session_seq_id")
        if kind == "save_weights_external" and body.age_encryption_recipients:
            raise Refused(
                "files are not encrypted here: leave age_encryption_recipients out; they do not "
                "leave this server but to who has its key"
            )
    except Refused as error:
        return _refuse(service, body.model_id, body.seq_id, body_digest, str(error))
    id = service.submit(body.model_id, body.seq_id, kind, body_digest, raw)
    return json_response({"request_id": id})


async def create_sampling_session(request: web.Request) -> web.StreamResponse:
    """Begin a sampler."""
    _, value = await read_object(request, MAX_REQUEST_BYTES)
    body = read_body(bodies.CreateSampler, value)
    id = open_service(request).add_sampler(
        body.session_id, body.sampling_session_seq_id, body.base_model, body.model_path
    )
    return json_response({"sampling_session_id": id, "type": "create_sampling_session"})


async def get_sampler(request: web.Request) -> web.StreamResponse:
    """Answer the base model and the weights of a sampler."""
    row = open_service(request).find_sampler(request.match_info["id"])
    return json_response(
        {"sampler_id": row.id, "base_model": row.base_model, "model_path": row.model_path}
    )


async def asample(request: web.Request) -> web.StreamResponse:
    """Enter a sample."""
    _, value = await read_object(request)
    body = read_body(bodies.Sample, value)
    service, body_digest = open_service(request), digest("sample", value)
    if body.sampling_session_id is None or body.seq_id is None:
        raise wrong_value(
            "sampling_session_id", "Give sampling_session_id and seq_id: samples are numbered here"
        )
    refusal = None
    try:
        check_sample(body)
    except Refused as error:
        refusal = str(error)
    payload = give_seed(body).model_dump_json(exclude_none=True).encode()
    id = service.submit_sample(body.sampling_session_id, body.seq_id, body_digest, payload, refusal)
    ids = [f"{id}:{number}" for number in range(body.num_samples)]
    return json_response({"request_id": id, "sample_sequence_ids": ids})


async def retrieve_future(request: web.Request) -> web.StreamResponse:
    """Answer a request's result, or 408 after a while: the SDK then asks again."""
    _, value = await read_object(request, MAX_REQUEST_BYTES)
    id = read_body(bodies.RetrieveFuture, value).request_id
    service = open_service(request)
    row = await service.wait(id)
    if row is None:
        waiting = {"type": "try_again", "request_id": id, "queue_state": "active"}
        return json_response(waiting, 408)
    service.store.note_fetched(row.owner, row.seq)
    if row.status == "failed":
        failure = {"error": row.error, "category": row.category or "unknown"}
        return json_response(request.app[SERVICES].places.hide(failure))
    if row.result is None:
        message = "the result was fetched before, and is kept for a quarter of an hour after that"
        return json_response({"error": message, "category": "server"})
    content_type = PROTOBUF if row.is_protobuf else "application/json"
    return web.Response(body=row.result, content_type=content_type)
