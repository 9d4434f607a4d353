"""Whether a scenario's class makes a game, as it states its data.

Covered: types, columns and who sees them, templates that are there, patterns that can be compiled.
Not covered: the results of its functions (`checked`), and its words (`words_checks`).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from nip_core.scenarios.base import (
    PROVER,
    VERIFIER,
    Column,
    Scenario,
    ScenarioSettings,
    Words,
)
from nip_core.scenarios.prompt_versions import PromptVersion
from nip_core.tools import Tool


def check_scenario(scenario: Scenario | type[Scenario]) -> None:
    """Raise ValueError for a scenario of a user's, or its class, without a game."""
    kind = scenario if isinstance(scenario, type) else type(scenario)
    absent_names = [name for name in ("name", "words") if not hasattr(scenario, name)]
    if absent_names:
        raise ValueError(
            f"{kind.__name__} has no {' and no '.join(absent_names)}; set it in the class"
        )
    _check_types(scenario, kind)
    _check_templates(scenario.template_directory, kind)
    names = [column.name for column in scenario.columns]
    if names[:2] != ["question", "solution"] or len({*names}) < len(names):
        raise ValueError(
            f"{kind.__name__}.columns must begin with question and solution and name each column "
            f"once (got {', '.join(names)})"
        )
    for column in scenario.columns:
        if not column.seen_by and not column.hidden:
            raise ValueError(
                f"{kind.__name__}.columns: nobody sees {column.name}; name in seen_by who does, "
                "leave the column out, or say that it is hidden"
            )
        if column.seen_by and column.hidden:
            raise ValueError(
                f"{kind.__name__}.columns: {column.name} is hidden, and seen by "
                f"{' and '.join(column.seen_by)}; set seen_by to () or hidden to False"
            )
        unknown = {*column.seen_by} - {PROVER, VERIFIER}
        if unknown:
            raise ValueError(
                f"{kind.__name__}.columns: {column.name} is seen by {', '.join(sorted(unknown))}; "
                f"there are {PROVER} and {VERIFIER}"
            )
    drawn_columns = [column.name for column in scenario.columns[2:] if column.drawn]
    if drawn_columns and kind.draw is Scenario.draw:
        raise ValueError(
            f"{kind.__name__}.columns: {', '.join(drawn_columns)} is drawn, and {kind.__name__} "
            "has no method draw that makes it; write one, or set drawn to False"
        )
    if not any(VERIFIER in column.seen_by for column in scenario.columns[:2]):
        raise ValueError(
            f"{kind.__name__}.columns: the verifier sees neither question nor solution, so it has "
            "nothing to decide on; show it one"
        )
    if scenario.tool is not None and kind.use_tool is Scenario.use_tool:
        raise ValueError(
            f"{kind.__name__} has a tool, and no method use_tool that does what it says; write one"
        )
    if kind.labels_in_play and not scenario.columns[1].drawn:
        raise ValueError(
            f"{kind.__name__}.columns: with labels_in_play a prover writes the solution, so the "
            "column solution must be drawn=True"
        )


def _check_templates(directory: Path | None, kind: type[Scenario]) -> None:
    """Refuse a directory without templates; otherwise nip's own would be used without a word."""
    if directory is None:
        return
    place = f"{kind.__name__}.template_directory"
    if not isinstance(directory, Path):
        raise ValueError(f"{place} must be a pathlib.Path (got {directory!r:.80})")
    if not directory.is_dir():
        raise ValueError(
            f"{place}: {directory} is no directory; Path(__file__).parent is that of the class"
        )
    versions = get_args(PromptVersion)
    if not any(path.parts[-3] in versions for path in directory.glob("*/*/*.txt")):
        raise ValueError(
            f"{place}: {directory} has no templates; they lie in it as VERSION/PROTOCOL/AGENT.txt, "
            f"where VERSION is one of {', '.join(versions)}"
        )


def _check_claims(claims: object, kind: type[Scenario]) -> None:
    """Refuse malformed claims now, before episodes have been played and paid for."""
    place = f"{kind.__name__}.claims"
    if not isinstance(claims, Mapping) or not all(y in (0, 1) for y in claims.values()):
        raise ValueError(f"{place} must be decisions, 1 or 0, by pattern (got {claims!r:.80})")
    for pattern in claims:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(
                f"{place}: {pattern!r:.80} is no regular expression ({error})"
            ) from None


def _check_types(scenario: Scenario | type[Scenario], kind: type[Scenario]) -> None:
    """Refuse values of wrong types, and names with another meaning in templates or datasets."""
    words, columns, split_by = scenario.words, scenario.columns, scenario.split_by
    if not isinstance(words, Words) or len(words.labels) != 2:
        raise ValueError(
            f"{kind.__name__}.words must be Words, with two labels (got {words!r:.80})"
        )
    if not isinstance(columns, tuple) or not all(isinstance(c, Column) for c in columns):
        raise ValueError(f"{kind.__name__}.columns must be a tuple of Column (got {columns!r:.80})")
    if not (isinstance(kind.Settings, type) and issubclass(kind.Settings, ScenarioSettings)):
        raise ValueError(f"{kind.__name__}.Settings must be a subclass of ScenarioSettings")
    if not isinstance(scenario.name, str):
        raise ValueError(f"{kind.__name__}.name must be a text (got {scenario.name!r:.80})")
    _check_claims(scenario.claims, kind)
    if not isinstance(scenario.tool, Tool | None):
        raise ValueError(f"{kind.__name__}.tool must be a Tool or None (got {scenario.tool!r:.80})")
    if not isinstance(kind.bundled, Mapping):
        raise ValueError(
            f"{kind.__name__}.bundled must be paths by name (got {kind.bundled!r:.80})"
        )
    for field_, value in [
        ("split_by", split_by),
        ("generated", kind.generated),
        ("data_neutral", kind.data_neutral),
        *(("seen_by", c.seen_by) for c in columns),
    ]:
        if isinstance(value, str):
            raise ValueError(
                f"{kind.__name__}: {field_} must be a tuple of names (got the text {value!r}); "
                f"write ({value!r},)"
            )
    if columns and columns[0].drawn:
        raise ValueError(f"{kind.__name__}.columns: question can't be drawn; draw a further column")
    reserved_names = {*words.placeholders(), "problem", "id", "y", "split"}
    for name in (column.name for column in columns):
        if name in reserved_names or not name.isidentifier():
            raise ValueError(
                f"{kind.__name__}.columns: a column can't be called {name!r}, which means "
                "something else in templates or datasets, or can't stand there; rename it"
            )
