"""The results of a sweep again, from the files beside them alone.

Read are ``cells.parquet``, ``facts.json`` and, where they were made, ``declaration.json`` and its
time stamp: no run, no model, no server and no network. Whoever has the directory can so see that
every number in ``results.json``, ``README.md`` and the figures follows from the verdicts, and how.
That the verdicts are those that were played, only the runs themselves can show (`nip verify`).
"""

import contextlib
import io
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from nip_base.formats.bounds import ReadError, parse_json
from nip_core.errors import CorruptionError, SettingsError
from nip_core.parameters.basis.plain import Plain
from nip_core.run_store.documents import first_fault
from nip_study.declare.declaration import StudyDeclaration, parse_declaration
from nip_study.declare.declared_digests import analysis_digest
from nip_study.declare.timestamp import check_token
from nip_study.documents.results_document import SweepResults
from nip_study.documents.swept_facts import FORMAT, StampFacts, SweepFacts
from nip_study.facts_on_record import Collected
from nip_study.results import CELLS, DECLARATION, FACTS, STAMP, compute_results, render_files

_ROUNDING = 1e-9
"""Of a number: a smaller difference comes from the order in which a processor adds up."""
_LONGEST = 120  # characters of a text that a message quotes


@dataclass(frozen=True)
class Recomputed:
    """Results that follow from the files beside them."""

    results: SweepResults
    numbers: int
    """In ``results.json``."""
    verdicts: int
    is_declared_code: bool | None
    """Whether the code of the analysis is the declared one; None where nothing was declared."""


def recompute_results(directory: Path) -> Recomputed:
    """Compute the results in a directory again, and compare them byte for byte.

    Raises:
        SettingsError: the directory has no results, or those of a version that kept no facts.
        CorruptionError: a file is damaged, or something is not as computed; the message names the
            first such number.
    """
    collected = _read_collected(directory)
    results = compute_results(collected)
    files = render_files(results)
    declaration = collected.declaration
    is_declared_code = (
        None if declaration is None else declaration.analysis_sha256 == analysis_digest()
    )
    for name, content in files.items():
        contents = _read(directory, name)
        if contents == content:
            continue
        difference = _find_difference(name, contents, content)
        reason = "" if is_declared_code is not False else " (analysis code other than declared)"
        raise CorruptionError(
            f"{directory / name}: {difference or 'written in another form'}{reason}"
        )
    numbers = sum(1 for _ in _list_numbers(parse_json(files["results.json"])))
    return Recomputed(results, numbers, collected.verdicts.num_rows, is_declared_code)


def _read_collected(directory: Path) -> Collected:
    """Read the facts and verdicts of the results in a directory."""
    if not (directory / "results.json").is_file():
        raise SettingsError(
            f"--recompute {directory}: no results of a sweep (results.json is missing); name the "
            "directory that nip sweep wrote, as RUN_STORE/sweeps/NAME"
        )
    if missing_names := [name for name in (CELLS, FACTS) if not (directory / name).is_file()]:
        raise SettingsError(
            f"--recompute {directory}: {' and '.join(missing_names)} missing, as in results of "
            "earlier versions; write them anew from the runs: nip sweep FILE --collect --out DIR"
        )
    facts = _read_facts(directory / FACTS)
    verdicts = _read_verdicts(directory / CELLS, facts)
    return Collected(facts, verdicts, _read_declaration(directory / DECLARATION, facts))


def _read(directory: Path, name: str) -> bytes:
    try:
        return (directory / name).read_bytes()
    except OSError as error:
        raise CorruptionError(f"{directory / name}: can't be read ({error.strerror})") from None


def _read_facts(path: Path) -> SweepFacts:
    try:
        document = parse_json(_read(path.parent, path.name))
    except ReadError as error:
        raise CorruptionError(f"{path}: no JSON ({error})") from None
    if isinstance(document, dict) and document.get("format", FORMAT) not in (1, FORMAT):
        raise SettingsError(
            f"{path}: format {document['format']!r}, of a later version of nip; this one reads 1 "
            f"to {FORMAT}"
        )
    try:
        return SweepFacts.model_validate(document)
    except ValidationError as error:
        raise CorruptionError(f"{path}: {first_fault(error)}") from None


def _read_verdicts(path: Path, facts: SweepFacts) -> pa.Table:
    """Read the verdicts, and check that they are of runs of this sweep."""
    names = ["run", "attack", "iteration", "n", "question", "problem", "y", "decision", "believed"]
    try:
        table = pq.read_table(io.BytesIO(_read(path.parent, path.name)), columns=names)
    except (pa.ArrowException, OSError) as error:
        raise CorruptionError(f"{path}: can't be read ({' '.join(str(error).split())})") from None
    if missing_columns := [name for name in names if name not in table.column_names]:
        raise CorruptionError(f"{path}: column {missing_columns[0]} is missing")
    if strangers := {*table["run"].to_pylist()} - {run.name for run in facts.runs}:
        raise CorruptionError(f"{path}: run {min(strangers)!r} is not in {FACTS}")
    return table


def _read_declaration(path: Path, facts: SweepFacts) -> StudyDeclaration | None:
    """Read the declaration that the facts name; None where they name none."""
    if facts.declaration is None:
        return None
    declaration = parse_declaration(_read(path.parent, path.name), str(path))
    if declaration.sha256 != facts.declaration:
        raise CorruptionError(
            f"{path}: declaration {declaration.sha256[:16]}, and {FACTS} is about "
            f"{facts.declaration[:16]}"
        )
    for key in ("intervals", "definitions"):
        declared, stated = getattr(declaration, key), getattr(facts, key)
        if declared != stated:
            raise CorruptionError(
                f"{path}: {key} {declared} were declared, and those of {FACTS} are {stated}"
            )
    if facts.stamp is not None:
        _check_stamp(path, path.with_name(STAMP), facts.stamp)
    return declaration


def _check_stamp(path: Path, stamp: Path, facts: StampFacts) -> None:
    """Raise CorruptionError if the token is not about the declaration, or has another time."""
    token = _read(stamp.parent, stamp.name)
    try:
        time = check_token(token, _read(path.parent, path.name), str(stamp)).time
    except SettingsError:  # without the library or the root, which no figure needs
        return
    if time != facts.time:
        raise CorruptionError(f"{stamp}: of {time}, and {FACTS} says {facts.time}")


def _find_difference(name: str, recorded_value: bytes, computed: bytes) -> str | None:
    """Describe the first difference of two files; None where it is in their form alone."""
    if name.endswith(".json"):
        with contextlib.suppress(ValueError):  # no JSON
            return _find_in_documents(parse_json(recorded_value), parse_json(computed))
    return _find_in_lines(recorded_value, computed)


def _find_in_documents(recorded_value: Plain, computed: Plain, place: str = "") -> str | None:
    """Describe the first difference of two JSON values, in the order of the computed one."""
    if isinstance(recorded_value, dict) and isinstance(computed, dict):
        for key in [*computed, *(key for key in recorded_value if key not in computed)]:
            key_place = f"{place}.{key}" if place else str(key)
            if key not in recorded_value or key not in computed:
                state = "missing" if key not in recorded_value else "there, and not computed"
                return f"{key_place} is {state}"
            if (
                difference := _find_in_documents(recorded_value[key], computed[key], key_place)
            ) is not None:
                return difference
        return None
    if isinstance(recorded_value, list) and isinstance(computed, list):
        for i, (one, second) in enumerate(zip(recorded_value, computed, strict=False)):
            if (difference := _find_in_documents(one, second, f"{place}[{i}]")) is not None:
                return difference
        if len(recorded_value) != len(computed):
            return f"{place} has {len(recorded_value)} entries, recomputed {len(computed)}"
        return None
    if recorded_value == computed and type(recorded_value) is type(computed):
        return None
    values = f"{place} is {_quote(recorded_value)}, recomputed {_quote(computed)}"
    return values + _rounding(recorded_value, computed)


def _quote(value: Plain) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _rounding(recorded_value: Plain, computed: Plain) -> str:
    """Explain a difference in the last digits; "" for any other."""
    if not (isinstance(recorded_value, float) and isinstance(computed, float)):
        return ""
    is_close = math.isclose(recorded_value, computed, rel_tol=_ROUNDING, abs_tol=_ROUNDING)
    return " (the last digits: another processor, or version of numpy)" if is_close else ""


def _find_in_lines(recorded_value: bytes, computed: bytes) -> str | None:
    """Describe the first word that differs in two texts."""
    lines = [content.decode(errors="replace").split("\n") for content in (recorded_value, computed)]
    for number, pair in enumerate(zip(*lines, strict=False), 1):
        words = [re.split(r"\s+", line) for line in pair]
        for first, second in zip(*words, strict=False):
            if first != second:
                return f"line {number}: {_quote(first)}, recomputed {_quote(second)}"
        if pair[0] != pair[1]:
            return f"line {number}: {_quote(pair[0])}, recomputed {_quote(pair[1])}"
    return f"{len(lines[0])} lines, recomputed {len(lines[1])}"


def _list_numbers(value: Plain) -> Iterator[float]:
    """List the numbers in a JSON value."""
    if isinstance(value, dict):
        for part in value.values():
            yield from _list_numbers(part)
    elif isinstance(value, list):
        for part in value:
            yield from _list_numbers(part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value
