"""Plays shards: many episodes at once over one client and one journal.

play_episodes many episodes, as many at a time as there are places
PlayedShard   their rows

Every episode is a coroutine (see `episode`), with no barrier between the turns of different ones.
An episode that can't go on is a recorded outcome. More of them than the threshold stop the shard,
and then the journal keeps all generations. A server that does not answer is no outcome of an
episode: it stops the shard too, so that the data never depend on the weather.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from nip_core.concurrency import gather_or_cancel
from nip_core.rollouts.episode import play_episode
from nip_core.rollouts.failures import Failures
from nip_core.rollouts.plan import EpisodeSpec
from nip_core.rollouts.shard_context import ShardContext
from nip_core.rollouts.storage.table_rows import (
    Episode,
    Generation,
    LabelRow,
    MessageChoice,
    Timing,
)
from nip_core.rollouts.turns import Played

EPISODES_PER_CALL = 2
"""At play for each call in flight."""
PlaySpec = Callable[[EpisodeSpec, ShardContext], Awaitable[Played]]
"""Plays one episode, or a tree of them."""


@dataclass(frozen=True)
class PlayedShard:
    """Rows for the three tables, see `rollouts.storage.schema`, and labels made in play."""

    episodes: list[Episode]
    generations: list[Generation]
    timings: list[Timing]
    failed: list[str] = field(default_factory=list)
    """Keys of the specs that failed."""
    labels: list[LabelRow] = field(default_factory=list)
    choices: list[MessageChoice] = field(default_factory=list)
    """Of an attack."""


async def play_episodes(
    specs: Sequence[EpisodeSpec], context: ShardContext, play_spec: PlaySpec = play_episode
) -> PlayedShard:
    """Play all `specs`, as many at a time as there are places, each by `play_spec`.

    A spec whose episode branches counts as one episode, which fails where all its leaves do.

    Raises StageError when more than `rollouts.failure_threshold` of the split's episodes fail, and
    ServerError when the server stays silent. All generations until then stand in the journal.
    """
    parameters, progress = context.game.parameters, context.progress
    failures = context.failures or Failures(len(specs))
    places = context.places or asyncio.Semaphore(
        EPISODES_PER_CALL * parameters.rollouts.concurrency
    )
    shard, done_count = PlayedShard([], [], []), 0

    async def play(spec: EpisodeSpec) -> None:
        nonlocal done_count
        # 1. Play it as soon as there is a place. No barrier between rounds: a slow answer would
        #    keep all others waiting, and the server idle.
        async with places:
            progress.episodes_in_flight += 1
            try:
                result = await play_spec(spec, context)
            finally:
                progress.episodes_in_flight -= 1
        # 2. Keep its rows.
        shard.episodes.extend(result.episodes)
        shard.choices.extend(result.choices)
        shard.generations.extend(record.generation for record in result.records)
        shard.timings.extend(record.timing for record in result.records)
        # 3. Count it. If it failed earlier and has succeeded now, it is no failure any more.
        done_count += 1
        progress.episodes_done += 1
        if _was_recorded(result, context):  # so it says nothing of how long episodes take
            progress.episodes_before += 1
        failures.keys.discard(spec.key)
        # 4. Stop the shard where too many have failed. A tree counts once and fails with its last
        #    leaf only: one that came to its end shows that the problem can be played.
        if all(episode.outcome == "failed" for episode in result.episodes):
            shard.failed.append(spec.key)
            progress.episodes_failed += 1
            failures.keys.add(spec.key)
            last = f"the last: {spec.problem.id}: {result.episodes[-1].error}"
            remedy = "What was generated is kept: mend the cause and run again"
            failures.check(parameters.rollouts.failure_threshold, f"{last}. {remedy}")

    try:
        await gather_or_cancel(map(play, specs))
    except BaseException:
        # These episodes will be played again, and counted then. Their time was spent here.
        progress.episodes_done -= done_count
        progress.episodes_before -= done_count
        progress.episodes_failed -= len(shard.failed)
        raise
    shard.labels.extend(context.labels.values())
    return shard


def _was_recorded(result: Played, context: ShardContext) -> bool:
    """Say whether the journal had all answers of these episodes."""
    keys = [record.generation.key for record in result.records]
    return bool(keys) and all(key in context.recorded for key in keys)
