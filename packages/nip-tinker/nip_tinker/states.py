"""Named states at the service: found again after a death, renewed while needed, deleted after.

States cost by the month, and have a lifetime: `LIFETIME_S`, but for those that a job ends with.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from nip_core.errors import CorruptionError
from nip_core.jobs.job import BackendTrouble, Refused
from nip_tinker.record.notes import BlockNote, JobNote, Notes
from nip_tinker.wire import Checkpoint, Json, RequestFailed, TinkerClient, json_send

LIFETIME_S = 7 * 24 * 3600
"""An hour has cost users whole trainings; for ever costs by the month what nobody needs."""
KEY, DIGEST = "nip_job", "nip_digest"


def name_state(key: str, number: int, digest: str) -> str:
    """Name the state after a block: the name says which job, block and content."""
    return f"nip-{key}-{number:04d}-{digest[:12]}"


def describe_state(job: JobNote, block: BlockNote) -> dict[str, str]:
    """Make the metadata of a block's state."""
    return {KEY: job.key, "nip_block": str(block.number), DIGEST: block.digest}


def describe_model(base: str, rank: int, seed: int | None = None) -> Json:
    """Make the body of a new model, without its session and number."""
    shape = {"rank": rank, "train_unembed": False, "train_mlp": True, "train_attn": True}
    # The output layer is no target, as in nip's own jobs.
    return {
        "base_model": base,
        "lora_config": shape if seed is None else {**shape, "seed": seed},
        "type": "create_model",
    }


async def load_state(
    client: TinkerClient, session: str, create: Json, path: str, optimizer: bool
) -> tuple[str, int]:
    """Load a state into a new model: as SDK 0.38 does it, or else as earlier ones.

    Returns the model, and the number of its next request.
    """
    body = {"path": path, "optimizer": optimizer, "type": "load_weights"}
    newer = json_send("load_weights", {**body, "session_id": session, "model_seq_id": 0})
    try:
        answer = await client.fetch_json(await client.submit(newer))
        return str(answer["model_id"]), 1
    except RequestFailed:
        raise
    except Refused as error:
        if error.status not in (400, 422):
            raise
    first = json_send("create_model", {**create, "session_id": session, "model_seq_id": 1})
    model = str((await client.fetch_json(await client.submit(first)))["model_id"])
    older = json_send("load_weights", {**body, "model_id": model, "seq_id": 1})
    await client.fetch_json(await client.submit(older))
    return model, 2


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
    asked for at `since_s` can be missing from them. States of other training runs are not its own:
    a copy of the run has jobs of the same names. Raises CorruptionError for other content.
    """
    waited_s = 0.0  # beside the clock, which may have been set back
    while True:
        is_settled = max(now() - since_s, waited_s) >= settle_s
        listed = [state for run in runs for state in await client.list_run_states(run)]
        states = _match(listed, block, kind)
        if not states:
            listed = await client.list_all_states() or []
            states = _match([state for state in listed if state.run in runs], block, kind)
        if states:
            # The earliest, so that every process that looks takes the same.
            first, *doubles = sorted(states, key=lambda state: (state.time, state.path))
            return first, doubles
        if is_settled:
            return None, []
        pause_s = min(2.0, max(0.1, settle_s / 10))
        await sleep(pause_s)
        waited_s += pause_s


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

    A service may know no lifetimes, or the state be gone: then loading it says so.
    """
    if block.state is None or block.saved_at is None or now - block.saved_at < LIFETIME_S / 2:
        return False
    try:
        await client.renew_state(block.state, LIFETIME_S)
    except Refused as error:
        if error.status not in (404, 405, 410, 501):
            raise
        return False
    return True
