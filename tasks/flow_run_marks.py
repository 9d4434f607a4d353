"""Marks on flow runs: which run, where, and whose lease. By them a dead flow run is recognised."""

from dataclasses import dataclass
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.runtime import flow_run

from nip_core.session.session import Session
from nip_prefect.tasks.flow_run_names import NIP, name_flow_run, tag_run

RUN, STORE, OWNER, ATTEMPT = "nip.run", "nip.store", "nip.owner", "nip.attempt"
EPOCH = "nip.epoch"
GOAL = "nip.num_iterations"


@dataclass(frozen=True)
class Mark:
    """A flow run's work: it holds the lease `owner` of `run` in the store at `store`."""

    run: str
    store: str
    owner: str
    attempt: int  # the flow run's run_count then; a retry makes a mark of its own
    epoch: int = 0  # of the lease; one that is older is that of another store at the same address


async def mark_flow_run(session: Session) -> None:
    """Put the mark of an open session on the session's flow run, and name and tag it by the run."""
    identifier = flow_run.get_id()
    if identifier is None:
        return
    labels: dict[str, bool | int | float | str] = {
        RUN: session.run.name,
        STORE: session.run.store.url,
        OWNER: session.lease.owner.id,
        ATTEMPT: flow_run.get_run_count(),
        EPOCH: session.lease.epoch,
    }
    # Until here its name was typed by the user, and need not say the run's name.
    kind = str(flow_run.get_flow_name()).removesuffix("-run")
    name = name_flow_run(kind, session.run.name)
    tags = {*flow_run.get_tags(), NIP, tag_run(session.run.name)}
    async with get_client() as client:
        await client.update_flow_run_labels(UUID(identifier), labels)
        await client.update_flow_run(UUID(identifier), name=name, tags=sorted(tags))


async def note_goal(iterations: int) -> int:
    """Note the goal, a number of iterations, on this flow run; return the first note."""
    identifier = flow_run.get_id()
    if identifier is None:
        return iterations
    async with get_client() as client:
        noted = (await client.read_flow_run(UUID(identifier))).labels.get(GOAL)
        if noted is None:
            await client.update_flow_run_labels(UUID(identifier), {GOAL: iterations})
    return iterations if noted is None else int(noted)


def read_mark(flow_run_: FlowRun) -> Mark | None:
    """Read the mark of a flow run; None if it has not opened its run."""
    labels = flow_run_.labels
    if not {RUN, STORE, OWNER, ATTEMPT} <= set(labels):
        return None
    return Mark(
        str(labels[RUN]),
        str(labels[STORE]),
        str(labels[OWNER]),
        int(labels[ATTEMPT]),
        int(labels.get(EPOCH, 0)),
    )
