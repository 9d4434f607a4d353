"""One episode, from reset to verdict, with all its branches.

play_episode  its rows, and the records of the calls it took
EpisodeState  an episode between two rounds
ShardContext  what all episodes of a shard share
Branch        where episodes branch; `no_branching` is nowhere, for trees see `trees`

A generation whose key is in the journal is taken from there and not asked for again.

Where an episode branches, the answers of an agent in all children are asked for by one request
where the server can, with a seed from the node; the i-th is child i's. What is missing in the
answer or refused together, and what is asked again because it was invalid, is a request of its
own with the child's key and seed. Each answer is a record of its own.

A prover without a valid answer ends its episode, unless the settings have a penalty for that:
then it is paid the penalty and is silent in that round, which leaves no turn behind.

Where the scenario has its labels in play, the state after the writing prover's first turn has the
problem with what it wrote and its label, and so have all that follow (see `labels`).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from nip_core.concurrency import gather_or_cancel
from nip_core.game.answer_rows import read_tokens
from nip_core.game.parsing import AnswerForm
from nip_core.game.reasons import Kind
from nip_core.game.render import ChatMessage, Game, columns_json, make_situation
from nip_core.parameters import RandomAgentParameters
from nip_core.parameters.blocks.opponents import split_agents
from nip_core.progress.board import Progress
from nip_core.protocols import NO_DECISION, Move, Turn
from nip_core.rollouts.chat_client import (
    ChatCompletions,
    ContextLengthError,
    RequestRefusedError,
)
from nip_core.rollouts.failures import Failures
from nip_core.rollouts.journal import Appends
from nip_core.rollouts.labels import make_objection, take_solution
from nip_core.rollouts.model_call import Call, Player, ask, read_again
from nip_core.rollouts.plan import EpisodeSpec, OpponentKey
from nip_core.rollouts.scripted_call import ask_script
from nip_core.rollouts.table_rows import CallRecord, Episode, LabelRow, MessageChoice
from nip_core.scenarios import NO_LABEL, NoLabel

Branch = Callable[[EpisodeSpec, int, Sequence[str]], Sequence[EpisodeSpec]]
"""(a node, the round that is next, the agents that move in it) -> its children."""


def no_branching(node: EpisodeSpec, round_: int, agents: Sequence[str]) -> Sequence[EpisodeSpec]:
    """Return the node itself as its only child: a plain episode branches nowhere."""
    return (node,)


@dataclass(frozen=True)
class ShardContext:
    """What all episodes of a shard share."""

    game: Game
    players: Mapping[str, Player]
    client: ChatCompletions
    log: Appends  # where finished generations are made durable
    recorded: Mapping[str, CallRecord]  # what the journal has, by generation key
    progress: Progress
    failures: Failures | None = None  # None: the shard is the whole split
    places: AbstractAsyncContextManager[Any] | None = None  # of an episode; None: of this shard
    branch: Branch = no_branching
    labels: dict[str, LabelRow] = field(default_factory=dict)  # made in play, by generation key
    opponents: Mapping[tuple[str, OpponentKey], Player] = field(default_factory=dict)
    """By agent and opponent, who plays with an earlier model or another run's, see `league`."""

    def player(self, spec: EpisodeSpec, agent: str) -> Player:
        """Find the player of an agent in this episode, by the model of now or another one."""
        key = spec.opponent_key
        if key is not None and agent in split_agents(spec.opponent):
            return self.opponents[agent, key]
        return self.players[agent]


@dataclass(frozen=True)
class Played:
    """What was played from a state on."""

    episodes: list[Episode]
    """One for each leaf, in the order of their branch paths."""
    records: list[CallRecord]
    """One for each call that it took."""
    choices: list[MessageChoice] = field(default_factory=list)
    """Of an attack, see `message_choice`."""


async def play_episode(spec: EpisodeSpec, context: ShardContext) -> Played:
    """Play one episode with all its branches.

    Raises StageError, ServerError or StoreError for what would stop every episode.
    """
    rewards = dict.fromkeys(context.game.protocol.agent_names, 0.0)
    return await EpisodeState(spec, context, 0, [], rewards, None).play_on()


def assign_episode(record: CallRecord, episode: str) -> CallRecord:
    """Say in a record to which episode its generation belongs; a node can't know it."""
    generation = record.generation
    if generation.episode == episode:
        return record
    return replace(record, generation=replace(generation, episode=episode))


T = TypeVar("T")
PrefetchedAnswer = tuple[CallRecord, Move] | ContextLengthError | None
"""What came of an answer that was asked for together with those of other children: its record and
move, or why no answer can come; None: it has to be asked for alone."""


@dataclass(frozen=True)
class TurnAnswer:
    """What came of an agent's turn: the turn, or why there is none; and the calls it took."""

    records: list[CallRecord]
    turn: Turn | None = None
    problem: str | None = None
    is_invalid: bool = False  # every call was answered, if not in a valid form


@dataclass
class EpisodeState:
    """An episode between two rounds, while it is played."""

    spec: EpisodeSpec
    context: ShardContext
    round: int  # that is next
    turns: list[Turn]
    rewards: dict[str, float]
    parent: str | None  # key of the last valid generation
    records: list[CallRecord] = field(default_factory=list)  # of the calls of the round before
    outcome: str | None = None  # None: it goes on
    decision: int = NO_DECISION
    value: float | None = None
    error: str | None = None
    chats: dict[tuple[str, Kind | None], list[ChatMessage]] = field(default_factory=dict)
    """By agent that was asked, and what it was told was wrong with its answer before."""

    @cached_property
    def movers(self) -> list[str]:
        protocol = self.context.game.protocol
        movers = protocol.movers(self.round, self.spec.seed, self.turns)
        # In one order, whatever a protocol gives: turns and rows follow it.
        return [agent for agent in protocol.agent_names if agent in movers]

    async def play_on(self) -> Played:
        """Play everything from here on, and count the calls of the round before with it."""
        state, records = self, list(self.records)
        children: Sequence[EpisodeSpec] = ()
        # 1. Go from round to round until the episode is over, or branches.
        while state.outcome is None:
            children = self.context.branch(state.spec, state.round, state.movers)
            # A single child is the same game going on; of several, each has its own end.
            if len(children) > 1:
                break
            state = await state.play_round(children[0])
            records += state.records
        # 2. Play what it branches into, each child to its own ends.
        if state.outcome is None:
            parts = await state.play_children(children, EpisodeState.play_on)
        else:
            parts = [Played([state.row()], [])]
        # 3. What all leaves share belongs to the first of them: a generation stands in the tables
        #    once, or its tokens would be counted for each leaf.
        episodes = [row for part in parts for row in part.episodes]
        shared = [assign_episode(record, episodes[0].key) for record in records]
        return Played(episodes, [*shared, *(record for part in parts for record in part.records)])

    async def play_children(
        self,
        children: Sequence[EpisodeSpec],
        go_on: Callable[["EpisodeState"], Awaitable[T]],
        answered: Sequence[Mapping[str, "TurnAnswer"]] = (),
    ) -> list[T]:
        """Play the round once for each child, all at once, and `go_on` with each child by itself.

        A child goes on as soon as its agents have answered. Returned is by child what `go_on`
        gives.

        `answered` are by child the answers of agents that are not asked any more.
        """
        # 1. A place for the first answer in every child of every mover that is asked: the same in
        #    all children, so the first one tells.
        loop = asyncio.get_running_loop()
        asked = [a for a in self.movers if not answered or a not in answered[0]]
        answers: dict[str, list[asyncio.Future[PrefetchedAnswer]]] = {
            agent: [loop.create_future() for _ in children] for agent in asked
        }

        async def play_child(number: int, spec: EpisodeSpec) -> list[T]:
            prefetched = {agent: answers[agent][number] for agent in answers}
            taken = answered[number] if answered else {}
            return [await go_on(await self.play_round(spec, prefetched, taken))]

        # 2. One request per mover fills its places; the children wait for what is theirs.
        work: list[Awaitable[list[T] | None]] = [
            *(self._prefetch(agent, children, answers[agent]) for agent in answers),
            *(play_child(number, spec) for number, spec in enumerate(children)),
        ]
        return [result for part in await gather_or_cancel(work) for result in part or ()]

    async def play_round(
        self,
        spec: EpisodeSpec,
        prefetched: Mapping[str, asyncio.Future[PrefetchedAnswer]] | None = None,
        answered: Mapping[str, "TurnAnswer"] | None = None,
    ) -> "EpisodeState":
        """Let all movers move at once, judge the round, and return the state after it, that of
        `spec`.

        `prefetched` has the first answers of agents that were asked for several, `answered` what
        agents have answered that are not asked any more.
        """
        prefetched, answered = prefetched or {}, answered or {}
        # 1. Ask everybody who moves.
        asked = [agent for agent in self.movers if agent not in answered]
        # What is raised here stops the stage, so the other movers are not waited for: their answers
        # that came are in the journal.
        taken = await gather_or_cancel(
            self.take_turn(spec, agent, prefetched.get(agent)) for agent in asked
        )
        by_agent = {**answered, **dict(zip(asked, taken, strict=True))}
        answers = [by_agent[agent] for agent in self.movers]
        after = EpisodeState(
            spec, self.context, self.round + 1, list(self.turns), dict(self.rewards), self.parent
        )
        # 2. Sort what came: turns, silence that is paid for, and what ends the episode. Only an
        #    answer in a wrong form is silence; a refused request is nobody's fault in the game.
        silent = set()
        problems = []
        for agent, answer in zip(self.movers, answers, strict=True):
            after.records += answer.records
            if answer.turn is not None:
                after.turns.append(answer.turn)
                # A generation names one parent, so the last of those that moved at once stands for
                # all.
                after.parent = answer.records[-1].generation.key
            elif answer.is_invalid and self.context.game.protocol.may_be_silent(agent):
                silent.add(agent)
            else:
                problems.append(f"{agent}, round {self.round}: {answer.problem}")
        # 3. What the writing prover wrote is the solution from now on. An episode that has failed
        #    needs none: to label one may take a sandbox and seconds.
        if not problems and spec.problem.y == NO_LABEL:
            try:
                after.spec = await take_solution(self.context, spec, after.turns, after.parent)
            except NoLabel as error:
                # The solution is not at fault, so neither label would be true, and without one
                # nobody can be paid. Others can be labelled, so this episode alone fails; too many
                # of them stop the shard (`Failures`).
                problems.append(f"round {self.round}: {error}")
        # 4. Pay for the round. One reason is enough to fail: that of the first agent, whoever was
        #    faster.
        if problems:
            after._fail(problems[0])
        else:
            after._judge(frozenset(silent))
        return after

    def _judge(self, silent: frozenset[str]) -> None:
        """Pay for the round just played, and end the episode if it is over."""
        spec, protocol = self.spec, self.context.game.protocol
        result = self.context.game.judge(
            self.round - 1, spec.seed, spec.problem.y, spec.stance, self.turns, silent
        )
        for agent, reward in result.rewards.items():
            self.rewards[agent] += reward
        # An end without a verdict is paid for as well, and is no failure.
        if result.done or result.terminated:
            self.decision, self.value = result.decision, result.value
            self.outcome = "finished" if result.done else "terminated"
        elif self.round == protocol.max_message_rounds:
            # A user's protocol may come here. It would play for ever.
            self._fail(f"protocol {protocol.name!r} neither ended nor terminated it")

    def _fail(self, error: str) -> None:
        self.outcome, self.error = "failed", error
        # A game without an end earns nobody anything: what its rounds paid is taken back.
        self.rewards = dict.fromkeys(self.rewards, 0.0)

    def row(self) -> Episode:
        """Make the row of an episode after its end."""
        spec, game = self.spec, self.context.game
        problem = spec.problem
        drawn = game.drawn(make_situation(problem, spec.stance, spec.seed))
        assert self.outcome is not None  # it is over
        return Episode(
            key=spec.key,
            run=spec.run,
            split=spec.split,
            iteration=spec.iteration,
            problem=problem.id,
            question_id=problem.question_id,
            sample=spec.sample,
            branch_path=spec.branch_path,
            protocol=game.protocol.name,
            question=problem.question,
            solution=problem.solution,
            columns=columns_json(problem.columns),
            drawn=columns_json(drawn),
            y=problem.y,
            difficulty=problem.difficulty,
            mutation=problem.mutation,
            seed=spec.seed,
            prover_stance=spec.stance,
            opponent=spec.opponent,
            opponent_iteration=spec.opponent_iteration,
            opponent_run=spec.opponent_run,
            rounds=self.round,
            decision=self.decision,
            decision_value=self.value,
            outcome=self.outcome,
            error=self.error,
            rewards=dict(self.rewards),
        )

    async def _prefetch(
        self,
        agent: str,
        children: Sequence[EpisodeSpec],
        answers: Sequence[asyncio.Future[PrefetchedAnswer]],
    ) -> None:
        """Ask for the agent's first answers in all children by one request.

        The i-th is child i's; those that are in the journal are not taken again.
        """
        context, player = self.context, self.context.player(self.spec, agent)
        missing = [
            i
            for i, spec in enumerate(children)
            if spec.generation_key(self.round, agent, 0) not in context.recorded
        ]
        results: list[PrefetchedAnswer] = [None] * len(children)
        # 1. Ask for as many as there are children, also where the journal has some of them: after a
        #    kill the request is the same, so the i-th answer is child i's again.
        #    Where it has them all, nobody is asked.
        if missing and player.gives_several:
            try:
                async with self._call(self.spec, agent, 0, len(children)) as call:
                    # 2. Make those durable that came and were missing, before anybody goes on.
                    came = [i for i in missing if i < len(call.answers)]
                    done = await gather_or_cancel(self._keep(call, i, children[i], 0) for i in came)
                for i, answer in zip(came, done, strict=True):
                    results[i] = answer
            except ContextLengthError as error:
                # The prompt is the same for all, so none of them asks again by itself.
                results = [error] * len(children)
            except RequestRefusedError:
                pass  # perhaps only because it asks for several, which some servers don't take
        # 3. Let the children go on; what is still None they ask for themselves.
        for future, result in zip(answers, results, strict=True):
            if not future.done():  # who waited may be cancelled, because another mover failed
                future.set_result(result)

    async def take_turn(
        self,
        spec: EpisodeSpec,
        agent: str,
        prefetched: asyncio.Future[PrefetchedAnswer] | None = None,
    ) -> TurnAnswer:
        """Ask an agent until its answer is valid, as often as the settings allow.

        The i-th retry is a call of its own key and seed, and may be told what was wrong before.
        """
        context = self.context
        records: list[CallRecord] = []
        wrong: Kind | None = None
        retries = context.player(spec, agent).parameters.num_invalid_generation_retries
        for attempt in range(retries + 1):
            # 1. Take it from the journal, from the request for all children, or ask. A retry is
            #    asked alone: the others of the request may have been valid.
            record = context.recorded.get(spec.generation_key(self.round, agent, attempt))
            move: Move | None = None
            if record is not None:
                context.progress.calls_reused += 1
            else:
                try:
                    answer = await prefetched if prefetched is not None and attempt == 0 else None
                    # As if this child had asked by itself: it ends in the same way.
                    if isinstance(answer, ContextLengthError):
                        raise answer
                    # Nobody asked for it with others, or those came without it.
                    if answer is None:
                        async with self._call(spec, agent, attempt, wrong=wrong) as call:
                            answer = await self._keep(call, 0, spec, attempt)
                    record, move = answer
                except RequestRefusedError as error:
                    # Not asked again: what the server says is wrong is the request and not the
                    # answer, and another seed mends no request. Only this episode fails of it.
                    return TurnAnswer(records, problem=str(error))
            # 2. A valid one is the turn. The journal has its text and not the messages in it, so
            #    the move is read again; where it is not valid any more, the run stops.
            records.append(record)
            generation = record.generation
            if generation.invalid_reason is None:
                tokens = read_tokens(generation.token_logprobs)
                move = move or read_again(generation, self._form(agent))
                return TurnAnswer(records, Turn(self.round, agent, generation.text, move, tokens))
            wrong = context.game.asking(agent, spec).find_mistake(
                agent, generation.text, generation.finish_reason, generation.invalid_reason
            )
        # 3. There was none.
        reason = records[-1].generation.invalid_reason
        problem = f"{len(records)} invalid answers, the last because of {reason}"
        return TurnAnswer(records, problem=problem, is_invalid=True)

    def _chat(self, agent: str, wrong: Kind | None) -> list[ChatMessage]:
        """Render the agent's chat. Made when it is needed, not for what is in the journal."""
        if isinstance(self.context.players[agent].parameters, RandomAgentParameters):
            return []  # it reads nothing
        # Children of a node are asked with one chat, and a hint makes it another one.
        if (agent, wrong) not in self.chats:
            problem, spec = self.spec.problem, self.spec
            situation = make_situation(problem, spec.stance, spec.seed)
            game = self.context.game.asking(agent, spec)
            chat = game.render(agent, situation, self.turns, self.round, wrong)
            self.chats[agent, wrong] = chat
        return self.chats[agent, wrong]

    def _form(self, agent: str) -> AnswerForm:
        return self.context.game.form(agent, self.round, self.spec.seed, self.turns)

    @asynccontextmanager
    async def _call(
        self, spec: EpisodeSpec, agent: str, attempt: int, n: int = 1, wrong: Kind | None = None
    ) -> AsyncIterator[Call]:
        """Make one request with the seed of `spec`, and give its answers.

        Keep them before the block is left, so that they are durable while the call counts as in
        flight. Raises as ChatClient.answers does.
        """
        context, player = self.context, self.context.player(spec, agent)
        seed = spec.generation_seed(context.game.parameters.seed, self.round, agent, attempt)
        chat, form = self._chat(agent, wrong), self._form(agent)
        if player.script is not None:
            yield await ask_script(context.game, player, spec, self.round, chat, form, seed)
            return
        game = context.game.asking(agent, spec)
        async with ask(game, context.client, player, chat, form, seed, n) as call:
            # A random agent has no model that reads or writes tokens.
            if player.endpoint is not None:
                for i, answer in enumerate(call.answers):  # they share one prompt, read once
                    prompt, completion = answer.prompt_tokens, answer.completion_tokens
                    context.progress.count_answer(agent, 0 if i else prompt, completion)
            yield call

    async def _keep(
        self, call: Call, number: int, spec: EpisodeSpec, attempt: int
    ) -> tuple[CallRecord, Move]:
        """Put an answer of a call in the log; return its record, and the move if it is valid."""
        why_not = make_objection(self.context.game, spec.problem, call.player.agent)
        record, move = call.record(number, spec, self.round, attempt, self.parent, why_not)
        # Durable before the game goes on with it: a kill from here on costs no second answer.
        await self.context.log.append(record.to_json())
        progress, is_invalid = self.context.progress, record.generation.invalid_reason is not None
        progress.invalid_answers += is_invalid
        if attempt == 0:
            progress.count_first(call.player.agent, is_invalid=is_invalid)
        return record, move
