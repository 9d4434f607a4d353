"""Plays episodes: every episode a coroutine, no barrier between the turns of different ones.

play_shard    many episodes at once, over one client and one journal
play_episode  one episode, from reset to verdict
request_body  one model call as JSON
Failures      how many episodes of a stage may fail

A generation whose key is in the journal is taken from there and not asked for again. An episode
that can't go on is a recorded outcome; more of them than the threshold stop the shard, and
then the journal keeps what was generated. A server that does not answer is no outcome of an
episode: it stops the shard too, so that the data never depend on the weather.

A prover without a valid answer ends its episode, unless the settings have a penalty for that:
then it is paid the penalty and is silent in that round, which leaves no turn behind.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from nip_core.agents.chat_client import ChatAnswer, ChatClient, Endpoint, RequestRefusedError
from nip_core.agents.random_agent import random_answer
from nip_core.agents.render import ChatMessage, Game, InvalidResponse, Situation, tokens_of
from nip_core.concurrency import together
from nip_core.errors import StageError
from nip_core.parameters import PureTextAgentParameters, RandomAgentParameters
from nip_core.protocols import NO_DECISION, Move, RoundResult, Turn
from nip_core.rollouts.plan import EpisodeSpec
from nip_core.rollouts.progress import Progress
from nip_core.scenarios.code_validation.parsing import AnswerForm, parse_response

Row = dict[str, Any]


class GenerationLog(Protocol):
    """Where finished generations are made durable (see `nip_core.rollouts.journal`)."""

    async def append(self, record: dict[str, Any]) -> None:
        """Return once the record would survive a kill."""


@dataclass(frozen=True)
class Player:
    """An agent with the model that it plays with; a random agent has none."""

    agent: str
    model: str
    endpoint: Endpoint | None
    parameters: PureTextAgentParameters | RandomAgentParameters
    record_tokens: bool = False  # keep token ids, to be trained on as they are
    record_logprobs: bool = False  # and their log-probabilities, where the engine has them


@dataclass
class Failures:
    """Failed episodes of a stage. Its shards share one, so that their size decides nothing."""

    episodes: int  # of the whole stage
    keys: set[str] = field(default_factory=set)  # of those that failed; a repetition counts once


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


@dataclass(frozen=True)
class PlayedShard:
    """Rows for the three tables, see `nip_core.rollouts.schema`."""

    episodes: list[Row]
    generations: list[Row]
    timings: list[Row]


async def play_shard(specs: Sequence[EpisodeSpec], table: Table) -> PlayedShard:
    """Play all `specs`, at most `rollouts.concurrency` of them at a time.

    Raises StageError when more than `rollouts.failure_threshold` of the stage's episodes fail, and
    ServerError when the server stays silent; what was generated until then stands in the journal.
    """
    failures = table.failures or Failures(len(specs))
    places = asyncio.Semaphore(table.game.parameters.rollouts.concurrency)
    shard = PlayedShard([], [], [])

    async def play(spec: EpisodeSpec) -> None:
        async with places:
            table.progress.episodes_in_flight += 1
            try:
                episode, records = await play_episode(spec, table)
            finally:
                table.progress.episodes_in_flight -= 1
        shard.episodes.append(episode)
        shard.generations.extend(record["generation"] for record in records)
        shard.timings.extend(record["timing"] for record in records)
        table.progress.episodes_done += 1
        failures.keys.discard(spec.key)
        if episode["outcome"] == "failed":
            table.progress.episodes_failed += 1
            _count_failure(failures, table.game.parameters.rollouts.failure_threshold, episode)

    await together(play(spec) for spec in specs)
    return shard


def _count_failure(failures: Failures, threshold: float, episode: Row) -> None:
    failures.keys.add(episode["key"])
    # 0.29 * 100 is a little less than 29.
    if len(failures.keys) > threshold * failures.episodes + 1e-9:
        raise StageError(
            f"{len(failures.keys)} of {failures.episodes} episodes failed, more than the share of "
            f"{threshold} that rollouts.failure_threshold allows; the last: "
            f"{episode['problem']}: {episode['error']}. What was generated is kept: mend the "
            "cause and run again"
        )


async def play_episode(spec: EpisodeSpec, table: Table) -> tuple[Row, list[Row]]:
    """One episode: its row, and a journal record for each model call it took.

    Raises StageError, ServerError or StoreError for what would stop every episode.
    """
    episode = _Episode(spec, table)
    protocol = table.game.protocol
    decision, value, outcome, error = NO_DECISION, None, "failed", None
    round_ = 0
    try:
        for round_ in range(protocol.max_message_rounds):
            result = await episode.play_round(round_)
            if result.done or result.terminated:
                decision, value = result.decision, result.value
                outcome = "finished" if result.done else "terminated"
                break
        else:
            raise _EpisodeFailure(f"protocol {protocol.name!r} neither ended nor terminated it")
    except _EpisodeFailure as failure:
        error = str(failure)
        episode.rewards = dict.fromkeys(protocol.agent_names, 0.0)
    row = {
        **_facts(spec, protocol.name),
        "rounds": round_ + 1,
        "decision": decision,
        "decision_value": value,
        "outcome": outcome,
        "error": error,
        "rewards": [{"agent": agent, "reward": paid} for agent, paid in episode.rewards.items()],
    }
    return row, episode.records


class _EpisodeFailure(Exception):
    """The episode can't go on; the text says why."""


@dataclass(frozen=True)
class _Answer:
    """What came of an agent's turn: the turn, or why there is none; and the calls it took."""

    records: list[Row]
    turn: Turn | None = None
    problem: str | None = None
    is_invalid: bool = False  # every call was answered, if not in a valid form


class _Episode:
    """The state of one episode while it is played."""

    def __init__(self, spec: EpisodeSpec, table: Table):
        self.spec, self.table = spec, table
        self.turns: list[Turn] = []
        self.records: list[Row] = []
        self.rewards = dict.fromkeys(table.game.protocol.agent_names, 0.0)
        self._parent: str | None = None  # key of the last valid generation

    async def play_round(self, round_: int) -> RoundResult:
        """Let all movers move at once, and judge. Raises _EpisodeFailure."""
        spec, protocol = self.spec, self.table.game.protocol
        movers = protocol.movers(round_, spec.seed, self.turns)
        agents = [agent for agent in protocol.agent_names if agent in movers]
        answers = await together(self._take_turn(round_, a) for a in agents)
        silent = set()
        problems = []
        for agent, answer in zip(agents, answers, strict=True):
            self.records += answer.records
            if answer.turn is not None:
                self.turns.append(answer.turn)
                self._parent = answer.records[-1]["generation"]["key"]
            elif answer.is_invalid and self.table.game.protocol.may_be_silent(agent):
                silent.add(agent)
            else:
                problems.append(f"{agent}, round {round_}: {answer.problem}")
        if problems:
            raise _EpisodeFailure(problems[0])
        result = protocol.judge(
            round_, spec.seed, spec.problem.y, spec.stance, self.turns, frozenset(silent)
        )
        for agent, reward in result.rewards.items():
            self.rewards[agent] += reward
        return result

    async def _take_turn(self, round_: int, agent: str) -> _Answer:
        """Ask until the answer is valid. The i-th retry is a call of its own key and seed."""
        table, player = self.table, self.table.players[agent]
        form = table.game.form(agent, round_, self.spec.seed, self.turns)
        chat: list[ChatMessage] | None = None  # not needed for what is in the journal
        records: list[Row] = []
        for attempt in range(player.parameters.num_invalid_generation_retries + 1):
            record = table.recorded.get(self.spec.generation_key(round_, agent, attempt))
            move: Move | None = None
            if record is not None:
                table.progress.calls_reused += 1
            else:
                if chat is None:
                    chat = self._chat(round_, player)
                try:
                    record, move = await self._generate(player, chat, form, round_, attempt)
                except RequestRefusedError as error:
                    return _Answer(records, problem=str(error))
            records.append(record)
            generation = record["generation"]
            if generation["invalid_reason"] is None:
                text = generation["text"]
                tokens = tokens_of(generation.get("token_logprobs"))
                move = move or parse_response(text, form)
                return _Answer(records, Turn(round_, agent, text, move, tokens))
        problem = (
            f"{len(records)} invalid answers, the last because of "
            f"{records[-1]['generation']['invalid_reason']}"
        )
        return _Answer(records, problem=problem, is_invalid=True)

    def _chat(self, round_: int, player: Player) -> list[ChatMessage]:
        if isinstance(player.parameters, RandomAgentParameters):
            return []  # it reads nothing
        spec = self.spec
        situation = Situation(spec.problem.question, spec.problem.solution, spec.stance, spec.seed)
        return self.table.game.render(player.agent, situation, self.turns, round_)

    async def _generate(
        self, player: Player, chat: list[ChatMessage], form: AnswerForm, round_: int, attempt: int
    ) -> tuple[Row, Move]:
        """Make one call and put its record in the log; the record, and the move if it is valid.

        Raises as ChatClient.complete does.
        """
        spec, table = self.spec, self.table
        seed = spec.generation_seed(table.game.parameters.seed, round_, player.agent, attempt)
        started = datetime.now(UTC)
        answer = await _ask(table, player, chat, form, seed)
        move, invalid = _read(answer, form)
        generation = {
            "key": spec.generation_key(round_, player.agent, attempt),
            "parent_key": self._parent,
            "episode": spec.key,
            "branch_path": spec.branch_path,
            "round": round_,
            "agent": player.agent,
            "attempt": attempt,
            "model_asked": player.model,
            "model_served": answer.model,
            "text": answer.text or "",
            "decision": move.decision,
            "decision_value": move.value,
            "finish_reason": answer.finish_reason,
            "invalid_reason": invalid,
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
            **_recorded_tokens(player, answer),
        }
        timing = {
            "key": generation["key"],
            "started_at": started.isoformat(),
            "latency_s": answer.latency_s,
            "transport_retries": answer.transport_retries,
        }
        record = {"generation": generation, "timing": timing}
        await table.log.append(record)
        if player.endpoint is not None:
            table.progress.count_answer(
                answer.model, answer.prompt_tokens, answer.completion_tokens
            )
            table.progress.retries += answer.transport_retries
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


async def _ask(
    table: Table, player: Player, chat: list[ChatMessage], form: AnswerForm, seed: int
) -> ChatAnswer:
    if isinstance(player.parameters, RandomAgentParameters):
        return ChatAnswer(random_answer(form, seed), "stop", player.model, 0, 0, 0, 0.0)
    assert player.endpoint is not None  # only random agents play without a model
    limit = table.game.parameters.max_tokens(player.agent)
    body = request_body(player.model, player.parameters, chat, seed, limit)
    wanted = table.game.top_logprobs(player.agent)
    if wanted:
        body |= {"logprobs": True, "top_logprobs": wanted}
    if player.record_tokens:
        # Log-probabilities are those of the model itself, so nothing may change what is sampled;
        # an engine's defaults can be others.
        body |= {"return_token_ids": True, "temperature": 1.0, "top_p": 1.0}
        body["logprobs"] = bool(wanted) or player.record_logprobs
    answer = await table.client.complete(player.endpoint, body)
    if wanted and answer.tokens is None:
        raise StageError(
            f"{player.endpoint.base_url}: model {player.model} gives no log-probabilities; set "
            "zk_protocol.similarity: text or use an engine that does"
        )
    return answer


def _recorded_tokens(player: Player, answer: ChatAnswer) -> Row:
    """The columns of a generation that have its tokens. Raises StageError if there are none."""
    if not player.record_tokens or player.endpoint is None:
        return {
            "prompt_token_ids": None,
            "completion_token_ids": None,
            "completion_logprobs": None,
            "token_logprobs": answer.tokens,
        }
    if answer.token_ids is None or answer.prompt_token_ids is None:
        raise StageError(
            f"{player.endpoint.base_url}: model {player.model} gives no token ids, which trainer "
            "pure_text_grpo needs; use an lm_server, or another trainer"
        )
    chosen = [token["logprob"] for token in answer.tokens or ()]
    has_all = bool(chosen) and len(chosen) == len(answer.token_ids)
    return {
        "prompt_token_ids": answer.prompt_token_ids,
        "completion_token_ids": answer.token_ids,
        "completion_logprobs": chosen if has_all else None,
        # Otherwise the same figures would be kept twice.
        "token_logprobs": answer.tokens if any(t["top"] for t in answer.tokens or ()) else None,
    }


def request_body(
    model: str,
    parameters: PureTextAgentParameters,
    chat: Sequence[Mapping[str, str]],
    seed: int,
    max_tokens: int,
) -> Row:
    """The JSON body of a chat completion; settings that are None are left to the provider.

    It asks for one completion. The i-th answer of a turn has a seed of its own and is asked for in
    a request of its own, because a server need not give what that seed gives as the i-th of `n`.
    """
    limit = "max_completion_tokens" if parameters.model_provider == "OpenAI" else "max_tokens"
    body: Row = {
        "model": model,
        "messages": chat,
        limit: max_tokens,
        "seed": seed,
    }
    for setting in ("temperature", "top_p", "repetition_penalty"):
        value = getattr(parameters, setting)
        if value is not None:
            body[setting] = value
    return body


def _read(answer: ChatAnswer, form: AnswerForm) -> tuple[Move, str | None]:
    """The move in the answer, or why it is invalid."""
    if answer.finish_reason not in ("stop", "length"):
        return Move(), f"finish reason {answer.finish_reason}"
    if answer.text is None:
        return Move(), "no content"
    try:
        return parse_response(answer.text, form), None
    except InvalidResponse as response:
        return Move(), response.reason
