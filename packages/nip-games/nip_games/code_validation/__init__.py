"""`code_validation`: does a Python solution solve a problem?"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from nip_core.scenarios.base import Column, Row, Scenario, Words
from nip_core.scenarios.code_settings import CodeValidationSettings
from nip_games.code_validation.buggy_apps import NESTED, pair_solutions
from nip_games.running import RUN, check_sandbox, run_solution

_DATA = Path(__file__).with_name("data")


class CodeValidation(Scenario):
    """A problem in words and a program that solves it, or has a bug."""

    name = "code_validation"
    settings: CodeValidationSettings
    Settings = CodeValidationSettings
    settings_block = "code_validation"
    columns = (Column("question", "Problem"), Column("solution", "Solution", code="python"))
    bundled: ClassVar[Mapping[str, Path]] = {n: _DATA / n for n in ("problems", "families")}
    # The bundled `tiny` is made for these words, for both verdicts of the prover.
    template_directory: ClassVar[Path | None] = Path(__file__).with_name("templates")
    claims: ClassVar[Mapping[str, int]] = {"they match": 1, "they differ": 0}  # as `tiny` says it
    tool = RUN
    words = Words(
        expert="an expert in Python",
        thing="solution",
        claim="a solution solves a problem",
        full_claim="a Python solution solves a problem",
        open_claim="A Python solution may or may not solve a problem",
        doubt="With a probability of one half the solution has a bug, which can be subtle.",
        correct="the solution is correct for every input that the problem allows",
        correct_in_short="the solution is correct",
        evidence="the code",
        labels=("buggy", "correct"),
    )

    def expand(self, row: Row, name: str) -> Iterator[Row]:
        """Make rows of the lists in a row of lrhammond/buggy-apps; keep any other row."""
        return pair_solutions(row, name) if row.keys() >= NESTED else iter((row,))

    def takes(self, columns: Iterable[str]) -> bool:
        """Take the nested columns of lrhammond/buggy-apps as well."""
        return {*columns} >= NESTED or super().takes(columns)

    def keeps(self, row: Row) -> bool:
        """Keep rows of the chosen difficulty without a flag."""
        difficulty = self.settings.apps_difficulty
        if difficulty is not None and row.get("difficulty") != difficulty:
            return False
        return not (self.settings.apps_exclude_flagged and row.get("flags"))

    def filters(self) -> str:
        """Name the chosen difficulty."""
        difficulty = self.settings.apps_difficulty
        return "" if difficulty is None else f" with difficulty {difficulty!r}"

    async def use_tool(self, argument: str, texts: Mapping[str, str]) -> str:
        """Run the solution on an input."""
        return await run_solution(texts["solution"], argument)

    def check_tool(self) -> None:
        """Refuse where solutions can't be kept in."""
        check_sandbox()
