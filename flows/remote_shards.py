"""Shards on a cluster: a flow whose task runner the settings choose, around one task per shard."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from prefect import flow, unmapped
from prefect.task_runners import TaskRunner

from nip_core.distribution import how_to_install_packages
from nip_core.errors import SettingsError
from nip_core.parameters.blocks.loop_settings import RolloutParameters
from nip_core.session.session import Session
from nip_core.stages.remote_shards import count_while, make_ticket
from nip_prefect.tasks.calls import TASKS, play_shard_remotely
from nip_prefect.tasks.flow_run_names import name_flow_run, tag_run, with_tags, without_tags

SETTING = "rollouts.task_runner"
_RUNNERS = {"dask": ("prefect_dask", "DaskTaskRunner"), "ray": ("prefect_ray", "RayTaskRunner")}
_OF_SO_MANY: dict[str, Callable[[int], dict[str, Any]]] = {
    "dask": lambda n: {
        "cluster_kwargs": {"n_workers": n, "threads_per_worker": 1, "dashboard_address": ":0"}
    },
    "ray": lambda n: {"init_kwargs": {"num_cpus": n}},
}


async def play_remotely(
    session: Session,
    iteration: int,
    split: str,
    shards: Sequence[str],
    awaited_results: Sequence[Any],
) -> list[dict[str, Any]]:
    """Play the shards where `rollouts.task_runner` says, and count what is committed meanwhile.

    The flow run waits for `awaited_results`, as Prefect knows them. Raises what a failed shard
    raised.
    """
    if not shards:
        return []
    settings, run = session.parameters.rollouts, session.run.name
    on_cluster: Any = play_shards.with_options(
        task_runner=task_runner(settings),
        flow_run_name=name_flow_run("play", run, split, iteration),
    )

    async def play() -> list[dict[str, Any]]:
        with with_tags(tag_run(run)):
            rows: list[dict[str, Any]] = await on_cluster(
                run, iteration, split, shards, wait_for=awaited_results
            )
        return rows

    return await session.with_server(lambda: count_while(session, iteration, split, play))


@flow(name="play-shards", persist_result=False, result_serializer="json")
async def play_shards(
    run: str, iteration: int, split: str, shards: Sequence[str]
) -> list[dict[str, Any]]:
    """Play shards as tasks of this flow's task runner."""
    with without_tags():
        ticket = await TASKS[make_ticket](run, return_state=True)
        futures = play_shard_remotely.map(
            unmapped(ticket), unmapped(iteration), unmapped(split), shards, wait_for=[ticket]
        )
    results: list[Any] = await asyncio.to_thread(futures.result)
    return results


def task_runner(
    settings: RolloutParameters, *, processes: int | None = None, setting: str = SETTING
) -> TaskRunner[Any]:
    """The task runner of the settings.

    Where they name no cluster it has one of its own on this machine, of so many `processes` with
    one task each at a time; None: as many as Dask or Ray makes. Raises SettingsError, which names
    the `setting`, if its package is not installed.
    """
    module, name = _RUNNERS[settings.task_runner]
    options: dict[str, Any] = {"address": settings.task_runner_address}
    if processes is not None and settings.task_runner_address is None:
        options |= _OF_SO_MANY[settings.task_runner](processes)
    try:
        runner: TaskRunner[Any] = getattr(__import__(module), name)(**options)
    except ImportError as error:
        package = module.replace("_", "-")
        raise SettingsError(
            f"{setting}: {settings.task_runner} needs {package}, which is not installed "
            f"({error}); {how_to_install_packages(package)}, or set it to local"
        ) from None
    return runner
