"""Answers of judges as they are written, and as nobody asked for them: 200 for a form.

A form is a text with {v} where the verdict stands; right, other case, both verdicts, in markup, in
code, in JSON, with marks that are not seen, cut off, empty.
"""

import random
from collections.abc import Sequence

SHAPES = (
    *(
        "{form}",
        "{form}.",
        "{form}!",
        " {form} ",
        "\n{form}\n",
        "{form}\n\n",
        "\t{form}",
        "{form};",
    ),
    *("It is right.\n\n{form}", "It is wrong. {form}", "{form}\nThat was all.", "so: {form}, then"),
    *("**{form}**", "*{form}*", "__{form}__", "_{form}_", "`{form}`", "# {form}", "> {form}"),
    *("```\n{form}\n```", "```json\n{form}\n```", "```{form}", "<b>{form}</b>", "| {form} |"),
    *(
        '"{form}"',
        "'{form}'",
        "({form})",
        "[{form}]",
        "“{form}”",
        "«{form}»",
        "- {form}",
        "1. {form}",
    ),
    *(
        "{form}\n{flip}",
        "{flip}\n{form}",
        "{form} {flip}",
        "{flip}, no: {form}",
        "{flip} or {form}",
    ),
    *("{form} is not {flip}.", "not {form}", "neither {form} nor {flip}", "{form}{flip}"),
    *("x{form}", "{form}x", "{form}_", "9{form}", "{form}9", "é{form}", "{form}é", "-{form}-"),
    *(
        "\u200b{form}",
        "{form}\u200b",
        "\ufeff{form}",
        "\u00a0{form}\u00a0",
        "\u2060{form}",
        "{form}🙂",
    ),
    *("<think>{flip}</think>{form}", "<think>{flip}</think>\n\n{form}", "<think>{form}"),
    *("<think>{form}</think>", "{form}</think>", "{form}<think>{flip}", "a</think>b</think>{form}"),
    *(
        "\\boxed{{{form}}}",
        "$\\boxed{{\\text{{{form}}}}}$",
        "\\boxed{{{flip}}} then {form}",
        "\\boxed{{}} {form}",
    ),
    *(
        "\\boxed{{7}} {form}",
        "\\boxed{{{form}",
        "{flip} \\boxed{{{form}}} {flip}",
        "\\boxed {{{form}}}",
    ),
    *(
        "Answer: {form}",
        "Answer: {form}\n{flip}",
        "{flip}\nAnswer: {form} {flip}",
        "Answer is {form}",
    ),
    *("Verdict - {form}", "Final verdict: {form}", "{flip}\nFinal answer: {form}\nAnswer: {flip}"),
    *(
        "FINAL JUDGMENT IS {form}",
        "final answer:\n{form}",
        "Final answer: 7\n{form}",
        "Answer:\n\n",
    ),
    *(
        "Final answer: {form}\nFinal answer: {flip}",
        "**Final answer:** {form}",
        "My answer: {form}",
    ),
    *(
        '{{"verdict": "{form}"}}',
        '{{"result": 1, "why": "{form}"}}',
        '{{"label": "{form}"',
        "[1, 0]",
    ),
    *("", " ", "\n", ".", "?", "null", "None", "1", "0", "0.5", "true", "I refuse to grade this."),
    *("{cut}", "{cut}…", "It is {cut}", "{form}" + " and so on" * 300, "so on " * 300 + "{form}"),
)


def write_answers(form: str, words: Sequence[str], n: int = 200) -> list[str]:
    """`n` different answers: all shapes once, then by a seed, in other cases, too."""
    draws = random.Random(54)
    texts = dict.fromkeys(write(shape, form, words, draws) for shape in SHAPES)
    while len(texts) < n:
        text = write(draws.choice(SHAPES), form, words, draws)
        texts[draws.choice((str, str.lower, str.upper, str.title, str.swapcase))(text)] = None
    return list(texts)[:n]


def write(shape: str, form: str, words: Sequence[str], draws: random.Random) -> str:
    verdict, flipped = draws.sample(words, 2)
    said = form.format(v=verdict)
    cut = said[: max(1, len(said) // 2)]
    return shape.format(form=said, flip=form.format(v=flipped), cut=cut)
