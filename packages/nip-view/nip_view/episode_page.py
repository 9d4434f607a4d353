"""One episode, with the chats that its agents saw, from the files of its shard.

EpisodePage   the contents of its page
read_episode  reads it
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from nip_core.errors import CorruptionError, NipError
from nip_core.evaluation.episode_transcripts import Message, Transcript, transcript_of
from nip_core.game.answer_rows import AnswerPlace, place_of
from nip_core.game.render import ChatMessage, Game, InvalidResponse, Situation, parse_columns
from nip_core.rollouts.storage.parquet import open_parquet
from nip_core.rollouts.storage.schema import EPISODES, GENERATIONS
from nip_core.rollouts.storage.table_rows import Episode, Generation, Timing, read_rows
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import Store
from nip_view.parts.kept_calls import Shard
from nip_view.parts.token_chances import ShownTokens, lay_out_tokens

_LONG = ("prompt_token_ids", "completion_token_ids", "completion_logprobs")
_READ = tuple(name for name in GENERATIONS.names if name not in _LONG)


@dataclass(frozen=True)
class ShownTurn:
    """A message with the facts of its call in the tables, and the request."""

    message: Message
    row: Generation
    latency_s: float | None
    readers: tuple[str, ...]
    """Who reads the channels that it was sent to, but for whoever sent it."""
    chat: tuple[ChatMessage, ...] | None
    """The chat that its model was sent; None: it can't be told."""
    tokens: ShownTokens | None
    """Its tokens with their probabilities, where they are recorded."""
    new: int
    """How many of the chat's last messages the agent had not seen in its turn before."""


@dataclass(frozen=True)
class EpisodePage:
    """All of an episode."""

    row: Episode
    transcript: Transcript
    turns: tuple[ShownTurn, ...]
    no_chats: str
    """In words, why the requests can't be told; "" where they can."""


def read_episode(store: Store, shard: Shard, key: str, game: Game | None) -> EpisodePage:
    """Read an episode of a shard. Raises CorruptionError, or KeyError if it is not in it."""
    rollouts = StoredRollouts.of_shard(store, shard.manifest)
    episodes = rollouts.episodes(EPISODES.names)
    generations = rollouts.generations(_READ)
    transcript, rows = transcript_of(key, episodes, generations, game)
    row = next(read_rows(episodes.filter(pc.equal(episodes["key"], key)), Episode))
    timings = rollouts.timings()
    keys = pa.array([generation.key for generation in rows], pa.string())
    timed = read_rows(timings.filter(pc.is_in(timings["key"], value_set=keys)), Timing)
    latency_s = {generation.key: generation.latency_s for generation in timed}
    chats, why_not = _render_chats(row, rows, game)
    turns, counts = [], dict[str, int]()
    for message, call in zip(transcript.messages, rows, strict=True):
        chat, length = chats.get(call.key, (None, 0))
        earlier_count = counts.get(call.agent, 0)
        turns.append(
            ShownTurn(
                message,
                call,
                latency_s.get(call.key),
                _find_readers(message, game),
                chat,
                lay_out_tokens(call.token_logprobs),
                0 if chat is None else max(0, len(chat) - earlier_count),
            )
        )
        if chat is not None and message.invalid_reason is None:
            counts[call.agent] = length + 1  # its own answer comes next
    return EpisodePage(row, transcript, tuple(turns), why_not)


def _find_readers(message: Message, game: Game | None) -> tuple[str, ...]:
    if game is None:
        return ()
    protocol, channels = game.protocol, {*message.channels}
    return tuple(
        agent
        for agent in protocol.agent_names
        if agent != message.agent and channels & {*protocol.visible_channels(agent)}
    )


def _render_chats(
    episode: Episode, rows: Sequence[Generation], game: Game | None
) -> tuple[dict[str, tuple[tuple[ChatMessage, ...], int]], str]:
    """Make again the chat of each generation, with its length without a hint.

    Where that can't be done there is none, and a sentence says why.

    An answer without a valid form is asked for again with the same chat, or with a hint behind it.
    """
    if game is None:
        return {}, (
            "The run's settings, its protocol or its templates can't be used here as they were, so "
            "what was asked can't be made again."
        )
    if game.protocol.name != episode.protocol:
        return {}, f"It was played by the protocol {episode.protocol}, which is another one."
    situation = Situation(
        episode.question,
        episode.solution,
        episode.prover_stance,
        episode.seed,
        parse_columns(episode.columns),
    )
    chats: dict[str, tuple[tuple[ChatMessage, ...], int]] = {}
    plain: dict[AnswerPlace, tuple[ChatMessage, ...]] = {}
    try:
        turns = game.turns(rows, episode.seed)
        hints = game.find_mistakes(rows)
        for row in rows:
            place = place_of(row)
            if row.agent not in game.parameters.model_agents:
                continue
            asking = game.asking(row.agent, episode)
            if place.first not in plain:
                plain[place.first] = tuple(asking.render_at(place, situation, turns))
            chat = plain[place.first]
            length, wrong = len(chat), hints.get(place)
            if wrong is not None:
                chat = tuple(asking.render_at(place, situation, turns, wrong))
            chats[row.key] = chat, length
    except (InvalidResponse, NipError, KeyError, ValueError, IndexError) as error:
        return {}, f"What was asked can't be made again: {error}"
    return chats, ""


@dataclass(frozen=True)
class UsedExample:
    """A training example that was made of an episode."""

    group: str
    agent: str
    reason: str
    reward: float
    generations: tuple[str, ...]
    """Keys of those learned."""


def read_examples(run: RunStore, iteration: int, group: str, key: str) -> list[UsedExample]:
    """Read the rows of a group's dataset made of an episode. Raises CorruptionError."""
    from nip_core.run_store.manifest import (
        MANIFEST,
        is_committed,
        read_committed_file,
        read_manifest,
    )

    store, directory = run.store, run.dataset(iteration, group)
    if not is_committed(store, directory, MANIFEST):
        return []
    manifest = read_manifest(store, directory)
    names = [name for name in manifest.files if name.endswith(".parquet")]
    if len(names) != 1:
        raise CorruptionError(f"{directory}/{MANIFEST}: names {len(names)} tables instead of one")
    columns = ["agent", "reason", "reward", "generations"]
    try:
        file = open_parquet(read_committed_file(store, manifest, names[0]))
        table = file.read(["episode", *columns], use_threads=False).select(["episode", *columns])
    except (pa.ArrowException, OSError, KeyError) as error:
        raise CorruptionError(f"{manifest.path(names[0])}: can't be read ({error})") from error
    examples = table.filter(pc.equal(table["episode"], key)).select(columns).to_pylist()
    return [
        UsedExample(group, **example | {"generations": tuple(example["generations"])})
        for example in examples
    ]
