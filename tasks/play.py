"""Tasks that play episodes: one per shard, and one that publishes a stage."""

import os
import socket
from typing import Any

from nip_core.stages import rollouts
from nip_core.stages.remote_shards import Ticket, open_apart
from nip_prefect.tasks.runtime import session_of, stage


@stage("plan", "plan-{split}-{iteration}")
async def plan(run: str, iteration: int, split: str) -> list[str]:
    """Names of the shards that are still to be played."""
    return list(rollouts.start(session_of(run), iteration, split))


@stage("play-shard", "play-{split}-{iteration}-{shard}")
async def play_shard(run: str, iteration: int, split: str, shard: str) -> dict[str, Any]:
    """Play and commit one shard."""
    return dict(await rollouts.play(session_of(run), iteration, split, shard))


@stage("play-shard-apart", "play-{split}-{iteration}-{shard}")
async def play_shard_apart(
    ticket: Ticket, iteration: int, split: str, shard: str
) -> dict[str, Any]:
    """Play and commit one shard in a process that has not opened the run."""
    async with open_apart(ticket) as session:
        played = await rollouts.play(session, iteration, split, shard)
    return {**played, "process": os.getpid(), "host": socket.gethostname()}


@stage("commit-rollouts", "commit-{split}-{iteration}")
async def commit_rollouts(run: str, iteration: int, split: str) -> dict[str, Any]:
    """Publish the stage; returns rows and digest."""
    manifest = rollouts.commit_played(session_of(run), iteration, split)
    return {
        "rows": dict(manifest.rows),
        "canonical_digest": manifest.extra["canonical_digest"],
    }
