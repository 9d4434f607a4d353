"""An agent without a model: it says and decides at random, by its seed alone."""

import string
from random import Random

from nip_core.scenarios.code_validation.parsing import AnswerForm

RANDOM_MODEL = "random"  # what stands where a model's name would
_LETTERS = 20
_DECIDES = 0.4  # of the turns in which it may


def random_answer(form: AnswerForm, seed: int) -> str:
    """A valid answer of this form, as a model would write it.

    Who may decide does so in two turns of five, with each answer of the scale equally likely.
    """
    random = Random(seed)
    if form.scale is not None and random.random() < _DECIDES:
        return f"Decision: {random.choice(list(form.scale.values))}"

    def letters() -> str:
        return "".join(random.choices(string.ascii_lowercase, k=_LETTERS))

    parts = [f"{form.headers.get(channel, '')} {letters()}".strip() for channel in form.channels]
    return "\n".join(parts)
