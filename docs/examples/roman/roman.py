"""`roman`: is a number written rightly in Roman numerals?"""

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, ClassVar

from nip_core.scenarios import PROVER, Column, Scenario, ScenarioSettings, Words

PARTS = {
    1000: "M", 900: "CM", 500: "D", 400: "CD", 100: "C", 90: "XC",
    50: "L", 40: "XL", 10: "X", 9: "IX", 5: "V", 4: "IV", 1: "I",
}  # fmt: skip
SPLITS = {"train": range(7), "validation": range(7, 8), "test": range(8, 10)}


class RomanSettings(ScenarioSettings):
    """Settings of this scenario."""

    largest: int = 2000
    """The largest number."""


class Roman(Scenario):
    """A number, and its numeral or that of another number."""

    name = "roman"
    settings: RomanSettings
    Settings = RomanSettings
    words = Words(
        expert="an expert in Roman numerals",
        thing="numeral",
        claim="a Roman numeral stands for a number",
        doubt="With a probability of one half the numeral is wrong.",
        correct="the numeral stands for the number",
        evidence="the numeral",
    )
    columns: ClassVar = (
        Column("question", "Number"),
        Column("solution", "Numeral"),
        Column("parts", "Its parts", seen_by=(PROVER,)),
    )
    generated = ("numbers",)

    def generate(self, dataset: str, split: str) -> Iterator[Mapping[str, Any]]:
        """Each number of the split with its numeral, and with that of another one."""
        for number in range(2, self.settings.largest + 1):
            other = number + Random(number).choice((-1, 1, 10))
            for shown in (number, other) if number % 10 in SPLITS[split] else ():
                yield {
                    "question": str(number),
                    "solution": "".join(parts_of(shown)),
                    "parts": " ".join(parts_of(number)),
                    "difficulty": f"{len(parts_of(number))} parts",
                }

    def label(self, row: Mapping[str, Any]) -> int:
        """1 if the numeral is the number's."""
        return int(row["solution"] == "".join(parts_of(int(row["question"]))))


def parts_of(number: int) -> list[str]:
    """The numerals of which the number's consists, the largest first."""
    parts = []
    for value, numeral in PARTS.items():
        parts += [numeral] * (number // value)
        number %= value
    return parts
