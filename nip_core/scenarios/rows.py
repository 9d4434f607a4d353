"""The rows of a dataset, and the Parquet files that they become, byte for byte.

Row            a question, a solution, its label, and where both came from
SCHEMA         the columns
choose_split   the split of a problem by its name alone
choose_splits  the splits of several, none of them empty
write_split    one split as a file; write_table: rows of other columns
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from nip_core.hashing import derive_seed

SPLITS = ("train", "validation", "test")
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("question_id", pa.string(), nullable=False),
        pa.field("question", pa.string(), nullable=False),
        pa.field("solution", pa.string(), nullable=False),
        pa.field("y", pa.int8(), nullable=False),
        pa.field("difficulty", pa.string()),
        pa.field("mutation", pa.string()),
    ]
)
SCHEMA_WITH_SPLIT = SCHEMA.append(pa.field("split", pa.string(), nullable=False))


@dataclass(frozen=True)
class Row:
    """One row of a dataset."""

    id: str
    question_id: str
    question: str
    solution: str
    y: int
    """1 correct, 0 buggy."""
    difficulty: str | None
    mutation: str | None


def _place(name: str) -> int:
    return derive_seed("problems: split", name) % 100


def choose_split(name: str) -> str:
    """Return a split by the name alone: of 100 problems about 70 train, 10 validation, 20 test."""
    place = _place(name)
    return "train" if place < 70 else "validation" if place < 80 else "test"


def choose_splits(split_by_name: Mapping[str, str | None]) -> dict[str, str]:
    """Choose the split of each problem by name: its source's, else the one `choose_split` gives.

    A split that would stay empty takes the problem nearest to it from the largest split.
    """
    choice = {name: split or choose_split(name) for name, split in split_by_name.items()}
    for split, middle in (("test", 90), ("validation", 75), ("train", 35)):
        if split in choice.values():
            continue
        sizes = {candidate: list(choice.values()).count(candidate) for candidate in SPLITS}
        largest = max(SPLITS, key=lambda candidate: sizes[candidate])
        if sizes[largest] > 1:
            inside = [name for name, candidate in choice.items() if candidate == largest]
            nearest = min(inside, key=lambda name: (abs(_place(name) - middle), name))
            choice[nearest] = split
    return choice


def make_table(rows: Sequence[Row], split: str | None = None) -> pa.Table:
    """Return the rows as an Arrow table with SCHEMA; with a column `split` if one is given."""
    if split is None:
        return pa.Table.from_pylist([asdict(row) for row in rows], schema=SCHEMA)
    rows_with_split = [{**asdict(row), "split": split} for row in rows]
    return pa.Table.from_pylist(rows_with_split, schema=SCHEMA_WITH_SPLIT)


def write_split(rows: Sequence[Row], path: Path, split: str | None = None) -> None:
    """Write one split as a Parquet file: no times in it, every option given."""
    write_table(make_table(rows, split), path)


def write_table(table: pa.Table, path: Path) -> None:
    """Write the table of a split: equal rows give equal bytes."""
    pq.write_table(
        table,
        path,
        row_group_size=1_000_000,
        version="2.6",
        use_dictionary=True,
        compression="zstd",
        compression_level=9,
        write_statistics=False,
        data_page_version="1.0",
        store_schema=False,
    )
