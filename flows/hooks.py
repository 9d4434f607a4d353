"""The end of a flow run: remote jobs are kept or cancelled, and people are told.

HOOKS   the hooks of the flows `train` and `continue-run`
HOOKS_OF_TESTS   those of `evaluate`, which has no jobs of its own to cancel
tell    tell the webhook in the environment variable NIP_WEBHOOK, if it is set, how a flow run ended

A webhook gets a POST with a JSON object: `text` (a line for people, as chat systems show it),
`flow`, `flow_run`, `flow_run_id`, `state`, `message`, and `run`, the name of nip's run.
"""

import os
from typing import Any

import aiohttp
from prefect.client.schemas.objects import FlowRun, State
from prefect.logging.loggers import flow_run_logger

from nip_core.errors import NipError
from nip_core.parameters import load_parameters
from nip_core.proxies import proxy_for
from nip_core.records.rewinds import cancel_jobs
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.servers.endpoints import find_remote_endpoints
from nip_prefect.tasks.flow_run_marks import Mark, read_mark
from nip_prefect.tasks.secrets import environment_for

WEBHOOK = "NIP_WEBHOOK"
_TIMEOUT_S = 20.0
_LONGEST_MESSAGE = 500


async def notify(flow: Any, flow_run: FlowRun, state: State[Any]) -> None:
    """Make the hook to tell the webhook how a flow run ended."""
    await tell(flow.name, flow_run, state)


async def tell(flow_name: str, flow_run: FlowRun, state: State[Any]) -> None:
    """Tell the webhook, if there is one, of a flow run's state. It failing changes nothing."""
    url = os.environ.get(WEBHOOK)
    if not url:
        return
    mark = read_mark(flow_run)
    message = (state.message or "")[:_LONGEST_MESSAGE]
    document = {
        "text": f"nip: {flow_name} {flow_run.name}: {state.name}. {message}".strip(),
        "flow": flow_name,
        "flow_run": flow_run.name,
        "flow_run_id": str(flow_run.id),
        "state": state.name,
        "message": message,
        "run": mark.run if mark else None,
    }
    log = flow_run_logger(flow_run)
    try:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, proxy=proxy_for(url)) as session:
            async with session.post(url, json=document) as answer:
                if answer.status >= 400:
                    log.warning("%s: HTTP %d", WEBHOOK, answer.status)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        # The kind alone: the address of a webhook is a secret, and messages name it.
        log.warning("%s: not told, %s", WEBHOOK, type(error).__name__)


async def cancel_remote_jobs(flow: Any, flow_run: FlowRun, state: State[Any]) -> None:
    """Cancel the run's jobs at other servers, where fine_tuning.on_cancel says so."""
    mark = read_mark(flow_run)
    if mark is None:
        return  # it was cancelled before it opened its run
    log = flow_run_logger(flow_run, flow)
    try:
        cancelled = await _cancel(mark)
    except NipError as error:
        log.warning("jobs of %s not cancelled: %s", mark.run, error)
    else:
        if cancelled:
            log.info("cancelled the jobs %s of %s", ", ".join(cancelled), mark.run)


async def _cancel(mark: Mark) -> list[str]:
    run = RunStore(open_store(mark.store, read_only=True), mark.run)
    parameters = load_parameters(run.open().parameters)
    # A job that goes on is found again by its key when the run does.
    if parameters.fine_tuning.on_cancel == "keep":
        return []
    endpoints = find_remote_endpoints(parameters, await environment_for(parameters))
    reachable = {group: endpoint.control for group, endpoint in endpoints.items()}
    return await cancel_jobs(run, parameters, reachable)


HOOKS_OF_TESTS: dict[str, Any] = {
    "on_completion": [notify],
    "on_failure": [notify],
    "on_crashed": [notify],
    "on_cancellation": [notify],
}
HOOKS: dict[str, Any] = {**HOOKS_OF_TESTS, "on_cancellation": [cancel_remote_jobs, notify]}
