"""Shards on a cluster: a flow whose task runner the settings choose, around one task per shard."""

import asyncio
from collections.abc import Sequence
from typing import Any

from prefect import flow, unmapped
from prefect.task_runners import TaskRunner

from nip_core.errors import SettingsError
from nip_core.parameters.training import RolloutParameters
from nip_core.stages.remote_shards import Ticket, ticket_of
from nip_core.stages.session import Session
from nip_prefect.tasks.calls import play_shard_remotely

_RUNNERS = {"dask": ("prefect_dask", "DaskTaskRunner"), "ray": ("prefect_ray", "RayTaskRunner")}


async def play_remotely(
    session: Session, iteration: int, split: str, shards: Sequence[str]
) -> list[dict[str, Any]]:
    """Play the shards where `rollouts.task_runner` says. Raises what a failed one raised."""
    if not shards:
        return []
    settings = session.parameters.rollouts
    on_cluster = play_shards.with_options(task_runner=task_runner(settings))
    return await on_cluster(ticket_of(session), iteration, split, list(shards))


@flow(
    name="play-shards",
    flow_run_name="{split}-{iteration}",
    persist_result=False,
    result_serializer="json",
)
async def play_shards(
    ticket: Ticket, iteration: int, split: str, shards: list[str]
) -> list[dict[str, Any]]:
    """Play shards as tasks of this flow's task runner."""
    futures = play_shard_remotely.map(
        unmapped(ticket), unmapped(iteration), unmapped(split), shards
    )
    played: list[Any] = await asyncio.to_thread(futures.result)
    return played


def task_runner(settings: RolloutParameters) -> TaskRunner[Any]:
    """The task runner of the settings. Raises SettingsError if its package is not installed."""
    module, name = _RUNNERS[settings.task_runner]
    try:
        made: TaskRunner[Any] = getattr(__import__(module), name)(
            address=settings.task_runner_address
        )
    except ImportError as error:
        package = module.replace("_", "-")
        raise SettingsError(
            f"rollouts.task_runner: {settings.task_runner} needs {package}, which is not installed "
            f"({error}); pip install {package}, or set it to local"
        ) from None
    return made
