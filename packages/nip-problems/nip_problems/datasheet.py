"""The datasheet of a built dataset: how it was made, and the rows that were left out.

    Datasheet             the contents of datasheet.json
    collect_datasheet     the facts about a dataset that was built
    read_source_facts     the source of an earlier build
    format_page           the same for reading
    write_built_dataset   the Parquet files, datasheet.json and datasheet.md

No times and no places stand in them, so equal sources give equal bytes.
"""

import json
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from nip_base.formats.bounds import parse_json
from nip_core.distribution import __version__
from nip_core.errors import CorruptionError
from nip_core.hashing import digest
from nip_core.scenarios.rows import SPLITS, Row, write_split
from nip_problems.from_tests import Examined, name_moved_splits
from nip_problems.tested import LeftOut
from nip_problems.variants import count_endings

SHEET = "datasheet.json"
PAGE = "datasheet.md"
_SHOWN = 20  # problems left out, on the page; all are in the JSON


Option = str | int | float | None


class _Facts(BaseModel):
    """The contents of datasheet.json; other versions may have written more."""

    model_config = ConfigDict(frozen=True, extra="allow")


class SourceFacts(_Facts):
    """The source of the dataset."""

    name: str
    form: str
    sha256: str
    licence: str | None
    """As its user says."""


class MadeWith(_Facts):
    """The options that decided about the rows, beside the source."""

    nip: str
    python: str
    pyarrow: str
    options: dict[str, Option]


class ProblemCounts(_Facts):
    """How many problems were read, and how many have rows."""

    read: int
    in_dataset: int


class SolutionCounts(_Facts):
    """How many solutions were run on the tests of their problem, and how many passed."""

    tried: int
    passed: int


class MutantCounts(_Facts):
    """The outcomes of the mutants' tests."""

    tried: int
    passed_all: int
    failed_some: int
    failed_all: int
    no_end: int


class ModelFacts(_Facts):
    """The requests to a language model, and how its answers ended."""

    model: str
    provider: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    usd: float | None
    answers: dict[str, int]


class SplitCounts(_Facts):
    """The counts of one split."""

    problems: int
    rows: int
    correct: int
    buggy: int


class Datasheet(_Facts):
    """All that datasheet.json says."""

    format: int
    source: SourceFacts
    made_with: MadeWith
    problems: ProblemCounts
    solutions: SolutionCounts
    mutants: MutantCounts
    models: dict[str, ModelFacts]
    """By the purpose of the requests."""
    splits: dict[str, SplitCounts]
    kinds: dict[str, int]
    """Buggy rows by the kind of their mistake, the most frequent first."""
    left_out: list[LeftOut]
    rows_sha256: str
    notes: list[str] = []
    """Points that the author of the source may have meant otherwise; left out if there is none."""


def collect_datasheet(
    examined: Examined,
    rows: Mapping[str, Sequence[Row]],
    left_out: Sequence[LeftOut],
    *,
    licence: str | None,
    options: Mapping[str, Option],
    models: Mapping[str, ModelFacts],
) -> Datasheet:
    """Collect the facts about a dataset.

    Args:
        examined: the source and its mutants.
        rows: the dataset, by split.
        left_out: all that is not in it.
        licence: as its user says.
        options: the options that decided about the rows.
        models: the language models' work, by its purpose.
    """
    source, endings = examined.source, count_endings(examined.reports)
    kinds = Counter(row.mutation for part in rows.values() for row in part if row.mutation)
    names = {row.question_id for part in rows.values() for row in part}
    notes = [*source.notes, *name_moved_splits(source, rows)]
    sheet = Datasheet(
        format=1,
        source=SourceFacts(
            name=source.name, form=source.form, sha256=source.sha256, licence=licence
        ),
        made_with=MadeWith(
            nip=__version__,
            python=".".join(platform.python_version_tuple()[:2]),
            pyarrow=pa.__version__,
            options=dict(options),
        ),
        problems=ProblemCounts(read=len(source.problems), in_dataset=len(names)),
        solutions=SolutionCounts(tried=examined.tried, passed=examined.passed),
        mutants=MutantCounts(
            tried=len(examined.reports),
            passed_all=endings.passed_all,
            failed_some=endings.failed_some,
            failed_all=endings.failed_all,
            no_end=endings.no_end,
        ),
        models=dict(models),
        splits={split: _count_rows(rows[split]) for split in SPLITS},
        kinds=dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0]))),
        left_out=list(left_out),
        rows_sha256=digest([vars(row) for split in SPLITS for row in rows[split]]),
    )
    return sheet.model_copy(update={"notes": notes}) if notes else sheet


def _count_rows(rows: Sequence[Row]) -> SplitCounts:
    return SplitCounts(
        problems=len({row.question_id for row in rows}),
        rows=len(rows),
        correct=sum(row.y for row in rows),
        buggy=sum(1 - row.y for row in rows),
    )


def read_source_facts(directory: Path) -> SourceFacts | None:
    """Read the facts of a dataset's source; None where no datasheet lies.

    Raises CorruptionError for one that is damaged. Only this part of it is looked at, as a later
    version may write the others otherwise.
    """
    path = directory / SHEET
    if not path.exists():
        return None
    try:
        return _Made.model_validate(parse_json(path.read_text(encoding="utf-8"))).source
    except (OSError, ValueError) as error:
        raise CorruptionError(f"{path}: can't be read ({type(error).__name__})") from error


class _Made(_Facts):
    source: SourceFacts


def format_page(sheet: Datasheet) -> str:
    """Write the facts as a page of Markdown."""
    source, made_with, mutants = sheet.source, sheet.made_with, sheet.mutants
    options = ", ".join(f"{name} {value}" for name, value in made_with.options.items())
    lines = [
        f"# Datasheet: {source.name}",
        "",
        "Questions with right and buggy solutions in Python. A row is right (`y` 1) if it passed",
        "all tests of its problem in a sandbox, and buggy (`y` 0) if it failed at least one.",
        "",
        f"- Source: {source.name} (form: {source.form}), SHA-256 `{source.sha256}`",
        f"- Licence: {source.licence or 'not given; ask whom the source is from'}",
        f"- Made with nip {made_with.nip}, Python {made_with.python}, pyarrow {made_with.pyarrow}",
        f"- Options: {options}",
        f"- SHA-256 of the rows: `{sheet.rows_sha256}`",
        "",
        "## Rows",
        "",
        *_table(
            ("split", "problems", "rows", "correct", "buggy"),
            [
                (split, counts.problems, counts.rows, counts.correct, counts.buggy)
                for split, counts in sheet.splits.items()
            ],
        ),
        "No question stands in two splits.",
        "",
        *(f"- {' '.join(note.split())}" for note in sheet.notes),
        *([""] if sheet.notes else []),
        "## Bugs by kind",
        "",
        *_table(("kind", "rows"), sheet.kinds.items()),
        "## How they came about",
        "",
        f"Of {sheet.solutions.tried} solutions {sheet.solutions.passed} passed the",
        f"tests of their problem. Of {mutants.tried} mutants of them and of rewrites",
        "",
        f"- {mutants.failed_some} failed some tests",
        f"- {mutants.failed_all} failed all tests",
        f"- {mutants.no_end} came to no end within the limits, and left out",
        f"- {mutants.passed_all} passed all tests, and left out: they may be right",
        "",
        *_describe_models(sheet.models),
        "## Left out",
        "",
        *_list_left_out(sheet.left_out),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _describe_models(models: Mapping[str, ModelFacts]) -> list[str]:
    if not models:
        return ["No language model was asked.", ""]
    lines: list[str] = []
    for purpose, facts in models.items():
        price = "price unknown" if facts.usd is None else f"${facts.usd:.4f}"
        lines += [
            f"### {purpose}",
            "",
            f"{facts.model} ({facts.provider}): {facts.calls} calls, "
            f"{facts.prompt_tokens} prompt and {facts.completion_tokens} generated tokens, "
            f"{price}.",
            "",
            *_table(("what became of the answers", "count"), facts.answers.items()),
        ]
    return lines


def _list_left_out(entries: Sequence[LeftOut]) -> list[str]:
    if not entries:
        return ["Nothing but the variants above."]
    reasons = Counter(entry.reason for entry in entries)
    rows = [(entry.problem, entry.reason, entry.detail) for entry in entries[:_SHOWN]]
    more = len(entries) - len(rows)
    return [
        *_table(("reason", "count"), sorted(reasons.items())),
        *_table(("problem", "reason", "detail"), rows),
        *([f"And {more} more, in {SHEET}."] if more > 0 else []),
    ]


def _table(heading: Sequence[str], rows: Any) -> list[str]:
    def line(cells: Sequence[Any]) -> str:
        # Text from a source must not become a part of the table.
        texts = (" ".join(str(cell).split()).replace("|", "\\|")[:160] for cell in cells)
        return f"| {' | '.join(texts)} |"

    return [line(heading), line(["---"] * len(heading)), *map(line, rows), ""]


def write_built_dataset(
    directory: Path, rows: Mapping[str, Sequence[Row]], sheet: Datasheet
) -> list[Path]:
    """Write the files of a dataset; returns them. No file is ever half written."""
    directory.mkdir(parents=True, exist_ok=True)
    facts = sheet.model_dump(exclude_unset=True)
    texts = {
        SHEET: json.dumps(facts, indent=1, ensure_ascii=False) + "\n",
        PAGE: format_page(sheet),
    }
    names = [*texts, *(f"{split}.parquet" for split in SPLITS)]
    for name, text in texts.items():
        _half(directory, name).write_text(text, encoding="utf-8")
    for split in SPLITS:
        write_split(rows[split], _half(directory, f"{split}.parquet"), split)
    for name in names:
        os.replace(_half(directory, name), directory / name)
    return [directory / name for name in names]


def _half(directory: Path, name: str) -> Path:
    return directory / f".{name}.new"
