"""Playing a split of an iteration: its plan, its shards, and the commit that makes it readable.

plan_split    which shards are still to be played
play_shards   several at once
play_shard    one: what the journal has is reused, the rest is asked for, all is committed
commit_split  all of them as one
plan_of       which episodes and shards; written once, so a resumed run cuts the same shards
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Any

from nip_core.concurrency import gather_or_cancel, in_thread
from nip_core.errors import RunConflictError
from nip_core.hashing import digest
from nip_core.rollouts import engine
from nip_core.rollouts.engine import PlayedShard
from nip_core.rollouts.episode import Branch, Failures, ShardContext, no_branching
from nip_core.rollouts.journal import GroupCommits
from nip_core.rollouts.journal_segments import open_journal, remove_journal
from nip_core.rollouts.plan import (
    CANDIDATE,
    TRAIN,
    VALIDATION,
    EpisodeSpec,
    plan_episodes,
    replayed,
)
from nip_core.rollouts.plan import shards as in_shards
from nip_core.rollouts.tables import (
    build_tables,
    commit_shard,
    commit_stage,
    shard_is_committed,
    shard_manifest,
)
from nip_core.rollouts.trees import Branching, tree_order
from nip_core.run_store.manifest import Manifest, is_committed, read_manifest
from nip_core.stages.models import ServedModel, playing
from nip_core.stages.rerun import stage_of_split
from nip_core.stages.session import Session

_MOST_PLANNED = 4  # stages whose episodes are kept; an iteration has no more


@dataclass(frozen=True)
class StagePlan:
    """What a stage plays, as written to its plan.json."""

    episodes: int
    episodes_per_shard: int
    plan_digest: str  # over the keys of the episodes

    @property
    def shards(self) -> tuple[str, ...]:
        """Names of the shards in order."""
        count = -(-self.episodes // self.episodes_per_shard)
        return tuple(f"{i:04d}" for i in range(count))

    def size(self, shard: str) -> int:
        """Episodes of one shard."""
        return min(self.episodes_per_shard, self.episodes - int(shard) * self.episodes_per_shard)


def plan_of(session: Session, iteration: int, split: str) -> StagePlan:
    """The plan of a stage: the one on record, or a new one, which is then recorded."""
    specs, keys_digest = _planned(session, iteration, split)
    plan = StagePlan(
        episodes=len(specs),
        episodes_per_shard=session.parameters.rollouts.episodes_per_shard,
        plan_digest=keys_digest,
    )
    path = f"{session.run.rollouts(iteration, split)}/plan.json"
    stored = session.run.read_json_or_none(path)
    if stored is None:
        stored = session.run.write_json_once(path, asdict(plan), lease=session.lease)
    recorded = StagePlan(**stored)
    if recorded.plan_digest != plan.plan_digest and not _is_inherited(session, iteration, split):
        raise RunConflictError(
            f"{path}: planned {recorded.episodes} episodes with digest "
            f"{recorded.plan_digest[:12]}, the settings now give {plan.episodes} with "
            f"{plan.plan_digest[:12]}; go on with the settings and problems of then"
        )
    return recorded


def _is_inherited(session: Session, iteration: int, split: str) -> bool:
    """Whether the stage was played by the run that this one is a fork of, under that one's name."""
    played = is_committed(session.run.store, session.run.rollouts(iteration, split))
    return played and session.run.open().forked_from is not None


def _planned(session: Session, iteration: int, split: str) -> tuple[list[EpisodeSpec], str]:
    """The episodes of a stage, and the digest of their keys."""
    found = session.planned.get((iteration, split))
    if found is None:
        if len(session.planned) >= _MOST_PLANNED:
            session.planned.clear()
        specs = _specs(session, iteration, split)
        found = session.planned[iteration, split] = specs, digest([spec.key for spec in specs])
    return found


def _specs(session: Session, iteration: int, split: str) -> list[EpisodeSpec]:
    if split == CANDIDATE:
        return replayed(_specs(session, iteration, VALIDATION), CANDIDATE)
    return plan_episodes(session.parameters, session.problems[split], split, iteration)


def plan_split(session: Session, iteration: int, split: str) -> list[str]:
    """Plan a split, and show it as begun. Returns the shards that are still to be played."""
    store, directory = session.run.store, session.run.rollouts(iteration, split)
    plan = plan_of(session, iteration, split)
    left = []
    for shard in plan.shards:
        if shard_is_committed(store, directory, shard):  # perhaps by one that was killed just then
            remove_journal(store, session.run.journal(iteration, split, shard))
        else:
            left.append(shard)
    what = f"iteration {iteration}: playing {split} problems"
    done = plan.episodes - sum(map(plan.size, left))
    failed = len(_failures(session, iteration, split).keys) if done else 0
    session.progress.start_stage(what, plan.episodes, done, failed)
    session.log.info(
        "iteration %d: playing %s problems, %d episodes, %d of them in %d shards are still to play",
        *(iteration, split, plan.episodes, plan.episodes - done, len(left)),
    )
    return left


async def play_shards(
    session: Session,
    iteration: int,
    split: str,
    shards: Sequence[str],
    call: Callable[..., Awaitable[Any]],
) -> None:
    """Play shards side by side; `rollouts.concurrency` bounds the episodes of all of them."""
    await gather_or_cancel(call(play_shard, session, iteration, split, shard) for shard in shards)


async def play_shard(session: Session, iteration: int, split: str, shard: str) -> dict[str, Any]:
    """Play one shard and commit it; a committed one is left as it is.

    Returns rows and digest of the shard. Raises StageError when too many episodes fail; the
    journal then keeps what was generated.
    """
    store, directory = session.run.store, session.run.rollouts(iteration, split)
    plan = plan_of(session, iteration, split)
    journal_path = session.run.journal(iteration, split, shard)
    if shard_is_committed(store, directory, shard):  # by an earlier try of this task
        remove_journal(store, journal_path)
        return {"shard": shard, "reused": True}
    started = time.monotonic()
    models = playing(session, iteration, split)
    specs, _ = _planned(session, iteration, split)
    specs = in_shards(specs, plan.episodes_per_shard)[int(shard)]
    journal = open_journal(store, journal_path, session.lease.epoch)
    try:
        played = await _play_open(session, iteration, split, specs, models, journal)
    finally:
        await journal.aclose()
    # In a thread: other shards go on playing meanwhile.
    commit = partial(_commit, session, iteration, split, shard, specs, played)
    manifest = await in_thread(commit)
    journal.remove()  # what it held is committed
    return {
        "shard": shard,
        "reused": False,
        "rows": dict(manifest.rows),
        "canonical_digest": manifest.extra["canonical_digest"],
        "seconds": round(time.monotonic() - started, 3),
    }


async def _play_open(
    session: Session,
    iteration: int,
    split: str,
    specs: Sequence[EpisodeSpec],
    models: Mapping[str, ServedModel],
    journal: GroupCommits,
) -> PlayedShard:
    """What the journal has is reused, the rest is asked for."""
    recorded = {r["generation"]["key"]: r for r in journal.replay()}
    _check_models(recorded, session, models, journal.name)
    failures = _failures(session, iteration, split)

    async def work() -> PlayedShard:
        # Made anew here: a server that was started again answers at another port.
        players = session.players(
            {group: m.model for group, m in models.items()},
            recorded=_recorded(session, iteration, split),
        )
        context = ShardContext(
            game=session.game,
            players=players,
            client=session.client,
            log=journal,
            recorded=recorded,
            progress=session.progress,
            failures=failures,
            places=session.places,
        )
        return await engine.play_shard(specs, context, _branch(session, iteration, split))

    return await session.with_server(work)


def _failures(session: Session, iteration: int, split: str) -> Failures:
    """The failed episodes of a stage, begun with those that stand in committed shards."""
    failures = session.failures.get((iteration, split))
    if failures is None:
        store, directory = session.run.store, session.run.rollouts(iteration, split)
        plan = plan_of(session, iteration, split)
        # Candidates that can't play are not taken; they don't stop the run.
        failures = Failures(plan.episodes, stop=split != CANDIDATE)
        session.failures[iteration, split] = failures
        for shard in plan.shards:
            if shard_is_committed(store, directory, shard):
                committed = read_manifest(store, directory, shard_manifest(shard))
                failures.keys.update(committed.extra.get("failed", ()))
    return failures


def _commit(
    session: Session,
    iteration: int,
    split: str,
    shard: str,
    specs: Sequence[EpisodeSpec],
    played: PlayedShard,
) -> Manifest:
    """Publish what was played, in the order of the plan."""
    timings = [
        {**row, "started_at": datetime.fromisoformat(row["started_at"])} for row in played.timings
    ]
    order = {(spec.problem.id, spec.sample): i for i, spec in enumerate(specs)}
    played.episodes.sort(key=lambda row: (order[row["problem"], row["sample"]], tree_order(row)))
    failed = set(played.failed)
    models = playing(session, iteration, split)
    return commit_shard(
        session.run.store,
        session.run.rollouts(iteration, split),
        shard,
        build_tables(played.episodes, played.generations, timings),
        inputs={
            "plan": plan_of(session, iteration, split).plan_digest,
            "models": digest({group: m.model for group, m in models.items()}),
        },
        extra={"failed": [spec.key for spec in specs if spec.key in failed]},
        lease=session.lease,
    )


def _branch(session: Session, iteration: int, split: str) -> Branch:
    """Trees are for training by preferences; what is evaluated is played as it is."""
    if split != TRAIN or session.parameters.method(iteration) != "dpo":
        return no_branching
    return Branching(session.parameters, session.game.protocol, iteration)


def _recorded(session: Session, iteration: int, split: str) -> set[str]:
    """The agents whose tokens are trained as they were generated."""
    parameters = session.parameters
    if split != TRAIN or parameters.method(iteration) != "trajectories":
        return set()
    groups = parameters.trainable_groups
    return {a for group in groups for a in parameters.training_agents(group, iteration)}


def _check_models(
    recorded: Mapping[str, Mapping[str, Any]],
    session: Session,
    models: Mapping[str, ServedModel],
    path: str,
) -> None:
    """What the journal holds must have been asked of the models that play now."""
    now = {
        agent: models[g].model
        for g, agents in session.parameters.groups.items()
        for agent in agents
    }
    for record in recorded.values():
        generation = record["generation"]
        if generation["agent"] not in now:
            continue  # a random agent has no model
        if generation["model_asked"] != now[generation["agent"]]:
            raise RunConflictError(
                f"{path}: holds answers of {generation['model_asked']!r} to {generation['agent']}, "
                f"which now plays with {now[generation['agent']]!r}"
            )


def commit_split(session: Session, iteration: int, split: str) -> dict[str, Any]:
    """Publish the split once all its shards are committed; returns rows and digest.

    Raises StageError if too many of its episodes failed, which shards that were played in different
    processes can't see by themselves.
    """
    store, directory = session.run.store, session.run.rollouts(iteration, split)
    if not is_committed(store, directory):
        session.failures.pop((iteration, split), None)  # counted anew, from all that is committed
        _failures(session, iteration, split).check(
            session.parameters.rollouts.failure_threshold,
            f"their errors stand in {directory}, whose shards are committed and not played again "
            "by themselves: mend the cause and give "
            f"--rerun-from {iteration}:{stage_of_split(split)}, or raise the threshold",
        )
    names = plan_of(session, iteration, split).shards
    manifest = commit_stage(store, directory, names, lease=session.lease)
    return {
        "rows": dict(manifest.rows),
        "canonical_digest": manifest.extra["canonical_digest"],
    }
