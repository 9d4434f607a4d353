"""Checks a client's wishes for the form of an answer: `response_format`, tools, their calls.

parse_response_format   -> the JSON schema of the answer, None for text
parse_structured_outputs   -> the grammar of the answer
parse_tools, parse_tool_choice -> see `settle_tools`
tool_message      a message that calls tools, or answers a call
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NotRequired, TypedDict

from nip_base.api_errors import invalid_value, unknown_parameter, unsupported_value
from nip_lm_server.chats.chat_types import CallParts, MessageCall, Tool

MAX_TOOLS = 128
MAX_CALLS = 1024
"""Most calls in one message."""
MAX_SCHEMA_VALUES = 10_000
MAX_SCHEMA_CHARACTERS = 200_000
"""Most values, and characters in names and texts, of a schema: a grammar is made of it, which takes
seconds and hundreds of megabytes for more."""
MAX_GRAMMAR_CHARACTERS = 20_000
_OTHER_FORMS = frozenset({"json", "regex", "choice", "json_object", "structural_tag"})
"""The forms of vLLM's parameter that are not a grammar."""
_ALL_TOOLS = 4
"""All tools of a request together may be as large as so many schemas."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAME_RULE = "1 to 64 letters, digits, dashes and underscores"


def parse_response_format(name: str, value: Any) -> dict[str, Any] | None:
    """Return the schema for the answer. Raises ApiError 400."""
    kind = _require_object(name, value).get("type")
    if kind == "json_schema":
        _refuse_other_keys(name, value, ("type", "json_schema"))
        inner, place = (
            _require_object(f"{name}.json_schema", value.get("json_schema")),
            f"{name}.json_schema",
        )
        _refuse_other_keys(place, inner, ("name", "schema", "strict", "description"))
        _check_name(f"{place}.name", inner.get("name"))
        _check_type(f"{place}.strict", inner.get("strict"), bool, "true or false")
        _check_type(f"{place}.description", inner.get("description"), str, "a string")
        schema = _require_object(f"{place}.schema", inner.get("schema"))
        _check_size(f"{place}.schema", schema)
        return schema
    if kind not in ("text", "json_object"):
        raise invalid_value(f"{name}.type", kind, "text, json_object or json_schema")
    _refuse_other_keys(name, value, ("type",))
    return {"type": "object"} if kind == "json_object" else None


def parse_structured_outputs(name: str, value: Any) -> str:
    """Return the grammar for the answer. Raises ApiError 400.

    The parameter is vLLM's. Of its forms ``grammar`` alone is taken: OpenAI's API has none for it.
    """
    forms = {key: item for key, item in _require_object(name, value).items() if item is not None}
    for key in forms.keys() & _OTHER_FORMS:
        raise unsupported_value(
            f"{name}.{key}", "it can be grammar; JSON is asked for by response_format"
        )
    _refuse_other_keys(name, forms, ("grammar",))
    grammar = forms.get("grammar")
    if not isinstance(grammar, str) or not 0 < len(grammar) <= MAX_GRAMMAR_CHARACTERS:
        expected = f"a text of 1 to {MAX_GRAMMAR_CHARACTERS} characters"
        raise invalid_value(f"{name}.grammar", grammar, expected)
    return grammar


def parse_tools(name: str, value: Any) -> tuple[Tool, ...]:
    """Return the callable functions. Raises ApiError 400."""
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        raise invalid_value(name, value, f"a list of at most {MAX_TOOLS} tools")
    names = set()
    for index, tool in enumerate(value):
        place = f"{name}[{index}]"
        kind = _require_object(place, tool).get("type")
        if kind != "function":
            raise unsupported_value(f"{place}.type", f"got {str(kind)[:80]!r}, it can be function")
        _refuse_other_keys(place, tool, ("type", "function"))
        function = _require_object(f"{place}.function", tool.get("function"))
        place = f"{place}.function"
        _refuse_other_keys(place, function, ("name", "description", "parameters", "strict"))
        _check_name(f"{place}.name", function.get("name"))
        _check_type(f"{place}.description", function.get("description"), str, "a string")
        _check_type(f"{place}.parameters", function.get("parameters"), dict, "an object")
        _check_size(f"{place}.parameters", function.get("parameters"))
        _check_type(f"{place}.strict", function.get("strict"), bool, "true or false")
        if function["name"] in names:
            raise invalid_value(f"{place}.name", function["name"], "a name that no other tool has")
        names.add(function["name"])
    _check_size(name, value, _ALL_TOOLS)
    return tuple(value)


def parse_tool_choice(name: str, value: Any) -> str | tuple[str]:
    """Return none, auto or required; or the one function to be called. Raises ApiError 400."""
    if value in ("none", "auto", "required"):
        return str(value)
    if isinstance(value, dict) and value.get("type") == "function":
        _refuse_other_keys(name, value, ("type", "function"))
        function = _require_object(f"{name}.function", value.get("function"))
        _refuse_other_keys(f"{name}.function", function, ("name",))
        _check_name(f"{name}.function.name", function.get("name"))
        return (function["name"],)
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        raise unsupported_value(f"{name}.type", f"got {value['type'][:80]!r}, it can be function")
    raise invalid_value(name, value, "none, auto, required or a function")


def settle_tools(values: dict[str, Any]) -> None:
    """Turn `tools` and `tool_choice` in `values` into `tools`, which the model sees, and
    `forced_tools`, of which it must call one. Raises ApiError 400 if the two contradict each other,
    and for a grammar beside another form.
    """
    # A model that may not call a tool sees none.
    choice = values.pop("tool_choice", "auto")
    if choice == "none":
        values.pop("tools", None)
    if values.get("grammar") is not None:
        for key, parameter in (("tools", "tools"), ("schema", "response_format")):
            if values.get(key):
                raise unsupported_value(parameter, "it can't be beside structured_outputs")
    tool_names = [tool["function"]["name"] for tool in values.get("tools") or ()]
    if choice in ("none", "auto"):
        return
    forced_names = tuple(tool_names) if choice == "required" else choice
    if not tool_names or not set(forced_names) <= set(tool_names):
        expected = f"one of the tools, which are {', '.join(tool_names) or 'none'}"
        raise invalid_value("tool_choice", choice, expected)
    values["forced_tools"] = forced_names


def tool_message(name: str, message: Mapping[str, Any]) -> CallParts:
    """Check `tool_calls` or `tool_call_id` of a message named `name`, and return them.

    Raises ApiError 400.
    """
    calls, call_id = message.get("tool_calls"), message.get("tool_call_id")
    role = message["role"]
    parts: CallParts = {}
    # 1. An answer to a call.
    if role == "tool":
        if not isinstance(call_id, str):
            raise invalid_value(f"{name}.tool_call_id", call_id, "the id of a call")
        parts["tool_call_id"] = call_id
    elif call_id is not None:
        raise unknown_parameter(f"{name}.tool_call_id")
    # 2. Calls, which the assistant alone makes.
    if not calls:
        return parts
    if role != "assistant" or not isinstance(calls, list):
        raise invalid_value(f"{name}.tool_calls", calls, "a list, in an assistant's message")
    if len(calls) > MAX_CALLS:
        raise invalid_value(f"{name}.tool_calls", calls, f"a list of at most {MAX_CALLS} calls")
    for index, call in enumerate(calls):
        place = f"{name}.tool_calls[{index}]"
        if _require_object(place, call).get("type", "function") != "function":
            raise unsupported_value(f"{place}.type", "it can only be function")
        _refuse_other_keys(place, call, ("id", "type", "function", "index"))
        _check_type(f"{place}.id", call.get("id"), str, "a string")
        function = _require_object(f"{place}.function", call.get("function"))
        _refuse_other_keys(f"{place}.function", function, ("name", "arguments"))
        _check_name(f"{place}.function.name", function.get("name"))
        if not isinstance(function.get("arguments"), str):
            raise invalid_value(f"{place}.function.arguments", function.get("arguments"), "a text")
    return {**parts, "tool_calls": calls}


class TemplateFunction(TypedDict):
    """A called function; its arguments are an object, where the model wrote one."""

    name: str
    arguments: object


class TemplateCall(TypedDict):
    """A call of a tool, as chat templates want it."""

    type: str
    function: TemplateFunction
    id: NotRequired[str | None]
    index: NotRequired[int | None]


def template_call(call: MessageCall) -> TemplateCall:
    """A call as chat templates want it: its arguments as an object, where they are one."""
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        arguments = function["arguments"]
    parsed: TemplateFunction = {**function, "arguments": arguments}
    return {**call, "type": "function", "function": parsed}


def _require_object(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise invalid_value(name, value, "an object")


def _check_size(name: str, value: Any, schemas: int = 1) -> None:
    """Raise ApiError 400 for a value larger than so many schemas may be."""
    values = characters = 0
    level = [value]
    while level and values <= MAX_SCHEMA_VALUES * schemas:
        characters += sum(len(item) for item in level if isinstance(item, str))
        characters += sum(len(key) for item in level if isinstance(item, dict) for key in item)
        level = [child for item in level for child in _list_children(item)]
        values += len(level)
    most_values, most_characters = MAX_SCHEMA_VALUES * schemas, MAX_SCHEMA_CHARACTERS * schemas
    if values > most_values or characters > most_characters:
        expected = f"at most {most_values} values and {most_characters} characters"
        raise invalid_value(name, value, expected)


def _list_children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _check_name(name: str, value: Any) -> None:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise invalid_value(name, value, _NAME_RULE)


def _check_type(name: str, value: Any, kind: type, expected: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise invalid_value(name, value, expected)


def _refuse_other_keys(name: str, value: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key, item in value.items():
        if key not in keys and item is not None:
            raise unknown_parameter(f"{name}.{key}"[:200])
