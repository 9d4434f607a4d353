"""Builds the bundled problem set `families`: three Parquet files, byte for byte.

    python -m factory.problems.build_families --out DIRECTORY

Takes a few seconds. Nothing is drawn: choices are stable hashes of the members' names, and the
Parquet writer's options are pinned below (with another version of pyarrow the bytes may differ;
the rows do not). The code of this set comes from fixed templates of this package and is run in
this process to get the labels; see `families.behaviour`.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from factory.problems.families import Row, select

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("question_id", pa.string(), nullable=False),
        pa.field("question", pa.string(), nullable=False),
        pa.field("solution", pa.string(), nullable=False),
        pa.field("y", pa.int8(), nullable=False),  # 1 correct, 0 buggy
        pa.field("difficulty", pa.string(), nullable=False),  # name of the family
        pa.field("mutation", pa.string()),  # kind of the bug; null in correct rows
    ]
)


def to_table(rows: Iterable[Row]) -> pa.Table:
    """The rows as a table with `SCHEMA`, sorted by id. One row per question."""
    ordered = sorted(rows, key=lambda row: row.member.identity)
    columns = {
        "id": [row.member.identity for row in ordered],
        "question_id": [row.member.identity for row in ordered],
        "question": [row.question for row in ordered],
        "solution": [row.solution for row in ordered],
        "y": [row.y for row in ordered],
        "difficulty": [row.member.family.name for row in ordered],
        "mutation": [row.mutation for row in ordered],
    }
    return pa.table(columns, schema=SCHEMA)


def build(directory: Path) -> dict[str, int]:
    """Write one file per split into `directory`; returns the number of rows of each."""
    directory.mkdir(parents=True, exist_ok=True)
    by_split: dict[str, list[Row]] = {}
    for row in select().rows:
        by_split.setdefault(row.split, []).append(row)
    for split, rows in by_split.items():
        pq.write_table(
            to_table(rows),
            directory / f"{split}.parquet",
            version="2.6",
            data_page_version="1.0",
            compression="zstd",
            compression_level=9,
            use_dictionary=["difficulty", "mutation"],
            write_statistics=True,
            row_group_size=1 << 20,
            data_page_size=1 << 20,
            store_schema=False,
        )
    return {split: len(rows) for split, rows in by_split.items()}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Build the problem set 'families'.")
    parser.add_argument("--out", type=Path, required=True, help="directory for the Parquet files")
    for split, rows in build(parser.parse_args().out).items():
        print(f"{split}: {rows} problems")


if __name__ == "__main__":
    main()
