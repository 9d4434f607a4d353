"""Answers with calls by OpenAI's `tools`, before they are judged; loaded where these are used."""

import re
from dataclasses import replace

from nip_core.game.answers.decisions import InvalidResponse
from nip_core.game.answers.parsing import AnswerForm, parse_response
from nip_core.game.native_calls import describe_calls, write_call
from nip_core.rollouts.client.completions import ChatAnswer
from nip_core.tools import Tool

_MARKS = r"<\|?tool_calls?\b|\[TOOL_CALLS\]"
"""With which usual templates begin a call."""


def settle_calls(answer: ChatAnswer, form: AnswerForm) -> ChatAnswer:
    """Write the calls of an answer as its text, or their fault."""
    if form.tool is None:
        return answer
    if not answer.calls:
        return _find_unread_call(answer, form, form.tool)
    words, reason, thoughts = answer.text or "", answer.finish_reason, answer.reasoning
    try:
        text, fault = write_call(words, answer.calls, form), None
    except InvalidResponse as invalid:
        text, fault = describe_calls(words, answer.calls), invalid.reason
    if not text.startswith(words.strip()):  # no line can stand behind them; they were paid
        thoughts = "\n".join(filter(None, (thoughts, words)))
    if reason in ("tool_calls", "function_call"):
        reason = "stop"
    return replace(answer, text=text, finish_reason=reason, fault=fault, reasoning=thoughts)


def _find_unread_call(answer: ChatAnswer, form: AnswerForm, tool: Tool) -> ChatAnswer:
    """Note the fault of a call that others would read as a message.

    Servers leave a call in the text where its JSON is broken.
    """
    try:
        read = " ".join(parse_response(answer.text or "", form).messages.values())
    except InvalidResponse:
        return answer
    if form.must_decide or not re.search(rf'{_MARKS}|"name"\s*:\s*"{re.escape(tool.name)}"', read):
        return answer
    return replace(answer, fault=f"a call of {tool.name} that the server could not read")
