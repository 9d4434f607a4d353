"""Checks of the bodies for the generation endpoints, by hand: this is the hot path.

parse_chat              body of a chat completion -> (GenerationRequest, Delivery)
parse_completion        body of a completion -> (one GenerationRequest per prompt, Delivery)
check_passed_through    body of a request that another server answers
check_capabilities      refuses parameters that the engine lacks

The rule: each parameter is used, or makes no difference, or is refused by name. Null counts as
absent. A parameter makes no difference if by its meaning it leaves the answer alone (`user`,
`metadata`), or if its value asks for nothing new (`presence_penalty: 0`, `tools: []`).

The role `developer` is OpenAI's new word for `system`. Chat templates know the old one, so it is
replaced by that.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nip_base.api_errors import (
    ApiError,
    abbreviate,
    invalid_value,
    unknown_parameter,
    unsupported_value,
    wrong_value,
)
from nip_base.formats import ROLES, join_text
from nip_lm_server.chats.chat_types import ChatMessage
from nip_lm_server.chats.tool_parameters import (
    parse_response_format,
    parse_structured_outputs,
    parse_tool_choice,
    parse_tools,
    settle_tools,
    tool_message,
)
from nip_lm_server.engines.base import Engine, GenerationRequest, Upstream

MAX_CHOICES = 128
MAX_STOPS = 16
MAX_PROMPTS = 1024
MAX_TOP_LOGPROBS = 20
MAX_COMPLETION_LOGPROBS = 5
DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default of `max_tokens` for completions; chat has none."""

_MESSAGE_KEYS = frozenset({"role", "content", "name"})
_CHAT_ROLES = frozenset({*ROLES, "developer", "tool"})
_PASSED_ROLES = frozenset({*_CHAT_ROLES, "function"})
_TOOL_KEYS = ("tool_calls", "tool_call_id")

Parse = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class Delivery:
    """How an answer is sent, and the parts of the request to be repeated in it."""

    stream: bool = False
    include_usage: bool = False
    metadata: dict[str, str] | None = None
    tokens_as_ids: bool = False
    """Generated tokens are named ``token_id:17`` in the log-probabilities, as vLLM can do it."""


# Bodies


def parse_chat(body: Mapping[str, Any], body_bytes: int = 0) -> tuple[GenerationRequest, Delivery]:
    """Check a chat completion's body. Raises ApiError 400 with the parameter's name."""
    # 1. Each parameter by itself.
    values = _parse_values(body, CHAT_PARAMETERS, ("model", "messages"))
    # 2. Those that need or exclude each other.
    if values.get("top_logprobs") and not values.get("logprobs"):
        raise _requirement_error("top_logprobs", "logprobs: true")
    if values.get("listed_at"):
        if not values.get("top_logprobs"):
            raise _requirement_error("logprobs_at", "top_logprobs")
        if values.get("top_at") or values.get("tokens_as_ids"):
            other = "top_logprobs_at" if values.get("top_at") else "return_tokens_as_token_ids"
            raise _requirement_error("logprobs_at", f"no {other}")
    settle_tools(values)
    delivery = _parse_delivery(values)
    values["messages"] = parse_messages(body.get("messages"))
    return GenerationRequest(model=read_model(body), body_bytes=body_bytes, **values), delivery


def parse_completion(
    body: Mapping[str, Any], body_bytes: int = 0
) -> tuple[tuple[GenerationRequest, ...], Delivery]:
    """Check a completion's body. Raises ApiError 400 with the parameter's name."""
    # 1. Each parameter by itself.
    values = _parse_values(body, COMPLETION_PARAMETERS, ("model", "prompt", "best_of"))
    # 2. Those that have a synonym here, or another meaning than in a chat.
    best_of = body.get("best_of")
    if best_of is not None and best_of != values.get("n", 1):
        raise unsupported_value(
            "best_of", f"got {abbreviate(best_of)}, it can only be the same as n"
        )
    top_logprobs = values.pop("top_logprobs", None)
    if top_logprobs is not None:
        values |= {"logprobs": True, "top_logprobs": top_logprobs}
    values.setdefault("max_tokens", DEFAULT_COMPLETION_TOKENS)
    delivery = _parse_delivery(values)
    if delivery.stream and values.get("echo"):
        raise unsupported_value("echo", "got true, it is given without stream alone")
    # 3. A request for each prompt.
    values |= {"model": read_model(body), "body_bytes": body_bytes}
    prompts = _parse_prompts(body.get("prompt"))
    if len(prompts) * values.get("n", 1) > MAX_PROMPTS:
        raise invalid_value("prompt", len(prompts), f"at most {MAX_PROMPTS} prompts times n")
    return tuple([GenerationRequest(prompt=prompt, **values) for prompt in prompts]), delivery


def check_passed_through(
    body: dict[str, Any], upstream: Upstream, *, chat: bool
) -> dict[str, Any] | None:
    """Refuse parameters the upstream would ignore. Raises ApiError 400 with the parameter's name.

    Returns None if the body can be passed on as it came, or the body to send instead.
    """
    # 1. Parameters that the upstream doesn't know, unless they make no difference.
    known_names = upstream.parameters if chat else upstream.completion_parameters
    harmless = CHAT_HARMLESS if chat else COMPLETION_HARMLESS
    for name, value in body.items():
        if name not in known_names and value is not None:
            check = harmless.get(name)
            if check is None:
                raise unknown_parameter(name)
            check(name, value)
    # 2. Roles, which it might take for others.
    messages = body.get("messages") if chat else None
    if messages is None:
        return None
    if not isinstance(messages, list) or not messages:
        raise invalid_value("messages", messages, "a list with at least one message")
    has_developer = False
    for index, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if type(role) is not str or role not in _PASSED_ROLES:
            raise _wrong_role(index, message, _PASSED_ROLES)
        has_developer |= role == "developer"
    # 3. Its chat template may not know OpenAI's new word.
    if not has_developer:
        return None
    renamed = [
        {**message, "role": "system"} if message["role"] == "developer" else message
        for message in messages
    ]
    return {**body, "messages": renamed}


def check_capabilities(request: GenerationRequest, engine: Engine, *, chat: bool) -> None:
    """Raise ApiError 400 for a parameter that the engine lacks, by the endpoint's name for it."""
    if request.echo and not engine.capabilities.scores_given_tokens:
        raise unsupported_value("echo", f"the {engine.name} engine repeats no prompt")
    # Most requests ask for none, and every engine answers them.
    if not request.logprobs:
        return
    can = engine.capabilities
    if not can.logprobs:
        raise unsupported_value("logprobs", f"the {engine.name} engine has none")
    if request.top_logprobs > can.max_top_logprobs:
        raise unsupported_value(
            "top_logprobs" if chat else "logprobs",
            f"got {request.top_logprobs}, the {engine.name} engine gives at most "
            f"{can.max_top_logprobs} alternatives",
        )


def read_model(body: Mapping[str, Any]) -> str:
    """The model's name. Raises ApiError 400 if there is none."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise invalid_value("model", model, "the name of a model")
    return model


def parse_messages(messages: Any) -> tuple[ChatMessage, ...]:
    """Check messages and join their text parts: engines see text only."""
    if not isinstance(messages, list) or not messages:
        raise invalid_value("messages", messages, "a list with at least one message")
    return tuple([_parse_message(index, message) for index, message in enumerate(messages)])


def _parse_message(index: int, message: Any) -> ChatMessage:
    plain: ChatMessage = message
    if not isinstance(message, dict):
        raise _wrong_role(index, message, _CHAT_ROLES)
    role, content = message.get("role"), message.get("content")
    if type(role) is not str or role not in _CHAT_ROLES:
        raise _wrong_role(index, message, _CHAT_ROLES)
    if type(content) is str:
        # Most messages have a role and a text and nothing else: they are handed on as they are.
        if len(message) == 2 and role not in ("developer", "tool"):
            return plain
    else:
        # A message that calls tools needs no text.
        text = "" if content is None and message.get("tool_calls") else join_text(content)
        if text is None:
            raise invalid_value(f"messages[{index}].content", content, "text")
        content = text
    checked: ChatMessage = {
        "role": "system" if role == "developer" else role,
        "content": content,
    }
    if role == "tool" or any(message.get(key) for key in _TOOL_KEYS):
        checked = {**checked, **tool_message(f"messages[{index}]", message)}
    for key, value in message.items():
        # Clients send back the server's messages, with empty fields where an answer had none.
        if key not in _MESSAGE_KEYS and value is not None and value != [] and key not in checked:
            raise unknown_parameter(f"messages[{index}].{key}")
    name = message.get("name")
    if name is not None:
        if not isinstance(name, str):
            raise invalid_value(f"messages[{index}].name", name, "a string")
        checked["name"] = name
    return checked


def _wrong_role(index: int, message: Any, roles: frozenset[str]) -> ApiError:
    if not isinstance(message, dict):
        name, value = f"messages[{index}]", "null" if message is None else abbreviate(message)
        return wrong_value(name, f"Invalid '{name}': got {value}, expected an object.")
    expected = f"one of {', '.join(sorted(roles))}"
    return invalid_value(f"messages[{index}].role", message.get("role"), expected)


def _parse_prompts(prompt: Any) -> tuple[str | tuple[int, ...], ...]:
    expected = "a text, a list of texts, a list of token ids, or a list of such lists"
    if isinstance(prompt, str):
        return (prompt,)
    if isinstance(prompt, list) and prompt:
        # A list of numbers is one prompt, a list of texts or of lists is many.
        if all(type(token) is int for token in prompt):
            return (_token_ids(prompt),)
        if all(isinstance(item, str) for item in prompt):
            return tuple(prompt)
        if all(isinstance(i, list) and i and all(type(t) is int for t in i) for i in prompt):
            return tuple([_token_ids(item) for item in prompt])
    raise invalid_value("prompt", prompt, expected)


def _token_ids(tokens: list[int]) -> tuple[int, ...]:
    if min(tokens) < 0 or max(tokens) >= 2**31:
        raise invalid_value("prompt", tokens, "token ids, which are not negative")
    return tuple(tokens)


def _parse_values(
    body: Mapping[str, Any], parameters: Mapping[str, tuple[str, Parse]], own: tuple[str, ...]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in body.items():
        if name in own:
            continue
        check = parameters.get(name)
        if check is None:
            if value is None:
                continue
            raise unknown_parameter(name)
        if value is not None:
            target, parse = check
            parsed = parse(name, value)
            if not target:
                continue
            # Two names of one setting: either would have to be ignored.
            if target in values:
                reason = "Give one of 'max_tokens' and 'max_completion_tokens', not both."
                raise wrong_value(name, reason)
            values[target] = parsed
    return values


def _parse_delivery(values: dict[str, Any]) -> Delivery:
    """Take the settings of the answer's delivery out of `values`."""
    stream = values.pop("stream", False)
    include_usage = values.pop("stream_options", None)
    if include_usage is not None and not stream:
        raise _requirement_error("stream_options", "stream: true")
    metadata = values.pop("metadata", None)
    tokens_as_ids = values.pop("tokens_as_ids", False)
    if tokens_as_ids:
        if not values.get("logprobs"):
            raise _requirement_error("return_tokens_as_token_ids", "logprobs")
        values["return_token_ids"] = True
    return Delivery(stream, bool(include_usage), metadata, tokens_as_ids)


def _requirement_error(name: str, requirement: str) -> ApiError:
    return wrong_value(name, f"'{name}' needs '{requirement}'.")


# Values


def _integer(low: int, high: int) -> Parse:
    def parse(name: str, value: Any) -> int:
        # Not isinstance: true is no number.
        if type(value) is int and low <= value <= high:
            return value
        raise invalid_value(name, value, f"an integer from {low} to {high}")

    return parse


def _number(low: float, high: float, *, is_open: bool = False) -> Parse:
    def parse(name: str, value: Any) -> float:
        if type(value) in (int, float) and low <= value <= high and not (is_open and value == low):
            return float(value)
        bound = f"above {low}" if is_open else f"from {low}"
        raise invalid_value(name, value, f"a number {bound} to {high}")

    return parse


def _typed(kind: type, expected: str) -> Parse:
    def parse(name: str, value: Any) -> Any:
        if isinstance(value, kind):
            return value
        raise invalid_value(name, value, expected)

    return parse


_boolean = _typed(bool, "true or false")
_text = _typed(str, "a string")
_object = _typed(dict, "an object")


def _stop(name: str, value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if (
        isinstance(stops, list)
        and len(stops) <= MAX_STOPS
        and all(isinstance(stop, str) and stop for stop in stops)
    ):
        return tuple(stops)
    raise invalid_value(name, value, f"a text or a list of at most {MAX_STOPS} texts, none empty")


def _stream_options(name: str, value: Any) -> bool:
    for key, item in _object(name, value).items():
        if key == "include_usage":
            _boolean(f"{name}.{key}", item)
        elif key == "include_obfuscation":
            _accept_only(False)(f"{name}.{key}", item)
        else:
            raise unknown_parameter(f"{name}.{key}")
    return bool(value.get("include_usage", False))


def _metadata(name: str, value: Any) -> dict[str, str]:
    if (
        isinstance(value, dict)
        and len(value) <= 16
        and all(
            len(key) <= 64 and isinstance(item, str) and len(item) <= 512
            for key, item in value.items()
        )
    ):
        return value
    raise invalid_value(
        name, value, "at most 16 texts of 512 characters under keys of 64 characters"
    )


def _accept_only(*allowed: Any) -> Parse:
    """Make a parser of a parameter the server can't vary: it takes the harmless values alone."""

    def check(name: str, value: Any) -> Any:
        for same in allowed:
            # 0 and 0.0 are one number, 0 and False are not one value.
            if value == same and isinstance(value, bool) == isinstance(same, bool):
                return value
        listed = " or ".join([json.dumps(same) for same in allowed])
        raise unsupported_value(name, f"got {abbreviate(value)}, it can only be {listed}")

    return check


_NO_EFFECT: dict[str, Parse] = {
    **dict.fromkeys(("user", "safety_identifier"), _text),
    **dict.fromkeys(("prompt_cache_key", "prompt_cache_retention"), _text),
    "prompt_cache_options": _object,
    "metadata": _metadata,
    "store": _accept_only(False),
    "service_tier": _accept_only("auto", "default"),
}

_NO_PENALTY: dict[str, Parse] = {
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), _accept_only(0)),
    "logit_bias": _accept_only({}),
}

CHAT_HARMLESS: dict[str, Parse] = {
    **_NO_EFFECT,
    **_NO_PENALTY,
    "response_format": _accept_only({"type": "text"}),
    "modalities": _accept_only(["text"]),
    "reasoning_effort": _accept_only("none"),
    "verbosity": _accept_only("medium"),
    **dict.fromkeys(("tools", "functions"), _accept_only([])),
    **dict.fromkeys(("tool_choice", "function_call"), _accept_only("none", "auto")),
    "parallel_tool_calls": _boolean,
    **dict.fromkeys(("top_logprobs_at", "logprobs_at"), _stop),  # an upstream lists all
    **dict.fromkeys(("audio", "prediction"), _accept_only(None)),
    **dict.fromkeys(("moderation", "web_search_options"), _accept_only(None)),
}
"""Parameters that chat completions take without doing anything about them, in these values."""

COMPLETION_HARMLESS: dict[str, Parse] = {
    "user": _text,
    **_NO_PENALTY,
    "echo": _accept_only(False),
    "suffix": _accept_only(None, ""),
}

_SHARED: dict[str, tuple[str, Parse]] = {
    "max_tokens": ("max_tokens", _integer(1, 2**31 - 1)),
    "temperature": ("temperature", _number(0, 2)),
    "top_p": ("top_p", _number(0, 1, is_open=True)),
    "repetition_penalty": ("repetition_penalty", _number(0, 10, is_open=True)),
    "n": ("n", _integer(1, MAX_CHOICES)),
    "seed": ("seed", _integer(-(2**63), 2**63 - 1)),
    "stop": ("stop", _stop),
    "return_token_ids": ("return_token_ids", _boolean),
    "stream": ("stream", _boolean),
    "stream_options": ("stream_options", _stream_options),
}

CHAT_PARAMETERS: dict[str, tuple[str, Parse]] = {
    **{name: ("", check) for name, check in CHAT_HARMLESS.items()},
    **_SHARED,
    "response_format": ("schema", parse_response_format),
    "structured_outputs": ("grammar", parse_structured_outputs),
    "tools": ("tools", parse_tools),
    "tool_choice": ("tool_choice", parse_tool_choice),
    "parallel_tool_calls": ("parallel_tool_calls", _boolean),
    "max_completion_tokens": ("max_tokens", _integer(1, 2**31 - 1)),
    "logprobs": ("logprobs", _boolean),
    "top_logprobs": ("top_logprobs", _integer(0, MAX_TOP_LOGPROBS)),
    "top_logprobs_at": ("top_at", _stop),
    "logprobs_at": ("listed_at", _stop),
    "metadata": ("metadata", _metadata),
    "return_tokens_as_token_ids": ("tokens_as_ids", _boolean),
}
"""Parameter of the endpoint -> field of the request ("": none) and the check."""

COMPLETION_PARAMETERS: dict[str, tuple[str, Parse]] = {
    **{name: ("", check) for name, check in COMPLETION_HARMLESS.items()},
    **_SHARED,
    "echo": ("echo", _boolean),
    "logprobs": ("top_logprobs", _integer(0, MAX_COMPLETION_LOGPROBS)),
    "return_tokens_as_token_ids": ("tokens_as_ids", _boolean),
}
