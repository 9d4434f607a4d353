"""Verdicts in the value that a function returns.

read_value  the verdict of a value: a truth value, a number, a word, or an object of Inspect or DSPy
"""

import math
import numbers
from dataclasses import dataclass

from nip_judges.parts import JudgeAnswer

_CREDIT = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Inspect's letters: correct, partial, incorrect, no answer; by its `value_to_float`."""


@dataclass(frozen=True)
class ValueForms:
    """How values are read."""

    accept: str = "accept"
    reject: str = "reject"
    threshold: float | None = None


def read_value(value: object, forms: ValueForms) -> JudgeAnswer:
    """Read the verdict of a returned value; there is none in anything unexpected."""
    words = ""
    for name in ("value", "score"):  # Inspect's Score, DSPy's Prediction
        if not isinstance(value, str | numbers.Number) and hasattr(value, name):
            words = _read_explanation(value)
            return _read_plain(getattr(value, name), forms, words, is_grade=True)
    return _read_plain(value, forms, words, is_grade=False)


def _read_explanation(value: object) -> str:
    explanation = getattr(value, "explanation", None)
    return explanation if isinstance(explanation, str) else ""


def _read_plain(value: object, forms: ValueForms, words: str, *, is_grade: bool) -> JudgeAnswer:
    value = _unpack(value)
    if value is None:
        return JudgeAnswer("none", words, "the function returned None")
    if isinstance(value, bool):
        return JudgeAnswer("accept" if value else "reject", words)
    if isinstance(value, numbers.Real):
        return _read_number(float(value), forms, words)
    if isinstance(value, str):
        return _read_word(value, forms, words or value, is_grade)
    kind = type(value).__name__
    return JudgeAnswer(
        "none", words, f"the function returned a {kind}; it is to return a bool, a number or a word"
    )


def _unpack(value: object) -> object:
    """Take the Python value out of numpy's and torch's scalars."""
    is_scalar = getattr(value, "shape", None) == () and hasattr(value, "item")
    return value.item() if is_scalar else value  # type: ignore[attr-defined]


def _read_number(number: float, forms: ValueForms, words: str) -> JudgeAnswer:
    if not math.isfinite(number):
        return JudgeAnswer("none", words, f"the function returned {number}")
    if forms.threshold is None:
        reason = f"the function returned {number:g}, and judge.threshold is not set"
        return JudgeAnswer("none", words, reason, score=number)
    verdict = "accept" if number >= forms.threshold else "reject"
    return JudgeAnswer("accept" if verdict == "accept" else "reject", words, score=number)


def _read_word(word: str, forms: ValueForms, words: str, is_grade: bool) -> JudgeAnswer:
    stripped = word.strip()
    if stripped == forms.accept:
        return JudgeAnswer("accept", words)
    if stripped == forms.reject:
        return JudgeAnswer("reject", words)
    if is_grade and stripped in _CREDIT:
        if forms.threshold is not None:
            return _read_number(_CREDIT[stripped], forms, words)
        if stripped == "P":
            reason = "partly correct (P): set judge.threshold, 0.5 accepts it and 1 does not"
            return JudgeAnswer("none", words, reason)
        return JudgeAnswer("accept" if stripped == "C" else "reject", words)
    reason = (
        f"the function returned {stripped[:40]!r}, neither {forms.accept!r} nor {forms.reject!r}"
    )
    return JudgeAnswer("none", words, reason)
