"""Playing a split of an iteration: its plan, its shards, and the commit that makes it readable.

The plan is written once, so a resumed run cuts the same shards.

plan_split    which shards are still to be played
play_shards   several at once
play_shard    one: answers in the journal are reused, the rest is asked for, all is committed
commit_split  all of them as one
split_play    its episodes, plan and models, which all shards share
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, cast

from nip_core.concurrency import gather_or_cancel, in_thread
from nip_core.errors import RunConflictError
from nip_core.evaluation.figures_in_words import amount
from nip_core.hashing import digest
from nip_core.hook import Call
from nip_core.parameters import RandomAgentParameters
from nip_core.parameters.derived.hosting import find_host
from nip_core.parameters.derived.recording import gives_logprobs, records_p_accept
from nip_core.records.rewinds import find_stage_of_split
from nip_core.records.spending import count_cached_tokens, count_shared_prompts
from nip_core.rollouts.acceptance import LIKELIEST
from nip_core.rollouts.branching import Branch, Branching, no_branching
from nip_core.rollouts.engine import PlayedShard, PlaySpec, play_episodes
from nip_core.rollouts.episode import play_episode
from nip_core.rollouts.failures import Failures
from nip_core.rollouts.league import draw_opponents
from nip_core.rollouts.message_choice import judges_by_tokens, make_choice_play
from nip_core.rollouts.model_call import RANDOM_MODEL, Player
from nip_core.rollouts.plan import (
    CANDIDATE,
    TRAIN,
    VALIDATION,
    EpisodeSpec,
    OpponentKey,
    SplitPlan,
    cut_into_shards,
    find_played_problems,
    may_choose,
    name_played_problems,
    plan_episodes,
    replay_episodes,
)
from nip_core.rollouts.scripted_call import (
    find_opponent_scripts,
    make_scripted_players,
    name_writing_model,
)
from nip_core.rollouts.shard_context import ShardContext
from nip_core.rollouts.storage.journal import GroupCommits
from nip_core.rollouts.storage.journal_segments import open_journal, remove_journal
from nip_core.rollouts.storage.row_tables import build_tables
from nip_core.rollouts.storage.shard_manifests import (
    count_labels,
    shard_is_committed,
    shard_manifest,
)
from nip_core.rollouts.storage.table_rows import CallRecord, recorded_calls, recorded_labels
from nip_core.rollouts.storage.tables import (
    CACHED_TOKENS,
    SHARED_PROMPTS,
    commit_shard,
    join_shards,
)
from nip_core.rollouts.trees import parse_path
from nip_core.run_store.documents import validate_document
from nip_core.run_store.facts import ShardFacts, SplitFacts
from nip_core.run_store.manifest import Manifest, is_committed, read_manifest
from nip_core.run_store.run import read_document
from nip_core.scenarios import RULE_MODEL
from nip_core.session.session import Session
from nip_core.stages.served import find_models, find_new_models, find_opponents, find_player

# More than can play, so that no call that is free waits for a shard to begin; not all there are,
# because episodes under way are in memory.
_EPISODES_READY = 4  # under way or waiting for a place, for each call in flight
_SHARDS_ENDING = 4  # beside those that fill the places: each waits for its slowest episodes
_MOST_KEPT = 4  # splits whose episodes are kept in memory; an iteration has no more


class SplitPlay:
    """A split of an iteration while it is played; all its shards ask for the same."""

    def __init__(self, session: Session, iteration: int, split: str) -> None:
        """Reads the plan on record, or records one. Raises RunConflictError if they differ."""
        self.session, self.iteration, self.split = session, iteration, split
        self.store, self.directory = session.run.store, session.run.rollouts(iteration, split)
        self.specs = _specs(session, iteration, split)
        self.plan = self._plan()

    def _plan(self) -> SplitPlan:
        run, path = self.session.run, f"{self.directory}/plan.json"
        plan = SplitPlan(
            episodes=len(self.specs),
            episodes_per_shard=self.session.parameters.rollouts.episodes_per_shard,
            plan_digest=digest([spec.key for spec in self.specs]),
        )
        plan_on_record = read_document(run, path, SplitPlan)
        if plan_on_record is None:
            content = run.write_json_once(path, plan.model_dump(), lease=self.session.lease)
            plan_on_record = validate_document(content, SplitPlan, path)
        if plan_on_record.plan_digest == plan.plan_digest:
            return plan_on_record
        # A fork has splits that were played under the name of the run that it comes from.
        if is_committed(self.store, self.directory) and run.open().forked_from is not None:
            return plan_on_record
        raise RunConflictError(
            f"{path}: planned {plan_on_record.episodes} episodes with digest "
            f"{plan_on_record.plan_digest[:12]}, the settings now give {plan.episodes} with "
            f"{plan.plan_digest[:12]}; go on with the settings and problems of then"
        )

    @cached_property
    def failures(self) -> Failures:
        """Count failed episodes over all shards, begun with the failures of committed ones."""
        return self.committed_failures()

    def committed_failures(self) -> Failures:
        """Count the failed episodes of committed shards, of all processes."""
        # Candidates that can't play are not taken; they don't stop the run.
        failures = Failures(self.plan.episodes, stop=self.split != CANDIDATE)
        for shard in self.plan.shards:
            if shard_is_committed(self.store, self.directory, shard):
                manifest = read_manifest(self.store, self.directory, shard_manifest(shard))
                failures.keys.update(ShardFacts.from_manifest(manifest).failed)
        return failures

    @cached_property
    def models(self) -> dict[str, str]:
        """Name the model of each group."""
        models = find_models(self.session, find_player(self.session, self.iteration, self.split))
        if self.split == CANDIDATE:  # of all groups together
            models |= find_new_models(self.session, self.iteration)
        return {group: model.model for group, model in models.items()}

    @cached_property
    def opponents(self) -> dict[str, dict[OpponentKey, str]]:
        """Name by agent, and by iteration or run, the other models in some episodes."""
        return _opponents(self.session, self.iteration, self.split)

    def is_done(self, shard: str) -> bool:
        """Say whether a shard is committed. A journal left behind by a kill just then goes."""
        if not shard_is_committed(self.store, self.directory, shard):
            return False
        remove_journal(self.store, self.journal(shard))
        return True

    def journal(self, shard: str) -> str:
        """The path of a shard's journal."""
        return self.session.run.journal(self.iteration, self.split, shard)

    @cached_property
    def specs_by_shard(self) -> dict[str, list[EpisodeSpec]]:
        """The episodes of each shard."""
        return dict(
            zip(
                self.plan.shards,
                cut_into_shards(self.specs, self.plan.episodes_per_shard),
                strict=True,
            )
        )

    async def play(self, specs: Sequence[EpisodeSpec], journal: GroupCommits) -> PlayedShard:
        """Take the answers of the journal, and ask for the rest."""
        session = self.session
        records = journal.replay()
        calls = recorded_calls(records, journal.name)
        labels = recorded_labels(records, journal.name)
        # Before anything is asked: a shard with the answers of two models would be of none.
        self._check_models(calls, journal.name)

        async def work() -> PlayedShard:
            context = ShardContext(
                game=session.game,
                # Made anew here: a server that was started again answers at another port.
                players=self._players(),
                client=session.client,
                log=journal,
                recorded=calls,
                progress=session.progress,
                failures=self.failures,
                places=session.places,
                branch=self._branch(),
                labels=labels,
                opponents=self._other_players(),
            )
            return await play_episodes(specs, context, self._way())

        return await session.with_server(work)

    def commit(
        self, shard: str, specs: Sequence[EpisodeSpec], shard_played: PlayedShard
    ) -> Manifest:
        """Publish the episodes played, in the order of the plan."""
        # Episodes played side by side end in another order each time, and equal seeds have to give
        # equal tables.
        order = {(spec.problem.id, spec.sample): i for i, spec in enumerate(specs)}
        shard_played.episodes.sort(
            key=lambda row: (order[row.problem, row.sample], parse_path(row.branch_path))
        )
        shard_played.choices.sort(key=lambda row: (order[row.problem, row.sample], row.n))
        failed = set(shard_played.failed)
        shared = count_shared_prompts(shard_played.generations, shard_played.timings)
        cached = count_cached_tokens(shard_played.generations, shard_played.timings)
        return commit_shard(
            self.store,
            self.directory,
            shard,
            build_tables(
                shard_played.episodes,
                shard_played.generations,
                shard_played.timings,
                shard_played.choices,
            ),
            inputs={
                "plan": self.plan.plan_digest,
                "models": digest(self.models),
                **({"opponents": digest(self.opponents)} if self.opponents else {}),
            },
            extra={
                "failed": [spec.key for spec in specs if spec.key in failed],
                **(
                    {"labels": count_labels(shard_played.labels).model_dump()}
                    if shard_played.labels
                    else {}
                ),
                **({SHARED_PROMPTS: shared} if shared else {}),
                **({CACHED_TOKENS: cached} if cached else {}),
            },
            lease=self.session.lease,
        )

    def _branch(self) -> Branch:
        """Trees are for training by preferences; evaluated splits are played as they are."""
        if self.split != TRAIN or self.session.parameters.method(self.iteration) != "dpo":
            return no_branching
        return Branching(self.session.parameters, self.session.game.protocol, self.iteration)

    def _way(self) -> PlaySpec:
        """Return the function that plays an episode: the game as it is, or an attack."""
        if not self._chooses():
            return play_episode
        return make_choice_play(self.session.parameters).play

    def _chooses(self) -> bool:
        return may_choose(self.split) and self.session.parameters.choice is not None

    def _players(self) -> dict[str, Player]:
        """Every agent with the model of its group, or with its script."""
        return self._models_players() | make_scripted_players(self.session.game)

    def _models_players(self) -> dict[str, Player]:
        """List those with a model, also where a script plays in its place, and random ones."""
        session, parameters = self.session, self.session.parameters
        players = {
            agent: Player(agent, RANDOM_MODEL, None, settings)
            for agent, settings in parameters.agents.items()
            if isinstance(settings, RandomAgentParameters)
        }
        judges = self._judged_by_tokens()
        trains_tokens = self.split == TRAIN and parameters.method(self.iteration) == "trajectories"
        for group, agents in parameters.groups.items():
            is_trained = trains_tokens and group in parameters.trainable_groups
            recorded_agents = (
                parameters.training_agents(group, self.iteration) if is_trained else ()
            )
            for agent in agents:
                settings, is_recorded = parameters.model_agents[agent], agent in recorded_agents
                has_some = gives_logprobs(parameters, settings)
                recorded_top = parameters.rollouts.record_top_logprobs if has_some else 0
                players[agent] = Player(
                    agent,
                    self.models[group],
                    session.at(group).play,
                    settings,
                    # Tokens are trained as they were generated.
                    record_tokens=is_recorded,
                    record_logprobs=is_recorded and find_host(parameters, settings).gives_logprobs,
                    top_logprobs=max(recorded_top, LIKELIEST if agent in judges else 0),
                    record_p_accept=records_p_accept(parameters, settings),
                    has_own_server=find_host(parameters, settings).takes_every_request,
                )
        return players

    def _other_players(self) -> dict[tuple[str, OpponentKey], Player]:
        """List the agents with another model in some episodes.

        Earlier models are sampled as the present ones are, models of other runs as they were there.
        """
        if not self.opponents:
            return {}
        players, game = self._models_players(), self.session.game
        scripts = find_opponent_scripts(game)

        def other(agent: str, key: OpponentKey, model: str) -> Player:
            if isinstance(key, int):
                return replace(players[agent], model=model)
            settings = game.of_others[key].parameters.prompted_agents[agent]
            if (script := scripts.get(key)) is not None:
                return Player(agent, model, None, settings, script=script)
            # No agent is trained on it, so its tokens are not kept, and its sampling is its own.
            return replace(
                players[agent],
                model=model,
                parameters=settings,
                record_tokens=False,
                record_logprobs=False,
            )

        return {
            (agent, key): other(agent, key, model)
            for agent, models in self.opponents.items()
            for key, model in models.items()
        }

    def _judged_by_tokens(self) -> tuple[str, ...]:
        """The agents with answers that an attack weighs by their log-probabilities."""
        parameters = self.session.parameters
        if not self._chooses() or not judges_by_tokens(parameters):
            return ()
        host = find_host(parameters, parameters.model_agents["verifier"])
        return ("verifier",) if host.gives_logprobs else ()

    def _check_models(self, calls: Mapping[str, CallRecord], path: str) -> None:
        """Raise RunConflictError for a journal with answers of other models than these."""
        groups = self.session.parameters.groups
        plays = {agent: self.models[group] for group in groups for agent in groups[group]}
        scripted = make_scripted_players(self.session.game)
        writing = name_writing_model(self.session.game) if self._chooses() else None
        plays |= {agent: player.model for agent, player in scripted.items()}
        for record in calls.values():
            agent, model = record.generation.agent, record.generation.model_asked
            others = (*self.opponents.get(agent, {}).values(), writing, RULE_MODEL)
            if model in others:
                continue
            if model != plays.get(agent, model):  # a random agent has no model
                raise RunConflictError(
                    f"{path}: holds answers of {model!r} to {agent}, which now plays with "
                    f"{plays[agent]!r}"
                )


def _specs(session: Session, iteration: int, split: str) -> list[EpisodeSpec]:
    if split == CANDIDATE:
        return replay_episodes(_specs(session, iteration, VALIDATION), CANDIDATE)
    problems = find_played_problems(session.parameters, session.problems, split)
    specs = plan_episodes(session.parameters, problems, split, iteration)
    opponents = _opponents(session, iteration, split)
    earlier = {agent: [*models] for agent, models in opponents.items()}
    return draw_opponents(specs, session.parameters, earlier)


def _opponents(session: Session, iteration: int, split: str) -> dict[str, dict[OpponentKey, str]]:
    """Name by agent, and by iteration or run, the other models in some episodes of the split."""
    if split != TRAIN:
        return {}
    return {
        agent: {first: model.model for first, model in models.items()}
        for agent, models in find_opponents(session, iteration).items()
    }


def split_play(session: Session, iteration: int, split: str) -> SplitPlay:
    """The split as this process plays it."""
    play = cast(SplitPlay | None, session.splits.get((iteration, split)))
    if play is None:
        if len(session.splits) >= _MOST_KEPT:
            # All of them, which is simplest: one that is still needed is made again.
            session.splits.clear()
        play = session.splits[iteration, split] = SplitPlay(session, iteration, split)
    return play


def plan_split(session: Session, iteration: int, split: str) -> list[str]:
    """Plan a split, and show it as begun. Returns the shards still to be played."""
    play = split_play(session, iteration, split)
    plan = play.plan
    open_shards = [shard for shard in plan.shards if not play.is_done(shard)]
    done_count = plan.episodes - sum(len(play.specs_by_shard[shard]) for shard in open_shards)
    failed = len(play.failures.keys) if done_count else 0
    session.progress.start_episodes(split, plan.episodes, done_count, failed)
    done_words = f", {done_count} of them are there already" if done_count else ""
    kind = name_played_problems(session.parameters, split)
    session.tell(
        "play",
        f"iteration {iteration}: playing {kind} problems, "
        f"{amount(plan.episodes, 'episode')}{done_words}",
        iteration=iteration,
        split=split,
        episodes=plan.episodes,
        done=done_count,
    )
    return open_shards


async def play_shards(
    session: Session,
    iteration: int,
    split: str,
    shards: Sequence[str],
    call: Call,
) -> list[Any]:
    """Play shards side by side; `rollouts.concurrency` bounds the episodes of all of them.

    No more shards are under way than can fill it, however many there are.
    """
    ready = _EPISODES_READY * session.parameters.rollouts.concurrency
    # Of the plan: a run that goes on with other settings has the shards that it was cut into.
    filling = -(-ready // split_play(session, iteration, split).plan.episodes_per_shard)
    places = asyncio.Semaphore(filling + _SHARDS_ENDING)

    async def play(shard: str) -> Any:
        async with places:
            return await call(play_shard, session, iteration, split, shard)

    return await gather_or_cancel(map(play, shards))


@dataclass(frozen=True)
class CommittedShard:
    """A shard that is committed."""

    shard: str
    reused: bool
    """It was committed before, by an earlier try of this task, and nothing else is known of it."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """By table."""
    canonical_digest: str | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class CommittedSplit:
    """A split of which all shards are committed."""

    rows: Mapping[str, int]
    """By table."""
    canonical_digest: str


async def play_shard(session: Session, iteration: int, split: str, shard: str) -> CommittedShard:
    """Play one shard and commit it; a committed one is left as it is.

    Raises StageError when too many episodes fail; the journal then keeps the answers.
    """
    play = split_play(session, iteration, split)
    if play.is_done(shard):  # by an earlier try of this task
        return CommittedShard(shard, reused=True)
    started = time.monotonic()
    specs = play.specs_by_shard[shard]
    # 1. Play, with every answer in the journal before it is used.
    journal = open_journal(play.store, play.journal(shard), session.lease.epoch)
    try:
        shard_played = await play.play(specs, journal)
    finally:
        await journal.aclose()
    # 2. Commit, in a thread: other shards go on playing meanwhile.
    manifest = await in_thread(partial(play.commit, shard, specs, shard_played))
    # 3. Its answers are committed. The other way round a kill would lose answers that were paid
    #    for.
    journal.remove()
    return CommittedShard(
        shard,
        reused=False,
        rows=dict(manifest.rows),
        canonical_digest=SplitFacts.from_manifest(manifest).canonical_digest,
        seconds=round(time.monotonic() - started, 3),
    )


def commit_split(session: Session, iteration: int, split: str) -> CommittedSplit:
    """Publish the split once all its shards are committed.

    Raises StageError if too many of its episodes failed, which shards that were played in different
    processes can't see by themselves.
    """
    play = split_play(session, iteration, split)
    # Not once more of a committed split: the threshold may be another by now.
    if not is_committed(play.store, play.directory):
        play.committed_failures().check(
            session.parameters.rollouts.failure_threshold,
            f"their errors stand in {play.directory}, whose shards are committed and not played "
            "again by themselves: mend the cause and give "
            f"--rerun-from {iteration}:{find_stage_of_split(split)}, or raise the threshold",
        )
    manifest = join_shards(play.store, play.directory, play.plan.shards, lease=session.lease)
    session.budget.tell(session.log)
    digest_of_all = SplitFacts.from_manifest(manifest).canonical_digest
    return CommittedSplit(dict(manifest.rows), digest_of_all)
