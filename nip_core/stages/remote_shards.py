"""Playing shards of a run in other processes, and on other machines, under the lease of its runner.

A process apart reads and writes the run store by itself, so that must be one that it reaches: a
bucket, or a disk that all share. Its commits carry the runner's fence; when the runner is
replaced they are refused as its own would be. It starts no server and submits no job. Keys come
from its own environment; the key of the run's own server from the server's directory.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nip_core.costs.caps import Budget
from nip_core.errors import RunConflictError, ServerError
from nip_core.game.render import Game
from nip_core.parameters import HyperParameters, load_parameters
from nip_core.progress.board import Progress
from nip_core.records.left_out import drop_left_out, read_left_out
from nip_core.rollouts.client.completions import Endpoint
from nip_core.rollouts.storage.shard_manifests import shard_is_committed
from nip_core.run_store.lease import LeaseDocument, borrow
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.servers.endpoints import Endpoints, find_remote_endpoints
from nip_core.session.contents import digest_problems
from nip_core.session.opening import make_chat_client
from nip_core.session.origin import Origin
from nip_core.session.problems_of_run import load_all_problems
from nip_core.session.session import Session
from nip_core.stages.playing import split_play
from nip_lm_server.client import StateDirectory

T = TypeVar("T")
_COUNT_EVERY_S = 5.0  # each look lists the shards of a split in the store
Ticket = dict[str, Any]
"""`parameters`, `contents` and `lease` as they are on record, the `store`'s URL, `origin` with the
models of another run, and `own_server`: its url and the file with its key, or None."""


def make_ticket(session: Session) -> Ticket:
    """Return the ticket with which another process plays shards of this run."""
    server = session.server
    return {
        "parameters": session.parameters.to_dict(),
        "store": session.run.store.url,
        "contents": session.run.open().contents,
        "lease": session.lease.lend().model_dump(),
        "origin": Origin(session.origin).facts(),
        "own_server": None
        if server is None
        else {
            "url": server.endpoint.base_url,
            "key_file": str(StateDirectory(server.directory).key_file),
        },
    }


@contextlib.asynccontextmanager
async def open_apart(ticket: Ticket) -> AsyncIterator[Session]:
    """The run as its runner has it open, without the lease's renewal and without a server to mind.

    Raises StoreError if the run store can't be reached from here, LeaseError if the runner has
    lost the run, RunConflictError if the problems here are not the run's, SettingsError for a
    missing key, ServerError if the key file is not here.
    """
    # 1. The run, under the lease of its runner: nothing is committed once that is replaced.
    parameters = load_parameters(ticket["parameters"])
    store = open_store(ticket["store"])
    run = RunStore(store, parameters.run_name)
    lease = borrow(store, run.root, LeaseDocument.model_validate(ticket["lease"]))
    # Before the problems are read, which takes longer.
    lease.check()
    # 2. The same problems, or the episodes would be others.
    problems = load_all_problems(parameters)
    digests = {split: digest_problems(split_problems) for split, split_problems in problems.items()}
    if digests != ticket["contents"]["problems"]:
        raise RunConflictError(
            f"run {run.name!r}: the dataset {parameters.dataset} has other problems here than when "
            "the run was started; give every process the same files and the same version of nip"
        )
    left_out, progress = read_left_out(run) or {}, Progress()
    # A process apart counts its own calls, beside what is on record: it can't see those of others.
    budget = Budget(run, parameters, progress)
    budget.look()
    async with make_chat_client(parameters, progress, budget) as client:
        yield Session(
            parameters=parameters,
            game=Game(parameters),
            run=run,
            lease=lease,
            problems=drop_left_out(problems, left_out),
            left_out=left_out,
            endpoints=_endpoints(parameters, ticket),
            client=client,
            progress=progress,
            budget=budget,
            origin=Origin.of(ticket["origin"]).models,
        )


async def count_while(
    session: Session,
    iteration: int,
    split: str,
    work: Callable[[], Awaitable[T]],
    every_s: float = _COUNT_EVERY_S,
) -> T:
    """Do `work` while other processes play a split; count the episodes of committed shards."""
    play = split_play(session, iteration, split)

    def committed() -> int:
        is_there = partial(shard_is_committed, play.store, play.directory)
        return sum(len(specs) for name, specs in play.specs_by_shard.items() if is_there(name))

    async def count() -> None:
        while True:
            await asyncio.sleep(every_s)
            # In a thread, because a bucket may take its time.
            session.progress.episodes_done = await asyncio.to_thread(committed)

    watching = asyncio.create_task(count())
    try:
        return await work()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def _endpoints(parameters: HyperParameters, ticket: Ticket) -> Mapping[str, Endpoints]:
    """The endpoints of other servers, and for the other groups the run's own server."""
    endpoints = dict(find_remote_endpoints(parameters))
    server = ticket["own_server"]
    if server is None:
        return endpoints
    try:
        key = Path(server["key_file"]).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ServerError(
            f"{server['key_file']}: the key of the run's own server can't be read here "
            f"({error.strerror}); on other machines name a server in lm_server.url, with its key "
            "in NIP_API_KEY"
        ) from error
    endpoint = Endpoint(server["url"], key, joins=True)
    for group in parameters.groups:
        endpoints.setdefault(group, Endpoints(endpoint, endpoint))
    return endpoints
