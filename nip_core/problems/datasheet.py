"""What stands beside a dataset that was built: how it was made, and what is not in it.

    write_dataset   the Parquet files, datasheet.json and datasheet.md
    facts_of        what datasheet.json holds
    page_of         the same for reading

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

from nip_core.distribution import __version__
from nip_core.hashing import digest
from nip_core.problems.from_tests import Examined, moved_splits
from nip_core.problems.tested import LeftOut
from nip_core.problems.variants import endings
from nip_core.scenarios.rows import SPLITS, Row, write_split

SHEET = "datasheet.json"
PAGE = "datasheet.md"
_SHOWN = 20  # problems left out, on the page; all are in the JSON
_ENDINGS = {
    "failed_some": "failed some tests",
    "failed_all": "failed all tests",
    "no_end": "came to no end within the limits, and left out",
    "passed_all": "passed all tests, and left out: they may be right",
}

Facts = dict[str, Any]


def facts_of(
    examined: Examined,
    rows: Mapping[str, Sequence[Row]],
    left_out: Sequence[LeftOut],
    *,
    licence: str | None,
    options: Mapping[str, Any],
    models: Mapping[str, Any],
) -> Facts:
    """Collect the facts about a dataset, JSON-encodable.

    Args:
        examined: the source and its mutants.
        rows: the dataset, by split.
        left_out: all that is not in it.
        licence: as its user says.
        options: what decided about the rows.
        models: what language models did, by what for.
    """
    source = examined.source
    kinds = Counter(row.mutation for part in rows.values() for row in part if row.mutation)
    names = {row.question_id for part in rows.values() for row in part}
    notes = [*source.notes, *moved_splits(source, rows)]
    return {
        "format": 1,
        "source": {
            "name": source.name,
            "form": source.form,
            "sha256": source.sha256,
            "licence": licence,
        },
        "made_with": {
            "nip": __version__,
            "python": ".".join(platform.python_version_tuple()[:2]),
            "pyarrow": pa.__version__,
            "options": dict(options),
        },
        "problems": {"read": len(source.problems), "in_dataset": len(names)},
        "solutions": dict(examined.solutions),
        "mutants": {"tried": len(examined.reports), **endings(examined.reports)},
        "models": dict(models),
        "splits": {split: _counts(rows[split]) for split in SPLITS},
        "kinds": dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0]))),
        "left_out": [vars(entry) for entry in left_out],
        "rows_sha256": digest([vars(row) for split in SPLITS for row in rows[split]]),
        **({"notes": notes} if notes else {}),
    }


def _counts(rows: Sequence[Row]) -> dict[str, int]:
    return {
        "problems": len({row.question_id for row in rows}),
        "rows": len(rows),
        "correct": sum(row.y for row in rows),
        "buggy": sum(1 - row.y for row in rows),
    }


def page_of(facts: Facts) -> str:
    """Write the facts as a page of Markdown."""
    source, made = facts["source"], facts["made_with"]
    options = ", ".join(f"{name} {value}" for name, value in made["options"].items())
    lines = [
        f"# Datasheet: {source['name']}",
        "",
        "Questions with right and buggy solutions in Python. A row is right (`y` 1) if it passed",
        "all tests of its problem in a sandbox, and buggy (`y` 0) if it failed at least one.",
        "",
        f"- Source: {source['name']} (form: {source['form']}), SHA-256 `{source['sha256']}`",
        f"- Licence: {source['licence'] or 'not given; ask whom the source is from'}",
        f"- Made with nip {made['nip']}, Python {made['python']}, pyarrow {made['pyarrow']}",
        f"- Options: {options}",
        f"- SHA-256 of the rows: `{facts['rows_sha256']}`",
        "",
        "## Rows",
        "",
        *_table(
            ("split", "problems", "rows", "correct", "buggy"),
            [(split, *counts.values()) for split, counts in facts["splits"].items()],
        ),
        "No question stands in two splits.",
        "",
        *(f"- {' '.join(note.split())}" for note in facts.get("notes", ())),
        *([""] if facts.get("notes") else []),
        "## Bugs by kind",
        "",
        *_table(("kind", "rows"), facts["kinds"].items()),
        "## How they came about",
        "",
        f"Of {facts['solutions']['tried']} solutions {facts['solutions']['passed']} passed the",
        f"tests of their problem. Of {facts['mutants']['tried']} mutants of them and of rewrites",
        "",
        *(f"- {facts['mutants'][name]} {words}" for name, words in _ENDINGS.items()),
        "",
        *_models(facts["models"]),
        "## Left out",
        "",
        *_left_out(facts["left_out"]),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _models(models: Mapping[str, Any]) -> list[str]:
    if not models:
        return ["No language model was asked.", ""]
    lines: list[str] = []
    for purpose, facts in models.items():
        price = "price unknown" if facts["usd"] is None else f"${facts['usd']:.4f}"
        lines += [
            f"### {purpose}",
            "",
            f"{facts['model']} ({facts['provider']}): {facts['calls']} calls, "
            f"{facts['prompt_tokens']} prompt and {facts['completion_tokens']} generated tokens, "
            f"{price}.",
            "",
            *_table(("what became of the answers", "count"), facts["answers"].items()),
        ]
    return lines


def _left_out(entries: Sequence[Mapping[str, str]]) -> list[str]:
    if not entries:
        return ["Nothing but the variants above."]
    reasons = Counter(entry["reason"] for entry in entries)
    shown = [(e["problem"], e["reason"], e["detail"]) for e in entries[:_SHOWN]]
    more = len(entries) - len(shown)
    return [
        *_table(("reason", "count"), sorted(reasons.items())),
        *_table(("problem", "reason", "detail"), shown),
        *([f"And {more} more, in {SHEET}."] if more > 0 else []),
    ]


def _table(heading: Sequence[str], rows: Any) -> list[str]:
    def line(cells: Sequence[Any]) -> str:
        # What comes from a source must not become a part of the table.
        texts = (" ".join(str(cell).split()).replace("|", "\\|")[:160] for cell in cells)
        return f"| {' | '.join(texts)} |"

    return [line(heading), line(["---"] * len(heading)), *map(line, rows), ""]


def write_dataset(directory: Path, rows: Mapping[str, Sequence[Row]], facts: Facts) -> list[Path]:
    """Write the files of a dataset; returns them. No file is ever half of what it is to be."""
    directory.mkdir(parents=True, exist_ok=True)
    texts = {SHEET: json.dumps(facts, indent=1, ensure_ascii=False) + "\n", PAGE: page_of(facts)}
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
