"""The tables of a run as others take them: rollouts and training examples, as Parquet, with a card.

write_run_tables  all that is committed of them, into a new directory

Files are those that the run has committed, byte for byte, but where the column `error` of an
episode quotes an address or a path, which are left out. Times of calls stay here.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nip_bridges.hub.adapter_of_run import select_settings
from nip_bridges.hub.cards import dataset_card
from nip_bridges.hub.nip_json import Lineage, TableFacts, TablesFacts, TableSplit
from nip_bridges.hub.privacy import hide_lineage, hide_places
from nip_bridges.hub.repository import CARD, new_directory, seal
from nip_core.errors import SettingsError
from nip_core.rollouts.storage.parquet import parquet_bytes, parquet_table
from nip_core.rollouts.storage.schema import CHOICES, EPISODES, GENERATIONS
from nip_core.rollouts.storage.shard_manifests import shard_manifest, shards_of
from nip_core.run_store.facts import DatasetFacts, SplitFacts
from nip_core.run_store.manifest import is_committed, read_committed_file, read_manifest
from nip_core.run_store.run import RunStore
from nip_core.trainers.dataset import FILES, choose_schema

_ROLLOUTS = {"episodes": EPISODES, "generations": GENERATIONS, "choices": CHOICES}


@dataclass(frozen=True)
class _Part:
    """One Parquet file of a table."""

    table: str
    split: str
    iteration: int
    name: str
    content: bytes
    schema: pa.Schema
    place: str  # in the run store, for errors


@dataclass(frozen=True)
class _Table:
    """The files of a table written so far."""

    schema: pa.Schema
    splits: dict[str, TableSplit] = field(default_factory=dict)

    def add(self, part: _Part, rows: int) -> None:
        """Count one more file."""
        earlier = self.splits.get(part.split)
        count, iterations = (earlier.rows, earlier.iterations) if earlier else (0, ())
        self.splits[part.split] = TableSplit(
            rows=count + rows, iterations=tuple(sorted({*iterations, part.iteration}))
        )

    def to_facts(self) -> TableFacts:
        """Describe it for ``nip.json``."""
        columns = tuple((column.name, str(column.type)) for column in self.schema)
        return TableFacts(splits=self.splits, columns=columns)


@dataclass(frozen=True)
class _Digests:
    """The digests of splits and datasets, by iteration and split or group."""

    rollouts: dict[str, str] = field(default_factory=dict)
    datasets: dict[str, str] = field(default_factory=dict)


def write_run_tables(
    run: RunStore,
    target: Path,
    *,
    place: str,
    iterations: Collection[int] = (),
    group: str | None = None,
    license_id: str | None = None,
    secrets: Mapping[str, str],
) -> TablesFacts:
    """Write the tables, ``nip.json`` and the card to the new directory `target`.

    `iterations`: those alone, if any; `group`: the training examples of that one alone.

    Raises SettingsError if there are none, or one has one of `secrets` in it, see
    `nip_bridges.hub.privacy.find_secrets`; CorruptionError for a file that is not what was
    committed.
    """
    record = run.open()
    tables: dict[str, _Table] = {}
    digests = _Digests()
    with new_directory(target) as part:
        for piece in _read_parts(run, iterations, group, digests):
            content, rows = _remove_places(piece, secrets)
            file = part / piece.table / piece.split / piece.name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            tables.setdefault(piece.table, _Table(piece.schema)).add(piece, rows)
        if not tables:
            raise SettingsError(
                f"run {run.name!r} has played nothing yet of what was asked for; there is nothing "
                "to publish"
            )
        lineage = Lineage(
            run=run.name,
            group=group,
            problems=dict(record.contents.get("problems") or {}),
            seed=record.seed,
            code_version=record.code_version,
        )
        facts = TablesFacts(
            lineage=hide_lineage(lineage),
            license=license_id,
            tables={name: table.to_facts() for name, table in tables.items()},
            rollouts=digests.rollouts,
            datasets=digests.datasets,
            settings=select_settings(record),
        )
        (part / CARD).write_text(dataset_card(place, facts), encoding="utf-8")
        return seal(part, facts)


def _read_parts(
    run: RunStore,
    iterations: Collection[int],
    group: str | None,
    digests: _Digests,
) -> Iterator[_Part]:
    """Read the files one by one, and collect the digests of their splits and datasets."""
    for iteration in iterations or range(run.finished_iterations() + 1):
        for split in _list_committed(run, f"{run.iteration(iteration)}/rollouts"):
            directory = run.rollouts(iteration, split)
            whole = read_manifest(run.store, directory)
            digests.rollouts[f"{iteration:04d}/{split}"] = SplitFacts.from_manifest(
                whole
            ).canonical_digest
            for shard in shards_of(whole):
                manifest = read_manifest(run.store, directory, shard_manifest(shard))
                for file in manifest.files:
                    table = file.partition("-")[0]
                    if table in _ROLLOUTS:
                        yield _Part(
                            table,
                            split,
                            iteration,
                            f"{iteration:04d}-{shard}.parquet",
                            read_committed_file(run.store, manifest, file),
                            _ROLLOUTS[table],
                            manifest.path(file),
                        )
        for dataset in _list_committed(run, f"{run.iteration(iteration)}/datasets"):
            if group not in (None, dataset):
                continue
            manifest = read_manifest(run.store, run.dataset(iteration, dataset))
            facts = DatasetFacts.from_manifest(manifest)
            method = facts.method
            digests.datasets[f"{iteration:04d}/{dataset}"] = facts.digest
            content = read_committed_file(run.store, manifest, FILES[method])
            place = manifest.path(FILES[method])
            yield _Part(
                f"{FILES[method].removesuffix('.parquet')}-{dataset}",
                "train",
                iteration,
                f"{iteration:04d}.parquet",
                content,
                choose_schema(pq.read_schema(pa.BufferReader(content)), method, place),
                place,
            )


def _list_committed(run: RunStore, directory: str) -> Iterable[str]:
    """List the committed folders of a directory."""
    names = [name.rstrip("/") for name in run.store.list(directory) if name.endswith("/")]
    return [name for name in sorted(names) if is_committed(run.store, f"{directory}/{name}")]


def _texts(name: str, column: pa.ChunkedArray) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Give all texts of a column, also in its lists and structs, with the names of their places."""
    if pa.types.is_list(column.type):
        yield from _texts(name, pc.list_flatten(column))
    elif pa.types.is_struct(column.type):
        for field in column.type:
            yield from _texts(f"{name}.{field.name}", pc.struct_field(column, field.name))
    elif pa.types.is_string(column.type):
        yield name, column


def _remove_places(piece: _Part, secrets: Mapping[str, str]) -> tuple[bytes, int]:
    """Prepare a file for publishing, and count its rows. Raises SettingsError for a secret."""
    table = parquet_table(piece.content, piece.schema, piece.place, None)
    columns = zip(table.column_names, table.columns, strict=True)
    for name, texts in (leaf for column in columns for leaf in _texts(*column)):
        for secret, kind in secrets.items():
            if pc.any(pc.match_substring(texts, secret)).as_py():
                raise SettingsError(
                    f"nothing was published: {piece.place}, column {name}, has {kind} in it"
                )
    if piece.table == "episodes":
        errors = table["error"].to_pylist()
        plain = [None if error is None else hide_places(error) for error in errors]
        if plain != errors:
            place = table.schema.get_field_index("error")
            field = table.schema.field(place)
            table = table.set_column(place, field, pa.array(plain, field.type))
            return parquet_bytes(table), table.num_rows
    return piece.content, table.num_rows
