"""The forms in which a chat can leave, for chat templates that are strict about roles.

named                   as it is: a message each, the others' with their name
alternating             one system message first, then user and assistant in turn
alternating_no_system   the same, with the system prompt in the first user message

Nothing is lost: every content stands in the result whole and in order. Messages of others between
two answers of the agent become one user message, its parts divided by blank lines and each begun
with the speaker's name ("Expert_1: ..."; a message without a name stays without one). A system
message in the middle is such a part too, of the speaker "System".

The call of a tool and its result stay the two messages that they are in OpenAI's API. Words of
others behind a result are a part of it: templates that want turns refuse a user message there.

Answers of the agent are never merged, so that each can be trained as it was given. Where nothing
was said before one, a short user message fills the place, in prompts as in training examples.

The names in the text are no proof of who spoke: a player can write a line that looks like
another's. In "named" chats they stand outside the text.
"""

from collections.abc import Sequence
from typing import Any

ChatMessage = dict[str, Any]

YOUR_TURN = "It is your turn."
_SYSTEM = "System"


def format_chat(
    chat: Sequence[ChatMessage], form: str, *, is_request: bool = False
) -> list[ChatMessage]:
    """Put `chat` in the given form, see the setting `chat_format`.

    `is_request`: the agent is to speak next, so that a strict chat must end with a user message.
    """
    if form == "named":
        return list(chat)
    formed: list[ChatMessage] = []
    for i, message in enumerate(chat):
        role, content = message["role"], message["content"]
        if i == 0 and role == "system":
            formed.append(_message("system" if form == "alternating" else "user", content))
        elif role == "assistant":
            _ensure_user_is_last(formed)
            formed.append({**message})
        elif role == "tool":
            formed.append({**message})
        else:
            _add_user(formed, content, _SYSTEM if role == "system" else message.get("name"))
    if is_request or (formed and formed[-1]["role"] == "system"):
        _ensure_user_is_last(formed)
    return formed


def _message(role: str, content: str) -> ChatMessage:
    return {"role": role, "content": content}


def _add_user(formed: list[ChatMessage], content: str, speaker: str | None) -> None:
    text = content if speaker is None else f"{speaker}: {content}"
    if formed and formed[-1]["role"] in ("user", "tool"):
        formed[-1] = {**formed[-1], "content": f"{formed[-1]['content']}\n\n{text}"}
    else:
        formed.append(_message("user", text))


def _ensure_user_is_last(formed: list[ChatMessage]) -> None:
    if not formed or formed[-1]["role"] not in ("user", "tool"):
        formed.append(_message("user", YOUR_TURN))
