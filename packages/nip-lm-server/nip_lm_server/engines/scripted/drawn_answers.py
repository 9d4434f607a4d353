"""Answers in a requested form, by an engine without a model, whole and token by token.

fit           a text in the form of a request: the reply, if it has the form, else a drawn one
draw          a JSON text of a schema, byte by byte
follow        a text as JSON of a schema; None if it is not
draw_call     a call of one of the forced tools
split_choice  a choice token by token
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

from nip_lm_server.chats.tool_calls import ToolCall, read_parameters
from nip_lm_server.engines.base import Delta, GenerationRequest
from nip_lm_server.engines.guided import (
    begin_matching,
    import_llguidance,
    write_json_grammar,
    write_lark_grammar,
    wrong_schema,
)
from nip_lm_server.engines.scripted.pseudo_tokens import (
    TOKEN_BYTES,
    count_pseudo_tokens,
    split_pieces,
    token_ids,
)

_END = 256  # the token that ends a text
# With equal chances a text would hardly ever end before its limit. So a token that ends a part is
# likelier than a letter, and one that opens a part less likely. The weights are a rule of thumb;
# others would change the answers of all seeds.
_LIKELY = {**dict.fromkeys(b'"}]', 8.0), _END: 8.0, **dict.fromkeys(b"{[", 0.5)}
_BRACKETS = frozenset(b"{[]}")
_QUOTE, _MEANINGLESS = ord('"'), ord("q")  # outside of texts, JSON has no q
_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789 ")
_ENDS = frozenset(b"?.\n")  # of sentences, which end no part of JSON
_MAX_TOKENS = re.compile(r"(?<=max_tokens=)[0-9]+")


class _Bytes:
    """The vocabulary of 256 bytes and an end, in the shape that llguidance takes."""

    eos_token_id, bos_token_id = _END, None
    tokens = (*(bytes([value]) for value in range(256)), b"<end>")
    special_token_ids = (_END,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def fit(request: GenerationRequest, text: str, random: Random, limit: int) -> str:
    """The text, if it has the form of the request; else a drawn one of at most `limit`
    tokens.

    Raises EngineRequestError for a wrong schema or grammar.
    """
    param = request.form_parameter
    if request.schema is not None:
        fitting_text = follow(request.schema, text)
        return draw(request.schema, random, limit, param) if fitting_text is None else fitting_text
    if request.grammar is None:
        return text
    # The grammar counts a model's tokens. It allows as many of ours, which have several bytes.
    in_bytes = _MAX_TOKENS.sub(lambda match: str(TOKEN_BYTES * int(match[0])), request.grammar)
    grammar = write_lark_grammar(in_bytes)
    matcher = _begin(grammar, param)
    if matcher.consume_tokens(list(text.encode())) and matcher.is_accepting():
        return text
    return _draw(_begin(grammar, param), random, limit, param, ends=_ENDS)


def draw(schema: Mapping[str, Any], random: Random, limit: int, param: str) -> str:
    """A JSON text of a schema, or its first `limit` tokens; short rather than long.

    Raises EngineRequestError for a wrong schema.
    """
    return _draw(_begin(write_json_grammar(schema, param), param), random, limit, param)


def _draw(
    matcher: Any, random: Random, limit: int, param: str, ends: frozenset[int] = frozenset()
) -> str:
    most_bytes = limit * TOKEN_BYTES + 1
    text = bytearray()
    while not matcher.is_stopped() and len(text) < most_bytes:
        allowed = [token for token, bias in enumerate(matcher.compute_logit_bias()) if bias]
        is_inside_text = _QUOTE in allowed and _MEANINGLESS in allowed
        weights = [
            _LIKELY[_END] if token in ends else _weight(token, is_inside_text) for token in allowed
        ]
        token = random.choices(allowed, weights)[0]
        matcher.consume_token(token)
        if token != _END:
            text.append(token)
    # A schema may become too complex at some place of the text.
    if matcher.is_error():
        raise wrong_schema(matcher.get_error(), param)
    # A text cut at its limit may end within a character.
    return text.decode("utf-8", "ignore")


def follow(schema: Mapping[str, Any], text: str) -> str | None:
    """A text in the style of `draw`, if it is JSON of the schema; else None."""
    # A reply is usually no JSON: most rules are written for free text.
    try:
        raw = json.dumps(json.loads(text), ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    param = "response_format"
    matcher = _begin(write_json_grammar(schema, param), param)
    if not matcher.consume_tokens(list(raw)) or not matcher.is_accepting():
        return None
    return raw.decode()


def _begin(grammar: str, param: str) -> Any:
    library = import_llguidance()
    vocabulary = library.LLTokenizer(library.TokenizerWrapper(_Bytes()))
    return begin_matching(vocabulary, grammar, param)


def _weight(token: int, is_inside_text: bool) -> float:
    """The weight of a token: ends of strings, lists and objects first, then readable text."""
    if token in _LETTERS:
        return 1.0
    return 0.02 if is_inside_text and token in _BRACKETS else _LIKELY.get(token, 0.02)


def draw_call(index: int, request: GenerationRequest, random: Random, limit: int) -> Delta:
    """Draw a call of one of the forced tools, with arguments by its schema."""
    name = random.choice(request.forced_tools)
    place = [tool["function"]["name"] for tool in request.tools].index(name)
    param = f"tools[{place}].function.parameters"
    arguments = draw(read_parameters(request.tools[place]), random, limit, param)
    is_whole = count_pseudo_tokens(arguments) <= limit
    return Delta(
        index,
        text="",
        finish_reason="tool_calls" if is_whole else "length",
        completion_tokens=min(count_pseudo_tokens(arguments), limit),
        token_ids=token_ids(arguments)[:limit] if request.return_token_ids else (),
        tool_calls=(ToolCall(name, arguments[: limit * TOKEN_BYTES]),),
    )


def split_choice(choice: Delta) -> list[Delta]:
    """Cut a whole choice into one delta per token. A choice without text is one delta, its end."""
    texts = [*split_pieces(choice.text)]
    if not texts:
        return [choice]
    return [
        replace(
            choice,
            text=text,
            finish_reason=choice.finish_reason if number == len(texts) - 1 else None,
            token_ids=choice.token_ids[number : number + 1],
            completion_tokens=1,
        )
        for number, text in enumerate(texts)
    ]
