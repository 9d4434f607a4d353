"""Episodes with all of their texts, one row each, to be taken elsewhere."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nip_core.errors import NipError
from nip_core.evaluation.episode_transcripts import DECISION_WORDS
from nip_core.game.answer_rows import SpokenRow, place_of
from nip_core.game.render import ChatMessage, Game, InvalidResponse, Situation, parse_columns
from nip_core.protocols import NO_DECISION
from nip_core.rollouts.acceptance import find_acceptance
from nip_core.rollouts.storage.schema import EPISODES
from nip_core.rollouts.storage.table_rows import Episode, read_rows, row_columns
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.rollouts.trees import Leaf, generation_numbers
from nip_core.showing.episodes.episode_index import FAILED, RIGHT, WRONG
from nip_core.showing.episodes.notes import EpisodeNote


class _Row(Mapping[str, Any]):
    """Fields by name, as a line of JSONL has them: ``row["note"]`` is ``row.note``."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        if name not in _names(type(self)):
            raise KeyError(f"{name!r}; there are {', '.join(self)}")
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(_names(type(self)))

    def __len__(self) -> int:
        return len(_names(type(self)))


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@dataclass(frozen=True, slots=True)
class ReadableMessage(_Row):
    """One answer of a model, valid or not."""

    round: int
    agent: str
    text: str
    decision: str | None
    """None: this answer decided nothing."""
    decision_value: float | None
    p_accept: float | None
    invalid: str | None
    """Why it has no valid form; None: it has."""
    attempt: int
    """Invalid answers before it in the same turn."""
    thoughts: str | None
    model: str
    tool_result: str | None = None
    """The answer to its call of a tool; None: it is no call."""


@dataclass(frozen=True, slots=True)
class ReadableEpisode(_Row):
    """An episode as a person reads it."""

    key: str
    run: str
    iteration: int
    split: str
    problem: str
    sample: int
    branch_path: str
    verdict: str
    """right, wrong or failed."""
    decision: str
    decision_value: float | None
    p_accept: float | None
    """Of the answer that decided."""
    label: int | None
    """1 right, 0 wrong; None: it has none."""
    star: bool
    note: str
    question: str
    solution: str
    columns: dict[str, str]
    """The scenario's further texts, and the values drawn for the episode."""
    messages: list[ReadableMessage]
    rewards: dict[str, float]
    asked: list[ChatMessage] | None
    """The chat that the deciding agent was sent; None: no answer decided, or it can't be told
    here."""
    outcome: str
    error: str | None
    rounds: int
    calls: int
    invalid: int
    """Answers without a valid form."""
    prompt_tokens: int
    completion_tokens: int
    difficulty: str | None
    mutation: str | None
    prover_stance: int | None
    question_id: str
    protocol: str
    opponent: str | None
    opponent_iteration: int | None
    opponent_run: str | None
    seed: int
    models: list[str]


@dataclass(slots=True, kw_only=True)
class _Call(SpokenRow):
    """Columns of a generation that a row needs."""

    model_served: str
    decision: int
    decision_value: float | None
    prompt_tokens: int
    completion_tokens: int
    reasoning: str | None
    finish_reason: str
    p_accept: float | None = None


def read_episode_rows(
    rollouts: StoredRollouts,
    places: Sequence[int],
    notes: Mapping[str, EpisodeNote],
    game: Game | None,
) -> Iterator[ReadableEpisode]:
    """Read the episodes at these places of a shard, in the order of `places`.

    With the run's game they have the chat. Raises CorruptionError. One shard is in memory
    meanwhile.
    """
    # 1. The rows of the episodes.
    whole = rollouts.episodes(EPISODES.names)
    selection = whole.take(pa.array(places, pa.int64()))
    # 2. Their generations; those of a tree stand at the first leaf below.
    columns = [*row_columns(_Call)]
    if game is None or not any(map(game.top_logprobs, game.protocol.agent_names)):
        columns.remove("token_logprobs")  # which is long, and needed by some protocols alone
    generations = rollouts.generations(("episode", "branch_path", *columns))
    calls = _read_calls(whole, selection, generations)
    likely = find_acceptance(whole, generations).take(pa.array(places, pa.int64())).to_pylist()
    # 3. Both together.
    for episode, p_accept in zip(read_rows(selection, Episode), likely, strict=True):
        spoken = calls.get(episode.key, [])
        chat = _render_asked(episode, spoken, game)
        yield _make_row(episode, spoken, p_accept, notes.get(episode.key), chat)


def _read_calls(
    whole: pa.Table, selection: pa.Table, generations: pa.Table
) -> dict[str, list[_Call]]:
    calls: dict[str, list[_Call]] = {}
    if not pc.any(pc.not_equal(whole["branch_path"], "")).as_py():
        mine = generations.filter(
            pc.is_in(generations["episode"], value_set=selection["key"].combine_chunks())
        )
        for key, call in zip(mine["episode"].to_pylist(), read_rows(mine, _Call), strict=True):
            calls.setdefault(key, []).append(call)
        return calls
    rows = [*read_rows(generations, _Call)]
    keys = {*selection["key"].to_pylist()}
    leaves = read_rows(whole.select(row_columns(Leaf)), Leaf)
    for key, number in generation_numbers(leaves, generations):
        if key in keys:
            calls.setdefault(key, []).append(rows[number])
    return calls


def _make_row(
    episode: Episode,
    calls: Sequence[_Call],
    p_accept: float | None,
    noted: EpisodeNote | None,
    chat: list[ChatMessage] | None,
) -> ReadableEpisode:
    messages = [_make_message(call) for call in calls]
    decision, is_right = DECISION_WORDS[episode.decision], episode.decision == episode.y
    return ReadableEpisode(
        key=episode.key,
        run=episode.run,
        iteration=episode.iteration,
        split=episode.split,
        problem=episode.problem,
        sample=episode.sample,
        branch_path=episode.branch_path,
        verdict=FAILED if episode.outcome == FAILED else RIGHT if is_right else WRONG,
        decision=decision,
        decision_value=episode.decision_value,
        p_accept=p_accept,
        label=episode.y if episode.y in (0, 1) else None,
        star=noted is not None and noted.star,
        note="" if noted is None else noted.note,
        question=episode.question,
        solution=episode.solution,
        columns={**parse_columns(episode.columns), **parse_columns(episode.drawn)},
        messages=messages,
        rewards=dict(episode.rewards),
        asked=chat,
        outcome=episode.outcome,
        error=episode.error,
        rounds=episode.rounds,
        calls=len(calls),
        invalid=sum(call.invalid_reason is not None for call in calls),
        prompt_tokens=sum(call.prompt_tokens for call in calls),
        completion_tokens=sum(call.completion_tokens for call in calls),
        difficulty=episode.difficulty,
        mutation=episode.mutation,
        prover_stance=episode.prover_stance,
        question_id=episode.question_id,
        protocol=episode.protocol,
        opponent=episode.opponent,
        opponent_iteration=episode.opponent_iteration,
        opponent_run=episode.opponent_run,
        seed=episode.seed,
        models=sorted({call.model_served for call in calls}),
    )


def _render_asked(
    episode: Episode, calls: Sequence[_Call], game: Game | None
) -> list[ChatMessage] | None:
    """Make again the chat of the answer that decided."""
    deciding = [c for c in calls if c.decision == episode.decision and c.invalid_reason is None]
    if game is None or game.protocol.name != episode.protocol or not deciding:
        return None
    call = deciding[-1]
    if call.agent not in game.parameters.model_agents or call.decision == NO_DECISION:
        return None
    columns = parse_columns(episode.columns)
    situation = Situation(
        episode.question, episode.solution, episode.prover_stance, episode.seed, columns
    )
    try:
        turns, place = game.turns(calls, episode.seed), place_of(call)
        wrong = game.find_mistakes(calls).get(place)
        return game.asking(call.agent, episode).render_at(place, situation, turns, wrong)
    except (InvalidResponse, NipError, LookupError, ValueError):
        return None  # the protocol or a template is another by now


def _make_message(call: _Call) -> ReadableMessage:
    return ReadableMessage(
        round=call.round,
        agent=call.agent,
        text=call.text,
        decision=None if call.decision == NO_DECISION else DECISION_WORDS[call.decision],
        decision_value=call.decision_value,
        p_accept=call.p_accept,
        invalid=call.invalid_reason,
        attempt=call.attempt,
        thoughts=call.reasoning,
        model=call.model_served,
        tool_result=call.tool_result,
    )
