"""The end of a job: its sessions are finished, and the states deleted that it does not leave."""

import contextlib
import time

from nip_core.jobs.job import BackendTrouble, Refused
from nip_tinker.record.notes import BlockNote, JobNote, Notes, Status
from nip_tinker.record.run_files import RunFiles
from nip_tinker.states import delete_states, find_state
from nip_tinker.wire import TinkerClient, identify_state

_REASONS = {"succeeded": "success", "failed": "errored", "cancelled": "interrupted"}


async def end_job(
    client: TinkerClient, notes: Notes, job: JobNote, status: Status, settle_s: float
) -> None:
    """End a job. A state or session that can't be ended now stays on record.

    A saving under way is awaited for `settle_s`: its state would have no lifetime.
    """
    blocks = notes.list_blocks(job)
    if blocks:
        with contextlib.suppress(BackendTrouble):
            await _await_savings(client, blocks[-1], settle_s)
    # Older states are gone already; the last block may have none yet.
    paths = {path for block in blocks[-3:] for path in (block.state, block.sampler) if path}
    # A saving may have ended unheard, or later than it was looked for.
    is_whole = status == "succeeded"
    for run in {
        run for block in blocks if len(block.runs) > 1 or not is_whole for run in block.runs
    }:
        with contextlib.suppress(BackendTrouble):
            listed = await client.list_run_states(run)
            paths |= {state.path for state in listed if state.name.startswith(f"nip-{job.key}-")}
    spared = {identify_state(path) for path in (job.state, job.model) if path and is_whole}
    paths |= {*job.deletions}
    job.deletions = sorted(path for path in paths if identify_state(path) not in spared)
    notes.write_job(job)
    await delete_states(client, notes, job)
    sessions = []
    for session in job.sessions:
        try:
            await client.finish_session(session, _REASONS[status])
        except Refused:
            continue  # it is gone, or the service has no such call: then it ends by itself
        except BackendTrouble:
            sessions.append(session)
    job.sessions, job.status, job.finished_at = sessions, status, time.time()
    job.steps_again = sum(block.steps_again for block in blocks)
    job.tokens_again = sum(block.tokens_again for block in blocks)
    job.trained_tokens = job.tokens_again + sum(sum(block.begun.values()) for block in blocks)
    notes.write_job(job)
    is_open = ("queued", "running")
    if not any(o.file == job.file and o.status in is_open for o in list_jobs(notes.files)):
        notes.files.remove(f"files/{job.file}")


async def _await_savings(client: TinkerClient, block: BlockNote, settle_s: float) -> None:
    for kind, began_s, path in (
        ("weights", block.saving_at, block.state),
        ("sampler_weights", block.sampling_at, block.sampler),
    ):
        if began_s is not None and path is None:
            await find_state(
                client, block, kind, runs=block.runs, since_s=began_s, settle_s=settle_s
            )


def list_jobs(files: RunFiles) -> list[JobNote]:
    """List the jobs that a run has notes of."""
    keys = {name.split("/")[0] for name in files.list() if name.endswith("/job.json")}
    jobs = (Notes(files, key).read_job() for key in sorted(keys))
    return [job for job in jobs if job is not None]
