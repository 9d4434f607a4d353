"""The text and the thoughts of a model that thinks, in the shapes that APIs give.

Thoughts stand in ``reasoning`` (vLLM, some gateways) or ``reasoning_content`` (older vLLM, DeepSeek
and other gateways), in ``reasoning_details`` alone (a gateway, for some models), or as parts of the
content that are of type ``thinking`` (Mistral). OpenAI, Gemini and Anthropic's endpoint for
OpenAI's protocol give their number at most. A model may write ``<think>`` into its text, with no
parser in front of it. Then it stays there, and `nip_core.game.answers.parsing` leaves it out of the
messages to other agents.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nip_base.formats.bounds import parse_json


class MalformedAnswer(Exception):
    """The response is no answer of the model asked; the call is sent again."""


@dataclass(frozen=True)
class Usage:
    """The tokens of a call, as the API counts them."""

    prompt_tokens: int
    completion_tokens: int
    """Thoughts included, also where the API counts them apart."""
    reasoning_tokens: int | None
    """None: there were none, or they are not counted."""
    cached_tokens: int | None
    """Of the prompt's; None likewise."""


def read_message(message: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Read the text of an answer and the thoughts beside it; either is None if it is missing.

    Raises ValueError for content of a kind that is not known.
    """
    content, thought = message.get("content"), _read_thoughts(message)
    if isinstance(content, list):
        content, in_parts = _read_parts(content)
        thought = thought or in_parts
    elif content is not None and not isinstance(content, str):
        raise ValueError(f"content is of type {type(content).__name__}")
    return content, thought or None


def _read_thoughts(message: Mapping[str, Any]) -> str | None:
    for name in ("reasoning", "reasoning_content"):
        thought = message.get(name)
        if isinstance(thought, str) and thought:
            return thought
    details = message.get("reasoning_details")
    if not isinstance(details, list):
        return None
    texts = (part.get("text") or part.get("summary") for part in details if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str)) or None


def _read_parts(parts: list[Any]) -> tuple[str | None, str | None]:
    """Read the text and the thoughts in content made of parts."""
    texts: list[str] = []
    thoughts: list[str] = []
    for part in parts:
        kind = part.get("type")
        if kind == "text":
            texts.append(str(part["text"]))
        elif kind == "thinking":
            inner = part["thinking"]
            if isinstance(inner, str):
                thoughts.append(inner)
            else:
                thoughts.extend(str(piece.get("text", "")) for piece in inner)
        elif kind == "refusal":
            texts.append(str(part["refusal"]))
        else:
            raise ValueError(f"a part of content is of type {kind!r}")
    return "".join(texts) if texts else None, "".join(thoughts) or None


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Read the counts of a response.

    Where the total is more than prompt and completion, the rest are thoughts that the completion
    leaves out (Gemini). They are paid as completion, so they count as such.
    """
    prompt = int(usage.get("prompt_tokens") or 0)
    completion = int(usage.get("completion_tokens") or 0)
    details = usage.get("completion_tokens_details")
    thoughts = details.get("reasoning_tokens") if isinstance(details, Mapping) else None
    thoughts = usage.get("reasoning_tokens") if thoughts is None else thoughts
    reasoning = int(thoughts or 0) or None
    uncounted = int(usage.get("total_tokens") or 0) - prompt - completion
    if uncounted > 0 and (reasoning is None or reasoning >= uncounted):
        completion += uncounted
        reasoning = max(reasoning or 0, uncounted)
    return Usage(prompt, completion, reasoning, _read_cached(usage, prompt))


def _read_cached(usage: Mapping[str, Any], prompt: int) -> int | None:
    """Read the prompt's tokens that were read before; a number that can't be counts as none."""
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    cached = usage.get("prompt_cache_hit_tokens") if cached is None else cached  # DeepSeek's name
    return cached if type(cached) is int and 0 < cached <= prompt else None


def says_thoughts_took_all(refusal: bytes) -> bool:
    """Tell if the body of a 400 says the limit was reached before the answer began.

    OpenAI answers so for models that think ("Could not finish the message because max_tokens or
    model output limit was reached"), where others give an answer without a text.
    """
    try:
        message = parse_json(refusal)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return False
    words = str(message).lower()
    return "could not finish the message" in words and "limit was reached" in words
