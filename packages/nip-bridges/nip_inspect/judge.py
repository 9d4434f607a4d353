"""A scorer of Inspect as a judge that nip attacks: `function:` of a judge.yaml.

from_scorer    a scorer -> a function of question, response, reference and columns
JudgeFunction  the type of that function

The scorer is called as Inspect calls it, with its own prompt, model and parser. It needs no task
and no eval; its model is given by name, or by Inspect's own environment variables.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ModelName, ModelOutput
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target
from inspect_ai.solver import TaskState

from nip_core.errors import SettingsError

JudgeFunction = Callable[..., Awaitable[Score | None]]
"""f(question, response, reference=None, **columns)."""

_WORDS = {"yes": CORRECT, "true": CORRECT, "no": INCORRECT, "false": INCORRECT}
_ANSWERER = ModelName("nip/response")
"""The model that answered, as a scorer may read it."""


def from_scorer(scorer: Scorer, key: str | None = None) -> JudgeFunction:
    """Make a judge's function of a scorer; `key` names a value of those that are dictionaries.

    A row's columns are the sample's metadata. The function returns the score itself: nip reads C as
    accept, I and N as reject, P as 0.5 for `threshold`, and NaN, an unscored sample, as no verdict.
    It raises SettingsError where the value is no single one and `key` names none of it.
    """

    async def judge(
        question: str, response: str, reference: str | None = None, **columns: Any
    ) -> Score | None:
        target = Target(reference or "")
        state = TaskState(
            model=_ANSWERER,
            sample_id=1,
            epoch=1,
            input=question,
            messages=[ChatMessageUser(content=question), ChatMessageAssistant(content=response)],
            target=target,
            output=ModelOutput.from_content(str(_ANSWERER), response),
            completed=True,
            metadata=columns,
        )
        score = await scorer(state, target)
        if score is None:
            return None
        return score.model_copy(update={"value": _read_single(score.value, key)})

    return judge


def _read_single(value: Any, key: str | None) -> Any:
    """Read the single value of a score, in a form that nip reads. Raises SettingsError."""
    if key is not None and isinstance(value, dict) and key in value:
        value = value[key]
    if isinstance(value, dict):
        names = ", ".join(map(str, value))
        raise SettingsError(f"the score has the values {names}: from_scorer(scorer, key=...)")
    if isinstance(value, list):
        raise SettingsError("the score is a list: write a function that chooses of it")
    if not isinstance(value, str):
        return value
    if (word := value.strip().lower()) in _WORDS:
        return _WORDS[word]
    try:
        return float(value)
    except ValueError:
        return value
