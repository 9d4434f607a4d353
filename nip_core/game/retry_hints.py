"""What an agent is told that is asked again: a fixed sentence by what was wrong, and the form.

hint  the text

The answer that was wrong is not shown. Small models repeat what stands in their chat, and so would
repeat it; the prompt grows by no more than the hint, whatever was said; and no invalid answer is
ever in a history.
"""

from nip_core.answers.parsing import AnswerForm
from nip_core.answers.reasons import Kind, is_about_decision
from nip_core.scenarios.prompt_phrases import decision_line, listed

_WRONG: dict[Kind, str] = {
    "no_decision": "Your last answer had no decision, and you must decide now.",
    "two_verdicts": "Your last answer named more than one verdict.",
    "taken_back": (
        "Your last answer negated, asked or doubted its verdict, made it a condition or took it "
        "back."
    ),
    "not_own": "The decision in your last answer may have been somebody else's words.",
    "json": "No verdict could be read in the JSON of your last answer.",
    "unclear": "It was not clear what your last answer decides.",
    "cut_off": "Your last answer was cut off at {tokens} tokens. Be much shorter.",
    "empty": "Your last answer was empty.",
    "missing_part": "Your last answer had no part, or two, for one of those you write to.",
    "other": "Your last answer could not be used.",
}


def hint(kind: Kind, form: AnswerForm, tokens: int) -> str:
    """Say what was wrong with an answer of this kind, and that the next one must have `form`.

    `tokens` is the most that the agent may generate.
    """
    told = [_WRONG[kind].format(tokens=tokens)]
    if form.scale is not None and (form.must_decide or is_about_decision(kind)):
        line = decision_line(form.scale)
        decide = f"end with exactly {line}" if form.has_reasoning else f"write exactly {line} and"
        decide += ", on a line of its own." if form.has_reasoning else " nothing else."
        if form.must_decide:
            told.append(decide[0].upper() + decide[1:])
        else:
            told.append(f"To decide, {decide} To ask, name no verdict.")
    if form.headers and not form.must_decide:
        headers = listed([f'"{header}"' for header in form.headers.values()])
        told.append(f"Write a part for each, in lines that begin with {headers}.")
    if len(told) == 1:
        told.append("Answer again, in the form that your instructions ask for.")
    return " ".join(told)
