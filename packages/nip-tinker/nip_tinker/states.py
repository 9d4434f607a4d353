"""Named states at the service: found again after a death, renewed while needed, deleted after.

States cost by the month, and have a lifetime: `LIFETIME_S`, but for those that a job ends with.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from nip_core.errors import CorruptionError
from nip_core.jobs.job import BackendTrouble
from nip_tinker.notes import BlockNote, JobNote, Notes
from nip_tinker.wire import Checkpoint, TinkerClient

LIFETIME_S = 7 * 24 * 3600
"""An hour has cost users whole trainings; for ever costs by the month what nobody needs."""
SETTLE_S = 10.0
"""How long the service's lists may lag behind; a provider of one's own may say more."""
KEY, DIGEST = "nip_job", "nip_digest"


def name_state(key: str, number: int, digest: str) -> str:
    """Name the state after a block: the name says which job, block and content."""
    return f"nip-{key}-{number:04d}-{digest[:12]}"


def describe_state(job: JobNote, block: BlockNote) -> dict[str, str]:
    """Make the metadata of a block's state."""
    return {KEY: job.key, "nip_block": str(block.number), DIGEST: block.digest}


async def find_state(
    client: TinkerClient,
    block: BlockNote,
    kind: str,
    *,
    runs: Sequence[str],
    since_s: float,
    settle_s: float,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> tuple[Checkpoint | None, list[Checkpoint]]:
    """Find a block's state, and others of its name, which are to be deleted.

    The lists of its training runs are asked first, then that of all states; until nothing that was
    asked for at `since_s` can be missing from them. Raises CorruptionError for other content.
    """
    while True:
        is_settled = now() - since_s >= settle_s
        listed = [state for run in runs for state in await client.list_run_states(run)]
        states = _match(listed, block, kind)
        if not states:
            states = _match(await client.list_all_states() or [], block, kind)
        if states:
            # The earliest, so that every process that looks takes the same.
            first, *doubles = sorted(states, key=lambda state: (state.time, state.path))
            return first, doubles
        if is_settled:
            return None, []
        await sleep(min(2.0, max(0.1, settle_s / 10)))


def _match(states: Sequence[Checkpoint], block: BlockNote, kind: str) -> list[Checkpoint]:
    matches = [state for state in states if state.kind == kind and state.name == block.name]
    for state in matches:
        digest = state.metadata.get(DIGEST, block.digest)
        if digest != block.digest:
            raise CorruptionError(
                f"{state.path}: holds block {block.number} of other data or settings (digest "
                f"{digest}, on record {block.digest}); delete the state, or restore the run's files"
            )
    return matches


async def delete_states(client: TinkerClient, notes: Notes, job: JobNote) -> None:
    """Delete the states that the job's note names; one that can't be deleted now stays there."""
    if not job.deletions:
        return
    undeleted = []
    for path in job.deletions:
        try:
            await client.delete_state(path)
        except BackendTrouble:
            undeleted.append(path)
    job.deletions = undeleted
    notes.write_job(job)


async def renew(client: TinkerClient, block: BlockNote, now: float) -> bool:
    """Renew a state that a job in progress goes on from, in the second half of its life.

    Raises what the service says of one that is gone.
    """
    if block.state is None or block.saved_at is None or now - block.saved_at < LIFETIME_S / 2:
        return False
    await client.renew_state(block.state, LIFETIME_S)
    return True
