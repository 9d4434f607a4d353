"""Transcripts as they stand in the report, as JSON in a script element, and how much fits in.

Embedded           one of them, ready to be put into a page
embed_transcript   a transcript -> Embedded
embedded_json      several, with the system prompts that they share, as one document
script_json        any value as JSON that can stand there
fair_share         how much of the room each of several may take
thin_out           some entries of a longer list
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from nip_core.evaluation.episode_transcripts import Transcript

T = TypeVar("T")
_KEY_CHARACTERS = 12  # of the name of a system prompt, enough for any number of them


@dataclass(frozen=True)
class Embedded:
    """A transcript as text of a page."""

    chosen: str  # why it is shown, one of `transcripts.REASONS`
    text: str
    prompts: Mapping[str, str] = field(default_factory=dict)
    """By the names that the text has for them, its system prompts, ready as well."""


def embed_transcript(transcript: "Transcript") -> Embedded:
    """Make a transcript ready for a page, with names in the place of its system prompts."""
    names = {prompt: _name(prompt) for prompt in transcript.system_prompts.values()}
    plain = {
        **{n: v for n, v in asdict(transcript).items() if n not in ("question", "solution")},
        "right": transcript.right,
        "system_prompts": {a: names[prompt] for a, prompt in transcript.system_prompts.items()},
    }
    prompts = {name: script_json(prompt) for prompt, name in names.items()}
    return Embedded(transcript.chosen, script_json(plain), prompts)


def embedded_json(transcripts: Sequence[Embedded]) -> str:
    """Join ``transcripts``, and by name the ``prompts`` of all, to one JSON document."""
    prompts: dict[str, str] = {}
    for transcript in transcripts:
        prompts |= transcript.prompts
    prompt_texts = ",".join(f'"{name}":{text}' for name, text in sorted(prompts.items()))
    transcript_texts = ",".join(transcript.text for transcript in transcripts)
    return f'{{"prompts":{{{prompt_texts}}},"transcripts":[{transcript_texts}]}}'


def script_json(value: Any) -> str:
    """Encode `value` as JSON for a script element: pure ASCII, without <, > and &.

    No text in it can then close the element, open a comment, or hold the two line separators
    (U+2028, U+2029) that JSON allows and JavaScript once did not.
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def fair_share(sizes: Sequence[int], room: int) -> int:
    """Compute the most for each of several, if all together may take no more than `room`.

    One that needs less leaves the rest to the others.
    """
    rest = room
    for count, size in enumerate(sorted(sizes)):
        share = rest // (len(sizes) - count)
        if size > share:
            return share
        rest -= size
    return max(sizes, default=0)


def thin_out(entries: Sequence[T], limit: int) -> list[T]:
    """Keep the first entry, the last, and some evenly spread between: `limit` in all."""
    if len(entries) <= limit:
        return [*entries]
    return [entries[round(k * (len(entries) - 1) / (limit - 1))] for k in range(limit)]


def _name(prompt: str) -> str:
    content = prompt.encode("utf-8", "surrogatepass")
    return hashlib.sha256(content).hexdigest()[:_KEY_CHARACTERS]
