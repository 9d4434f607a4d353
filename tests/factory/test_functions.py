"""The bundled set `functions` is what its sources build, and every author's solution is right."""

import asyncio
from pathlib import Path

import pyarrow.parquet as pq

from factory.problems.build import main_function
from factory.problems.build_functions import build
from factory.problems.sources import SOURCES
from nip_core.scenarios import find_scenario


def test_the_bundled_problems_are_those_of_the_sources():
    kind = find_scenario("solutions")
    for split, table in build().items():
        bundled = Path(kind.bundled["functions"]) / f"{split}.parquet"
        assert pq.read_table(bundled).to_pylist() == table.to_pylist()


def test_every_solution_of_an_author_is_labelled_right():
    kind = find_scenario("solutions")
    scenario = kind(kind.Settings())
    works = [
        {
            "solution": solution,
            "entry_point": main_function(solution),
            "tests": "\n".join(source.tests) + "\n",
        }
        for source in SOURCES
        for solution in source.solutions
    ]

    async def label_all():
        return await asyncio.gather(*(scenario.label_written(work) for work in works))

    labels = asyncio.run(label_all())
    wrong = [w["entry_point"] for w, made in zip(works, labels, strict=True) if made.y != 1]
    assert wrong == []
