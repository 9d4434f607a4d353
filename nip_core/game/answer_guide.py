"""The form of an answer as a grammar, by which an engine guides its model.

It says the same as the prompts (`scenarios.prompt_phrases`) and as the reader (`parsing`): a
decision line, or a message that begins as the prompts say; where agents reason first, reasoning
before it. The words are free. Reasoning and questions are bounded in tokens, so that the decision
behind them is reached. Grammars are in llguidance's form of Lark's, which all engines of an
lm_server take (docs/decisions/0037-guided-turns.md).
"""

import json

from nip_core.game.answers.parsing import AnswerForm

GUIDE_FIELD = "structured_outputs"
"""The field of a request, by vLLM's name. OpenAI's own API has none for texts."""
_QUESTION, _ANSWER = "Question: ", "Answer: "
_SHORTEST = 8  # tokens of a message, or of reasoning
_LONGEST_LINE, _FEWEST_LINES = 64, 4  # of reasoning
_TERMINALS = {
    # A question has one mark, its end: a verdict that it names is then asked, and none.
    "question": r"/[^\n?]*[^\n? ]/",
    "part": r"/[^ \n][^\n]*/",
    # Thoughts would have to end again.
    "words": r"/[^ \t\n<](?s:.*)/",
}
# A line of reasoning is no decision, no message, and opens no fence: the rest would be a quotation.
_LINE = r"/[^\n]+/ & ~/(?s:.*)(```|~~~)(?s:.*)/ & ~/[ *_#>`-]*({labels})(?s:.*)/"


def write_guide(form: AnswerForm, max_tokens: int, message_tokens: int) -> str:
    """Write the grammar of answers in this form.

    An answer may have `max_tokens`. Of these a message takes `message_tokens`, or less where there
    are fewer; the rest is for reasoning.
    """
    spare = max_tokens - _count_fixed(form)
    for_message = max(_SHORTEST, min(message_tokens, spare // 2 if form.has_reasoning else spare))
    decisions = [] if form.is_early else _decisions(form)
    ends = decisions if decisions and form.must_decide else [*decisions, _message(form)]
    rules = [f"start: {' | '.join(ends)}"]
    if form.has_reasoning:
        rules = [f"start: reasoning ({' | '.join(ends)})", *_reasoning(form, spare - for_message)]
    longest = max(1, for_message // len(form.channels))
    for name, pattern in _TERMINALS.items():
        if any(f" {name}" in end or end == name for end in ends):
            bound = "" if name == "words" else f"[max_tokens={longest}]"
            rules.append(f"{name}{bound}: {pattern}")
    return "\n".join(["%llguidance {}", *rules, ""])


def least_tokens(form: AnswerForm) -> int:
    """Return how many tokens an answer in this form must be allowed at least."""
    return _count_fixed(form) + _SHORTEST * (len(form.channels) + form.has_reasoning)


def _count_fixed(form: AnswerForm) -> int:
    """Count the tokens that are not free, by their bytes: no token has less than one."""
    lines = [f"Decision: {answer}" for answer in (form.scale.values if form.scale else ())]
    parts = [form.headers.get(channel, _QUESTION) for channel in form.channels]
    return max(len(text.encode()) for text in [*lines, " ?\n".join(parts)]) + len("\n?\n")


def _decisions(form: AnswerForm) -> list[str]:
    if form.scale is None:
        return []
    return [f'"Decision: " ({" | ".join(map(_quote, form.scale.values))})']


def _message(form: AnswerForm) -> str:
    decides = form.scale is not None
    if len(form.channels) > 1:
        body = ' question "?"' if decides else " part"
        parts = [_quote(f"{form.headers[channel]} ") + body for channel in form.channels]
        return ' "\\n" '.join(parts)
    if decides:
        return f'{_quote(_QUESTION)} question "?"'
    return f"{_quote(_ANSWER)} words" if form.has_reasoning else "words"


def _reasoning(form: AnswerForm, tokens: int) -> list[str]:
    """Write the rules for lines of at most so many tokens in all, each with its end."""
    longest = max(1, min(_LONGEST_LINE, tokens // _FEWEST_LINES) - 1)
    more = max(1, tokens // (longest + 1)) - 1
    labels = ["Decision", "Question", "Answer", *form.headers.values()]
    return [
        f'reasoning: line "\\n" (line? "\\n"){{0,{more}}}',
        f"line[max_tokens={longest}]: LINE",
        "LINE: " + _LINE.format(labels="|".join(map(_escape, labels))),
    ]


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escape(text: str) -> str:
    """Escape a text for a pattern between slashes."""
    return "".join(c if c.isalnum() or c in " _" else f"\\x{{{ord(c):x}}}" for c in text)
