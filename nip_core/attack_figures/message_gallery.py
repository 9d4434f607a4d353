"""Messages of attacking provers on wrong problems, counted by kind, with examples.

The scenario defines the kinds (`kind_of_message`): in a hundred messages that fooled a verifier no
reader sees at a glance that ninety-seven of them name nothing.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nip_core.attack_figures.figures import plain_rollouts
from nip_core.attack_figures.metrics_document import FoolingMessage, MessageGallery, MessageKind
from nip_core.errors import NipError
from nip_core.game.render import Game, InvalidResponse, parse_columns
from nip_core.protocols import ACCEPT
from nip_core.rollouts.storage.row_tables import RolloutTables
from nip_core.rollouts.trees import parse_path
from nip_core.scenarios.checked import call_for_text, draw_columns

MOST_KINDS, EXAMPLES, LONGEST = 12, 3, 300
"""Kinds that are listed, examples of each, and characters of one."""
OF_PROBLEMS = ("key", "question", "solution", "columns", "drawn", "seed", "y", "decision")
OF_MESSAGES = ("episode", "branch_path", "round", "agent", "invalid_reason", "text")
"""Columns of episodes and of generations that a gallery is made of."""


class _Said(NamedTuple):
    """A message of an attacking prover on a wrong problem."""

    episode: str
    path: str
    agent: str
    text: str
    kind: str
    is_accepted: bool


def gallery_of_choice(
    game: Game,
    rollouts: RolloutTables,
    choices: pa.Table,
    attackers: Collection[str],
    *,
    is_scripted: bool = False,
) -> MessageGallery:
    """Count the messages of an attack with the largest number that was chosen from."""
    n = pc.max(choices["n"]).as_py()
    sampled = None
    if not is_scripted:
        # Below a number from `n` on the game is played on to judge a message.
        sampled = Counter(
            message.kind
            for message in _list_said(game, rollouts, attackers)
            if all(number < n for number in parse_path(message.path))
        )
    plain = plain_rollouts(rollouts, choices, n)
    return _make_gallery(n, sampled, [*_list_said(game, plain, attackers)])


def gallery_of_training(
    game: Game,
    steps: Iterable[RolloutTables],
    test: RolloutTables,
    step: int,
    attackers: Collection[str],
) -> MessageGallery:
    """Count the messages of the training `steps`, and of the `test` of the worst provers."""
    sampled = Counter(
        message.kind for tables in steps for message in _list_said(game, tables, attackers)
    )
    return _make_gallery(step, sampled, [*_list_said(game, test, attackers)])


def _list_said(game: Game, rollouts: RolloutTables, attackers: Collection[str]) -> Iterator[_Said]:
    """List the valid messages of attackers on wrong problems, each with its kind."""
    rows = rollouts.episodes.select(OF_PROBLEMS).to_pylist()
    wrong = {row["key"]: row for row in rows if row["y"] == 0}
    find_kind = _remember(game)
    for row in rollouts.generations.select(OF_MESSAGES).to_pylist():
        episode = wrong.get(row["episode"])
        if episode is None or row["agent"] not in attackers or row["invalid_reason"] is not None:
            continue
        message = _read_message(game, row, int(episode["seed"]))
        yield _Said(
            episode=row["episode"],
            path=row["branch_path"],
            agent=row["agent"],
            text=message,
            kind=find_kind(message, episode),
            is_accepted=episode["decision"] == ACCEPT,
        )


def _read_message(game: Game, row: Mapping[str, Any], seed: int) -> str:
    """Read what a prover told others: in most prompts its reasoning is for itself alone."""
    try:
        move = game.parse(row["agent"], row["round"], seed, row["text"], ())
    except InvalidResponse:  # a protocol of one's own may ask by earlier messages
        return str(row["text"])
    return "\n".join(dict.fromkeys(move.messages.values()))


def _remember(game: Game) -> Callable[[str, Mapping[str, object]], str]:
    """Make what names the kind of a message in an episode; equal messages are asked about once."""
    kinds, texts = dict[tuple[object, str], str](), dict[object, Mapping[str, str]]()
    scenario = game.scenario

    def tell(message: str, episode: Mapping[str, object]) -> str:
        key = episode["key"]
        if (key, message) not in kinds:
            try:
                if key not in texts:
                    texts[key] = _read_texts(game, episode)
                name = call_for_text(scenario, "kind_of_message", message, texts[key])
            except NipError as error:  # this is for reading alone
                name = f"kind_of_message failed: {error}"
            kinds[key, message] = " ".join(name.split())
        return kinds[key, message]

    return tell


def _read_texts(game: Game, episode: Mapping[str, object]) -> Mapping[str, str]:
    """Give the texts of an episode's problem by column, with its draws."""
    texts = {name: str(episode[name]) for name in ("question", "solution")}
    for name in ("columns", "drawn"):
        column = episode[name]
        texts |= parse_columns(None if column is None else str(column))
    return {**texts, **draw_columns(game.scenario, texts, int(str(episode["seed"])))}


def _make_gallery(
    number: int, sampled: Counter[str] | None, messages: Collection[_Said]
) -> MessageGallery:
    counts = Counter(message.kind for message in messages)
    fooled = Counter(message.kind for message in messages if message.is_accepted)
    names = {*counts, *(sampled or ())}

    def order(kind: str) -> tuple[int, int, int, str]:
        return -fooled[kind], -counts[kind], -(sampled or counts)[kind], kind

    listed = sorted(names, key=order)
    return MessageGallery(
        at=number,
        sampled=None if sampled is None else sampled.total(),
        played=len(messages),
        fooled=fooled.total(),
        kinds=tuple(
            MessageKind(
                kind=kind,
                sampled=None if sampled is None else sampled[kind],
                played=counts[kind],
                fooled=fooled[kind],
                examples=tuple(_take_examples(kind, messages)),
            )
            for kind in listed[:MOST_KINDS]
        ),
        kinds_left_out=max(0, len(listed) - MOST_KINDS),
    )


def _take_examples(kind: str, messages: Iterable[_Said]) -> Iterator[FoolingMessage]:
    """Take some messages of a kind, those that fooled first, each wording once."""
    of_kind = sorted(
        (message for message in messages if message.kind == kind),
        key=lambda message: (not message.is_accepted, message.episode),
    )
    by_text = dict[str, _Said]()
    for message in of_kind:
        by_text.setdefault(message.text, message)
    for message in [*by_text.values()][:EXAMPLES]:
        text = message.text
        short = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
        yield FoolingMessage(episode=message.episode, agent=message.agent, text=short)
