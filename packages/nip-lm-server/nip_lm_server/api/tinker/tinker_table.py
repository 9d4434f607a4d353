"""The routes of Tinker's API, and the answers of its routes that are not here."""

from aiohttp import web

from nip_lm_server.api.plumbing import TINKER_PATH, Handler, guard_route
from nip_lm_server.api.tinker import routes_tinker as calls
from nip_lm_server.api.tinker import routes_tinker_weights as weights

_RUN = "training_runs/{id}"
_CHECKPOINT = _RUN + "/checkpoints/{kind}/{name}"
ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "client/config", calls.client_config),
    ("POST", "client/dynamic_config", calls.client_dynamic_config),
    ("GET", "healthz", calls.healthz),
    ("POST", "telemetry", calls.telemetry),
    ("POST", "create_session", calls.create_session),
    ("POST", "session_heartbeat", calls.session_heartbeat),
    ("GET", "sessions", weights.list_sessions),
    ("GET", "sessions/{id}", weights.retrieve_session),
    ("POST", "sessions/{id}/finish", calls.finish_session),
    ("POST", "create_model", calls.create_model),
    ("POST", "get_info", calls.get_info),
    ("POST", "forward_backward", calls.forward_backward),
    ("POST", "optim_step", calls.optim_step),
    ("POST", "save_weights", calls.save_weights),
    ("POST", "save_weights_external", calls.save_weights_external),
    ("POST", "save_weights_for_sampler", calls.save_weights_for_sampler),
    ("POST", "load_weights", calls.load_weights),
    ("POST", "create_sampling_session", calls.create_sampling_session),
    ("GET", "samplers/{id}", calls.get_sampler),
    ("POST", "asample", calls.asample),
    ("GET", "get_server_capabilities", weights.get_server_capabilities),
    ("POST", "weights_info", weights.weights_info),
    ("GET", "training_runs", weights.list_training_runs),
    ("GET", _RUN, weights.retrieve_training_run),
    ("GET", _RUN + "/checkpoints", weights.list_run_checkpoints),
    ("GET", "checkpoints", weights.list_all_checkpoints),
    ("DELETE", _CHECKPOINT, weights.delete_checkpoint),
    ("PUT", _CHECKPOINT + "/ttl", weights.set_expiry),
    ("POST", _CHECKPOINT + "/publish", weights.refuse_publishing),
    ("DELETE", _CHECKPOINT + "/publish", weights.refuse_publishing),
    ("GET", _CHECKPOINT + "/external_weights_urls", weights.external_weights_urls),
)
_ABSENT: tuple[tuple[str, str], ...] = (
    ("auth/token", "Keys are not traded here: send the key itself"),
    ("copy_weights", "Weights are not copied here: load them into a new model, and save that"),
    ("create_custom_loss", "Custom losses are computed in the client here"),
    ("audit", "There is no audit log here: the server's log says who asked for what"),
    ("billing/{rest:.*}", "Nothing is billed here"),
    ("sessions/search", "Sessions are not searched here: list them"),
    ("sessions/{id}/trace_export", "Traces are not kept here"),
    ("sessions/{id}/project", "There are no projects here"),
    ("cancel_future", "Requests are not cancelled here: what was asked for is computed"),
)
"""Known routes that are not here, with the way out."""


def add_tinker_routes(app: web.Application) -> None:
    """Add every route of Tinker's API; where no engine serves it, each says so."""
    add = app.router.add_route
    for path, reason in _ABSENT:
        add("*", TINKER_PATH + path, guard_route(weights.refuse_route(reason)))
    for method, path, handler in ROUTES:
        add(method, TINKER_PATH + path, guard_route(handler))
    # A client that leaves ends its long poll.
    add(
        "POST",
        TINKER_PATH + "retrieve_future",
        guard_route(calls.retrieve_future, abandonable=True),
    )
    file = guard_route(weights.external_weights_file, key=False)
    add("GET", TINKER_PATH + "external_weights/{token}/{name}", file)
