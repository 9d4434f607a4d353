"""One episode, from reset to verdict, with all its branches.

play_episode  its rows, and the records of its calls
EpisodeState  an episode between two rounds

A generation whose key is in the journal is taken from there and not asked for again.

Where an episode branches, one request asks for an agent's answers in all children, where the server
can, with a seed from the node; the i-th answer is child i's. An answer is a request of its own,
with the child's key and seed, if it is missing in the common answer, if the common request is
refused, and if an invalid answer is asked for again. Each answer is a record of its own.

A prover without a valid answer ends its episode, unless the settings have a penalty for that:
then it is paid the penalty and is silent in that round, which leaves no turn behind.

Where an agent calls a tool, the result is put on record before the agent is asked again, as its
call is before the tool is used.

Where a rule of the scenario's game rejects, the verifier's turn is the rule's: no model is asked,
and no episode branches there.

Where the scenario has its labels in play, the state after the writing prover's first turn has the
problem with the written solution and its label, and so have all later states (see `labels`).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from nip_core.concurrency import gather_or_cancel
from nip_core.game.answer_rows import AnswerPlace
from nip_core.game.answers.parsing import AnswerForm
from nip_core.game.answers.reasons import Kind
from nip_core.game.render import ChatMessage, columns_json, make_situation
from nip_core.parameters import RandomAgentParameters
from nip_core.protocols import NO_DECISION, Exchange, Move, Turn
from nip_core.rollouts.client.completions import ContextLengthError, RequestRefusedError
from nip_core.rollouts.labels import make_objection, take_solution
from nip_core.rollouts.model_call import Call, ask, decide_by_rule, read_again
from nip_core.rollouts.payment import add_up_rewards, pay_episode
from nip_core.rollouts.plan import EpisodeSpec
from nip_core.rollouts.scripted_call import ask_script
from nip_core.rollouts.shard_context import ShardContext
from nip_core.rollouts.storage.table_rows import (
    CallRecord,
    Episode,
    ResultRow,
    RoundReward,
)
from nip_core.rollouts.turns import Played, PlayedExchange, PlayedTurn, assign_episode
from nip_core.scenarios import NO_LABEL, NoLabel


async def play_episode(spec: EpisodeSpec, context: ShardContext) -> Played:
    """Play one episode with all its branches.

    Raises StageError, ServerError or StoreError for a fault that would stop every episode.
    """
    return await EpisodeState(spec, context).play_on()


T = TypeVar("T")
PrefetchedAnswer = tuple[CallRecord, Move] | ContextLengthError | None
"""An answer from a request for all children: its record and move, or why no answer can come. None:
it has to be asked for alone."""


_ChatKey = tuple[str, tuple[tuple[str, str | None], ...], Kind | None]
"""An agent, its answers in this turn with their results, and the mistake that a hint tells it."""


@dataclass
class EpisodeState:
    """An episode between two rounds, while it is played."""

    spec: EpisodeSpec
    context: ShardContext
    round: int = 0  # that is next
    turns: list[Turn] = field(default_factory=list)
    round_rewards: list[RoundReward] = field(default_factory=list)
    parent: str | None = None  # key of the last valid generation
    records: list[CallRecord] = field(default_factory=list)  # of the calls of the round before
    outcome: str | None = None  # None: it goes on
    decision: int = NO_DECISION
    value: float | None = None
    error: str | None = None
    chats: dict[_ChatKey, list[ChatMessage]] = field(default_factory=dict)

    @cached_property
    def movers(self) -> list[str]:
        protocol = self.context.game.protocol
        movers = protocol.movers(self.round, self.spec.seed, self.turns)
        # In one order, whatever a protocol gives: turns and rows follow it.
        return [agent for agent in protocol.agent_names if agent in movers]

    @cached_property
    def is_ruled(self) -> bool:
        """Tell whether a rule of the game decides for the verifier in this round."""
        if "verifier" not in self.movers:
            return False
        situation = make_situation(self.spec.problem, self.spec.stance, self.spec.seed)
        return self.context.game.rejects(situation, self.turns, self.round)

    async def play_on(self) -> Played:
        """Play everything from here on, and count the calls of the round before with it."""
        state, records = self, list(self.records)
        children: Sequence[EpisodeSpec] = ()
        # 1. Go from round to round until the episode is over, or branches.
        while state.outcome is None:
            children = self.context.branch(state.spec, state.round, state.movers)
            # After a rejection by rule the children would all end alike.
            children = children[:1] if state.is_ruled else children
            # A single child is the same game going on; of several, each has its own end.
            if len(children) > 1:
                break
            state = await state.play_round(children[0])
            records += state.records
        # 2. Play the children where it branches, each to its own ends.
        if state.outcome is None:
            parts = await state.play_children(children, EpisodeState.play_on)
        else:
            parts = [Played([state.row()], [])]
        # 3. Records that all leaves share belong to the first of them: a generation stands in the
        #    tables once, or its tokens would be counted for each leaf.
        episodes = [row for part in parts for row in part.episodes]
        shared = [assign_episode(record, episodes[0].key) for record in records]
        return Played(episodes, [*shared, *(record for part in parts for record in part.records)])

    async def play_children(
        self,
        children: Sequence[EpisodeSpec],
        go_on: Callable[["EpisodeState"], Awaitable[T]],
        ready_turns: Sequence[Mapping[str, PlayedTurn]] = (),
    ) -> list[T]:
        """Play the round once for each child, all at once, and `go_on` with each child by itself.

        A child goes on as soon as its agents have answered. Returns the results of `go_on` by
        child.

        `ready_turns` are by child the turns of agents that have answered already.
        """
        # 1. Make a place for the first answer of every other mover in every child. These movers are
        #    the same in all children, so the first child tells.
        loop = asyncio.get_running_loop()
        agents = [a for a in self.movers if not ready_turns or a not in ready_turns[0]]
        answers: dict[str, list[asyncio.Future[PrefetchedAnswer]]] = {
            agent: [loop.create_future() for _ in children] for agent in agents
        }

        async def play_child(number: int, spec: EpisodeSpec) -> list[T]:
            prefetched = {agent: answers[agent][number] for agent in answers}
            turns = ready_turns[number] if ready_turns else {}
            return [await go_on(await self.play_round(spec, prefetched, turns))]

        # 2. One request per mover fills its places; each child waits for its own answers.
        work: list[Awaitable[list[T] | None]] = [
            *(self._prefetch(agent, children, answers[agent]) for agent in answers),
            *(play_child(number, spec) for number, spec in enumerate(children)),
        ]
        return [result for part in await gather_or_cancel(work) for result in part or ()]

    async def play_round(
        self,
        spec: EpisodeSpec,
        prefetched: Mapping[str, asyncio.Future[PrefetchedAnswer]] | None = None,
        ready_turns: Mapping[str, PlayedTurn] | None = None,
    ) -> "EpisodeState":
        """Let all movers move at once, judge the round, and return the state of `spec` after it.

        `prefetched` has the first answers of agents that were asked for several, `ready_turns` the
        turns of agents that have answered already.
        """
        prefetched, ready_turns = prefetched or {}, ready_turns or {}
        # Answers from the journal, or of a function without a pause, let no other task run.
        await asyncio.sleep(0)
        # 1. Ask all other movers.
        agents = [agent for agent in self.movers if agent not in ready_turns]
        # An error here stops the stage, so the other movers are not waited for: their answers that
        # came are in the journal.
        new_turns = await gather_or_cancel(
            self.take_turn(spec, agent, prefetched.get(agent)) for agent in agents
        )
        by_agent = {**ready_turns, **dict(zip(agents, new_turns, strict=True))}
        next_state = EpisodeState(
            spec, self.context, self.round + 1, [*self.turns], [*self.round_rewards], self.parent
        )
        # 2. Sort the answers into turns, silence that is paid for, and problems that end the
        #    episode. Only an answer in a wrong form is silence. A refused request is no player's
        #    fault.
        silent = set()
        problems = []
        for agent in self.movers:
            agent_turn = by_agent[agent]
            next_state.records += agent_turn.records
            if (turn := agent_turn.turn) is not None:
                next_state.turns.append(turn)
                # A generation names one parent, so the last of the agents that moved at once
                # stands for all.
                next_state.parent = agent_turn.records[-1].generation.key
            elif agent_turn.end.is_invalid and self.context.game.protocol.may_be_silent(agent):
                silent.add(agent)
            else:
                problems.append(f"{agent}, round {self.round}: {agent_turn.end.problem}")
        # 3. The writing prover's text is the solution from now on. An episode that has failed
        #    needs none: to label one may take a sandbox and seconds.
        if not problems and spec.problem.y == NO_LABEL:
            try:
                next_state.spec = await take_solution(
                    self.context, spec, next_state.turns, next_state.parent
                )
            except NoLabel as error:
                # The solution is not at fault, so neither label would be true, and without one no
                # agent can be paid. Other solutions can be labelled, so this episode alone fails;
                # too many of them stop the shard (`Failures`).
                problems.append(f"round {self.round}: {error}")
        # 4. Pay for the round. One reason is enough to fail: the first agent's, even if another
        #    agent was faster.
        if problems:
            next_state._fail(problems[0])
        else:
            next_state._judge(frozenset(silent))
        return next_state

    def _judge(self, silent: frozenset[str]) -> None:
        """Pay for the round just played, and end the episode if it is over."""
        spec, protocol = self.spec, self.context.game.protocol
        result = self.context.game.judge(
            self.round - 1, spec.seed, spec.problem.y, spec.stance, self.turns, silent
        )
        rewards = self.context.game.charge(result.rewards, self.turns, self.round - 1)
        # A reward of 0 says nothing that its absence does not.
        self.round_rewards += [
            RoundReward(self.round - 1, agent, paid) for agent, paid in rewards.items() if paid
        ]
        # An end without a verdict is paid for as well, and is no failure.
        if result.done or result.terminated:
            self.decision, self.value = result.decision, result.value
            self.outcome = "finished" if result.done else "terminated"
            game, paid = self.context.game, self.round_rewards
            self.round_rewards = pay_episode(game, spec, self.turns, self.round, result, paid)
        elif self.round == protocol.max_message_rounds:
            # A user's protocol may come here. It would play for ever.
            self._fail(f"protocol {protocol.name!r} neither ended nor terminated it")

    def _fail(self, error: str) -> None:
        self.outcome, self.error = "failed", error
        # A game without an end earns no agent anything: the payments of its rounds are taken back.
        self.round_rewards = []

    def row(self) -> Episode:
        """Make the row of an episode after its end."""
        spec, game = self.spec, self.context.game
        problem = spec.problem
        drawn_columns = game.drawn(make_situation(problem, spec.stance, spec.seed))
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
            drawn=columns_json(drawn_columns),
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
            rewards=add_up_rewards(game, self.round_rewards),
            round_rewards=tuple(self.round_rewards),
        )

    async def _prefetch(
        self,
        agent: str,
        children: Sequence[EpisodeSpec],
        answers: Sequence[asyncio.Future[PrefetchedAnswer]],
    ) -> None:
        """Ask for the agent's first answers in all children by one request.

        The i-th answer is child i's. Answers that are in the journal are not taken again.
        """
        context, player = self.context, self.context.player(self.spec, agent)
        place = AnswerPlace(self.round, agent)
        keys = [spec.generation_key(place) for spec in children]
        missing_numbers = [i for i, key in enumerate(keys) if key not in context.recorded]
        results: list[PrefetchedAnswer] = [None] * len(children)
        # 1. Ask for as many as there are children, also where the journal has some of them: after a
        #    kill the request is the same, so the i-th answer is child i's again.
        #    Where it has them all, no request is made.
        by_rule = agent == "verifier" and self.is_ruled
        if missing_numbers and player.gives_several and not by_rule:
            try:
                async with self._call(self.spec, place, n=len(children)) as call:
                    # 2. Make the missing answers that came durable, before any child goes on.
                    numbers = [i for i in missing_numbers if i < len(call.answers)]
                    kept_answers = await gather_or_cancel(
                        self._keep(call, i, children[i], place, keys[i]) for i in numbers
                    )
                for i, answer in zip(numbers, kept_answers, strict=True):
                    results[i] = answer
            except ContextLengthError as error:
                # The prompt is the same for all, so none of them asks again by itself.
                results = [error] * len(children)
            except RequestRefusedError:
                pass  # perhaps only because it asks for several, which some servers don't take
        # 3. Let the children go on; they ask for an answer themselves where it is still None.
        for future, result in zip(answers, results, strict=True):
            if not future.done():  # a child may be cancelled, because another mover failed
                future.set_result(result)

    async def take_turn(
        self,
        spec: EpisodeSpec,
        agent: str,
        prefetched: asyncio.Future[PrefetchedAnswer] | None = None,
    ) -> PlayedTurn:
        """Let an agent have its turn: calls of a tool, and its move or the reason of none."""
        place, exchanges = AnswerPlace(self.round, agent), list[PlayedExchange]()
        while True:
            earlier = [exchange.answer for exchange in exchanges]
            exchange = await self._play_exchange(spec, place, earlier, prefetched)
            exchanges.append(exchange)
            if exchange.move is None or exchange.move.call is None:
                return PlayedTurn(self.round, agent, exchanges)
            place, prefetched = place._replace(exchange=place.exchange + 1), None

    async def _play_exchange(
        self,
        spec: EpisodeSpec,
        place: AnswerPlace,
        earlier: Sequence[Exchange],
        prefetched: asyncio.Future[PrefetchedAnswer] | None,
    ) -> PlayedExchange:
        """Ask an agent until its answer is valid, as often as the settings allow.

        `earlier` are the exchanges that it has had in its turn. The i-th retry is a call of its own
        key and seed, and may have a hint about the mistake before it.
        """
        context, agent = self.context, place.agent
        records: list[CallRecord] = []
        wrong: Kind | None = None
        retries = context.player(spec, agent).parameters.num_invalid_generation_retries
        for attempt in range(retries + 1):
            # 1. Take it from the journal, from the request for all children, or ask. A retry is
            #    asked alone: the others of the request may have been valid.
            place = place._replace(attempt=attempt)
            key = spec.generation_key(place)
            record = context.recorded.get(key)
            move: Move | None = None
            if record is not None:
                context.progress.calls_reused += 1
            else:
                try:
                    answer = await prefetched if prefetched is not None and attempt == 0 else None
                    # As if this child had asked by itself: it ends in the same way.
                    if isinstance(answer, ContextLengthError):
                        raise answer
                    # There was no request for all children, or it came back without this answer.
                    if answer is None:
                        async with self._call(spec, place, earlier, wrong) as call:
                            answer = await self._keep(call, 0, spec, place, key)
                    record, move = answer
                except RequestRefusedError as error:
                    # Not asked again: the server calls the request wrong and not the answer, and
                    # another seed mends no request. Only this episode fails.
                    return PlayedExchange(records, problem=str(error))
            # 2. Accept a valid one. The journal has its text and not the messages in it, so the
            #    move is read again. Where it is not valid any more, the run stops.
            records.append(record)
            generation = record.generation
            if generation.invalid_reason is None:
                move = move or read_again(generation, self._form(place))
                if move.call is not None:
                    records[-1] = await self._use_tool(spec, place, record, move.call)
                return PlayedExchange(records, move)
            wrong = context.game.asking(agent, spec).find_mistake(
                agent, generation.text, generation.finish_reason, generation.invalid_reason
            )
        # 3. There was none.
        reason = records[-1].generation.invalid_reason
        problem = f"{len(records)} invalid answers, the last because of {reason}"
        return PlayedExchange(records, problem=problem, is_invalid=True)

    async def _use_tool(
        self, spec: EpisodeSpec, place: AnswerPlace, record: CallRecord, argument: str
    ) -> CallRecord:
        """Put the result of a call on record, unless it is there; return the record with it."""
        if record.generation.tool_result is not None:
            return record
        situation = make_situation(spec.problem, spec.stance, spec.seed)
        result = await self.context.game.use_tool(
            place.agent, argument, situation, self.turns, place.exchange
        )
        await self.context.log.append(ResultRow(record.generation.key, result).to_json())
        return replace(record, generation=replace(record.generation, tool_result=result))

    def _chat(
        self, place: AnswerPlace, earlier: Sequence[Exchange], wrong: Kind | None
    ) -> list[ChatMessage]:
        """Render the agent's chat. An answer in the journal needs none."""
        agent, key = place.agent, (place.agent, tuple((e.text, e.result) for e in earlier), wrong)
        if isinstance(self.context.players[agent].parameters, RandomAgentParameters):
            return []  # it reads nothing
        # All children of a node have one chat, and a hint makes it another one.
        if key not in self.chats:
            problem, spec = self.spec.problem, self.spec
            situation = make_situation(problem, spec.stance, spec.seed)
            game = self.context.game.asking(agent, spec)
            chat = game.render(agent, situation, self.turns, self.round, wrong, earlier)
            self.chats[key] = chat
        return self.chats[key]

    def _form(self, place: AnswerPlace) -> AnswerForm:
        game, agent = self.context.game, place.agent
        return game.form(agent, self.round, self.spec.seed, self.turns, place.exchange)

    @asynccontextmanager
    async def _call(
        self,
        spec: EpisodeSpec,
        place: AnswerPlace,
        earlier: Sequence[Exchange] = (),
        wrong: Kind | None = None,
        n: int = 1,
    ) -> AsyncIterator[Call]:
        """Make one request with the seed of `spec`, and give its answers.

        Keep them before the block is left, so that they are durable while the call counts as in
        flight. Raises as ChatClient.answers does.
        """
        context, agent = self.context, place.agent
        player, form = context.player(spec, agent), self._form(place)
        if agent == "verifier" and self.is_ruled:
            yield decide_by_rule(player, form)
            return
        seed = spec.generation_seed(context.game.parameters.seed, place)
        chat = self._chat(place, earlier, wrong)
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
        self, call: Call, number: int, spec: EpisodeSpec, place: AnswerPlace, key: str
    ) -> tuple[CallRecord, Move]:
        """Put an answer of a call in the log; return its record, and the move if it is valid."""
        why_not = make_objection(self.context.game, spec.problem, call.player.agent)
        record, move = call.record(number, spec, place, key, self.parent, why_not)
        # Durable before the game goes on with it: a kill from here on costs no second answer.
        await self.context.log.append(record.to_json())
        progress, is_invalid = self.context.progress, record.generation.invalid_reason is not None
        progress.invalid_answers += is_invalid
        if place.attempt == 0:
            progress.count_first(call.player.agent, is_invalid=is_invalid)
        return record, move
