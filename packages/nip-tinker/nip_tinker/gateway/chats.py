"""Chats as clients of OpenAI's API send them, read strictly.

read_chat   the body of a chat completion
ApiError    an answer without success, as OpenAI's error object

A field of a request is carried, or asks for nothing, or is refused by name.
"""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

MOST_TOP = 20
_LABELS = {
    *("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("request_id", "cache_salt"),
}
"""Fields that no answer depends on."""
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    # OpenAI's.
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "stream": (False,),
    "store": (False,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "service_tier": ("auto", "default"),
    "verbosity": ("medium",),
    # vLLM's. nip sends the first, where it records tokens.
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "best_of": (1,),
    "priority": (0,),
    "use_beam_search": (False,),
    "ignore_eos": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "echo": (False,),
    "return_tokens_as_token_ids": (False,),
    "include_reasoning": (True,),
}
"""Values that ask for nothing, of fields that samples can't carry; null, "", [] and {} are more."""

_WHY_NO_STOP = (
    "a sample of Tinker's API stops at texts or at tokens, not both, and the gateway names the "
    "tokens that end the model's turn"
)


class ApiError(Exception):
    """An answer without success, as OpenAI's clients read it."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        retry_after: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after = retry_after


class _Part(BaseModel):
    """A part of a message's content."""

    model_config = ConfigDict(strict=True, frozen=True)

    type: Literal["text"]
    text: str


class _Message(BaseModel):
    """A message, with a text or parts of one."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[_Part], Field(min_length=1)]
    name: str | None = None

    def to_dict(self) -> dict[str, str]:
        """Make the message of a chat template, which knows no developer."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        name = {} if self.name is None else {"name": self.name}
        return {
            "role": "system" if self.role == "developer" else self.role,
            "content": text,
            **name,
        }


class Chat(BaseModel):
    """The body of a chat completion, as far as samples carry it."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    model: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[_Message], Field(min_length=1)]
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    seed: int | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    # Every answer has ids.
    return_token_ids: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = None

    @property
    def asks_logprobs(self) -> bool:
        """Tell whether an answer has log-probabilities."""
        return bool(self.logprobs or self.top_logprobs)

    @property
    def limit(self) -> int | None:
        """The most tokens of an answer."""
        return self.max_tokens or self.max_completion_tokens


def read_chat(raw: bytes) -> Chat:
    """Read a body. Raises ApiError 400 that names the first wrong field."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON ({str(error)[:200]})", "invalid_body") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the body is no JSON object", "invalid_body")
    try:
        chat = Chat.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        names, words = [*map(str, first["loc"])], first["msg"][:300]
        if first["loc"][2:3] == ("content",):  # a text or parts: the union names one of both
            names, words = names[:3], "it should be a text, or a list of parts of type text"
        place = ".".join(names)[:200]
        raise ApiError(400, f"{place}: {words}", "invalid_value", place) from None
    _refuse_ignored("", chat.model_extra or {})
    for index, message in enumerate(chat.messages):
        _refuse_ignored(f"messages.{index}.", message.model_extra or {})
        for text in message.to_dict().values():
            if re.search("[\ud800-\udfff]", text):
                place = f"messages.{index}"
                words = f"{place}: it has half of a surrogate pair, which is no text"
                raise ApiError(400, words, "invalid_value", place)
    if chat.top_logprobs and chat.logprobs is None:
        raise ApiError(400, "top_logprobs needs logprobs: true", "invalid_value", "top_logprobs")
    if chat.max_completion_tokens not in (None, chat.limit):
        words = "max_completion_tokens: max_tokens is another; give one of them"
        raise ApiError(400, words, "invalid_value", "max_completion_tokens")
    return chat


def _refuse_ignored(place: str, fields: Mapping[str, JsonValue]) -> None:
    """Raise ApiError 400 for fields that would have to be ignored."""
    ignored = sorted(name for name, value in fields.items() if not _asks_nothing(name, value))
    if ignored:
        listed = ", ".join(f"{place}{name} (got {str(fields[name])[:80]})" for name in ignored[:8])
        why = f" ({_WHY_NO_STOP})" if ignored[0].startswith("stop") else ""
        raise ApiError(
            400,
            f"the gateway can't carry {listed}: leave these settings out{why}",
            "unsupported_value",
            f"{place}{ignored[0]}"[:200],
        )


def _asks_nothing(name: str, value: JsonValue) -> bool:
    if value is None or value in ("", [], {}) or name in _LABELS:
        return True
    # 0 and 0.0 are one number, 0 and False are not one value.
    return any(
        value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
        for neutral in _NEUTRAL.get(name, ())
    )
