"""Answers with calls by OpenAI's `tools`, before they are judged; loaded where these are used."""

from dataclasses import replace

from nip_core.game.answers.decisions import InvalidResponse
from nip_core.game.answers.parsing import AnswerForm
from nip_core.game.native_calls import describe_calls, write_call
from nip_core.rollouts.client.completions import ChatAnswer


def settle_calls(answer: ChatAnswer, form: AnswerForm) -> ChatAnswer:
    """Write the calls of an answer as its text, or their fault."""
    if not answer.calls or form.tool is None:
        return answer
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
