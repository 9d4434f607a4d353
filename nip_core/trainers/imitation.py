"""The messages that agents imitate before they are trained.

choose_fooling  the messages that fooled a verifier, from the rollouts of a run
read_chats      chats of a file

Both are chosen for each imitating agent, and become examples like those of expert iteration.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nip_base.formats.bounds import ReadError, parse_json
from nip_core.errors import SettingsError
from nip_core.evaluation.spread import find_questions
from nip_core.game.render import ChatMessage, Game
from nip_core.hashing import derive_key, digest
from nip_core.protocols import ACCEPT
from nip_core.rollouts.storage.row_tables import RolloutTables
from nip_core.trainers.base import Choice, Example, Rollouts
from nip_core.trainers.conversations import make_conversations
from nip_core.trainers.episodes import PlayedEpisode, read_played

FOOLED, GIVEN = "fooled", "given"
"""Why an example was chosen: its episode fooled the verifier, or it stands in a file."""
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class _InMemory:
    """Rollouts that were read, as one part."""

    tables: RolloutTables

    def episodes(self, columns: Sequence[str]) -> pa.Table:
        return self.tables.episodes.select(columns)

    def generations(self, columns: Sequence[str]) -> pa.Table:
        return self.tables.generations.select(columns)

    def shards(self) -> Iterator[RolloutTables]:
        yield self.tables

    def parts(self) -> Sequence[Rollouts]:
        return [self]


def choose_fooling(
    game: Game,
    agents: Sequence[str],
    rollouts: Iterable[RolloutTables],
    tested_on: Collection[str],
    limit: int,
) -> Choice:
    """Choose the messages of episodes with a wrong solution that was accepted.

    At most so many conversations of each agent, of as many problems as there are. Left out are
    problems with a question (see `find_questions`) that the attack is `tested_on`.

    Counts: ``candidates``, episodes that fooled the verifier; and of these ``tested_on`` and, for
    each agent, ``silent``, ``duplicates`` and ``surplus``, which are left out.
    """
    counts: Counter[str] = Counter(candidates=0)
    by_agent: dict[str, dict[str, Example]] = {agent: {} for agent in agents}
    for tables in rollouts:
        keys = _find_fooling(game, tables, tested_on, counts)
        for episode in read_played(game, _InMemory(tables), keys):
            for agent in agents:
                example = _make_example(game, agent, episode)
                counts["silent"] += example is None
                if example is not None:
                    text = digest([dict(message) for message in example.messages])
                    counts["duplicates"] += text in by_agent[agent]
                    by_agent[agent].setdefault(text, example)
    examples: list[Example] = []
    for agent in agents:
        ordered = _spread_over_problems(by_agent[agent], game.parameters.seed)
        counts["surplus"] += max(0, len(ordered) - limit)
        examples += ordered[:limit]
    return Choice("supervised", examples, {name: n for name, n in counts.items() if n})


def read_chats(
    text: str, file: str, agents: Sequence[str], imitating: Collection[str], limit: int
) -> Choice:
    """Read chats to imitate: in each line ``{"messages": [...]}``, the last one an assistant's.

    With a key ``agent``, one of `imitating`, a chat is for that one, else for all of `agents`.
    Raises SettingsError, which names the line; `file` is the setting with the file's path.
    """
    examples: list[Example] = []
    counts: Counter[str] = Counter(candidates=0)
    chat_counts: Counter[str] = Counter()
    for number, line in enumerate(text.split("\n"), 1):  # text of chats may have other line ends
        if not line.strip():
            continue
        counts["candidates"] += 1
        place = f"{file}, line {number}"
        messages, agent = _read_chat(line, place)
        if agent is not None and agent not in imitating:
            raise SettingsError(
                f"{place}: agent has to be one that is trained, of {', '.join(imitating)} (got "
                f"{agent!r}); without it a chat is for all of them"
            )
        for name in agents if agent is None else {agent} & {*agents}:
            chat_counts[name] += 1
            counts["surplus"] += chat_counts[name] > limit
            if chat_counts[name] <= limit:
                examples.append(_make_given(name, messages, f"line {number}"))
    return Choice("supervised", examples, {name: n for name, n in counts.items() if n})


def _find_fooling(
    game: Game, tables: RolloutTables, tested_on: Collection[str], counts: Counter[str]
) -> set[str]:
    """Find the keys of episodes that fooled the verifier, on problems of other questions."""
    episodes = tables.episodes
    fooled = episodes.filter(
        pc.and_(
            pc.and_(pc.equal(episodes["y"], 0), pc.equal(episodes["decision"], ACCEPT)),
            pc.not_equal(episodes["outcome"], "failed"),
        )
    )
    questions = find_questions(fooled, game.scenario.split_by)
    pairs = zip(fooled["key"].to_pylist(), fooled["problem"].to_pylist(), strict=True)
    keys = {key for key, problem in pairs if questions[problem] not in tested_on}
    counts["candidates"] += fooled.num_rows
    counts["tested_on"] += fooled.num_rows - len(keys)
    return keys


def _make_example(game: Game, agent: str, episode: PlayedEpisode) -> Example | None:
    """Make the agent's whole side, as this run would ask for it; None where it never spoke."""
    whole = [c for c in make_conversations(game, agent, episode) if c.hinted_round is None]
    if not whole or not whole[0].messages:
        return None
    [conversation] = whole
    return Example(
        key=derive_key("example", episode.key, agent, FOOLED),
        agent=agent,
        episode=episode.key,
        generations=tuple(answer.key for answer in conversation.learned),
        iteration=episode.iteration,
        problem=episode.problem,
        question_id=episode.question_id,
        y=episode.y,
        reward=1.0,
        reason=FOOLED,
        tokens=conversation.tokens,
        messages=conversation.messages,
    )


def _spread_over_problems(by_text: dict[str, Example], seed: int) -> list[Example]:
    """Order examples so that any first part of them is of as many problems as there can be."""
    order = sorted(by_text, key=lambda text: derive_key("imitate", seed, text))
    counts: Counter[str] = Counter()
    ranked = []
    for place, text in enumerate(order):
        example = by_text[text]
        ranked.append((counts[example.problem], place, example))
        counts[example.problem] += 1
    return [example for _, _, example in sorted(ranked, key=lambda entry: entry[:2])]


def _read_chat(line: str, place: str) -> tuple[tuple[ChatMessage, ...], str | None]:
    form = (
        f'{place}: write {{"messages": [{{"role": "user", "content": "…"}}, …]}} with an '
        "assistant's message at the end"
    )
    try:
        value: Any = parse_json(line)
        fields = [(m["role"], m["content"], m.get("name") or "") for m in value["messages"]]
        agent = value.get("agent")
    except (ReadError, TypeError, KeyError, AttributeError) as error:
        raise SettingsError(f"{form} (got {line[:80]!r})") from error
    roles = [role for role, _, _ in fields]
    if roles[-1:] != ["assistant"] or not all(role in _ROLES for role in roles):
        raise SettingsError(f"{form} (got roles {roles})")
    if not all(isinstance(text, str) for _, *texts in fields for text in texts):
        raise SettingsError(f"{form}, each content and name a text (got {line[:80]!r})")
    # A chat template may write the name of whoever has sent a message.
    messages = tuple(
        {"role": role, "content": text, **({"name": name} if name else {})}
        for role, text, name in fields
    )
    return messages, None if agent is None else str(agent)  # no name: no agent's


def _make_given(agent: str, messages: tuple[ChatMessage, ...], line: str) -> Example:
    text = digest([dict(message) for message in messages])
    return Example(
        key=derive_key("example", line, agent, text),
        agent=agent,
        episode=line,
        generations=(),
        iteration=0,
        problem=line,
        question_id=line,
        y=0,
        reward=1.0,
        reason=GIVEN,
        tokens=None,
        messages=messages,
    )
