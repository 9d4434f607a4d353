"""Episodes as a person reads them: the problem, what was said, and the verdict.

Transcript, Message        one episode, as plain data
transcripts_from_tables    a stable sample of a batch
transcripts_markdown       a few of them as Markdown

The sample depends on the seed and on which problem is played how often, not on the iteration:
where the same problems are played in every iteration (as in a test), the sample shows the same
problems in every iteration.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nip_core.hashing import derive_key

DECISION_WORDS = {0: "reject", 1: "accept", 2: "no decision"}

_EPISODE_COLUMNS = (
    "key",
    "split",
    "iteration",
    "problem",
    "question",
    "solution",
    "y",
    "difficulty",
    "mutation",
    "decision",
    "outcome",
    "error",
    "rewards",
)
_MESSAGE_COLUMNS = (
    "key",
    "parent_key",
    "episode",
    "round",
    "agent",
    "attempt",
    "model_served",
    "text",
    "decision",
    "invalid_reason",
)
_MARKDOWN_CHARACTERS = 2_000


@dataclass(frozen=True)
class Message:
    """One answer of a model, valid or not."""

    round: int
    agent: str
    text: str
    model: str  # the model that really answered
    decision: int  # 0 reject, 1 accept, 2 none
    attempt: int  # invalid answers before this one
    invalid_reason: str | None  # None: valid, and part of the conversation


@dataclass(frozen=True)
class Transcript:
    """One episode with its messages in the order they were generated."""

    key: str
    split: str
    iteration: int
    problem: str
    question: str
    solution: str
    y: int  # 1 correct, 0 buggy
    decision: int
    outcome: str  # finished, terminated, failed
    rewards: dict[str, float]
    messages: tuple[Message, ...]
    difficulty: str | None = None
    mutation: str | None = None
    error: str | None = None  # why it failed

    @property
    def right(self) -> bool:
        """Whether the verdict equals the label; a failed episode is never right."""
        return self.outcome != "failed" and self.decision == self.y


def transcripts_from_tables(
    episodes: pa.Table, generations: pa.Table, limit: int, seed: int
) -> list[Transcript]:
    """At most `limit` transcripts of each iteration and split, chosen by a hash from `seed`.

    Sorted by iteration, split and hash, whatever the order of the rows. In a tree the messages
    that an episode shares with others are found through `parent_key`.
    """
    chosen = _sample(episodes, limit, seed)
    rows = episodes.select(_EPISODE_COLUMNS).take(pa.array(chosen, pa.int64())).to_pylist()
    messages = _messages(generations, [row["key"] for row in rows])
    return [
        Transcript(
            **{name: row[name] for name in _EPISODE_COLUMNS if name != "rewards"},
            rewards={entry["agent"]: entry["reward"] for entry in row["rewards"]},
            messages=messages[row["key"]],
        )
        for row in rows
    ]


def transcripts_markdown(transcripts: Sequence[Transcript], limit: int) -> str:
    """The first `limit` transcripts as Markdown; texts over 2,000 characters are cut, and say so.

    What models wrote stands in fenced blocks, so that it can't become markup.
    """
    if not transcripts:
        return "No transcripts.\n"
    parts = [_markdown(transcript) for transcript in transcripts[:limit]]
    return "\n---\n\n".join(parts)


def _sample(episodes: pa.Table, limit: int, seed: int) -> list[int]:
    names = ("iteration", "split", "problem", "sample", "branch_path", "key")
    columns = [episodes[name].to_pylist() for name in names]
    groups: dict[tuple[int, str], list[tuple[str, str, int]]] = {}
    for row, values in enumerate(zip(*columns, strict=True)):
        iteration, split, problem, sample, branch_path, key = values
        rank = derive_key("transcript", seed, problem, sample, branch_path)
        groups.setdefault((iteration, split), []).append((rank, key, row))
    return [row for group in sorted(groups) for _, _, row in sorted(groups[group])[:limit]]


def _messages(generations: pa.Table, episodes: list[str]) -> dict[str, tuple[Message, ...]]:
    """The messages of each of the `episodes`, invalid answers included."""
    columns = generations.select(_MESSAGE_COLUMNS)
    own = columns.filter(pc.is_in(columns["episode"], value_set=pa.array(episodes, pa.string())))
    rows_of: dict[str, list[dict[str, Any]]] = {episode: [] for episode in episodes}
    known: dict[str, dict[str, Any]] = {}
    for row in own.to_pylist():
        rows_of[row["episode"]].append(row)
        known[row["key"]] = row
    wanted = {row["parent_key"] for row in known.values()} - known.keys() - {None}
    while wanted:  # one turn per round of a tree; none where episodes share nothing
        found = pc.is_in(columns["key"], value_set=pa.array(sorted(wanted), pa.string()))
        parents = {row["key"]: row for row in columns.filter(found).to_pylist()}
        known.update(parents)
        wanted = {row["parent_key"] for row in parents.values()} - known.keys() - {None}
    for rows in rows_of.values():
        mine = {row["key"] for row in rows}
        pending = [row["parent_key"] for row in rows]
        while pending:
            parent = known.get(pending.pop() or "")
            if parent is not None and parent["key"] not in mine:
                mine.add(parent["key"])
                rows.append(parent)
                pending.append(parent["parent_key"])
        rows.sort(key=lambda row: (row["round"], row["agent"], row["attempt"], row["key"]))
    return {episode: tuple(map(_message, rows)) for episode, rows in rows_of.items()}


def _message(row: dict[str, Any]) -> Message:
    return Message(
        round=row["round"],
        agent=row["agent"],
        text=row["text"],
        model=row["model_served"],
        decision=row["decision"],
        attempt=row["attempt"],
        invalid_reason=row["invalid_reason"],
    )


def _markdown(transcript: Transcript) -> str:
    verdict = "right" if transcript.right else "wrong"
    truth = "correct" if transcript.y == 1 else "buggy"
    rewards = ", ".join(f"{name} {value:+g}" for name, value in sorted(transcript.rewards.items()))
    lines = [
        f"### Iteration {transcript.iteration}, {transcript.split}, "
        f"problem {_inline(transcript.problem)}",
        "",
        f"The solution is **{truth}**; the verdict was "
        f"**{DECISION_WORDS[transcript.decision]}** ({verdict}, {transcript.outcome}). "
        f"Rewards: {rewards or 'none'}.",
        "",
    ]
    if transcript.error:
        lines += ["Error:", "", _fence(transcript.error), ""]
    lines += ["Question:", "", _fence(transcript.question), ""]
    lines += ["Solution:", "", _fence(transcript.solution, "python"), ""]
    for message in transcript.messages:
        notes = [f"round {message.round}", _inline(message.model)]
        if message.invalid_reason is not None:
            notes.append(f"invalid answer: {_inline(message.invalid_reason)}")
        lines += [f"**{message.agent}** ({', '.join(notes)})", "", _fence(message.text), ""]
    return "\n".join(lines)


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


def _inline(text: str) -> str:
    """`text` as one code span that its own backticks and line ends can't leave."""
    ticks = "`" * (_longest_run(text) + 1)
    flat = " ".join(text.split())
    return f"{ticks} {flat} {ticks}" if "`" in flat else f"{ticks}{flat}{ticks}"


def _fence(text: str, language: str = "text") -> str:
    """`text` as a fenced block, cut to a bound, with a fence longer than any inside."""
    if len(text) > _MARKDOWN_CHARACTERS:
        left_out = len(text) - _MARKDOWN_CHARACTERS
        text = f"{text[:_MARKDOWN_CHARACTERS]}\n[{left_out:,} more characters]"
    ticks = "`" * max(3, _longest_run(text) + 1)
    return f"{ticks}{language}\n{text}\n{ticks}"
