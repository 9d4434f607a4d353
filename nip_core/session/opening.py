"""Opening a run: it is checked, leased, its server is up, and only then is it created."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from nip_core.bridges import find_trackers
from nip_core.costs.caps import Budget
from nip_core.costs.spent_and_estimated import record_estimate
from nip_core.parameters import HyperParameters
from nip_core.processes import collect_seldom
from nip_core.progress.board import Progress
from nip_core.records.left_out import (
    describe_left_out,
    drop_left_out,
    read_left_out,
    record_left_out,
    settle_left_out,
)
from nip_core.records.rewinds import finish_rewinds
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.run_store.lease import Lease, acquire
from nip_core.servers.kept_models import keep_models, restore_models
from nip_core.servers.own_server import OwnServer, find_server_directory, make_server_spec
from nip_core.servers.shutdown_dates import warn_of_shutdowns
from nip_core.session.guide_checks import check_guides, check_native_tools
from nip_core.session.origin import bring_adapters
from nip_core.session.prepare import Prepared, prepare
from nip_core.session.prompt_checks import check_prompts
from nip_core.session.server_checks import (
    check_engines,
    check_reachable,
    check_served,
    check_trainable,
    check_version,
)
from nip_core.session.server_speed import measure_speed
from nip_core.session.session import Session
from nip_core.trainers.expert_iteration import list_price_warnings

_log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def open_session(
    parameters: HyperParameters,
    *,
    environment: Mapping[str, str] = os.environ,
    progress: Progress | None = None,
    retry_failed_jobs: bool = False,
    prepared: Prepared | None = None,
) -> AsyncIterator[Session]:
    """Hold the run: checked, leased, its server up. Leaving gives everything back.

    `prepared` is the result of `prepare` for `parameters`, where that was just called.

    Raises SettingsError, DatasetError, StoreError, RunConflictError, LeaseError or ServerError;
    nothing has been spent then, but for the few tokens of the checks at models' servers.
    """
    # 1. Everything that can be known before anything is held or started.
    prepared = prepared or prepare(parameters, environment)
    run, progress = prepared.run, progress or Progress()
    await check_reachable(prepared.parameters, prepared.endpoints, progress)
    await check_served(prepared.parameters, prepared.endpoints, progress)
    await check_trainable(prepared.parameters, prepared.endpoints, progress)
    today = datetime.now(UTC).date()
    await warn_of_shutdowns(prepared.parameters, prepared.endpoints, today)
    for words in list_price_warnings(prepared.parameters):
        _log.warning("run %r: %s", run.name, words)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(collect_seldom())
        # 2. The run is this process's alone, and half a rewind is done.
        # In a thread: a silent owner is watched for its whole time to live.
        lease = stack.enter_context(await asyncio.to_thread(acquire, run.store, run.root))
        await asyncio.to_thread(finish_rewinds, run, lease)
        # 3. The servers, and which problems are too long for their models.
        server = await _own_server(prepared, lease, environment, progress)
        if server is not None:
            # Before the start: also a server that has come up half is ended.
            stack.callback(server.stop)
            await server.ensure()
        left_out_before = read_left_out(run)
        budget = Budget(run, prepared.parameters, progress)
        budget.look()
        client = make_chat_client(prepared.parameters, progress, budget)
        session = Session(
            parameters=prepared.parameters,
            game=prepared.game,
            run=run,
            lease=lease,
            problems=drop_left_out(prepared.problems, left_out_before or {}),
            endpoints=prepared.endpoints,
            client=await stack.enter_async_context(client),
            progress=progress,
            budget=budget,
            server=server,
            retry_failed_jobs=retry_failed_jobs,
            origin=prepared.origin.models,
            estimate=prepared.estimate,
        )
        with progress.doing("checking model servers and prompt lengths"):
            await check_version(session)
            await check_engines(session)
            too_long = await check_prompts(session)
            await check_guides(session)
            await check_native_tools(session)
        with progress.doing("measuring the speed of the models' server"):
            await measure_speed(session)
        left_out = settle_left_out(
            prepared.parameters, prepared.problems, left_out_before, too_long
        )
        # 4. Only now is the run created: settings that are refused above leave no run behind.
        opened = run.create_or_open(prepared.identity, now=datetime.now(UTC), lease=lease)
        record_estimate(run, prepared.estimate, opened.created or bool(opened.changed), lease)
        record_left_out(run, left_out, lease)
        if words := describe_left_out(left_out):
            _log.warning("run %r: %s", run.name, words)
        # 5. Trackers, which show the run to others, end before the run is let go of.
        trackers, bridge = prepared.parameters.tracking, find_trackers()
        feeders = None
        if trackers and bridge is not None:
            feeders = await stack.enter_async_context(bridge.feed(run, trackers))
        problems = drop_left_out(prepared.problems, left_out)
        yield replace(session, problems=problems, left_out=left_out, feeders=feeders)


async def _own_server(
    prepared: Prepared, lease: Lease, environment: Mapping[str, str], progress: Progress
) -> OwnServer | None:
    """Prepare the run's own server with the models it needs, not started; None if none is used."""
    parameters, run, origin = prepared.parameters, prepared.run, prepared.origin
    spec = make_server_spec(parameters)
    if spec is None:
        return None
    directory = find_server_directory(run, environment)
    # 1. Models of other runs, which this one then keeps, as those may go.
    await asyncio.to_thread(bring_adapters, origin, run.store, directory)
    names = [model for models in origin.adapters.values() for model in models]
    names += origin.published
    await asyncio.to_thread(keep_models, run, directory, names, lease)
    # 2. Models of this run that another machine has made.
    own_groups = [group for group in parameters.groups if group not in prepared.endpoints]
    await asyncio.to_thread(restore_models, run, directory, own_groups, lease)
    timeout_s = parameters.lm_server.start_timeout_s
    return OwnServer(
        spec, directory, timeout_s=timeout_s, environment=environment, progress=progress
    )


def make_chat_client(
    parameters: HyperParameters, progress: Progress, budget: Budget | None = None
) -> ChatClient:
    """The client of all chats of a run in one process."""
    return ChatClient(
        concurrency=parameters.rollouts.concurrency,
        timeout_s=parameters.rollouts.request_timeout_s,
        retries=parameters.rollouts.transport_retries,
        on_retry=progress.count_retry,
        on_fewer=progress.warn,
        traffic=progress.traffic,
        follows=True,
        admit=contextlib.nullcontext if budget is None else budget.call,
    )
