"""Reads the rows of a dataset from where it lies, without regard to their meaning.

    Table            rows of one split, with the name to call it by in errors
    read_table_file  the rows of one file
    read_tables      the splits of a file, a directory, a saved or a Hugging Face dataset
    find_path        the file or directory at a place, if it can be read as one of these

Knows files and columns, not problems; `datasets` makes problems of rows.
"""

import gzip
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nip_base.formats.bounds import parse_json
from nip_base.formats.untrusted import read_text
from nip_core.distribution import how_to_install
from nip_core.errors import DatasetError
from nip_core.nearest import did_you_mean, nearest_first
from nip_core.proxies import prepare_proxies
from nip_core.redaction import check_address
from nip_core.scenarios.rows import SPLITS

SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz")
_SPLIT_ENDINGS = (".train", ".dev", ".test")
"""Of JSONL files that are named after their split, as QuALITY's are."""
_MOST_UNPACKED = 2 << 30  # bytes of a file that is packed
_MOST_LISTED = 64 << 20  # bytes of JSON that lists the files of a saved dataset
_NEAR = 0.75
"""A name that is so much like one of the scenario's own is not asked for on the Hub."""


@dataclass(frozen=True)
class Table:
    """The rows of one split, or of a file that is not split."""

    name: str
    """Where they came from, for errors."""
    columns: frozenset[str]
    rows: Sequence[Mapping[str, Any]]
    row_names: Sequence[str]
    """The name of each row in errors, as "FILE, row 3" or "FILE, line 3"; rows count from 0."""


def read_tables(dataset: str, names: Sequence[str] = ()) -> Mapping[str, Table]:
    """The splits of `dataset` by name; under "" rows without a split.

    Args:
        dataset: a Parquet or JSONL file; a directory with one such file for each split (also
            SPLIT-00000-of-00001.parquet, there or in data/, as Hugging Face repositories have);
            a directory made by `save_to_disk`; or else the name of a Hugging Face dataset.
        names: of the scenario's own data, for errors.

    Raises:
        DatasetError: it is not there, or a file can't be read. A word that is nearly one of
            `names` is refused before the Hub is asked.
    """
    path = find_path(os.path.expanduser(dataset), f"dataset {dataset!r:.200}")
    if path is not None:
        return _read_directory(path) if path.is_dir() else {"": read_table_file(path)}
    if (
        dataset.endswith((*SUFFIXES, *_SPLIT_ENDINGS))
        or dataset.startswith(("/", ".", "~"))
        or dataset.count("/") > 1
    ):
        bundled = f"a bundled set ({', '.join(names)}), " if names else ""
        raise DatasetError(
            f"dataset {dataset!r}: there is no such file or directory; give {bundled}a path that "
            "exists, or the name of a Hugging Face dataset"
        )
    if "/" not in dataset and (hint := did_you_mean(dataset, names, _NEAR)):
        raise DatasetError(
            f"dataset {dataset!r}: neither the scenario's own nor a path{hint}; its own are "
            f"{', '.join(nearest_first(dataset, names))}, and one on Hugging Face is OWNER/NAME"
        )
    return _read_hub(dataset, names)


def find_path(place: str, label: str) -> Path | None:
    """The file or the directory at a place; None if nothing is there.

    Raises DatasetError, which begins with `label`, for another thing that is there, such as a
    pipe, a device, a link to itself or to nothing, and for a place that can't be looked at.
    """
    path, advice = Path(place), "name a file or a directory"
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(path):
            raise DatasetError(f"{label}: is a link that leads nowhere; {advice}") from None
        return None
    except (OSError, ValueError) as error:  # a NUL byte is a ValueError
        reason = getattr(error, "strerror", None) or str(error)
        raise DatasetError(f"{label}: can't be read ({reason}); {advice}") from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DatasetError(f"{label}: is neither a file nor a directory; {advice}")
    return path


def _suffix(path: Path) -> str:
    return next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), "")


def read_table_file(path: Path) -> Table:
    suffix = _suffix(path)
    if not suffix and path.suffix not in _SPLIT_ENDINGS:
        raise DatasetError(f"{path}: expected a name that ends in one of {', '.join(SUFFIXES)}")
    return _read_parquet(path) if suffix == ".parquet" else _read_jsonl(path)


def _read_parquet(path: Path) -> Table:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(
            f"{path}: can't be read as Parquet, it may be cut off or something else "
            f"({_first_line(error)}); restore or rebuild the file"
        ) from error
    return _from_arrow(table, str(path))


def _from_arrow(table: pa.Table, name: str) -> Table:
    rows = table.to_pylist()
    names = [f"{name}, row {number}" for number in range(len(rows))]
    return Table(name, frozenset(table.column_names), rows, names)


def _read_jsonl(path: Path) -> Table:
    rows: list[Mapping[str, Any]] = []
    names: list[str] = []
    columns: set[str] = set()
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as packed:
                raw = packed.read(_MOST_UNPACKED + 1)
        else:
            raw = path.read_bytes()
        text = raw.decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError, gzip.zlib.error) as error:  # type: ignore[attr-defined]
        raise DatasetError(
            f"{path}: can't be read as UTF-8 text ({_first_line(error)}); restore the file"
        ) from error
    if path.suffix == ".gz" and len(raw) > _MOST_UNPACKED:
        raise DatasetError(
            f"{path}: holds more than {_MOST_UNPACKED >> 30} GiB; unpack it, if you trust it"
        )
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            raise DatasetError(
                f"{path}, line {number}: not JSON ({_first_line(error)}); each line must be one "
                "complete object"
            ) from error
        if not isinstance(row, dict):
            raise DatasetError(f"{path}, line {number}: expected an object, got {line[:60]!r}")
        rows.append(row)
        names.append(f"{path}, line {number}")
        columns.update(row)
    return Table(str(path), frozenset(columns), rows, names)


def _read_directory(directory: Path) -> Mapping[str, Table]:
    if (directory / "dataset_dict.json").is_file():
        names = _json_of(directory / "dataset_dict.json").get("splits", [])
        return {name: _read_saved(directory / name) for name in names}
    if (directory / "state.json").is_file():
        return {"": _read_saved(directory)}
    tables: dict[str, Table] = {}
    for split in SPLITS:
        files = [directory / (split + suffix) for suffix in SUFFIXES]
        files = [path for path in files if path.is_file()]
        if len(files) > 1:
            raise DatasetError(f"{directory}: {files[0].name} and {files[1].name}; keep one")
        shards = [*directory.glob(f"{split}-*.parquet"), *directory.glob(f"data/{split}-*.parquet")]
        if not files:
            files = sorted(path for path in shards if path.is_file())
        if files:
            tables[split] = _joined([read_table_file(path) for path in files], str(directory))
    if not tables:
        raise DatasetError(
            f"{directory}: holds no dataset; expected train, validation and test with one of the "
            f"endings {', '.join(SUFFIXES)}, or what save_to_disk writes"
        )
    return tables


def _joined(tables: Sequence[Table], name: str) -> Table:
    if len(tables) == 1:
        return tables[0]
    return Table(
        name,
        frozenset[str]().union(*(table.columns for table in tables)),
        [row for table in tables for row in table.rows],
        [row_name for table in tables for row_name in table.row_names],
    )


def _read_saved(directory: Path) -> Table:
    """One split as `datasets.Dataset.save_to_disk` writes it: Arrow streams listed in JSON."""
    state = _json_of(directory / "state.json")
    tables = []
    for entry in state.get("_data_files", []):
        path = directory / str(entry["filename"])
        if find_path(str(path), str(path)) is None:
            raise DatasetError(f"{path}: there is no such file; save the dataset again")
        try:
            with pa.memory_map(str(path)) as source:
                tables.append(_from_arrow(pa.ipc.open_stream(source).read_all(), str(path)))
        except (pa.ArrowException, OSError) as error:
            raise DatasetError(
                f"{path}: can't be read as an Arrow stream ({_first_line(error)}); save it again"
            ) from error
    return _joined(tables, str(directory))


def _json_of(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(read_text(path, _MOST_LISTED))
    except ValueError as error:
        raise DatasetError(f"{path}: {_first_line(error)}; save the dataset again") from error
    if not isinstance(content, dict):
        raise DatasetError(f"{path}: expected an object, got {type(content).__name__}")
    return content


def _read_hub(name: str, names: Sequence[str] = ()) -> Mapping[str, Table]:
    bundled = f"the scenario's own ({', '.join(names)})" if names else "the scenario's own"
    try:
        import datasets
    except ImportError as error:
        raise DatasetError(
            f"dataset {name!r} is neither {bundled} nor a path, and Hugging Face datasets need the "
            f"package `datasets`: {how_to_install('local')}"
        ) from error
    check_address("environment variable HF_ENDPOINT", datasets.config.HF_ENDPOINT)
    try:
        prepare_proxies(datasets.config.HF_ENDPOINT)
        splits = datasets.load_dataset(name)
    except Exception as error:  # any error of the hub, the network or a parser
        raise DatasetError(
            f"dataset {name!r} is neither {bundled} nor a path, and Hugging Face could not load it "
            f"({type(error).__name__}: {_first_line(error)}); check the name and the network"
        ) from error
    return {
        split: _from_arrow(data.with_format("arrow")[:], f"{name}[{split}]")
        for split, data in splits.items()
    }


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
