"""POST /v1/chat/completions and POST /tokenize: the hot path, so checked by hand.

Everything a client sends is either used or refused by name; null counts as not sent, and
`stream: false` as what it is.
"""

import itertools
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from nip_core.lm_server.engines.base import Choice, GenerationRequest
from nip_core.lm_server.errors import ApiError
from nip_core.lm_server.formats import ROLES, text_of
from nip_core.lm_server.http import SERVICES, json_response, loads

MAX_CHOICES = 128
MAX_STOPS = 16
_MESSAGE_KEYS = frozenset({"role", "content", "name"})
_ids = itertools.count()
_id_prefix = f"chatcmpl-{secrets.token_hex(6)}-"


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    """Answer a chat completion."""
    services = request.app[SERVICES]
    chat = parse_chat(_object(await request.read()))
    result = await services.pool.engine_for(chat.model).generate(chat)
    generated = sum([choice.completion_tokens for choice in result.choices])
    body: dict[str, Any] = {
        "id": _id_prefix + str(next(_ids)),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": result.model,
        "choices": [_choice(i, choice) for i, choice in enumerate(result.choices)],
        "usage": {
            "prompt_tokens": result.prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": result.prompt_tokens + generated,
        },
    }
    if result.prompt_token_ids is not None:
        body["prompt_token_ids"] = result.prompt_token_ids
    return json_response(body)


async def tokenize(request: web.Request) -> web.StreamResponse:
    """Token ids of the prompt that messages give, as vLLM's endpoint of this name has them."""
    services = request.app[SERVICES]
    body = _object(await request.read())
    for name in body:
        if name not in ("model", "messages"):
            raise _unknown(name)
    model = _model(body)
    engine = services.pool.engine_for(model)
    tokens = await engine.tokenize(model, parse_messages(body.get("messages")))
    return json_response(
        {"tokens": tokens, "count": len(tokens), "max_model_len": engine.max_model_len}
    )


def parse_chat(body: Mapping[str, Any]) -> GenerationRequest:
    """Check a chat completion's body. Raises ApiError 400 that names the parameter."""
    values: dict[str, Any] = {}
    for name, value in body.items():
        if name in ("model", "messages"):
            continue
        check = _PARAMETERS.get(name)
        if check is None:
            if value is None:
                continue
            raise _unknown(name)
        if value is not None:
            target, parse = check
            if target in values:
                raise _invalid(name, value, "max_tokens or max_completion_tokens, not both")
            values[target] = parse(name, value)
    values.pop("stream", None)
    return GenerationRequest(
        model=_model(body), messages=parse_messages(body.get("messages")), **values
    )


def parse_messages(messages: Any) -> tuple[dict[str, Any], ...]:
    """Check messages and join text parts, so that an engine sees text only."""
    if not isinstance(messages, list) or not messages:
        raise _invalid("messages", messages, "a list with at least one message")
    return tuple([_message(index, message) for index, message in enumerate(messages)])


def _message(index: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise _invalid(f"messages[{index}]", message, "an object")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise _invalid(f"messages[{index}].role", role, f"one of {', '.join(ROLES)}")
    if type(content) is str:
        if len(message) == 2:
            return message
    else:
        text = text_of(content)
        if text is None:
            raise _invalid(f"messages[{index}].content", content, "text")
        content = text
    checked = {"role": role, "content": content}
    for key, value in message.items():
        # Clients send back messages they got, with empty fields for what the answer had not.
        if key not in _MESSAGE_KEYS and value is not None and value != []:
            raise ApiError(
                400,
                f"Unknown parameter: 'messages[{index}].{key}'.",
                code="unknown_parameter",
                param=f"messages[{index}].{key}",
            )
    name = message.get("name")
    if name is not None:
        if not isinstance(name, str):
            raise _invalid(f"messages[{index}].name", name, "a string")
        checked["name"] = name
    return checked


def _choice(index: int, choice: Choice) -> dict[str, Any]:
    body: dict[str, Any] = {
        "index": index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "finish_reason": choice.finish_reason,
        "logprobs": None,
    }
    if choice.logprobs is not None:
        tokens = choice.tokens or ("",) * len(choice.logprobs)
        body["logprobs"] = {
            "content": [
                {
                    "token": token,
                    "logprob": logprob,
                    "bytes": list(token.encode("utf-8", "surrogatepass")),
                    "top_logprobs": [],
                }
                for token, logprob in zip(tokens, choice.logprobs, strict=True)
            ],
            "refusal": None,
        }
    if choice.token_ids is not None:
        body["token_ids"] = choice.token_ids
    return body


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise ApiError(400, "The body must be a JSON object", code="invalid_json")
    return body


def _model(body: Mapping[str, Any]) -> str:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise _invalid("model", model, "the name of a model")
    return model


def _unknown(name: str) -> ApiError:
    return ApiError(
        400,
        f"Unknown parameter: '{name}'. It would have to be ignored, so it is refused.",
        code="unknown_parameter",
        param=name,
    )


def _invalid(name: str, value: Any, expected: str) -> ApiError:
    missing = value is None
    return ApiError(
        400,
        f"Missing required parameter: '{name}' ({expected})."
        if missing
        else f"Invalid '{name}': got {repr(value)[:80]}, expected {expected}.",
        code="missing_required_parameter" if missing else "invalid_value",
        param=name,
    )


def _integer(low: int, high: int) -> Callable[[str, Any], int]:
    def parse(name: str, value: Any) -> int:
        if type(value) is int and low <= value <= high:
            return value
        raise _invalid(name, value, f"an integer from {low} to {high}")

    return parse


def _number(low: float, high: float, *, above: bool = False) -> Callable[[str, Any], float]:
    def parse(name: str, value: Any) -> float:
        if type(value) in (int, float) and low <= value <= high and not (above and value == low):
            return float(value)
        bound = f"above {low}" if above else f"from {low}"
        raise _invalid(name, value, f"a number {bound} to {high}")

    return parse


def _boolean(name: str, value: Any) -> bool:
    if type(value) is bool:
        return value
    raise _invalid(name, value, "true or false")


def _stop(name: str, value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if (
        isinstance(stops, list)
        and len(stops) <= MAX_STOPS
        and all(isinstance(stop, str) and stop for stop in stops)
    ):
        return tuple(stops)
    raise _invalid(name, value, f"a text or a list of at most {MAX_STOPS} texts, none empty")


def _not_streamed(name: str, value: Any) -> bool:
    if value is False:
        return False
    if value is True:
        raise ApiError(
            400,
            "Streaming is not supported yet: leave out 'stream' or set it to false.",
            code="unsupported_value",
            param=name,
        )
    raise _invalid(name, value, "true or false")


_PARAMETERS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "max_tokens": ("max_tokens", _integer(1, 2**31 - 1)),
    "max_completion_tokens": ("max_tokens", _integer(1, 2**31 - 1)),
    "temperature": ("temperature", _number(0, 2)),
    "top_p": ("top_p", _number(0, 1, above=True)),
    "repetition_penalty": ("repetition_penalty", _number(0, 10, above=True)),
    "n": ("n", _integer(1, MAX_CHOICES)),
    "seed": ("seed", _integer(-(2**63), 2**63 - 1)),
    "stop": ("stop", _stop),
    "logprobs": ("logprobs", _boolean),
    "return_token_ids": ("return_token_ids", _boolean),
    "stream": ("stream", _not_streamed),
}
