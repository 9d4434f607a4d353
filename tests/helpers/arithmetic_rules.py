"""Rules that tell the label of a calculation without calculating it, as far as they can.

A rule sees something of a problem: of its question alone, of the results alone that are shown, or
of each line a glance. `accuracy` learns from one half of the problems which label goes with what it
sees, and says how often that is right in the other half: one half where it tells nothing.

OF_QUESTIONS, OF_RESULTS    what must tell nothing
OF_LINES                    glances at each line: a part of the check that calculating it would be

    PYTHONPATH=tests/helpers python -m arithmetic_rules generator=chains-2 steps=9

prints the accuracy of each over 20,000 problems of these settings.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

from nip_core.scenarios import find_scenario
from nip_games.arithmetic.chains import CALCULATE, read_question, read_steps


class Seen:
    """A problem, read."""

    def __init__(self, row: Mapping[str, Any], below: int):
        self.y, self.below, self.row = row["y"], below, row
        self.asked, self.lines = read_question(row["question"]), read_steps(row["solution"])

    @cached_property
    def true(self) -> list[int]:
        """The values that the question alone gives."""
        values = [self.asked.start]
        for sign, number in self.asked.steps:
            values.append(CALCULATE[sign](values[-1], number))
        return values

    @cached_property
    def shown(self) -> list[int]:
        """The values of the calculation."""
        return [self.asked.start, *(line.result for line in self.lines)]

    @property
    def numbers(self) -> list[int]:
        """What is added, subtracted or multiplied by."""
        return [number for _, number in self.asked.steps]

    def part(self, value: int) -> int:
        """In which twentieth of the range a value lies."""
        return value * 20 // self.below


Rule = Callable[[Seen], Any]


def _of_values(name: str) -> dict[str, Rule]:
    """What values alone tell, be they true or shown."""

    def values(seen: Seen) -> list[int]:
        return list(getattr(seen, name))

    return {
        "range": lambda s: (min(values(s)) < 2, max(values(s)) >= s.below),
        "end": lambda s: s.part(values(s)[-1]),
        "smallest": lambda s: s.part(min(values(s))),
        "largest": lambda s: s.part(max(values(s))),
        "spread": lambda s: s.part(max(values(s)) - min(values(s))),
        "last digit": lambda s: values(s)[-1] % 10,
        "last digits": lambda s: sum(v % 10 for v in values(s)),
        "odd values": lambda s: sum(v % 2 for v in values(s)),
        "parities": lambda s: tuple(v % 2 for v in values(s)[:6]),
        "digits": lambda s: sum(len(str(v)) for v in values(s)),
        "round or doubled": lambda s: sum(v % 10 == 0 or v % 11 == 0 for v in values(s)),
        "largest jump": lambda s: max(abs(b - a) for a, b in _steps(values(s))) * 40 // s.below,
        "ups and downs": lambda s: tuple(b > a for a, b in _steps(values(s)))[:8],
    }


def _steps(values: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise(values))


OF_QUESTIONS: Mapping[str, Rule] = {
    **_of_values("true"),
    "start": lambda s: s.part(s.asked.start),
    "operators": lambda s: "".join(sign for sign, _ in s.asked.steps)[:8],
    "first step": lambda s: s.asked.steps[0],
    "last step": lambda s: s.asked.steps[-1],
    "sum of numbers": lambda s: sum(s.numbers) * 40 // s.below,
    "even numbers": lambda s: sum(n % 2 for n in s.numbers),
    "largest number": lambda s: max(s.numbers) * 100 // s.below,
    "equal numbers": lambda s: len({*s.numbers}),
    "length": lambda s: len(s.row["question"]),
}
OF_RESULTS: Mapping[str, Rule] = {
    **_of_values("shown"),
    "length": lambda s: len(s.row["solution"]),
}
OF_LINES: Mapping[str, Rule] = {
    "a line goes the other way": lambda s: any(
        (line.result < line.left) != (line.sign == "-") for line in s.lines
    ),
    "a line is odd where it should be even, or the reverse": lambda s: any(
        (line.result - line.true_result) % 2 for line in s.lines
    ),
    "a line has a wrong last digit": lambda s: any(
        (line.result - line.true_result) % 10 for line in s.lines
    ),
}


def problems(size: int, **settings: Any) -> list[Seen]:
    """So many training problems of these settings."""
    kind = find_scenario("arithmetic")
    scenario = kind(kind.Settings.model_validate({**settings, "train_size": size}))
    rows = scenario.generate("chains", "train")
    return [Seen(row, scenario.settings.numbers) for row in rows]


def accuracy(seen: Sequence[Seen], rule: Rule) -> float:
    """How often the label is what it was most often where the rule saw the same, in [0, 1]."""
    labels: dict[Any, Counter[int]] = defaultdict(Counter)
    learned, asked = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    for one in learned:
        labels[rule(one)][one.y] += 1
    guesses = [labels[rule(one)].most_common(1) or [(1, 0)] for one in asked]
    return sum(g[0][0] == one.y for g, one in zip(guesses, asked, strict=True)) / len(asked)


def _main(arguments: Sequence[str]) -> None:
    settings = dict(argument.split("=", 1) for argument in arguments)
    lists = {k: v.split(",") for k, v in settings.items() if k in ("operators", "mistakes")}
    seen = problems(20_000, **{**settings, **lists})
    for title, rules in (
        ("questions", OF_QUESTIONS),
        ("results", OF_RESULTS),
        ("lines", OF_LINES),
    ):
        rates = sorted(((accuracy(seen, rule), name) for name, rule in rules.items()), reverse=True)
        print(f"of {title}: " + ", ".join(f"{name} {100 * rate:.1f} %" for rate, name in rates))


if __name__ == "__main__":
    _main(sys.argv[1:])
