"""What trackers have, read from their own files: by name and step, every value that is there."""

import json
import sqlite3
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

Points = dict[tuple[str, int], list[float]]


def of_tensorboard(folder: Path) -> Points:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    points: Points = defaultdict(list)
    for path in sorted(folder.glob("*/*tfevents*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                points[value.tag, event.step].append(value.simple_value)
    return points


def of_mlflow(database: Path) -> Points:
    points: Points = defaultdict(list)
    with sqlite3.connect(database) as connection:
        for name, step, value in connection.execute("SELECT key, step, value FROM metrics"):
            points[name, step].append(value)
    return points


def of_mlflow_files(folder: Path) -> Points:
    """Of the store that keeps a file for each metric, a line for each point."""
    points: Points = defaultdict(list)
    for path in folder.glob("*/*/metrics/**/*"):
        if path.is_file():
            name = str(path.relative_to(next(p for p in path.parents if p.name == "metrics")))
            for line in path.read_text().splitlines():
                _, value, step = line.split()[:3]
                points[name, int(step)].append(float(value))
    return points


def of_trackio(folder: Path, project: str = "nip") -> Points:
    points: Points = defaultdict(list)
    with sqlite3.connect(folder / f"{project}.db") as connection:
        for step, values in connection.execute("SELECT step, metrics FROM metrics"):
            for name, value in json.loads(values).items():
                points[name, step].append(value)
    return points


def of_wandb(folder: Path) -> Points:
    """Of all offline runs; the step of a point is that of its own axis."""
    points: Points = defaultdict(list)
    steps: list[int] = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for number, row in _history(path):
            steps.append(number)
            row = {k: v for k, v in row.items() if not k.startswith("_")}
            [axis] = [name for name in row if name == "iteration" or name.endswith("/step")]
            step = int(row.pop(axis))
            for name, value in row.items():
                points[name, step].append(value)
    assert sorted(steps) == [*range(len(steps))]
    return points


def wandb_ids(folder: Path) -> set[str]:
    """The ids of the runs in all files."""
    paths = folder.glob("wandb/offline-run-*/*.wandb")
    return {
        r.run.run_id
        for path in paths
        for r in _records(path)
        if r.WhichOneof("record_type") == "run"
    }


def _history(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    for record in _records(path):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            yield (
                record.history.step.num,
                {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in items
                },
            )


def _records(path: Path):
    """W&B's file has the format of LevelDB's log, with a header of 7 bytes, and protocol buffers."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, block, whole = path.read_bytes(), 7, 32768, b""
    while place + 7 <= len(data):
        if block - place % block < 7:  # no room for another header
            place += block - place % block
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        if kind == 0:
            return
        whole = (b"" if kind in (1, 2) else whole) + data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # full, or the last of several
            yield Record.FromString(whole)
