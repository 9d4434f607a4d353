"""Plays episodes: every episode a coroutine, no barrier between the turns of different ones.

play_shard    many episodes at once, over one client and one journal
places_for    how many episodes at a time
play_episode  one episode, from reset to verdict, with all that it branches into
Branch        where episodes branch; `straight` is nowhere, for trees see `trees`
Failures      how many episodes of a stage may fail

A generation whose key is in the journal is taken from there and not asked for again. An episode
that can't go on is a recorded outcome; more of them than the threshold stop the shard, and
then the journal keeps what was generated. A server that does not answer is no outcome of an
episode: it stops the shard too, so that the data never depend on the weather.

Where an episode branches, the answers of an agent in all children are asked for by one request
where the server can, with a seed from the node; the i-th is child i's. What is missing in the
answer or refused together, and what is asked again because it was invalid, is a request of its
own with the child's key and seed. A child goes on as soon as its own agents have answered. Each
answer is a record of its own; after a kill those found are kept, and the same request is made for
the others.

A prover without a valid answer ends its episode, unless the settings have a penalty for that:
then it is paid the penalty and is silent in that round, which leaves no turn behind.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from nip_core.concurrency import together
from nip_core.errors import StageError
from nip_core.game.render import ChatMessage, Game, Situation, tokens_of
from nip_core.parameters import HyperParameters, RandomAgentParameters
from nip_core.protocols import NO_DECISION, Move, Turn
from nip_core.rollouts.chat_client import ChatClient, ContextLengthError, RequestRefusedError
from nip_core.rollouts.model_call import Call, Player, Row, ask, read_again
from nip_core.rollouts.plan import EpisodeSpec
from nip_core.rollouts.progress import Progress
from nip_core.scenarios.code_validation.parsing import AnswerForm

_EPISODES_PER_CALL = 2  # in flight
Played = tuple[list[Row], list[Row]]
"""Rows of episodes, and records of the calls they took."""


class GenerationLog(Protocol):
    """Where finished generations are made durable (see `nip_core.rollouts.journal`)."""

    async def append(self, record: dict[str, Any]) -> None:
        """Return once the record would survive a kill."""


@dataclass
class Failures:
    """Failed episodes of a stage. Its shards share one, so that their size decides nothing."""

    episodes: int  # of the whole stage
    keys: set[str] = field(default_factory=set)  # of those that failed; a repetition counts once
    stop: bool = True  # whether too many stop the stage

    def check(self, threshold: float, what: str) -> None:
        """Raise StageError if more failed than this share of the episodes.

        `what` ends its message: why they failed, and what to do.
        """
        # 0.29 * 100 is a little less than 29.
        if self.stop and len(self.keys) > threshold * self.episodes + 1e-9:
            raise StageError(
                f"{len(self.keys)} of {self.episodes} episodes failed, more than the share of "
                f"{threshold} that rollouts.failure_threshold allows; {what}"
            )


@dataclass(frozen=True)
class Table:
    """What all episodes of a shard share."""

    game: Game
    players: Mapping[str, Player]
    client: ChatClient
    log: GenerationLog
    recorded: Mapping[str, Row]  # journal records by generation key
    progress: Progress
    failures: Failures | None = None  # None: the shard is the whole stage
    places: asyncio.Semaphore | None = None  # one per episode at a time; None: of this shard alone


@dataclass(frozen=True)
class PlayedShard:
    """Rows for the three tables, see `nip_core.rollouts.schema`."""

    episodes: list[Row]
    generations: list[Row]
    timings: list[Row]
    failed: list[str] = field(default_factory=list)
    """Keys of the specs that failed."""


Branch = Callable[[EpisodeSpec, int, Sequence[str]], Sequence[EpisodeSpec]]
"""(a node, the round that is next, the agents that move in it) -> its children."""


def straight(node: EpisodeSpec, round_: int, agents: Sequence[str]) -> Sequence[EpisodeSpec]:
    """The `Branch` of a plain episode, which has none."""
    return (node,)


def places_for(parameters: HyperParameters) -> asyncio.Semaphore:
    """As many episodes at a time as always have a call to make.

    Not more: episodes are begun in the order of the plan, so the shards before are soon committed,
    and neither memory nor a run that goes on after a kill has to do with all of them.
    """
    return asyncio.Semaphore(_EPISODES_PER_CALL * parameters.rollouts.concurrency)


async def play_shard(
    specs: Sequence[EpisodeSpec], table: Table, branch: Branch = straight
) -> PlayedShard:
    """Play all `specs`, as many at a time as there are places.

    A spec whose episode branches counts as one episode, which fails where all its leaves do.

    Raises StageError when more than `rollouts.failure_threshold` of the stage's episodes fail, and
    ServerError when the server stays silent; what was generated until then stands in the journal.
    """
    failures = table.failures or Failures(len(specs))
    places = table.places or places_for(table.game.parameters)
    shard = PlayedShard([], [], [])
    done = 0

    async def play(spec: EpisodeSpec) -> None:
        nonlocal done
        async with places:
            table.progress.episodes_in_flight += 1
            try:
                episodes, records = await play_episode(spec, table, branch)
            finally:
                table.progress.episodes_in_flight -= 1
        shard.episodes.extend(episodes)
        shard.generations.extend(record["generation"] for record in records)
        shard.timings.extend(record["timing"] for record in records)
        done += 1
        table.progress.episodes_done += 1
        failures.keys.discard(spec.key)
        if all(episode["outcome"] == "failed" for episode in episodes):
            shard.failed.append(spec.key)
            table.progress.episodes_failed += 1
            failures.keys.add(spec.key)
            threshold = table.game.parameters.rollouts.failure_threshold
            last = f"the last: {spec.problem.id}: {episodes[-1]['error']}"
            kept = "What was generated is kept: mend the cause and run again"
            failures.check(threshold, f"{last}. {kept}")

    try:
        await together(play(spec) for spec in specs)
    except BaseException:
        # It will be played again, and counted then.
        table.progress.episodes_done -= done
        table.progress.episodes_failed -= len(shard.failed)
        raise
    return shard


async def play_episode(spec: EpisodeSpec, table: Table, branch: Branch = straight) -> Played:
    """One episode, or all that it branches into: rows in the order of their branch paths, and a
    journal record for each model call.

    Raises StageError, ServerError or StoreError for what would stop every episode.
    """
    rewards = dict.fromkeys(table.game.protocol.agent_names, 0.0)
    return await _play_on(_Node(spec, table, 0, [], rewards, None), branch)


async def _play_on(node: "_Node", branch: Branch) -> Played:
    """Everything from a node on, with the records of the round that led to it."""
    records = list(node.records)
    parts: list[Played] = []
    while node.outcome is None:
        children = branch(node.spec, node.round, node.movers)
        if len(children) > 1:
            parts = await _play_children(node, children, branch)
            break
        node = await node.play_round(children[0])
        records += node.records
    else:
        parts = [([node.row()], [])]
    rows = [row for part in parts for row in part[0]]
    return rows, [
        *(_in_episode(record, rows[0]["key"]) for record in records),
        *(record for part in parts for record in part[1]),
    ]


async def _play_children(
    node: "_Node", children: Sequence[EpisodeSpec], branch: Branch
) -> list[Played]:
    """Each child goes on as soon as its own agents have answered."""
    loop = asyncio.get_running_loop()
    first: dict[str, list[asyncio.Future[_First]]] = {
        agent: [loop.create_future() for _ in children] for agent in node.movers
    }

    async def grow(number: int, spec: EpisodeSpec) -> Played:
        child = await node.play_round(spec, {agent: first[agent][number] for agent in first})
        return await _play_on(child, branch)

    work: list[Awaitable[Played | None]] = [
        *(node.ask_for_all(agent, children, first[agent]) for agent in first),
        *(grow(number, spec) for number, spec in enumerate(children)),
    ]
    return [part for part in await together(work) if part is not None]


def _in_episode(record: Row, episode: str) -> Row:
    """The record with the episode that its generation belongs to, which a node can't know."""
    generation = record["generation"]
    if generation["episode"] == episode:
        return record
    return {**record, "generation": {**generation, "episode": episode}}


_First = tuple[Row, Move] | ContextLengthError | None
"""An answer that was asked for together with others; None: it has to be asked for alone."""


@dataclass(frozen=True)
class _Answer:
    """What came of an agent's turn: the turn, or why there is none; and the calls it took."""

    records: list[Row]
    turn: Turn | None = None
    problem: str | None = None
    is_invalid: bool = False  # every call was answered, if not in a valid form


@dataclass
class _Node:
    """An episode between two rounds, while it is played."""

    spec: EpisodeSpec
    table: Table
    round: int  # that is next
    turns: list[Turn]
    rewards: dict[str, float]
    parent: str | None  # key of the last valid generation
    records: list[Row] = field(default_factory=list)  # of the calls of the round before
    outcome: str | None = None  # None: it goes on
    decision: int = NO_DECISION
    value: float | None = None
    error: str | None = None
    chats: dict[str, list[ChatMessage]] = field(default_factory=dict)  # by agent that was asked

    @cached_property
    def movers(self) -> list[str]:
        protocol = self.table.game.protocol
        movers = protocol.movers(self.round, self.spec.seed, self.turns)
        return [agent for agent in protocol.agent_names if agent in movers]

    async def play_round(
        self, spec: EpisodeSpec, first: Mapping[str, asyncio.Future[_First]] | None = None
    ) -> "_Node":
        """Let all movers move at once, and judge: the node after it, which is that of `spec`.

        `first` has the first answers of agents that were asked for several.
        """
        first = first or {}
        answers = await together(self._take_turn(spec, a, first.get(a)) for a in self.movers)
        node = _Node(
            spec, self.table, self.round + 1, list(self.turns), dict(self.rewards), self.parent
        )
        silent = set()
        problems = []
        for agent, answer in zip(self.movers, answers, strict=True):
            node.records += answer.records
            if answer.turn is not None:
                node.turns.append(answer.turn)
                node.parent = answer.records[-1]["generation"]["key"]
            elif answer.is_invalid and self.table.game.protocol.may_be_silent(agent):
                silent.add(agent)
            else:
                problems.append(f"{agent}, round {self.round}: {answer.problem}")
        if problems:
            node._fail(problems[0])
        else:
            node._judge(frozenset(silent))
        return node

    def _judge(self, silent: frozenset[str]) -> None:
        """Pay for the round that was just played, and end the episode if it is over."""
        spec, protocol = self.spec, self.table.game.protocol
        result = protocol.judge(
            self.round - 1, spec.seed, spec.problem.y, spec.stance, self.turns, silent
        )
        for agent, reward in result.rewards.items():
            self.rewards[agent] += reward
        if result.done or result.terminated:
            self.decision, self.value = result.decision, result.value
            self.outcome = "finished" if result.done else "terminated"
        elif self.round == protocol.max_message_rounds:
            self._fail(f"protocol {protocol.name!r} neither ended nor terminated it")

    def _fail(self, error: str) -> None:
        self.outcome, self.error = "failed", error
        self.rewards = dict.fromkeys(self.rewards, 0.0)

    def row(self) -> Row:
        """The row of an episode that is over."""
        return {
            **_facts(self.spec, self.table.game.protocol.name),
            "rounds": self.round,
            "decision": self.decision,
            "decision_value": self.value,
            "outcome": self.outcome,
            "error": self.error,
            "rewards": [{"agent": agent, "reward": paid} for agent, paid in self.rewards.items()],
        }

    async def ask_for_all(
        self, agent: str, children: Sequence[EpisodeSpec], first: Sequence[asyncio.Future[_First]]
    ) -> None:
        """Ask for the agent's first answers in all children by one request.

        The i-th is child i's; those that are in the journal are not taken again.
        """
        table, player = self.table, self.table.players[agent]
        missing = [
            i
            for i, spec in enumerate(children)
            if spec.generation_key(self.round, agent, 0) not in table.recorded
        ]
        found: list[_First] = [None] * len(children)
        if missing and player.gives_several:
            try:
                async with self._call(self.spec, agent, 0, len(children)) as call:
                    given = [i for i in missing if i < len(call.answers)]
                    kept = await together(self._keep(call, i, children[i], 0) for i in given)
                for i, one in zip(given, kept, strict=True):
                    found[i] = one
            except ContextLengthError as error:
                found = [error] * len(children)
            except RequestRefusedError:
                pass  # perhaps only because it asks for several, which some servers don't take
        for future, answer in zip(first, found, strict=True):
            if not future.done():  # who waited may be cancelled, because another mover failed
                future.set_result(answer)

    async def _take_turn(
        self, spec: EpisodeSpec, agent: str, first: asyncio.Future[_First] | None
    ) -> _Answer:
        """Ask until the answer is valid. The i-th retry is a call of its own key and seed."""
        table = self.table
        records: list[Row] = []
        for attempt in range(table.players[agent].parameters.num_invalid_generation_retries + 1):
            record = table.recorded.get(spec.generation_key(self.round, agent, attempt))
            move: Move | None = None
            if record is not None:
                table.progress.calls_reused += 1
            else:
                try:
                    given = await first if first is not None and attempt == 0 else None
                    if isinstance(given, ContextLengthError):
                        raise given
                    if given is None:
                        async with self._call(spec, agent, attempt) as call:
                            given = await self._keep(call, 0, spec, attempt)
                    record, move = given
                except RequestRefusedError as error:
                    return _Answer(records, problem=str(error))
            records.append(record)
            generation = record["generation"]
            if generation["invalid_reason"] is None:
                text = generation["text"]
                tokens = tokens_of(generation.get("token_logprobs"))
                move = move or read_again(generation, self._form(agent))
                return _Answer(records, Turn(self.round, agent, text, move, tokens))
        problem = (
            f"{len(records)} invalid answers, the last because of "
            f"{records[-1]['generation']['invalid_reason']}"
        )
        return _Answer(records, problem=problem, is_invalid=True)

    def _chat(self, agent: str) -> list[ChatMessage]:
        """What the agent is asked. Made when it is needed, not for what is in the journal."""
        if isinstance(self.table.players[agent].parameters, RandomAgentParameters):
            return []  # it reads nothing
        if agent not in self.chats:
            problem, spec = self.spec.problem, self.spec
            situation = Situation(problem.question, problem.solution, spec.stance, spec.seed)
            self.chats[agent] = self.table.game.render(agent, situation, self.turns, self.round)
        return self.chats[agent]

    def _form(self, agent: str) -> AnswerForm:
        return self.table.game.form(agent, self.round, self.spec.seed, self.turns)

    @asynccontextmanager
    async def _call(
        self, spec: EpisodeSpec, agent: str, attempt: int, n: int = 1
    ) -> AsyncIterator[Call]:
        """One request, with the seed of `spec`; keep its answers before the block is left, so that
        they are durable while it counts as in flight. Raises as ChatClient.answers does."""
        table, player = self.table, self.table.players[agent]
        seed = spec.generation_seed(table.game.parameters.seed, self.round, agent, attempt)
        chat, form = self._chat(agent), self._form(agent)
        async with ask(table.game, table.client, player, chat, form, seed, n) as call:
            if player.endpoint is not None:
                for i, answer in enumerate(call.answers):  # they share one prompt, read once
                    prompt, completion = answer.prompt_tokens, answer.completion_tokens
                    table.progress.count_answer(agent, 0 if i else prompt, completion)
            yield call

    async def _keep(
        self, call: Call, number: int, spec: EpisodeSpec, attempt: int
    ) -> tuple[Row, Move]:
        """Put an answer of a call in the log; its record, and the move if it is valid."""
        record, move = call.record(number, spec, self.round, attempt, self.parent)
        await self.table.log.append(record)
        return record, move


def _facts(spec: EpisodeSpec, protocol: str) -> Row:
    """What the row of an episode says before it is played."""
    problem = spec.problem
    return {
        "key": spec.key,
        "run": spec.run,
        "split": spec.split,
        "iteration": spec.iteration,
        "problem": problem.id,
        "question_id": problem.question_id,
        "sample": spec.sample,
        "branch_path": spec.branch_path,
        "protocol": protocol,
        "question": problem.question,
        "solution": problem.solution,
        "y": problem.y,
        "difficulty": problem.difficulty,
        "mutation": problem.mutation,
        "seed": spec.seed,
        "prover_stance": spec.stance,
    }
