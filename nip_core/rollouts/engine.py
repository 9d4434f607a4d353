"""Plays episodes: every episode a coroutine, no barrier between the turns of different ones.

play_shard    many episodes at once, over one client and one journal
play_episode  one episode, from reset to verdict

A generation whose key is in the journal is taken from there and not asked for again. An episode
that can't go on is a recorded outcome; more of them than the threshold stop the shard, and
then the journal keeps what was generated. A server that does not answer is no outcome of an
episode: it stops the shard too, so that the data never depend on the weather.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from nip_core.agents.chat_client import ChatAnswer, ChatClient, Endpoint, RequestRefusedError
from nip_core.agents.random_agent import random_answer
from nip_core.agents.render import Game, InvalidResponse, Situation, tokens_of
from nip_core.errors import StageError
from nip_core.parameters import PureTextAgentParameters, RandomAgentParameters
from nip_core.protocols import NO_DECISION, Move, Turn
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


@dataclass(frozen=True)
class Table:
    """What all episodes of a shard share."""

    game: Game
    players: Mapping[str, Player]
    client: ChatClient
    log: GenerationLog
    recorded: Mapping[str, Row]  # journal records by generation key
    progress: Progress


@dataclass(frozen=True)
class PlayedShard:
    """Rows for the three tables, see `nip_core.rollouts.schema`."""

    episodes: list[Row]
    generations: list[Row]
    timings: list[Row]


class EpisodeFailure(Exception):
    """The episode can't go on; the text says why."""


async def play_shard(specs: Sequence[EpisodeSpec], table: Table) -> PlayedShard:
    """Play all `specs`, at most `rollouts.concurrency` of them at a time.

    Raises StageError when more than `rollouts.failure_threshold` of the episodes fail, and
    ServerError when the server stays silent; what was generated until then stands in the journal.
    """
    parameters = table.game.parameters.rollouts
    allowed = parameters.failure_threshold * len(specs)
    places = asyncio.Semaphore(parameters.concurrency)
    failures: list[str] = []
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
        if episode["outcome"] == "failed":
            table.progress.episodes_failed += 1
            failures.append(f"{episode['problem']}: {episode['error']}")
            if len(failures) > allowed:
                raise StageError(
                    f"{len(failures)} of {len(specs)} episodes failed, more than the share of "
                    f"{parameters.failure_threshold} that rollouts.failure_threshold allows; the "
                    f"last: {failures[-1]}. What was generated is kept: mend the cause and run "
                    "again"
                )

    try:
        async with asyncio.TaskGroup() as group:
            for spec in specs:
                group.create_task(play(spec))
    except BaseExceptionGroup as errors:
        raise _first(errors) from errors
    return shard


def _first(errors: BaseExceptionGroup) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def play_episode(spec: EpisodeSpec, table: Table) -> tuple[Row, list[Row]]:
    """One episode: its row, and a journal record for each model call it took."""
    protocol = table.game.protocol
    situation = Situation(spec.problem.question, spec.problem.solution, spec.stance, spec.seed)
    rewards = dict.fromkeys(protocol.agent_names, 0.0)
    turns: list[Turn] = []
    records: list[Row] = []
    decision, value = NO_DECISION, None
    outcome, error, parent, round_ = "failed", None, None, 0
    try:
        for round_ in range(protocol.max_message_rounds):
            movers = protocol.movers(round_, spec.seed, turns)
            agents = [a for a in protocol.agent_names if a in movers]
            answers = await asyncio.gather(
                *(_take_turn(spec, table, situation, turns, round_, a, parent) for a in agents),
                return_exceptions=True,
            )
            silent: set[str] = set()
            problem: BaseException | None = None
            now: list[Turn] = []
            for agent, answer in zip(agents, answers, strict=True):
                if isinstance(answer, _GaveUp):
                    records += answer.records
                    if answer.only_invalid and _may_be_silent(table.game, agent):
                        silent.add(agent)
                    else:
                        problem = problem or answer
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    records += answer[1]
                    now.append(answer[0])
            if problem is not None:
                raise EpisodeFailure(str(problem))
            turns += now
            parent = records[-1]["generation"]["key"] if records else None
            result = protocol.judge(
                round_, spec.seed, spec.problem.y, spec.stance, turns, frozenset(silent)
            )
            for agent, reward in result.rewards.items():
                rewards[agent] += reward
            if result.done or result.terminated:
                decision, value = result.decision, result.value
                outcome = "finished" if result.done else "terminated"
                break
    except EpisodeFailure as failure:
        error = str(failure)
        rewards = dict.fromkeys(protocol.agent_names, 0.0)
    episode = {
        "key": spec.key,
        "run": spec.run,
        "split": spec.split,
        "iteration": spec.iteration,
        "problem": spec.problem.id,
        "question_id": spec.problem.question_id,
        "sample": spec.sample,
        "branch_path": spec.branch_path,
        "protocol": protocol.name,
        "question": spec.problem.question,
        "solution": spec.problem.solution,
        "y": spec.problem.y,
        "difficulty": spec.problem.difficulty,
        "mutation": spec.problem.mutation,
        "seed": spec.seed,
        "prover_stance": spec.stance,
        "rounds": round_ + 1,
        "decision": decision,
        "decision_value": value,
        "outcome": outcome,
        "error": error,
        "rewards": [{"agent": agent, "reward": reward} for agent, reward in rewards.items()],
    }
    return episode, records


class _GaveUp(Exception):
    """An agent got no valid answer; carries the calls that were paid for."""

    def __init__(self, reason: str, records: list[Row], *, only_invalid: bool):
        super().__init__(reason)
        self.records = records
        self.only_invalid = only_invalid  # every call was answered, if not in a valid form


def _may_be_silent(game: Game, agent: str) -> bool:
    penalty = game.protocol.common.prover_invalid_response_penalty
    return penalty is not None and game.protocol.is_prover(agent)


async def _take_turn(
    spec: EpisodeSpec,
    table: Table,
    situation: Situation,
    turns: Sequence[Turn],
    round_: int,
    agent: str,
    parent: str | None,
) -> tuple[Turn, list[Row]]:
    """Ask until the answer is valid. The i-th retry is a call of its own key and seed."""
    game, player = table.game, table.players[agent]
    form = game.form(agent, round_, spec.seed, turns)
    is_random = isinstance(player.parameters, RandomAgentParameters)
    chat = [] if is_random else game.render(agent, situation, turns, round_)
    records: list[Row] = []
    for attempt in range(player.parameters.num_invalid_generation_retries + 1):
        key = spec.generation_key(round_, agent, attempt)
        record = table.recorded.get(key)
        if record is None:
            seed = spec.generation_seed(game.parameters.seed, round_, agent, attempt)
            started = datetime.now(UTC)
            try:
                answer = await _ask(table, player, chat, form, seed)
            except RequestRefusedError as error:
                reason = f"{agent}, round {round_}: {error}"
                raise _GaveUp(reason, records, only_invalid=False) from None
            move, invalid = _read(answer, form)
            place = {"round": round_, "agent": agent, "attempt": attempt, "parent_key": parent}
            record = _record(spec, key, place, player.model, answer, move, invalid, started)
            await table.log.append(record)
            table.progress.count_answer(
                answer.model, answer.prompt_tokens, answer.completion_tokens
            )
            table.progress.retries += answer.transport_retries
        else:
            table.progress.calls_reused += 1
        records.append(record)
        generation = record["generation"]
        if generation["invalid_reason"] is None:
            text = generation["text"]
            tokens = tokens_of(generation.get("token_logprobs"))
            return Turn(round_, agent, text, parse_response(text, form), tokens), records
    raise _GaveUp(
        f"{agent}, round {round_}: {len(records)} invalid answers, the last because of "
        f"{records[-1]['generation']['invalid_reason']}",
        records,
        only_invalid=True,
    )


async def _ask(
    table: Table, player: Player, chat: Sequence[Mapping[str, str]], form: AnswerForm, seed: int
) -> ChatAnswer:
    if isinstance(player.parameters, RandomAgentParameters):
        return ChatAnswer(random_answer(form, seed), "stop", player.model, 0, 0, 0, 0.0)
    assert player.endpoint is not None  # only random agents play without a model
    body = request_body(player, player.parameters, chat, seed)
    wanted = table.game.top_logprobs(player.agent)
    if wanted:
        body |= {"logprobs": True, "top_logprobs": wanted}
    answer = await table.client.complete(player.endpoint, body)
    if wanted and answer.tokens is None:
        raise StageError(
            f"{player.endpoint.base_url}: model {player.model} gives no log-probabilities; set "
            "zk_protocol.similarity: text or use an engine that does"
        )
    return answer


def request_body(
    player: Player,
    parameters: PureTextAgentParameters,
    chat: Sequence[Mapping[str, str]],
    seed: int,
) -> Row:
    """The JSON body of a chat completion; settings that are None are left to the provider."""
    limit = "max_completion_tokens" if parameters.model_provider == "OpenAI" else "max_tokens"
    body: Row = {
        "model": player.model,
        "messages": chat,
        limit: parameters.effective_max_tokens,
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


def _record(
    spec: EpisodeSpec,
    key: str,
    place: Row,
    model: str,
    answer: ChatAnswer,
    move: Move,
    invalid: str | None,
    started: datetime,
) -> Row:
    return {
        "generation": {
            "key": key,
            "episode": spec.key,
            "branch_path": spec.branch_path,
            **place,
            "model_asked": model,
            "model_served": answer.model,
            "text": answer.text or "",
            "decision": move.decision,
            "decision_value": move.value,
            "finish_reason": answer.finish_reason,
            "invalid_reason": invalid,
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
            "prompt_token_ids": None,
            "completion_token_ids": None,
            "completion_logprobs": None,
            "token_logprobs": answer.tokens,
        },
        "timing": {
            "key": key,
            "started_at": started.isoformat(),
            "latency_s": answer.latency_s,
            "transport_retries": answer.transport_retries,
        },
    }
