"""The command `nip states`: the states of a run's jobs at a service of Tinker's API."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nip_cli.printing.options import AsJson, RunName, RunStoreUrl
from nip_cli.printing.plans_and_runs import print_json
from nip_cli.printing.terminal import say

if TYPE_CHECKING:
    from nip_tinker.wire import Checkpoint


def states(
    run: RunName,
    run_store: RunStoreUrl = "runs",
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete those that nothing in the run needs.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Also those that the run needs: it can't go on then.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without a question.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the states that jobs of RUN have saved at a service of Tinker's API, which cost by the
    month: their bytes, and whether the run needs them. The key is that of the environment."""
    from nip_core.evaluation.figures_in_words import file_size
    from nip_core.records.named_run import find_run, name_place
    from nip_core.run_store.lease import acquire, refuse_if_held
    from nip_core.run_store.store import open_store

    tree = find_run(run, run_store)
    refuse_if_held(tree.store, tree.root)
    rows = asyncio.run(_list(tree))
    unneeded = [row for row in rows if every or not row.is_needed]
    if as_json:
        print_json({"run": tree.name, "states": [vars(row) for row in rows]})
    else:
        for row in rows:
            size = "?" if row.bytes is None else file_size(row.bytes)
            until = f", until {row.expires_at}" if row.expires_at else ""
            say(f"{size:>9}  {'needed' if row.is_needed else 'not needed':<10}  {row.path}{until}")
        total = file_size(sum(row.bytes or 0 for row in rows))
        count = sum(not row.is_needed for row in rows)
        say(f"{len(rows)} at the service, {total}; {count} not needed")
    if delete and unneeded and (yes or typer.confirm(f"Delete {len(unneeded)}?")):
        place, _ = name_place(run or tree.name, run_store)
        with acquire(open_store(place), tree.root):
            asyncio.run(_delete(tree, unneeded))
        say(f"{len(unneeded)} deleted")


_PATIENCE_S = 20.0


@dataclass(frozen=True)
class Row:
    """A state at a service."""

    path: str
    bytes: int | None
    expires_at: str | None
    is_needed: bool
    address: str


async def _list(run: Any) -> list[Row]:
    """List the states at all services of the run's groups."""
    from nip_tinker.record.notes import Notes
    from nip_tinker.record.run_files import RunFiles
    from nip_tinker.training.ends import list_jobs
    from nip_tinker.wire import identify_state

    files = RunFiles(run.store, f"{run.root}/training")
    on_record = _list_keys(run)
    runs: set[str] = set()
    needed: set[tuple[str, str, str]] = set()
    names: set[str] = set()  # a job that goes on may find one that it has not noted yet
    for job in list_jobs(files):
        blocks = Notes(files, job.key).list_blocks(job)
        runs |= {model for block in blocks for model in block.runs}
        if job.key in on_record:
            needed |= {identify_state(path) for path in (job.state, job.model) if path}
            if job.status in ("queued", "running"):
                names |= {block.name for block in blocks}
    rows: list[Row] = []
    for address, key in sorted(_list_services(run)):
        for state in await _list_at(address, key, runs):
            is_needed = identify_state(state.path) in needed or state.name in names
            rows.append(Row(state.path, state.bytes, state.expires_at, is_needed, address))
    return rows


async def _list_at(address: str, key: str, runs: set[str]) -> "list[Checkpoint]":
    """List the states of these training runs, of which another run's jobs may have the names."""
    from nip_tinker.wire import TinkerClient

    client = TinkerClient(address, key, patience_s=_PATIENCE_S)
    try:
        listed = await client.list_all_states()
        if listed is None:
            listed = [s for model in sorted(runs) for s in await client.list_run_states(model)]
    finally:
        await client.aclose()
    return [state for state in listed if state.run in runs]


def _list_services(run: Any) -> set[tuple[str, str]]:
    """List address and key of the run's services of this API."""
    from nip_core.parameters.services.providers import Tinker
    from nip_core.parameters.stored import read_settings
    from nip_core.servers.endpoints import find_group_endpoints

    parameters = read_settings(run.open().parameters)
    services = set()
    for group in parameters.groups:
        if issubclass(parameters.group_parameters(group).provider, Tinker):
            endpoints = find_group_endpoints(parameters, group)
            if endpoints is not None:
                services.add((endpoints.control.base_url, endpoints.control.api_key))
    return services


def _list_keys(run: Any) -> set[str]:
    """List the keys of the jobs that the run's iterations have on record."""
    from nip_core.jobs.document import read_job
    from nip_core.run_store.store import list_files

    keys = set()
    for path in list_files(run.store, f"{run.root}/iterations"):
        if path.split("/")[-2] == "jobs" and path.endswith(".json"):
            record = read_job(run, path)
            if record is not None:
                keys |= {record.key, *(attempt.key for attempt in record.previous)}
    return keys


async def _delete(run: Any, rows: Sequence[Row]) -> None:
    from nip_tinker.wire import TinkerClient

    for address, key in _list_services(run):
        client = TinkerClient(address, key, patience_s=_PATIENCE_S)
        try:
            for row in rows:
                if row.address == address:
                    await client.delete_state(row.path)
        finally:
            await client.aclose()
