"""Tasks that play episodes: one per shard, and one that publishes a stage."""

from typing import Any

from nip_core.stages import rollouts
from prefect import task
from prefect.cache_policies import NO_CACHE
from tasks.runtime import RETRIES, session_of


@task(
    name="plan",
    task_run_name="plan-{split}-{iteration}",
    cache_policy=NO_CACHE,
    **RETRIES,
)
async def plan(run: str, iteration: int, split: str) -> dict[str, Any]:
    """Number of episodes, and names of the shards that the stage is cut into."""
    stage = rollouts.plan_stage(session_of(run), iteration, split)
    return {"episodes": stage.episodes, "shards": list(stage.shards)}


@task(
    name="play-shard",
    task_run_name="play-{split}-{iteration}-{shard}",
    tags=["nip-rollouts"],
    cache_policy=NO_CACHE,
    **RETRIES,
)
async def play_shard(run: str, iteration: int, split: str, shard: str) -> dict[str, Any]:
    """Play and commit one shard."""
    return dict(await rollouts.play(session_of(run), iteration, split, shard))


@task(
    name="commit-rollouts",
    task_run_name="commit-{split}-{iteration}",
    cache_policy=NO_CACHE,
    **RETRIES,
)
async def commit_rollouts(run: str, iteration: int, split: str) -> dict[str, Any]:
    """Publish the stage; returns rows and digest."""
    manifest = rollouts.commit_played(session_of(run), iteration, split)
    return {
        "rows": dict(manifest.rows),
        "canonical_digest": manifest.extra["canonical_digest"],
    }
