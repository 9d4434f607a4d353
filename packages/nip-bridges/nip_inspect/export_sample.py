"""One episode of a run as a sample of a log.

sample_of  the sample, with the transcript of its calls
usage_by   tokens by model or agent
Split      what the samples of a split share
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from inspect_ai.dataset import Sample
from inspect_ai.event import (
    Event,
    InfoEvent,
    ModelEvent,
    SampleInitEvent,
    ScoreEvent,
    SpanBeginEvent,
    SpanEndEvent,
)
from inspect_ai.log import EvalSample
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    GenerateConfig,
    ModelOutput,
    ModelUsage,
    StopReason,
)
from inspect_ai.scorer import Score
from inspect_ai.tool import ToolCall

from nip_core.evaluation.episode_transcripts import DECISION_WORDS
from nip_core.game.answer_rows import AnswerPlace, place_of, place_of_move
from nip_core.game.answers.reasons import Kind
from nip_core.game.render import ChatMessage as SentMessage
from nip_core.game.render import Game, InvalidResponse, Situation, parse_columns
from nip_core.library.games import join_problem_text
from nip_core.protocols import Turn
from nip_core.rollouts.model_call import RANDOM_MODEL
from nip_core.rollouts.storage.row_tables import agent_order
from nip_core.rollouts.storage.table_rows import Episode, Generation, Timing, stored_row
from nip_core.scenarios import NO_LABEL, RULE_MODEL, Scenario
from nip_inspect.scoring import QUESTION, reward_score, verdict_score
from nip_inspect.transcript import Moves, conversation, output_of, remarks

_KINDS = {
    "system": ChatMessageSystem,
    "user": ChatMessageUser,
    "assistant": ChatMessageAssistant,
    "tool": ChatMessageTool,
}
_STOP_REASONS: Mapping[str, StopReason] = {
    "stop": "stop",
    "length": "max_tokens",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
}
_FACTS = (
    *("key", "problem", "question_id", "sample", "branch_path", "protocol", "y", "difficulty"),
    *("mutation", "seed", "prover_stance", "opponent", "opponent_iteration", "opponent_run"),
    *("rounds", "decision", "decision_value", "outcome", "error"),
)


@dataclass(frozen=True)
class Split:
    """The facts that the samples of a split share."""

    game: Game | None
    times: Mapping[str, Timing]  # by key of the generation
    questions: Mapping[str, str]  # by problem: the question that it shares with its variants
    settings: Mapping[str, Any]
    weights: Mapping[int, float]  # by number of the episode; below 1 for the leaves of trees


def sample_of(
    split: Split, number: int, episode: Episode, rows: list[Generation], epoch: int
) -> EvalSample:
    """The episode with this number, whose generations are `rows`."""
    place = agent_order(episode.rewards)
    rows.sort(key=lambda row: place_of(row).order(place))
    game = split.game
    if game is not None and game.protocol.name != episode.protocol:
        game = None
    # 1. The messages, as the game took them.
    turns: list[Turn] = []
    if game is not None:
        try:
            turns = game.turns(rows, episode.seed)
        except InvalidResponse:  # taken for valid by another version
            game = None
    moves = {place_of_move(turn): turn.move for turn in turns}
    # 2. The sample as a dataset has it.
    columns = parse_columns(episode.columns)
    texts = {"question": episode.question, "solution": episode.solution, **columns}
    metadata = {name: getattr(episode, name) for name in _FACTS}
    metadata |= {QUESTION: split.questions[episode.problem], "weight": split.weights[number]}
    if split.game is not None and split.game.scenario.facets != Scenario.facets:
        # As the scenario calls them, too.
        names = split.game.scenario.facets
        metadata |= dict(zip(names, (episode.difficulty, episode.mutation), strict=True))
    sample = Sample(
        id=episode.problem,
        input=join_problem_text(game, texts),
        target="" if episode.y == NO_LABEL else DECISION_WORDS[episode.y],
        metadata=metadata,
    )
    # 3. Its transcript.
    scores = {
        "verdict": verdict_score(stored_row(episode), rows),
        "rewards": reward_score(stored_row(episode)),
    }
    clock = _Clock(split.times, rows)
    hints = {} if game is None else game.find_mistakes(rows)
    calls = _Calls(split, episode, game, _situation(episode, columns), turns, moves, clock, hints)
    events = [
        *_begin(episode.key, sample, clock),
        *calls.events(rows),
        *_end(episode.key, sample, scores, clock),
    ]
    # 4. Its cost.
    asked_here = [row for row in rows if row.episode == episode.key]
    return EvalSample(
        id=episode.problem,
        epoch=epoch,
        input=sample.input,
        target=sample.target,
        messages=[
            ChatMessageUser(id=f"{episode.key}-problem", content=str(sample.input)),
            *conversation(game, rows, moves),
        ],
        output=output_of(rows),
        scores=scores,
        metadata=metadata,
        events=events,
        model_usage=usage_by_model(asked_here),
        role_usage=usage_by_agent(asked_here),
        started_at=clock.iso(clock.started),
        completed_at=clock.iso(clock.completed),
        total_time=clock.seconds(clock.completed),
        uuid=episode.key,
        turn_count=len(rows),
    )


def usage_by_model(rows: Sequence[Generation]) -> dict[str, ModelUsage]:
    """Count the tokens of the generations by the model that answered."""
    return _usage((row.model_served, row) for row in rows)


def usage_by_agent(rows: Sequence[Generation]) -> dict[str, ModelUsage]:
    """Count the tokens of the generations by agent."""
    return _usage((row.agent, row) for row in rows)


def _usage(generations: Iterable[tuple[str, Generation]]) -> dict[str, ModelUsage]:
    """Count tokens by name; random agents and rules have no model and are left out."""
    tokens: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, row in generations:
        if row.model_asked not in (RANDOM_MODEL, RULE_MODEL):
            tokens[name][0] += row.prompt_tokens
            tokens[name][1] += row.completion_tokens
    return {
        name: ModelUsage(input_tokens=i, output_tokens=o, total_tokens=i + o)
        for name, (i, o) in tokens.items()
    }


def _situation(episode: Episode, columns: Mapping[str, str]) -> Situation:
    return Situation(
        episode.question,
        episode.solution,
        episode.prover_stance,
        episode.seed,
        columns,
    )


class _Clock:
    """When the calls of an episode were made."""

    def __init__(self, times: Mapping[str, Timing], rows: Sequence[Generation]) -> None:
        self._times = times
        spans = [self.of(row) for row in rows if row.key in times]
        self.started = min((start for start, _ in spans), default=None)
        self.completed = max((end for _, end in spans), default=None)

    def of(self, row: Generation) -> tuple[datetime, datetime]:
        """Tell when a call began and ended."""
        time = self._times[row.key]
        return time.started_at, time.started_at + timedelta(seconds=time.latency_s)

    def seconds(self, moment: datetime | None) -> float | None:
        """Since the episode began."""
        if moment is None or self.started is None:
            return None
        return (moment - self.started).total_seconds()

    @staticmethod
    def iso(moment: datetime | None) -> str | None:
        return None if moment is None else moment.isoformat()

    def stamp(self, moment: datetime | None) -> dict[str, Any]:
        """Make the fields for an event's time."""
        if moment is None:
            return {"working_start": 0.0}
        return {"timestamp": moment, "working_start": self.seconds(moment) or 0.0}


@dataclass
class _Calls:
    """The events of an episode's calls.

    All ids are given: Inspect would draw them, which takes a fifth of the time for a sample.
    """

    split: Split
    episode: Episode
    game: Game | None
    situation: Situation
    turns: Sequence[Turn]
    moves: Moves
    clock: _Clock

    hints: Mapping[AnswerPlace, Kind]  # with which answers were asked for again

    def __post_init__(self) -> None:
        self._messages: dict[tuple[str, ...], ChatMessage] = {}

    def events(self, rows: Sequence[Generation]) -> Iterator[Event]:
        """Of each call: a span of its agent with the call and its outcome."""
        for row in rows:
            start, end = self.clock.started, self.clock.completed
            if row.key in self.split.times:
                start, end = self.clock.of(row)
            first, last = self.clock.stamp(start), self.clock.stamp(end)
            key, agent = row.key, row.agent
            yield SpanBeginEvent(
                uuid=f"{key}-begin", id=key, span_id=key, name=agent, type="agent", **first
            )
            if row.model_asked not in (RANDOM_MODEL, RULE_MODEL):
                yield self._call(row, first, end)
            for number, remark in enumerate(remarks(self.game, row, self.moves)):
                info = {
                    "uuid": f"{key}-info-{number}",
                    "source": remark.source,
                    "data": remark.data,
                }
                if remark.channel is None:
                    yield InfoEvent(span_id=key, **info, **last)
                    continue
                inner = f"{key}-{remark.channel}"
                yield SpanBeginEvent(
                    uuid=f"{inner}-begin",
                    id=inner,
                    parent_id=key,
                    span_id=inner,
                    name=remark.channel,
                    type="channel",
                    **last,
                )
                yield InfoEvent(span_id=inner, **info, **last)
                yield SpanEndEvent(uuid=f"{inner}-end", id=inner, span_id=inner, **last)
            yield SpanEndEvent(uuid=f"{key}-end", id=key, span_id=key, **last)

    def _call(self, row: Generation, first: Mapping[str, Any], end: datetime | None) -> ModelEvent:
        agent, model = row.agent, row.model_served
        sampling = self.split.settings["agents"][agent]
        answer = ChatMessageAssistant(
            id=f"{row.key}-answer", content=row.text, model=model, source="generate"
        )
        tokens = row.prompt_tokens, row.completion_tokens
        timing = self.split.times.get(row.key)
        latency = None if timing is None else timing.latency_s
        return ModelEvent(
            uuid=row.key,
            span_id=row.key,
            model=model,
            role=agent,
            input=self._chat(row),
            tools=[],
            tool_choice="auto",
            config=GenerateConfig(
                max_tokens=self.game.parameters.max_tokens(agent) if self.game else None,
                temperature=sampling.get("temperature"),
                top_p=sampling.get("top_p"),
            ),
            output=ModelOutput(
                model=model,
                choices=[
                    ChatCompletionChoice(
                        message=answer,
                        stop_reason=_STOP_REASONS.get(row.finish_reason, "unknown"),
                    )
                ],
                usage=ModelUsage(
                    input_tokens=tokens[0], output_tokens=tokens[1], total_tokens=sum(tokens)
                ),
                time=latency,
            ),
            completed=end,
            working_time=latency,
            **first,
        )

    def _chat(self, row: Generation) -> list[ChatMessage]:
        """Render the chat of the call; [] where its prompts are not here any more."""
        if self.game is None:
            return []
        place = place_of(row)
        asking = self.game.asking(row.agent, self.episode)
        chat = asking.render_at(place, self.situation, self.turns, self.hints.get(place))
        return [self._message(message) for message in chat]

    def _message(self, message: SentMessage) -> ChatMessage:
        """Make a message object, the same one each time in the episode's chats; logs keep each
        once.
        """
        role, content, name = message["role"], message["content"], message.get("name")
        fields = _make_call_fields(message)
        key = role, content, name or "", repr(fields)
        message_object = self._messages.get(key)
        if message_object is None:
            metadata = None if name is None else {"name": name}
            place = f"{self.episode.key}-chat-{len(self._messages)}"
            message_object = _KINDS[role](id=place, content=content, metadata=metadata, **fields)
            self._messages[key] = message_object
        return message_object


def _make_call_fields(message: SentMessage) -> dict[str, Any]:
    """Make the fields of a call by OpenAI's `tools`, or of its result; others have none."""
    if "tool_call_id" in message:
        return {"tool_call_id": message["tool_call_id"]}
    if "tool_calls" not in message:
        return {}
    functions = [(call["id"], call["function"]) for call in message["tool_calls"]]
    return {
        "tool_calls": [
            ToolCall(id=i, function=f["name"], arguments=json.loads(f["arguments"]))
            for i, f in functions
        ]
    }


def _begin(episode: str, sample: Sample, clock: _Clock) -> Iterator[Event]:
    stamp = clock.stamp(clock.started)
    yield SampleInitEvent(uuid=f"{episode}-begin", sample=sample, state={}, **stamp)


def _end(
    episode: str, sample: Sample, scores: Mapping[str, Score], clock: _Clock
) -> Iterator[Event]:
    for name, score in scores.items():
        uuid, stamp = f"{episode}-{name}", clock.stamp(clock.completed)
        yield ScoreEvent(uuid=uuid, score=score, target=sample.target, scorer=name, **stamp)
