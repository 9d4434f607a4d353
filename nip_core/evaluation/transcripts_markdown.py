"""Transcripts as Markdown, for a flow's artifacts."""

import re
from collections.abc import Sequence

from nip_core.evaluation.episode_transcripts import DECISION_WORDS, Transcript, decided_words
from nip_core.protocols import NO_DECISION

_MARKDOWN_CHARACTERS = 2_000


def transcripts_markdown(transcripts: Sequence[Transcript], limit: int) -> str:
    """Write the first `limit` transcripts as Markdown; texts over 2,000 characters are cut, and say
    so.

    Texts of models stand in fenced blocks, so that they can't become markup.
    """
    if not transcripts:
        return "No transcripts.\n"
    parts = [_markdown(transcript) for transcript in transcripts[:limit]]
    return "\n---\n\n".join(parts)


def _markdown(transcript: Transcript) -> str:
    verdict = "right" if transcript.right else "wrong"
    rewards = ", ".join(f"{name} {value:+g}" for name, value in sorted(transcript.rewards.items()))
    lines = [
        f"### Iteration {transcript.iteration}, {transcript.split}, "
        f"problem {_inline(transcript.problem)}",
        "",
        f"The {transcript.thing} is **{transcript.label}**; the verdict was "
        f"**{decided_words(transcript)}** ({verdict}, {transcript.outcome}). "
        f"Rewards: {rewards or 'none'}.",
        "",
    ]
    if transcript.stance:
        lines += [f"The prover was **{transcript.stance}**.", ""]
    elif transcript.prover_stance is not None:
        lines += [f"Argued for: **{DECISION_WORDS[transcript.prover_stance]}**.", ""]
    if transcript.error:
        lines += ["Error:", "", _fence(transcript.error), ""]
    for text in transcript.texts:
        lines += [f"{text.heading}:", "", _fence(text.text, text.language or ""), ""]
    for message in transcript.messages:
        notes = [f"round {message.round}"]
        if message.channels:
            notes.append(f"to {', '.join(message.channels)}")
        notes.append(_inline(message.model))
        if message.decision != NO_DECISION:
            notes.append(f"decides: {decided_words(message)}")
        if message.remark:
            notes.append(message.remark)
        if message.invalid_reason is not None:
            notes.append(f"invalid answer: {_inline(message.invalid_reason)}")
        if message.tool_result is not None:
            notes.append("calls a tool")
        lines += [f"**{message.agent}** ({', '.join(notes)})", "", _fence(message.text), ""]
        if message.tool_result is not None:
            lines += ["It is told:", "", _fence(message.tool_result), ""]
    return "\n".join(lines)


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


def _inline(text: str) -> str:
    """Write `text` as one code span; its own backticks and line ends can't leave it."""
    ticks = "`" * (_longest_run(text) + 1)
    flat = " ".join(text.split())
    return f"{ticks} {flat} {ticks}" if "`" in flat else f"{ticks}{flat}{ticks}"


def _fence(text: str, language: str = "text") -> str:
    """Write `text` as a fenced block, cut to a bound, with a fence longer than any inside."""
    if len(text) > _MARKDOWN_CHARACTERS:
        left_out = len(text) - _MARKDOWN_CHARACTERS
        text = f"{text[:_MARKDOWN_CHARACTERS]}\n[{left_out:,} more characters]"
    ticks = "`" * max(3, _longest_run(text) + 1)
    return f"{ticks}{language}\n{text}\n{ticks}"
