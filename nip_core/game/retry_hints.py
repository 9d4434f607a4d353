"""The hint to an agent that is asked again: a fixed sentence for its fault, and the form.

The answer that was wrong is not shown, and the hint says so, as the last answer in the chat is
another one. Small models repeat what stands in their chat, and so would repeat it; the prompt grows
by no more than the hint; and no invalid answer is ever in a history.
"""

from nip_core.game.answers.parsing import AnswerForm
from nip_core.game.answers.reasons import Kind, is_about_decision
from nip_core.scenarios.prompt_phrases import decision_line, join_words

_UNUSABLE = "Your answer to this, which is not shown here, could not be used"
_WRONG: dict[Kind, str] = {
    "no_decision": "it had no decision, and you must decide now",
    "two_verdicts": "it named more than one verdict",
    "taken_back": "it negated, asked or doubted its verdict, made it a condition or took it back",
    "not_own": "its decision may have been somebody else's words",
    "json": "no verdict could be read in its JSON",
    "unclear": "it was not clear what it decides",
    "cut_off": "it was cut off at {tokens} tokens, so be much shorter",
    "empty": "it was empty",
    "missing_part": "a part for one of those you write to was missing, empty or there twice",
    "used_up": "it used a tool of which no use is left",
    "bad_call": "its call of the tool could not be read",
    "other": "it was not what was asked for",
}


def hint(kind: Kind, form: AnswerForm, tokens: int) -> str:
    """Say what was wrong with an answer of this kind, and ask for the next one in `form`.

    `tokens` is the most that the agent may generate.
    """
    sentences = [f"{_UNUSABLE}: {_WRONG[kind].format(tokens=tokens)}."]
    if form.scale is not None and (form.must_decide or is_about_decision(kind)):
        line = decision_line(form.scale)
        decide = f"end with exactly {line}" if form.has_reasoning else f"write exactly {line} and"
        decide += ", on a line of its own." if form.has_reasoning else " nothing else."
        if form.must_decide:
            sentences.append(decide[0].upper() + decide[1:])
        else:
            sentences.append(f"To decide, {decide} To ask, name no verdict.")
    if form.headers and not form.must_decide:
        headers = join_words([f'"{header}"' for header in form.headers.values()])
        sentences.append(f"Write a part for each, in lines that begin with {headers}.")
    if len(sentences) == 1:
        sentences.append("Answer again, in the form that your instructions ask for.")
    return " ".join(sentences)
