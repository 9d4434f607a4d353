"""The forms in which a chat can leave, for chat templates that are strict about roles."""

from collections.abc import Sequence

ChatMessage = dict[str, str]


def format_chat(chat: Sequence[ChatMessage], form: str) -> list[ChatMessage]:
    """`chat` in the given form, see the setting `chat_format`."""
    if form == "named":
        return list(chat)
    raise NotImplementedError(form)
