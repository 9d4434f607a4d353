"""The digest of a dataset, by way of a file of it."""

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from nip_core.parameters import Method
from nip_core.trainers.base import AnyExample
from nip_core.trainers.dataset import write_examples


def dataset_digest(rows: Iterable[Mapping[str, Any]], method: Method = "supervised") -> str:
    """What is said of these rows when they are written."""
    examples = [SimpleNamespace(**row) for row in rows]
    for example in examples:
        if method == "trajectories":
            example.turns = [SimpleNamespace(**turn) for turn in example.turns]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.parquet"
        return write_examples(file, method, cast(list[AnyExample], examples)).digest
