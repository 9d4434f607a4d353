"""How far a run is that was stopped, in words, from its committed files.

The answers of unfinished shards are not counted. They are in journals and are not asked for again.
"""

from typing import Any

from nip_core.records.iterations import Records
from nip_core.rollouts.plan import CANDIDATE, TEST, TRAIN, VALIDATION, SplitPlan
from nip_core.rollouts.storage.shard_manifests import committed_shards
from nip_core.run_store.manifest import is_committed
from nip_core.run_store.run import read_document


def describe_progress(records: Records) -> dict[str, Any]:
    """``finished`` and planned ``iterations``, and in ``doing`` its work, in words."""
    finished, last = records.finished(), records.shown.last
    return {"finished": finished, "iterations": last, "doing": _doing(records, finished)}


def _doing(records: Records, iteration: int) -> str:
    run = records.run
    # 1. Episodes that are not all played.
    for split in (TEST, TRAIN, VALIDATION, CANDIDATE):
        directory = run.rollouts(iteration, split)
        plan = read_document(run, f"{directory}/plan.json", SplitPlan)
        if plan is not None and not is_committed(run.store, directory):
            shards = committed_shards(run.store, directory).values()
            count = sum(shard.rows.get("episodes", 0) for shard in shards)
            whole = f"{count:,} of {plan.episodes:,} {split} episodes are in finished shards"
            return f"{whole}, answers since then are kept"
    # 2. Jobs, of which each says how it is.
    jobs = records.of(iteration).jobs
    if jobs and records.of(iteration).swap is None:
        states = (f"{group} {job.state}" for group, job in jobs.items())
        return f"fine-tune jobs: {', '.join(states)}"
    # 3. Between two stages.
    is_played = is_committed(run.store, run.rollouts(iteration, TRAIN))
    return "training episodes are played" if is_played else "nothing is played yet"
