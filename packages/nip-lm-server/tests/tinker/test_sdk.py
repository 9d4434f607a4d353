"""Every public method of the SDK's clients: it works, or is refused with a reason.

Writes the table of docs/results/tinker.md where NIP_TINKER_RESULTS names a directory.
"""

import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
from recipes import MODEL, Place
from tinker import types
from tinker.lib.public_interfaces.admin_client import AdminClient
from tinker.lib.public_interfaces.rest_client import RestClient
from tinker.lib.public_interfaces.sampling_client import SamplingClient
from tinker.lib.public_interfaces.service_client import ServiceClient
from tinker.lib.public_interfaces.training_client import TrainingClient

NOT_CALLED = "not called: the SDK calls it itself"
PROMPT = types.ModelInput.from_ints([5, 6, 7, 8])
ADAM = types.AdamParams(learning_rate=1e-3)


def datum(count: int = 12) -> types.Datum:
    ids = np.random.default_rng(count).integers(5, 400, count + 1)
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1].tolist()),
        loss_fn_inputs={
            "target_tokens": types.TensorData.from_numpy(ids[1:].astype(np.int64)),
            "weights": types.TensorData.from_numpy(np.ones(count, np.float32)),
        },
    )


def custom_loss(_data: Any, logprobs: Any) -> tuple[Any, dict[str, float]]:
    loss = -sum(one.sum() for one in logprobs)
    return loss, {"custom:sum": float(loss)}


class Clients:
    """One of each client, and what the calls below need."""

    def __init__(self) -> None:
        self.service = tinker.ServiceClient()
        self.training = self.service.create_lora_training_client(MODEL, rank=4, seed=1).result()
        self.rest = self.service.create_rest_client()
        self.training.forward_backward([datum()], "cross_entropy").result()
        self.training.optim_step(ADAM).result()
        self.state = self.training.save_state("state").result().path
        self.saved = self.training.save_weights_for_sampler("saved").result().path
        self.external = self.training.save_weights_external("external").result().path
        self.sampling = self.service.create_sampling_client(self.saved).result()
        self.id, self.session = self.training.model_id, self.training.model_id.split(":train:")[0]

    def other(self) -> Any:
        return self.service.create_lora_training_client(MODEL, rank=4).result()


def admin(clients: Clients) -> Any:
    return AdminClient(clients.service.holder)


def done(future: Any) -> Any:
    return future.result() if hasattr(future, "result") else future


C = Clients
SERVICE: dict[str, Callable[[C], Any]] = {
    "close": lambda c: done(tinker.ServiceClient().close("success")),
    "copy_weights": lambda c: done(c.service.copy_weights(c.state)),
    "create_custom_loss": lambda c: done(
        c.service.create_custom_loss(
            lambda logprobs: (-logprobs.sum(), {"custom/nll:sum": -logprobs.sum()}), {"logprobs": 1}
        )
    ),
    "create_lora_training_client": lambda c: c.other(),
    "create_rest_client": lambda c: c.service.create_rest_client(),
    "create_sampling_client": lambda c: done(c.service.create_sampling_client(base_model=MODEL)),
    "create_training_client_from_state": lambda c: done(
        c.service.create_training_client_from_state(c.state)
    ),
    "create_training_client_from_state_with_optimizer": lambda c: done(
        c.service.create_training_client_from_state_with_optimizer(c.state)
    ),
    "get_console_url": lambda c: c.service.get_console_url(),
    "get_server_capabilities": lambda c: c.service.get_server_capabilities(),
    "get_telemetry": lambda c: c.service.get_telemetry(),
    "holder": lambda c: c.service.holder,
}
TRAINING: dict[str, Callable[[C], Any]] = {
    "create_sampling_client": lambda c: done(c.training.create_sampling_client(c.saved)),
    "forward": lambda c: done(c.training.forward([datum()], "cross_entropy")),
    "forward_backward": lambda c: done(c.training.forward_backward([datum()], "cross_entropy")),
    "forward_backward_custom": lambda c: done(
        c.training.forward_backward_custom([datum()], custom_loss)
    ),
    "get_console_url": lambda c: c.training.get_console_url(),
    "get_info": lambda c: c.training.get_info(),
    "get_telemetry": lambda c: c.training.get_telemetry(),
    "get_tokenizer": lambda c: c.training.get_tokenizer(),
    "load_state": lambda c: done(c.other().load_state(c.state)),
    "load_state_with_optimizer": lambda c: done(c.other().load_state_with_optimizer(c.state)),
    "model_id": lambda c: c.training.model_id,
    "optim_step": lambda c: done(c.training.optim_step(ADAM)),
    "save_state": lambda c: done(c.training.save_state("again")),
    "save_weights_and_get_sampling_client": lambda c: done(
        c.training.save_weights_and_get_sampling_client()
    ),
    "save_weights_external": lambda c: done(c.training.save_weights_external("again")),
    "save_weights_for_sampler": lambda c: done(c.training.save_weights_for_sampler("again")),
}
SAMPLING: dict[str, Callable[[C], Any]] = {
    "compute_logprobs": lambda c: done(c.sampling.compute_logprobs(PROMPT)),
    "create": lambda c: done(SamplingClient.create(c.service.holder, base_model=MODEL)),
    "from_sampler_handle": lambda c: SamplingClient.from_sampler_handle(
        c.sampling.get_sampler_handle()
    ),
    "get_base_model": lambda c: c.sampling.get_base_model(),
    "get_sampler_handle": lambda c: c.sampling.get_sampler_handle(),
    "get_telemetry": lambda c: c.sampling.get_telemetry(),
    "get_tokenizer": lambda c: c.sampling.get_tokenizer(),
    "on_queue_state_change": lambda c: NOT_CALLED,
    "sample": lambda c: done(
        c.sampling.sample(
            prompt=PROMPT,
            num_samples=2,
            sampling_params=types.SamplingParams(max_tokens=4, seed=1),
            include_prompt_logprobs=True,
            topk_prompt_logprobs=3,
        )
    ),
}
REST: dict[str, Callable[[C], Any]] = {
    "assign_session_project": lambda c: done(c.rest.assign_session_project(c.session, "p")),
    "copy_weights": lambda c: done(c.rest.copy_weights(c.state, "project")),
    "delete_checkpoint": lambda c: done(c.rest.delete_checkpoint(c.id, "weights/again")),
    "delete_checkpoint_from_tinker_path": lambda c: done(
        c.rest.delete_checkpoint_from_tinker_path(f"tinker://{c.id}/sampler_weights/again")
    ),
    "export_session_trace": lambda c: done(c.rest.export_session_trace(c.session)),
    "get_audit_log": lambda c: done(c.rest.get_audit_log()),
    "get_billing_usage": lambda c: done(c.rest.get_billing_usage("2026-11-01", "2026-11-02")),
    "get_current_checkpoint_storage_usage": lambda c: done(
        c.rest.get_current_checkpoint_storage_usage()
    ),
    "get_external_weights_urls": lambda c: done(c.rest.get_external_weights_urls(c.external)),
    "get_sampler": lambda c: done(c.rest.get_sampler(f"{c.session}:sample:0")),
    "get_server_capabilities": lambda c: done(c.rest.get_server_capabilities()),
    "get_session": lambda c: done(c.rest.get_session(c.session)),
    "get_telemetry": lambda c: c.rest.get_telemetry(),
    "get_training_run": lambda c: done(c.rest.get_training_run(c.id)),
    "get_training_run_by_tinker_path": lambda c: done(
        c.rest.get_training_run_by_tinker_path(c.state)
    ),
    "get_weights_info_by_tinker_path": lambda c: done(
        c.rest.get_weights_info_by_tinker_path(c.state)
    ),
    "list_checkpoints": lambda c: done(c.rest.list_checkpoints(c.id)),
    "list_sessions": lambda c: done(c.rest.list_sessions()),
    "list_training_runs": lambda c: done(c.rest.list_training_runs()),
    "list_user_checkpoints": lambda c: done(c.rest.list_user_checkpoints()),
    "publish_checkpoint_from_tinker_path": lambda c: done(
        c.rest.publish_checkpoint_from_tinker_path(c.state)
    ),
    "search_sessions": lambda c: done(
        c.rest.search_sessions(types.SessionSearchRequest(display_name="x"))
    ),
    "set_checkpoint_ttl_from_tinker_path": lambda c: done(
        c.rest.set_checkpoint_ttl_from_tinker_path(c.state, 3600)
    ),
    "unpublish_checkpoint_from_tinker_path": lambda c: done(
        c.rest.unpublish_checkpoint_from_tinker_path(c.state)
    ),
    "whoami": lambda c: done(c.rest.whoami()),
}
ADMIN: dict[str, Callable[[C], Any]] = {
    "get_audit_log": lambda c: done(admin(c).get_audit_log()),
    "get_billing_usage": lambda c: done(admin(c).get_billing_usage("2026-11-01", "2026-11-02")),
    "get_current_checkpoint_storage_usage": lambda c: done(
        admin(c).get_current_checkpoint_storage_usage()
    ),
    "get_telemetry": lambda c: admin(c).get_telemetry(),
}
TABLES = {
    ServiceClient: SERVICE, TrainingClient: TRAINING, SamplingClient: SAMPLING, RestClient: REST,
    AdminClient: ADMIN,
}  # fmt: skip
ENDS_IN_SDK = {"ServiceClient.copy_weights"}
"""What the SDK itself raises before it asks the server."""
REFUSED = {
    "RestClient.assign_session_project", "RestClient.copy_weights",
    "RestClient.export_session_trace", "RestClient.get_audit_log", "RestClient.get_billing_usage",
    "RestClient.get_current_checkpoint_storage_usage", "RestClient.search_sessions",
    "RestClient.publish_checkpoint_from_tinker_path",
    "RestClient.unpublish_checkpoint_from_tinker_path", "RestClient.whoami",
    "AdminClient.get_audit_log", "AdminClient.get_billing_usage",
    "AdminClient.get_current_checkpoint_storage_usage",
}  # fmt: skip


def public(client: type) -> set[str]:
    """The names of a client, without the doubles of methods that are awaited."""
    return {n for n in dir(client) if not n.startswith("_") and not n.endswith("_async")}


@pytest.mark.parametrize("client", TABLES)
def test_no_method_of_the_sdk_is_left_out(client: type) -> None:
    assert public(client) - {"model_id"} == TABLES[client].keys() - {"model_id"}


def test_every_method_works_or_is_refused_with_a_reason(place: Place) -> None:
    clients, rows, wrong = Clients(), [], []
    for client, table in TABLES.items():
        for name, call in sorted(table.items()):
            full = f"{client.__name__}.{name}"
            try:
                outcome = NOT_CALLED if call(clients) is NOT_CALLED else "works"
            except Exception as error:
                ends = "ends in the SDK" if full in ENDS_IN_SDK else "refused"
                outcome = f"{ends}: {reason(error)}"
            rows.append(f"| `{full}` | {outcome} |")
            if (outcome in ("works", NOT_CALLED)) == (full in REFUSED | ENDS_IN_SDK):
                wrong.append(rows[-1])
    write_table(rows)
    assert not wrong, "\n".join(wrong)


def reason(error: Exception) -> str:
    body = getattr(error, "body", None)
    told = body.get("error", body) if isinstance(body, dict) else str(error)
    text = told.get("message", told) if isinstance(told, dict) else told
    return " ".join(str(text).split()).replace("|", "/")[:160]


def write_table(rows: list[str]) -> None:
    directory = os.environ.get("NIP_TINKER_RESULTS")
    if directory is None:
        return
    head = (
        f"# Methods of Tinker's SDK {version('tinker')} on nip's server\n\n"
        "Each was called once, or read where it is a value, on the engine `embedded` with the "
        "bundled tiny model; a method's double that ends in `_async` is the same call. "
        "`create_custom_loss` is computed in the client. Made by `packages/nip-lm-server/tests/tinker/test_sdk.py`.\n\n"
        "| method | |\n|---|---|\n"
    )
    (Path(directory) / "tinker.md").write_text(head + "\n".join(rows) + "\n")


def test_losses_of_the_sdk_give_what_it_computes_itself(place: Place) -> None:
    clients = Clients()
    data = [datum(9), datum(14)]
    plain = clients.training.forward(data, "cross_entropy").result()
    own = clients.training.forward_backward_custom(data, custom_loss).result()
    assert own.metrics["custom:sum"] == pytest.approx(plain.metrics["loss:sum"], rel=1e-5)
