"""The JSONL data formats of fine-tuning, and every rule about them. Imports nothing heavy.

jsonl           lines of JSON and back: read_jsonl, check_jsonl, to_jsonl; Problem and the errors
messages        one message of a conversation: Message, join_text, and its rules
supervised      method `supervised`: SupervisedExample
preferences     method `dpo`: PreferenceExample
trajectories    method `trajectories`: Trajectory, Turn
advantages      what its rewards say of an episode: group_advantages

validate        the content rules of a method -> problems, each with its line
read_examples   a whole file, checked -> [(line, example), ...]
parse_checked   a file that was checked before, line by line

Nothing here counts the tokens of a text or knows a vocabulary: that needs a tokenizer, so the
trainer does it.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from nip_base.formats import preferences, supervised, trajectories
from nip_base.formats.jsonl import (
    Broken,
    FormatError,
    JsonlError,
    Problem,
    check_jsonl,
    describe_problems,
    name_kind,
    read_jsonl,
    to_jsonl,
)
from nip_base.formats.messages import ROLES, Message, join_text
from nip_base.formats.preferences import PreferenceExample
from nip_base.formats.supervised import SupervisedExample
from nip_base.formats.trajectories import AdvantageMode, Trajectory, Turn

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
    "join_text",
    "parsed",
    "read_examples",
    "read_jsonl",
    "to_jsonl",
    "validate",
]

MIN_EXAMPLES = 10
"""Fewest training examples a job accepts, as at OpenAI."""

MAX_PROBLEMS = 20
"""`validate` stops after this many problems; one broken writer breaks every line."""

_RULES: Mapping[str, Any] = {
    "supervised": supervised,
    "dpo": preferences,
    "trajectories": trajectories,
}
METHODS = tuple(_RULES)


def validate(
    method: str,
    lines: Iterable[tuple[int, Any]],
    min_examples: int = MIN_EXAMPLES,
    *,
    advantage: AdvantageMode | None = None,
) -> list[Problem]:
    """Check the content rules of `method` and return what is broken, in the order it is found.

    `lines` is the result of `read_jsonl`. An empty list means that the reader of the method will
    accept them. At most MAX_PROBLEMS are returned. `advantage` is the setting of `trajectories`
    that decides whether rows need advantages or groups of at least two; None: either will do.
    Raises JsonlError where `read_jsonl` does, KeyError for an unknown method.
    """
    method_rules = _RULES[method].find_problems
    across = trajectories.AcrossLines(advantage)
    problems: list[Problem] = []
    count = 0
    for number, value in lines:
        count += 1
        broken: list[Broken] = []
        if not isinstance(value, dict):
            broken.append(("invalid_example", f"expected an object, got {name_kind(value)}"))
        else:
            broken.extend(method_rules(value))
            # Lines are compared with each other only where they are right by themselves.
            if method == "trajectories" and not broken:
                line = cast(trajectories.TrajectoryLine, value)
                broken.extend(across.find_problems(number, line))
        problems.extend(Problem(number, code, message) for code, message in broken)
        if len(problems) >= MAX_PROBLEMS:
            return problems[:MAX_PROBLEMS]
    if count < min_examples:
        message = f"the file has {count} example(s), but at least {min_examples} are needed"
        problems.append(Problem(0, "too_few_examples", message))
    problems.extend(across.find_problems_at_end())
    return problems[:MAX_PROBLEMS]


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
    return [(number, _RULES[method].parse(value)) for number, value in lines]


def parse_checked(method: str, source: bytes | str | Path) -> Iterator[tuple[int, Any]]:
    """Yield line and example of a file checked before by `read_examples`, without checking again.

    Raises JsonlError, KeyError for an unknown method.
    """
    parse = _RULES[method].parse
    return ((number, parse(value)) for number, value in read_jsonl(source))
