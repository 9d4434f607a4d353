"""From chat messages to tokens: one place for training and serving, so both see the same text.

load_tokenizer      the tokenizer of a model given by path or name
load_model          its weights
control_tokens      the tokens that no message may hold unbroken
render              messages -> text, by the model's own chat template
encode              text -> token ids, nothing added
encode_prompt       messages -> the token ids a completion continues
tool_form           how the template writes calls of tools
check_shapes        which shapes of conversation the template accepts
stop_token_ids      the tokens that end an assistant message
context_length      the longest prompt plus completion, in tokens

Imports nothing heavy until a tokenizer or a model is loaded.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from nip_lm_server.chats.tool_calls import ToolForm, find_form
from nip_lm_server.chats.tool_parameters import template_call
from nip_lm_server.vllm_keys.nip_control_tokens import (
    ControlTokens,
    add_thoughts,
    set_template_kwargs,
    template_kwargs,
    thought_form,
)

Messages = Sequence[Mapping[str, Any]]

SHAPES: dict[str, tuple[str, ...]] = {
    "user": ("user",),
    "system_user": ("system", "user"),
    "user_assistant_user": ("user", "assistant", "user"),
    "system_user_assistant_user": ("system", "user", "assistant", "user"),
    "user_user": ("user", "user"),
}
"""Shapes of conversation that `check_shapes` tries, as roles in order."""

_control_tokens: "WeakKeyDictionary[Any, tuple[Any, ControlTokens]]" = WeakKeyDictionary()
_thought_forms: "WeakKeyDictionary[Any, tuple[Any, str | None]]" = WeakKeyDictionary()
_UNLIMITED = 10**9  # tokenizers without a limit say something above this
_TEMPLATE_KEYS = ("role", "content", "name", "tool_call_id")


class ModelPathError(ValueError):
    """There is no usable model or tokenizer at a path or under a name."""


class ChatTemplateError(ValueError):
    """A tokenizer has no chat template, or its template refuses a conversation."""


def offline() -> bool:
    """Tell if the environment forbids asking the model hub."""
    return any(
        os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )


def check_model_path(model: str) -> None:
    """Raise ModelPathError if `model` can only be a directory and isn't one with a config.json.

    A string of the form ``name`` or ``owner/name`` that is no directory here is taken for a name
    on the model hub, and passes.
    """
    # Only the disk is looked at: the hub alone knows whether it has a name.
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelPathError(f"{path} is a directory without config.json: not a model")
    elif path.exists():
        raise ModelPathError(f"{path} is a file; a model is a directory or a name on the hub")
    elif path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise ModelPathError(f"there is no model at {path}: no such directory")


def load_tokenizer(model: str, variables: Mapping[str, Any] | None = None) -> Any:
    """The tokenizer of `model`, a directory or a name on the hub; never runs code from there.

    Every rendering of its chat template sets `variables`. Raises ModelPathError if it isn't there,
    ChatTemplateError if it has no chat template, or one that does not read these variables.
    """
    check_model_path(model)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            model, local_files_only=offline(), trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise ModelPathError(f"can't load a tokenizer for {model!r}: {error}") from error
    if not getattr(tokenizer, "chat_template", None):
        raise ChatTemplateError(
            f"the tokenizer of {model!r} has no chat template: take a model tuned for chat, or put "
            "a chat_template.jinja next to its tokenizer"
        )
    try:
        set_template_kwargs(tokenizer, variables or {})
    except ValueError as error:
        raise ChatTemplateError(str(error)) from None
    return tokenizer


def load_model(path: str | Path, dtype: Any, **options: Any) -> Any:
    """The weights of a model, as transformers has it: safetensors only, and never code from there.

    Raises OSError or ValueError if they can't be loaded.
    """
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        path,
        dtype=dtype,
        local_files_only=offline(),
        trust_remote_code=False,
        use_safetensors=True,
        **options,
    )


def template_messages(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Pick a template's part of each message: role, content, and where present name, calls of tools
    and the id of the answered call.
    """
    parts = []
    for message in messages:
        part = {key: message[key] for key in _TEMPLATE_KEYS if message.get(key) is not None}
        if message.get("tool_calls"):
            part["tool_calls"] = list(map(template_call, message["tool_calls"]))
        parts.append(part)
    return parts


def control_tokens(tokenizer: Any) -> ControlTokens:
    """The control tokens of a tokenizer and its chat template, looked up once."""
    # By the template too: it can be replaced while the tokenizer lives.
    entry = _control_tokens.get(tokenizer)
    if entry is None or entry[0] != tokenizer.chat_template:
        entry = (tokenizer.chat_template, ControlTokens(tokenizer))
        _control_tokens[tokenizer] = entry
    return entry[1]


def _thought_form(tokenizer: Any) -> str | None:
    """The `thought_form` of a tokenizer as it is now, tried out once."""
    state = (tokenizer.chat_template, template_kwargs(tokenizer))
    entry = _thought_forms.get(tokenizer)
    if entry is None or entry[0] != state:
        entry = (state, thought_form(tokenizer))
        _thought_forms[tokenizer] = entry
    return entry[1]


def _break_message(tokenizer: Any, message: dict[str, Any]) -> Any:
    tokens = control_tokens(tokenizer)
    broken = tokens.break_in_message(message)
    if "tool_calls" in message:
        broken["tool_calls"] = _break_everywhere(tokens, message["tool_calls"])
    return broken


def _break_everywhere(tokens: ControlTokens, value: Any) -> Any:
    """`value` with its control tokens broken, in keys too: a template may write all of it."""
    if isinstance(value, str):
        return tokens.break_in(value)
    if isinstance(value, list):
        return [_break_everywhere(tokens, item) for item in value]
    if isinstance(value, Mapping):
        return {tokens.break_in(k): _break_everywhere(tokens, v) for k, v in value.items()}
    return value


def render(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    generation: bool,
    tools: Sequence[Mapping[str, Any]] = (),
    thoughts: str | None = None,
) -> str:
    """The text of a conversation; `generation` adds the beginning of an assistant message.

    Control tokens in messages are broken (see `nip_control_tokens`), the template's own are not.
    `thoughts` belong to the last message; the thoughts of other messages are no part of a prompt.
    Raises ChatTemplateError if the template refuses it, or can't write thoughts.
    """
    parts = [_break_message(tokenizer, message) for message in template_messages(messages)]
    if thoughts:
        field = _thought_form(tokenizer)
        if field is None:
            raise ChatTemplateError(
                "the model's chat template leaves out what an answer's reasoning_content says, or "
                "ends the thoughts in the prompt already (enable_thinking: false): they can't be "
                "trained on with it"
            )
        # After the breaking: <think> itself may be a control token.
        broken = control_tokens(tokenizer).break_in(thoughts)
        parts[-1] = add_thoughts(parts[-1], broken, field)
    try:
        text = tokenizer.apply_chat_template(
            parts,
            tools=[_break_everywhere(control_tokens(tokenizer), tool) for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=generation,
            **template_kwargs(tokenizer),
        )
    except Exception as error:  # a template may raise any exception
        roles = ", ".join(str(message.get("role")) for message in messages)
        raise ChatTemplateError(
            f"the model's chat template refuses a conversation of [{roles}]: {error}"
        ) from error
    return str(text)


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids of `text`; the template wrote the special tokens, so none is added."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def encode_prompt(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[int]:
    """Token ids of the prompt these messages give, generation prompt included."""
    return encode(tokenizer, render(tokenizer, messages, generation=True, tools=tools))


def tool_form(tokenizer: Any) -> ToolForm | None:
    """Find out how the template writes calls of tools; None if it has no readable form."""
    special = {*tokenizer.all_special_tokens} | {
        token.content for token in tokenizer.added_tokens_decoder.values() if token.special
    }

    def write(messages: Messages, tools: Messages, generation: bool) -> str:
        return render(tokenizer, messages, generation=generation, tools=tools)

    return find_form(write, sorted(special))


def check_shapes(tokenizer: Any) -> dict[str, bool]:
    """Try each of SHAPES: does the template accept it, with every message's content in the text?"""
    accepted = {}
    for name, roles in SHAPES.items():
        messages = [
            {"role": role, "content": f"sentinel {index}"} for index, role in enumerate(roles)
        ]
        try:
            text = render(tokenizer, messages, generation=True)
        except ChatTemplateError:
            accepted[name] = False
        else:
            accepted[name] = all(str(message["content"]) in text for message in messages)
    return accepted


def stop_token_ids(tokenizer: Any, generation_config: Any = None) -> frozenset[int]:
    """Collect the tokens at the end of an assistant message.

    They are the tokenizer's end token, the end tokens of the model's generation configuration, and
    the special token that the template writes after an assistant message.
    """
    # 1. The end tokens that the tokenizer and the model's generation configuration name.
    ends: set[int] = set()
    for owner in (tokenizer, generation_config):
        token_ids = getattr(owner, "eos_token_id", None)
        ends.update([token_ids] if isinstance(token_ids, int) else token_ids or [])
    # 2. The token that the template writes after an answer, if it is a special one.
    user = {"role": "user", "content": "sentinel 0"}
    answer = {"role": "assistant", "content": "sentinel 1"}
    try:
        text = render(tokenizer, [user, answer], generation=False)
    except ChatTemplateError:
        return frozenset(ends)
    ending = encode(tokenizer, text.rpartition("sentinel 1")[2])
    special = set(tokenizer.all_special_ids) | {
        index for index, token in tokenizer.added_tokens_decoder.items() if token.special
    }
    ends.update(ending[:1] if ending and ending[0] in special else [])
    return frozenset(ends)


def context_length(tokenizer: Any, config: Any) -> int | None:
    """The longest prompt plus completion in tokens, or None if neither part says."""
    # Some tokenizers say less than the model can, some a number that means no limit.
    limits = [
        getattr(config.get_text_config(), "max_position_embeddings", None),
        getattr(tokenizer, "model_max_length", None),
    ]
    lengths = [int(limit) for limit in limits if limit and 0 < limit < _UNLIMITED]
    return min(lengths, default=None)
