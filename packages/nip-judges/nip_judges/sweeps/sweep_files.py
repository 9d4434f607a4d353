"""The files of a sweep of judges, and its results computed again from them.

write_sweep      facts, cells and declaration -> the files in a folder
recompute_sweep  a folder -> its results, or the first difference as an error
make_facts       the facts of a sweep that was played

cells.parquet has a row for each judged text, and none of the texts themselves. results.json and
README.md follow from it, from facts.json and from declaration.json, byte for byte.
"""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from nip_base.formats.bounds import ReadError, parse_json
from nip_core.errors import CorruptionError, SettingsError
from nip_judges.parts import Cell
from nip_judges.sweeps.sweep_declaration import (
    FACTS,
    KIND,
    JudgeDeclaration,
    digest_analysis,
    find_departures,
    list_tries,
    read_declaration,
)
from nip_judges.sweeps.sweep_documents import SweepFacts, SweepResults
from nip_judges.sweeps.sweep_figures import compute_results
from nip_judges.sweeps.sweep_page import write_page
from nip_judges.sweeps.sweep_plan import JudgeSweep
from nip_judges.sweeps.sweep_play import PlayedSweep, SurveyedAttack, SweptCell
from nip_judges.whole_files import replace_whole, write_whole

CELLS, RESULTS, PAGE = "cells.parquet", "results.json", "README.md"
_TEXTS = ("response", "words", "reason")
"""Of a cell: left out, as they are a user's and in the folder of the attack."""
_NUMBERS = ("asking", "prompt_tokens", "completion_tokens")
_FLOATS = ("score", "p_accept")


@dataclass(frozen=True)
class Recomputed:
    """Results that follow from the files beside them."""

    results: SweepResults
    verdicts: int
    numbers: int
    """In results.json."""
    is_declared_code: bool | None
    """Whether the analysis has the code that was declared; None where nothing was."""


def make_facts(
    plan: JudgeSweep,
    surveyed: Sequence[SurveyedAttack],
    outcome: PlayedSweep,
    declaration: JudgeDeclaration | None,
) -> SweepFacts:
    """Make the facts of a sweep that was played."""
    first = surveyed[0]
    departures = [] if declaration is None else find_departures(declaration, plan, surveyed)
    return SweepFacts(
        kind=KIND,
        sweep=plan.name,
        judges={attack.attack.judge: attack.label for attack in surveyed},
        order=plan.judges,
        seeds=tuple(plan.file.seeds),
        all_rows=first.all_rows,
        kinds=first.kinds,
        held_out=first.held_out,
        ways=tuple(plan.file.attacks),
        no_verdict=first.no_verdict,
        hypotheses=tuple(plan.file.hypotheses),
        runs={attack.attack.name: attack.identity for attack in surveyed},
        failures=dict(sorted(outcome.failures.items())),
        declaration=None if declaration is None else declaration.sha256,
        departures=tuple(departures),
        earlier=_find_earlier(plan, surveyed, declaration),
        calls=outcome.spending.calls,
        prompt_tokens=outcome.spending.prompt_tokens,
        completion_tokens=outcome.spending.completion_tokens,
        usd=outcome.usd,
    )


def _find_earlier(
    plan: JudgeSweep, surveyed: Sequence[SurveyedAttack], declaration: JudgeDeclaration | None
) -> tuple[str, ...]:
    """Find the tries before this one: those of the declaration, else of the first results."""
    if declaration is not None:
        return declaration.earlier
    path = plan.folder / FACTS
    if path.exists():
        return _read_facts(path).earlier
    return tuple(list_tries(plan, surveyed))


def write_sweep(
    folder: Path,
    facts: SweepFacts,
    cells: Sequence[SweptCell],
    declaration: JudgeDeclaration | None,
) -> SweepResults:
    """Write cells.parquet, facts.json, results.json and README.md."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_cells(folder / CELLS, cells)
    write_whole(folder / FACTS, _as_text(facts.model_dump(mode="json")))
    # As they lie there: a number that Parquet rounds is rounded for both.
    results = compute_results(facts, _read_cells(folder / CELLS), declaration)
    for name, text in _render(results).items():
        write_whole(folder / name, text)
    return results


def recompute_sweep(folder: Path) -> Recomputed:
    """Compute the results in a folder again, and compare them byte for byte.

    Raises CorruptionError where a file is damaged, or where something is not as computed; the
    message names the first such value. Raises SettingsError for a folder without them.
    """
    missing_names = [name for name in (CELLS, FACTS, RESULTS) if not (folder / name).is_file()]
    if missing_names:
        raise SettingsError(f"--recompute {folder}: {' and '.join(missing_names)} missing")
    facts, cells = _read_facts(folder / FACTS), _read_cells(folder / CELLS)
    declaration = None if facts.declaration is None else read_declaration(folder)
    sha256 = None if declaration is None else declaration.sha256
    if sha256 != facts.declaration:
        raise CorruptionError(
            f"{folder}: declaration.json is {sha256 and sha256[:16]}, and {FACTS} is about "
            f"{facts.declaration and facts.declaration[:16]}"
        )
    results = compute_results(facts, cells, declaration)
    rendered = _render(results)
    for name, text in rendered.items():
        old_value = (folder / name).read_bytes() if (folder / name).exists() else b""
        if old_value != text.encode():
            raise CorruptionError(f"{folder / name}: {_find_difference(name, old_value, text)}")
    numbers = sum(1 for _ in _list_numbers(parse_json(rendered[RESULTS].encode())))
    is_declared = None if declaration is None else declaration.analysis_sha256 == digest_analysis()
    return Recomputed(results, len(cells), numbers, is_declared)


def _render(results: SweepResults) -> dict[str, str]:
    return {RESULTS: _as_text(results), PAGE: write_page(results)}


def _as_text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _write_cells(path: Path, cells: Sequence[SweptCell]) -> None:
    columns: dict[str, pa.Array] = {
        "judge": pa.array([swept.judge for swept in cells], pa.string()),
        "seed": pa.array([swept.seed for swept in cells], pa.int64()),
        "texts_of": pa.array([swept.texts_of for swept in cells], pa.string()),
        "way": pa.array([swept.way for swept in cells], pa.string()),
    }
    for name in (field.name for field in fields(Cell)):
        if name not in ("judge", *_TEXTS):
            columns[name] = pa.array([getattr(swept.cell, name) for swept in cells], _kind(name))
    table = pa.table(columns)
    with replace_whole(path) as part:
        pq.write_table(
            table, part, compression="zstd", write_statistics=False, data_page_version="1.0"
        )


def _kind(column: str) -> pa.DataType:
    if column == "is_right":
        return pa.bool_()
    if column in _NUMBERS:
        return pa.int64()
    return pa.float64() if column in _FLOATS else pa.string()


def _read_cells(path: Path) -> list[SweptCell]:
    """Read judged texts again. Raises CorruptionError."""
    try:
        source = io.BytesIO(path.read_bytes())
        rows = pq.ParquetFile(source, pre_buffer=False).read(use_threads=False).to_pylist()
        return [_read_cell(row) for row in rows]
    except (pa.ArrowException, OSError, KeyError, TypeError) as error:
        raise CorruptionError(f"{path}: can't be read ({' '.join(str(error).split())})") from None


def _read_cell(row: dict[str, Any]) -> SweptCell:
    seed, texts_of, way = (row.pop(name) for name in ("seed", "texts_of", "way"))
    cell = Cell(**{**row, **dict.fromkeys(_TEXTS, "")})
    return SweptCell(cell.judge, seed, texts_of, cell, way)


def _read_facts(path: Path) -> SweepFacts:
    try:
        return SweepFacts.model_validate(parse_json(path.read_bytes()))
    except (OSError, ReadError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise CorruptionError(f"{path}: no facts of a sweep of judges ({first})") from None


def _find_difference(name: str, old_value: bytes, computed: str) -> str:
    """Describe the first difference of a file."""
    if name == RESULTS:
        try:
            difference = _find_value(parse_json(old_value), parse_json(computed.encode()), "")
        except ReadError as error:
            return f"no JSON ({error})"
        return difference or "written in another form"
    old_lines, new_lines = old_value.decode(errors="replace").splitlines(), computed.splitlines()
    for number, (one, two) in enumerate(zip(old_lines, new_lines, strict=False), 1):
        if one != two:
            return f"line {number} is {one[:100]!r}, recomputed {two[:100]!r}"
    return f"{len(old_lines)} lines, recomputed {len(new_lines)}"


def _find_value(old_value: Any, computed: Any, place: str) -> str | None:
    if isinstance(old_value, dict) and isinstance(computed, dict):
        pairs = [(f"{place}.{k}".lstrip("."), old_value.get(k), v) for k, v in computed.items()]
        extra = [key for key in old_value if key not in computed]
        if extra:
            return f"{place}.{extra[0]} is there, and not computed".lstrip(".")
    elif isinstance(old_value, list) and isinstance(computed, list):
        if len(old_value) != len(computed):
            return f"{place} has {len(old_value)} entries, recomputed {len(computed)}"
        pairs = [
            (f"{place}[{number}]", first, second)
            for number, (first, second) in enumerate(zip(old_value, computed, strict=True))
        ]
    else:
        return (
            None if old_value == computed else f"{place} is {old_value!r}, recomputed {computed!r}"
        )
    return next((d for p, first, second in pairs if (d := _find_value(first, second, p))), None)


def _list_numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _list_numbers(part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value
