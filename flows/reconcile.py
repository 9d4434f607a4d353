"""Flow runs that Prefect takes for running, but whose process is gone, are ended and go on."""

from typing import Annotated, Any
from uuid import UUID

from prefect import flow, get_client, get_run_logger
from prefect.client.orchestration import PrefectClient
from prefect.exceptions import PrefectHTTPStatusError
from prefect.logging.loggers import flow_run_logger
from prefect.runtime import flow_run as current
from pydantic import Field

from nip_prefect.flows.hooks import cancel_remote_jobs, tell
from nip_prefect.tasks.reconcile import (
    bury,
    dead_among,
    delete_idle,
    list_active,
    list_restartable,
    measure_ahead,
    name_outcome,
    restart,
)

Seconds = Annotated[float, Field(ge=0)]


@flow(name="reconcile", flow_run_name="reconcile", persist_result=False, result_serializer="json")
async def reconcile(
    silent_after_s: Seconds = 900.0,
    watch_s: Seconds = 10.0,
    restart_after_s: Seconds = 60.0,
    give_up_after_s: Seconds = 86400.0,
    max_attempts: Annotated[int, Field(ge=0)] = 5,
) -> dict[str, list[str]]:
    """Find dead flow runs of nip, set them to Crashed, and let crashed ones go on.

    A worker or machine that dies leaves its flow runs as Running for ever. Here a run's own lease
    decides whether its process is alive. Run it on a schedule, every few minutes. Its flow run is
    named by its work, and of those with nothing to do only the newest is kept.

    Args:
        silent_after_s: Seconds without a sign of life after which a flow run counts as dead that
            has not opened its run yet.
        watch_s: Least seconds for which a flow run is watched before it counts as dead.
        restart_after_s: Seconds for which a flow run has to be Crashed before it goes on; at least
            20, as a worker may report a crash twice.
        give_up_after_s: Flow runs that crashed longer ago, in seconds, are left as they are.
        max_attempts: Flow runs that ran so often are left as they are; 0 restarts none.

    Returns:
        Names of the flow runs that were found dead, and of those that were started again.
    """
    log = get_run_logger()
    async with get_client() as client:
        ahead = await measure_ahead(client)
        runs = await list_active(client)
        dead = await dead_among(
            client, runs, silent_after_s=silent_after_s, watch_s=watch_s, ahead=ahead
        )
        for flow_run in dead:
            await bury(client, flow_run)
            log.warning("%s (%s): its process is gone", flow_run.name, flow_run.id)
            # Also where people look first, in the logs of the flow run itself.
            flow_run_logger(flow_run).warning("Its process is gone; reconcile found it.")
            buried = await client.read_flow_run(flow_run.id)
            if buried.state is not None:
                stopped = await client.read_flow(flow_run.flow_id)
                if buried.state.is_cancelled() and stopped.name != "evaluate":
                    await cancel_remote_jobs(None, buried, buried.state)
                await tell(stopped.name, buried, buried.state)
        restartable = await list_restartable(
            client,
            older_than_s=restart_after_s,
            not_older_than_s=give_up_after_s,
            max_attempts=max_attempts,
            ahead=ahead,
        )
        for flow_run in restartable:
            attempt = await restart(client, flow_run, max_attempts)
            log.info("%s (%s): started again, %s", flow_run.name, flow_run.id, attempt)
            flow_run_logger(flow_run).info("Started again by reconcile: %s.", attempt)
        await _leave_a_trace(client, len(dead), len(restartable))
    return _names(dead=dead, restarted=restartable)


def _names(**flow_runs: list[Any]) -> dict[str, list[str]]:
    return {group: [flow_run.name for flow_run in runs] for group, runs in flow_runs.items()}


async def _leave_a_trace(client: PrefectClient, dead: int, restarted: int) -> None:
    """Name this flow run by its deeds, and delete idle earlier ones."""
    identifier = current.get_id()
    assert identifier is not None  # it is called within the flow
    await name_outcome(client, UUID(identifier), dead, restarted)
    try:
        await delete_idle(client, UUID(identifier))
    except PrefectHTTPStatusError as error:  # nothing but a longer list comes of it
        get_run_logger().warning("idle flow runs of reconcile are not deleted: %s", error)
