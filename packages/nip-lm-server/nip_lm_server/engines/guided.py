"""Guided decoding: an answer can't leave the form of its request.

write_json_grammar  a JSON schema -> its grammar, checked
write_lark_grammar  a text in llguidance's form of Lark's grammars -> its grammar, not checked yet
write_call_grammar  tools, and a template's form of calls -> the grammar of an answer with calls
make_vocabulary     a model's vocabulary in llguidance's form; begin_matching: one answer over it
Guide               the progress of one answer through its grammar

The grammars are llguidance's. It refuses a schema with a keyword that it can't enforce, and names
the keyword. JSON is written as Python's `json.dumps` does, ``{"a": 1, "b": 2}``: free white space
would let a weak model write nothing else until its tokens end. For the same reason objects are
closed.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nip_lm_server.chats.chat_types import Tool
from nip_lm_server.chats.tool_calls import ToolForm, read_parameters
from nip_lm_server.engines.base import EngineRequestError

_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_MAPS = ("properties", "patternProperties", "$defs", "definitions")  # name -> schema
_VALUES = ("enum", "const", "default", "examples")
_LEXER_FUEL = 100_000
"""The most work of a pattern before the first token: a fifth of a second, as measured for
docs/decisions/0014-guided-decoding.md. With llguidance's default a hostile pattern takes four
seconds."""


def import_llguidance() -> Any:
    """Import the library. Raises EngineRequestError if it is not installed."""
    # It is part of an extra: a server that guides nothing runs without it.
    try:
        import llguidance
    except ImportError:
        raise EngineRequestError(
            "this server can't guide answers: it has no llguidance, which is part of the extra "
            "'local'",
            "unsupported_value",
            "response_format",
        ) from None
    return llguidance


def write_json_grammar(schema: Mapping[str, Any], param: str = "response_format") -> str:
    """The grammar of JSON texts of a schema. Raises EngineRequestError for a wrong schema."""
    matcher = import_llguidance().LLMatcher
    try:
        closed = json.dumps(close_objects(schema))
        grammar: str = matcher.grammar_from_json_schema(closed, overrides=_STYLE)
        problem = matcher.validate_grammar(grammar)
    except (ValueError, TypeError, RecursionError) as error:
        # All are faults of the schema: it may be nested deeper than Python recurses, or hold
        # values that are no JSON.
        problem = str(error)
    if problem and not problem.startswith("WARNING"):
        raise wrong_schema(problem, param)
    return grammar


def write_lark_grammar(text: str) -> str:
    """The grammar of a text in llguidance's form of Lark's grammars.

    `begin_matching` finds its faults: llguidance's own check has no bound on the work of a pattern.
    """
    grammar: str = import_llguidance().LLMatcher.grammar_from_lark(text)
    return grammar


def write_call_grammar(
    form: ToolForm,
    tools: Sequence[Tool],
    forced: Sequence[str],
    schema: Mapping[str, Any] | None,
) -> str | None:
    """Write the grammar of an answer by a model with `tools`.

    The answer is one call of a tool in `forced`, if there are any. Else it is free text with calls,
    or, with a `schema`, either a call or JSON. None: nothing can be enforced, since in this form no
    mark tells a call from other text. Raises EngineRequestError for a wrong schema.
    """
    bodies: list[tuple[str, dict[str, Any], str]] = []
    for index, tool in enumerate(tools):
        name, parameters = tool["function"]["name"], read_parameters(tool)
        # One by one, and those that can't be called here as well: the error then names the tool.
        write_json_grammar(parameters, f"tools[{index}].function.parameters")
        if not forced or name in forced:
            opening, closing = form.surround(name)
            bodies.append((opening, _set_style(parameters), closing))
    # 1. Free text with calls in it: the grammar holds from a call's marker on.
    if not forced and schema is None:
        if not form.marker:
            return None
        library = import_llguidance()
        tags = [
            library.StructTag(trigger=form.marker, begin=opening, grammar=parameters, end=closing)
            for opening, parameters, closing in bodies
        ]
        grammar: str = library.StructTag.to_grammar(tags, assume_special=False)
        return grammar
    # 2. Nothing but one call, or JSON of the schema.
    rules = [
        f"call_{index}: {json.dumps(opening)} %json {json.dumps(parameters)} {json.dumps(closing)}"
        for index, (opening, parameters, closing) in enumerate(bodies)
    ]
    starts = [f"call_{index}" for index in range(len(bodies))]
    if not forced and schema is not None:
        write_json_grammar(schema)  # its error names response_format
        rules.append(f"answer: %json {json.dumps(_set_style(schema))}")
        starts.append("answer")
    return "\n".join(["%llguidance {}", f"start: {' | '.join(starts)}", *rules, ""])


def close_objects(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Close a schema's objects: they get no other properties than the listed ones, unless the
    schema says so.

    Every JSON text of the closed schema follows the schema too. In an open object a weak model adds
    keys until its tokens end. Where schemas are joined, one part may list properties that another
    part would then forbid: such schemas stay as they are.
    """
    closed = dict(schema)
    # A closed part of a joined schema would refuse the properties that another part lists.
    return closed if _has_joined_schemas(schema) else _close(closed)


def _has_joined_schemas(node: Any) -> bool:
    """Say whether schemas are joined anywhere: to close one could then contradict another."""
    if isinstance(node, list):
        return any(map(_has_joined_schemas, node))
    if not isinstance(node, dict):
        return False
    is_extended = {"$ref", "anyOf", "oneOf"} & node.keys() and "properties" in node
    return "allOf" in node or bool(is_extended) or any(map(_has_joined_schemas, node.values()))


def _close(node: Any) -> Any:
    if isinstance(node, list):
        return [_close(item) for item in node]
    if not isinstance(node, dict):
        return node
    closed: dict[str, Any] = {}
    for key, value in node.items():
        # The keys of these maps are names: a property called "enum" is a schema all the same.
        if key in _MAPS and isinstance(value, dict):
            closed[key] = {name: _close(item) for name, item in value.items()}
        else:
            closed[key] = value if key in _VALUES else _close(value)
    # An object with a required property that it does not list could not be written any more.
    properties = node.get("properties")
    is_listed = isinstance(properties, dict) and properties.keys() >= set(
        node.get("required") or ()
    )
    # With patterns, the schema itself says which other properties an object may have.
    if is_listed and "patternProperties" not in node:
        closed.setdefault("additionalProperties", False)
    return closed


def _set_style(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {**close_objects(schema), "x-guidance": _STYLE}


def begin_matching(vocabulary: Any, grammar: str, param: str) -> Any:
    """A matcher of llguidance at the beginning of a text. Raises EngineRequestError."""
    library = import_llguidance()
    limits = library.LLParserLimits(initial_lexer_fuel=_LEXER_FUEL)
    matcher = library.LLMatcher(vocabulary, grammar, log_level=0, limits=limits)
    # The limits hold from here on: a correct grammar may still be too large.
    if matcher.is_error():
        raise wrong_schema(matcher.get_error(), param)
    return matcher


def make_vocabulary(tokenizer: Any, width: int, stop_tokens: frozenset[int]) -> Any:
    """Make llguidance's form of a tokenizer. Takes about a second for a large one.

    `width` is the number of logits, `stop_tokens` end an answer. Raises EngineRequestError for a
    tokenizer that llguidance can't read.
    """
    import_llguidance()
    from llguidance.hf import from_tokenizer

    # The request is refused and not the model, which serves all requests without a form.
    try:
        return from_tokenizer(tokenizer, n_vocab=width, eos_token=sorted(stop_tokens) or None)
    except ValueError as error:
        raise EngineRequestError(
            f"the answers of this model can't be guided: {error}",
            "unsupported_value",
            "response_format",
        ) from error


class Guide:
    """One answer on its way through a grammar.

    `failure` says why it can't be guided any more, and is empty while it can. Another thread may
    read it while the answer goes on; the rest belongs to one thread.
    """

    def __init__(self, matcher: Any):
        self._matcher = matcher
        self.failure = ""

    def copy(self) -> "Guide":
        """A second answer at the same place of the grammar."""
        return Guide(self._matcher.deep_copy())

    def fill(self, words: Any) -> None:
        """Mark the allowed next tokens, a bit each, in a row of 32-bit words on the CPU."""
        self._matcher.unsafe_compute_mask_ptr(words.data_ptr(), words.numel() * 4)

    def push(self, token: int) -> None:
        """Advance by the chosen token."""
        # Stored and not raised: the rows beside this one go on, and its reader refuses the answer.
        if not self._matcher.consume_token(token):
            self.failure = str(self._matcher.get_error())


def wrong_schema(problem: str, param: str) -> EngineRequestError:
    """Make the refusal of a schema.

    llguidance points into a pattern over several lines. The error here has one line of bounded
    length.
    """
    reason = " ".join(problem.split())[:300]
    return EngineRequestError(
        f"Invalid '{param}': the form can't be enforced: {reason}", "invalid_value", param
    )
