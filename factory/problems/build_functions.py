"""Builds the bundled set `functions` of the scenario `solutions`: problems with tests.

    python -m factory.problems.build_functions --out DIRECTORY

The problems of the set `problems`, in the same splits, without any solution: a prover writes it.
Their tests stand in one text, which no player sees.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from factory.problems.build import main_function
from factory.problems.sources import SOURCES
from factory.problems.sources.source import Source
from nip_core.scenarios.rows import SPLITS, choose_split, write_table

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("question_id", pa.string(), nullable=False),
        pa.field("question", pa.string(), nullable=False),
        pa.field("entry_point", pa.string(), nullable=False),
        pa.field("tests", pa.string(), nullable=False),
        pa.field("difficulty", pa.string()),
    ]
)


def build(sources: Sequence[Source] = SOURCES) -> dict[str, pa.Table]:
    """The problems by split, in the order of their names."""
    rows: dict[str, list[dict[str, str]]] = {split: [] for split in SPLITS}
    for source in sorted(sources, key=lambda source: source.slug):
        rows[choose_split(source.slug)].append(
            {
                "id": f"problems/{source.slug}",
                "question_id": f"problems/{source.slug}",
                "question": source.question,
                "entry_point": main_function(source.solutions[0]),
                "tests": "\n".join(source.tests) + "\n",
                "difficulty": source.difficulty,
            }
        )
    return {
        split: pa.Table.from_pylist(split_rows, schema=SCHEMA) for split, split_rows in rows.items()
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Build the problem set 'functions'.")
    parser.add_argument("--out", type=Path, required=True, help="directory for the Parquet files")
    directory = parser.parse_args().out
    directory.mkdir(parents=True, exist_ok=True)
    for split, table in build().items():
        write_table(table, directory / f"{split}.parquet")
        print(f"{split}: {table.num_rows} problems")


if __name__ == "__main__":
    main()
