"""The JSONL data formats of fine-tuning, and every rule about them. Imports nothing heavy.

jsonl           lines of JSON and back: read_jsonl, check_jsonl, to_jsonl; Problem and the errors
messages        one message of a conversation: Message, text_of, and its rules
supervised      method `supervised`: SupervisedExample
preferences     method `dpo`: PreferenceExample
trajectories    method `trajectories`: Trajectory, Turn
advantages      what its rewards say of an episode: group_advantages

validate        the content rules of a method -> problems, each with its line
read_examples   a whole file, checked -> [(line, example), ...]

Nothing here counts the tokens of a text or knows a vocabulary: that needs a tokenizer, so the
trainer does it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nip_lm_server.formats import preferences, supervised, trajectories
from nip_lm_server.formats.jsonl import (
    FormatError,
    JsonlError,
    Problem,
    check_jsonl,
    describe_problems,
    read_jsonl,
    to_jsonl,
)
from nip_lm_server.formats.messages import ROLES, Message, text_of
from nip_lm_server.formats.preferences import PreferenceExample
from nip_lm_server.formats.supervised import SupervisedExample
from nip_lm_server.formats.trajectories import AdvantageMode, Trajectory, Turn

__all__ = [
    "MAX_PROBLEMS",
    "METHODS",
    "MIN_EXAMPLES",
    "ROLES",
    "AdvantageMode",
    "FormatError",
    "JsonlError",
    "Message",
    "PreferenceExample",
    "Problem",
    "SupervisedExample",
    "Trajectory",
    "Turn",
    "check_jsonl",
    "describe_problems",
    "read_examples",
    "read_jsonl",
    "text_of",
    "to_jsonl",
    "validate",
]

MIN_EXAMPLES = 10
"""Fewest training examples a job accepts, as at OpenAI."""

MAX_PROBLEMS = 20
"""`validate` stops after this many problems; one broken writer breaks every line."""

_PARSERS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "supervised": supervised.parse,
    "dpo": preferences.parse,
    "trajectories": trajectories.parse,
}
METHODS = tuple(_PARSERS)


def validate(
    method: str,
    lines: Iterable[tuple[int, Any]],
    min_examples: int = MIN_EXAMPLES,
    *,
    advantage: AdvantageMode | None = None,
) -> list[Problem]:
    """Check the content rules of `method` and return what is broken, in the order it is found.

    `lines` is what `read_jsonl` yields. An empty list means that the reader of the method will
    accept them. At most MAX_PROBLEMS are returned. `advantage` is the setting of `trajectories`
    that decides whether rows need advantages or groups of at least two; None: either will do.
    Raises JsonlError where `read_jsonl` does, KeyError for an unknown method.
    """
    across = trajectories.AcrossLines(advantage)
    rules: Mapping[str, Callable[[int, Any], Iterator[Problem]]] = {
        "supervised": supervised.problems,
        "dpo": preferences.problems,
        "trajectories": across.problems,
    }
    rule = rules[method]
    found: list[Problem] = []
    count = 0
    for number, value in lines:
        count += 1
        found.extend(rule(number, value))
        if len(found) >= MAX_PROBLEMS:
            return found[:MAX_PROBLEMS]
    if count < min_examples:
        message = f"the file has {count} example(s), but at least {min_examples} are needed"
        found.append(Problem(0, "too_few_examples", message))
    found.extend(across.problems_at_end())
    return found[:MAX_PROBLEMS]


def read_examples(
    method: str,
    source: bytes | str | Path,
    min_examples: int = 1,
    *,
    advantage: AdvantageMode | None = None,
) -> list[tuple[int, Any]]:
    """Read and check a whole file of `method`: its examples, each with the number of its line.

    Raises JsonlError or FormatError, KeyError for an unknown method.
    """
    lines = list(read_jsonl(source))
    problems = validate(method, lines, min_examples, advantage=advantage)
    if problems:
        raise FormatError(problems)
    return [(number, _PARSERS[method](value)) for number, value in lines]
