"""The order of the matrix: by how a problem ended last, or by how often that has changed."""

import pyarrow as pa
import pytest

from nip_view.parts.matrix import count_matrix


def table_of(problems):
    """Episodes of problems, whose verdicts are named by iteration."""
    rows = [
        {"problem": problem, "iteration": iteration, "verdict": verdict, "key": f"{problem}-{k}",
         "about": "", "y": 1, "difficulty": None, "mutation": None}
        for problem, iterations in problems.items()
        for iteration, verdicts in iterations.items()
        for k, verdict in enumerate(verdicts.split())
    ]  # fmt: skip
    names = ("problem", "verdict", "key", "about", "difficulty", "mutation")
    kinds = {**dict.fromkeys(names, pa.string()), "iteration": pa.int32(), "y": pa.int8()}
    return pa.Table.from_pylist(rows, schema=pa.schema(list(kinds.items())))


@pytest.mark.parametrize(
    ("sort", "problems"),
    [
        (
            "failures",
            {
                "failed-now": {0: "right right", 1: "right failed"},
                "wrong-now-and-always": {0: "wrong", 1: "wrong"},
                "wrong-now": {0: "right", 1: "wrong"},
                "wrong-when-last-played": {0: "wrong"},
                "half-wrong-now": {0: "wrong wrong", 1: "right wrong"},
                "failed-long-ago": {0: "failed", 1: "right"},
            },
        ),
        (
            "changed",
            {
                "changed-twice": {0: "right", 2: "wrong", 4: "right"},
                "changed-over-a-gap": {0: "right", 3: "wrong"},
                "always-wrong-with-gaps": {0: "wrong", 2: "wrong", 4: "wrong"},
                "wrong-once-it-is-played": {3: "wrong"},
            },
        ),
    ],
)
def test_the_order_is_what_its_name_says(sort, problems):
    ordered = count_matrix(table_of(problems), range(5), 0, 9, sort).rows
    assert [row.problem for row in ordered] == list(problems)
