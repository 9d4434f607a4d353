"""A run: a named tree of files with one configuration.

check_run_name   the rule for names
Identity         the settings and contents behind a run's name
RunStore         the tree of one run: its paths, run.json, small JSON documents, forking
read_document    a JSON document of the run as the model of its kind
list_runs        names of the runs in a store

The tree lies directly under the store::

    <run>/run.json                          parameters, code version, seed, creation time
    <run>/openings/0001.json                later openings that changed something harmless
    <run>/estimate.json, left_out.json      its expected size; problems that are too long
    <run>/lease.json, fences/               see `nip_core.run_store.lease`
    <run>/journals/0003/<split>/<shard>.journal
    <run>/iterations/0003/rollouts/<split>/ manifests and Parquet files
    <run>/iterations/0003/datasets/<group>/
    <run>/iterations/0003/jobs/<group>.json
    <run>/iterations/0003/models.json, metrics-<split>.json, intervals-<split>.json, times.json
    <run>/shown/0000.json                   iterations that are over, again, to be read at once
    <run>/tracking/, superseded/0001/       points of trackers; files set aside by rewinds
    <run>/notes.jsonl                       people's notes on episodes; in no manifest
"""

import json
import logging
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import BaseModel

from nip_core.errors import RunConflictError, SettingsError, StoreError
from nip_core.parameters.named_files import find_on_record
from nip_core.run_store.documents import decode, encode, validate_document
from nip_core.run_store.lease import Lease
from nip_core.run_store.manifest import MANIFEST
from nip_core.run_store.run_documents import (
    FORMAT_VERSION,
    DeclaredBefore,
    OpeningDocument,
    RunDocument,
)
from nip_core.run_store.settings_difference import (
    ABSENT,
    Difference,
    compare_leaves,
    drop_same_files,
    find_same_contents,
    flatten,
    is_neutral,
    settings_on_record,
    show_value,
)
from nip_core.run_store.store import MissingFileError, Store, list_files

_Document = TypeVar("_Document", bound=BaseModel)

_CONFLICTS_SHOWN = 5
RUN_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")

_log = logging.getLogger(__name__)
_SEED = "seed (of the run)"


@dataclass(frozen=True)
class Identity:
    """The settings of a run, and the content of files they name: its name stands for both."""

    parameters: Mapping[str, Any]
    code_version: str
    seed: int
    contents: Mapping[str, Any] = field(default_factory=dict)
    """Digests of contents that settings name (problems, templates, models); they have to agree like
    settings."""
    data_neutral: Collection[str] = ()
    """Settings by dotted key, each with all that lies under it, that may differ; a new value is
    recorded in ``openings/``."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Where contents lie, by dotted key, for errors; not on record."""
    declaration: DeclaredBefore | None = None
    """Under which the run begins; of a run that is there already it changes nothing."""

    def settings(self) -> dict[str, Any]:
        """Give the parameters as JSON reads them back: tuples are lists."""
        return dict(json.loads(json.dumps(self.parameters, allow_nan=False)))


@dataclass(frozen=True)
class RunRecord:
    """A run on record: run.json, with the latest values of the changeable settings."""

    run: str
    parameters: Mapping[str, Any]
    code_version: str
    seed: int
    created_at: str  # ISO 8601, UTC
    created: bool  # by this opening
    changed: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)  # key -> (before, now)
    forked_from: str | None = None
    contents: Mapping[str, Any] = field(default_factory=dict)
    declaration: DeclaredBefore | None = None


def check_run_name(name: str) -> str:
    """Return `name`, or raise SettingsError with the broken rule."""
    if not RUN_NAME.fullmatch(name):
        raise SettingsError(
            f"run_name: {name!r} can't be used; at most 41 lower-case letters, digits and dashes, "
            "beginning with a letter or digit, because it becomes part of artifact keys, of job "
            "suffixes and of model names"
        )
    return name


class RunStore:
    """The tree of one run in `store`. Making one touches no file."""

    def __init__(self, store: Store, run_name: str) -> None:
        """Raises SettingsError for an impossible name."""
        self.store = store
        self.name = check_run_name(run_name)

    # Paths ------------------------------------------------------------------------------------

    @property
    def root(self) -> str:
        """Directory of the run in the store."""
        return self.name

    def iteration(self, iteration: int) -> str:
        """Directory of an iteration."""
        if not 0 <= iteration <= 9999:
            raise SettingsError(f"iteration: {iteration} is not within 0 and 9999")
        return f"{self.root}/iterations/{iteration:04d}"

    def rollouts(self, iteration: int, split: str) -> str:
        """Directory of the rollouts of one split."""
        return f"{self.iteration(iteration)}/rollouts/{_part(split)}"

    def dataset(self, iteration: int, group: str) -> str:
        """Directory of a model group's training examples."""
        return f"{self.iteration(iteration)}/datasets/{_part(group)}"

    def job(self, iteration: int, group: str) -> str:
        """The document of a model group's fine-tune job."""
        return f"{self.iteration(iteration)}/jobs/{_part(group)}.json"

    def models(self, iteration: int) -> str:
        """The document of the swap: the model of each group from here on."""
        return f"{self.iteration(iteration)}/models.json"

    def metrics(self, iteration: int, split: str) -> str:
        """The document with the metrics of one split of the iteration."""
        return f"{self.iteration(iteration)}/metrics-{_part(split)}.json"

    def intervals(self, iteration: int, split: str) -> str:
        """The document with the intervals by question of one split of the iteration."""
        return f"{self.iteration(iteration)}/intervals-{_part(split)}.json"

    @property
    def notes(self) -> str:
        """The notes of people about episodes; see `nip_core.showing.episodes.notes`."""
        return f"{self.root}/notes.jsonl"

    def journal(self, iteration: int, split: str, shard: str) -> str:
        """The journal of a shard: a file on a disk, a directory of segments elsewhere."""
        return f"{self.root}/journals/{iteration:04d}/{_part(split)}/{_part(shard)}.journal"

    # run.json ---------------------------------------------------------------------------------

    def create_or_open(
        self,
        identity: Identity,
        *,
        now: datetime | None = None,
        forked_from: str | None = None,
        lease: Lease | None = None,
    ) -> RunRecord:
        """Create the run, or open it if its settings say the same data.

        Raises RunConflictError with the difference if other settings differ, or if iterations
        stand there without a run.json (a fork that was killed).
        """
        # 1. The content of run.json.
        settings, version = identity.settings(), identity.code_version
        moment = (now or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="milliseconds")
        document = RunDocument(
            run=self.name,
            parameters=settings,
            contents=dict(identity.contents),
            code_version=version,
            seed=identity.seed,
            data_neutral=sorted(identity.data_neutral),
            created_at=moment,
            forked_from=forked_from,
            directory=os.getcwd(),
            declaration=identity.declaration,
        )
        # 2. A killed fork has copied iterations, and not yet named their run.
        if not forked_from:
            self._refuse_half_a_fork()
        # 3. The first process to write run.json has created the run.
        if self.store.put_if_absent(f"{self.root}/run.json", encode(document.model_dump())):
            return RunRecord(
                self.name, settings, version, identity.seed, moment, True, {}, forked_from
            )
        # 4. All others open it, with settings that give the same data.
        difference = self.check_same(identity)
        record = self.open()
        if difference or record.code_version != version:
            self._record_opening(settings, version, moment, difference, lease)
        return replace(record, parameters=settings, code_version=version, changed=difference)

    def _refuse_half_a_fork(self) -> None:
        has_iterations = bool(self.store.list(f"{self.root}/iterations"))
        if has_iterations and not self.store.exists(f"{self.root}/run.json"):
            raise RunConflictError(
                f"run {self.name!r}: there are iterations but no run.json, as a killed fork leaves "
                "them; repeat the fork, use another run_name, or delete the directory"
            )

    def check_same(self, identity: Identity) -> Difference:
        """Find the harmless differences to the run on record; nothing is written.

        Settings that the run's version of nip did not have yet count as their defaults. Raises
        RunConflictError with the differences that change the data. A run that is not there has
        none. The code version may differ; it is recorded when the run is opened.
        """
        # 1. The settings on record, with defaults for newer settings.
        try:
            record = self.open()
        except MissingFileError:
            return {}
        settings, neutral = identity.settings(), identity.data_neutral
        difference = compare_leaves(
            {**settings_on_record(record.parameters, settings), _SEED: record.seed},
            {**flatten(settings), _SEED: identity.seed},
        )
        difference = drop_same_files(difference)
        if "seed" in difference:  # said once
            difference.pop(_SEED, None)
        # 2. Without settings that change no data.
        harmless = {*neutral, *find_same_contents(difference, record.contents, identity.contents)}
        conflicts = {k: v for k, v in difference.items() if not is_neutral(k, harmless)}
        # 3. A file of the same name may hold something else by now.
        changed_contents = compare_leaves(flatten(record.contents), flatten(identity.contents))
        conflicts |= {f"content of {key}": value for key, value in changed_contents.items()}
        if conflicts:
            places = {f"content of {key}": place for key, place in identity.places.items()}
            advice = "use these settings"
            if any(key in changed_contents for key in identity.places):
                advice += " and the files as they were"
            # A value in both says more than one in only one of them, like an agent's whole block.
            by_weight = sorted(conflicts.items(), key=lambda item: ABSENT in item[1])
            first_conflicts = by_weight[:_CONFLICTS_SHOWN]
            more = ""
            if len(conflicts) > len(first_conflicts):
                more = (
                    f"; and {len(conflicts) - len(first_conflicts)} more: "
                    f"{self.store.url}/{self.root}/run.json has the stored settings, "
                    "nip train --dry-run --json the given ones"
                )
            raise RunConflictError(
                f"run {self.name!r} exists with settings that give other data (stored -> given): "
                + "; ".join(
                    f"{k}: {places[k]} is not what it was when the run began"
                    if k in places and ABSENT not in (a, b)
                    else f"{k}: {show_value(a)} -> {show_value(b)}"
                    for k, (a, b) in first_conflicts
                )
                + more
                + f"; {advice}, another run_name, or --fork NEW_NAME to go on from it"
            )
        return difference

    def open(self) -> RunRecord:
        """Read the run as its latest opening left it. Raises MissingFileError if there is none."""
        path = f"{self.root}/run.json"
        value = self.read_json(path)
        # The version before all else: a later one may have other keys.
        version = value.get("format_version", FORMAT_VERSION)
        if version != FORMAT_VERSION:
            raise StoreError(
                f"{path}: format version {version}, this version of nip reads {FORMAT_VERSION}; "
                "use the version that wrote it"
            )
        document = validate_document(value, RunDocument, path)
        latest: RunDocument | OpeningDocument = document
        for name in self.store.list(f"{self.root}/openings"):
            place = f"{self.root}/openings/{name}"
            latest = validate_document(self.read_json(place), OpeningDocument, place)
        folder = self.store.local_path(self.root)
        return RunRecord(
            document.run,
            find_on_record(latest.parameters, latest.directory, folder),
            latest.code_version,
            document.seed,
            document.created_at,
            False,
            {},
            document.forked_from,
            document.contents,
            document.declaration,
        )

    def _record_opening(
        self,
        parameters: Mapping[str, Any],
        code_version: str,
        moment: str,
        difference: Difference,
        lease: Lease | None,
    ) -> None:
        fence = lease.fence if lease else None
        document = OpeningDocument(
            opened_at=moment,
            code_version=code_version,
            parameters=dict(parameters),
            changed={key: list(values) for key, values in difference.items()},
            directory=os.getcwd(),
        )
        number = len(self.store.list(f"{self.root}/openings")) + 1
        while not self.store.put_if_absent(
            f"{self.root}/openings/{number:04d}.json", encode(document.model_dump()), fence=fence
        ):
            number += 1

    # Small documents --------------------------------------------------------------------------

    def read_json(self, path: str) -> Any:
        """Read a JSON document. Raises MissingFileError, or CorruptionError if it is damaged."""
        return decode(self.store.get(path), path)

    def read_json_or_none(self, path: str) -> Any | None:
        """Read a JSON document; None if there is none."""
        try:
            return self.read_json(path)
        except MissingFileError:
            return None

    def write_json_once(self, path: str, value: Any, *, lease: Lease | None = None) -> Any:
        """Write a JSON document if there is none; return the one on disk.

        The first to write has won: use the returned value, not `value`.
        """
        if lease is not None:
            lease.check()
        if self.store.put_if_absent(path, encode(value), fence=lease.fence if lease else None):
            return value
        document = self.read_json(path)
        if document != decode(encode(value), path):
            _log.warning("%s: already written with another content, which is kept", path)
        return document

    # Iterations and forks ---------------------------------------------------------------------

    def finished_iterations(self, first: int = 0) -> int:
        """Count the iterations, from the first without a gap, with a models.json.

        The store is not asked about the `first` iterations, which are known to have it.
        """
        count = first
        while self.store.exists(self.models(count)):
            count += 1
        return count

    def fork(
        self,
        new_name: str,
        identity: Identity,
        *,
        iterations: int | None = None,
        now: datetime | None = None,
        also: Collection[str] = (),
    ) -> "RunStore":
        """Start run `new_name` from the first `iterations` finished iterations of this one.

        None takes all that are finished. Committed files of those iterations are copied;
        unfinished work is not. `also` names files under the run's root to copy as they are.
        run.json comes last, so a killed fork is repeated as a whole. Hold this run's lease.
        Raises RunConflictError if `new_name` exists, or has anything that is no copy of this run.
        """
        fork = RunStore(self.store, new_name)
        if self.store.exists(f"{fork.root}/run.json"):
            raise RunConflictError(f"run {new_name!r} exists; choose another name for --fork")
        # 1. There is a run, with as many finished iterations.
        self.open()
        finished = self.finished_iterations()
        count = finished if iterations is None else iterations
        if not 0 <= count <= finished:
            raise SettingsError(
                f"--fork: {count} iterations asked for, run {self.name!r} has finished {finished}"
            )
        # 2. A fork of the same name that was killed is begun anew, if it is one of this run.
        self._clear_killed_fork(fork)
        # 3. Copy the committed files.
        for iteration in range(count):
            self._copy_iteration(fork, iteration)
        for name in also:
            path = f"{self.root}/{name}"
            self.store.put(
                f"{fork.root}/{name}", self.store.local_path(path) or self.store.get(path)
            )
        # 4. Name its run: from here on the fork is there.
        fork.create_or_open(identity, now=now, forked_from=self.name)
        return fork

    def _clear_killed_fork(self, fork: "RunStore") -> None:
        """Delete the files of a killed `fork`, if all of them are copies of this run's."""
        copies = list(list_files(self.store, f"{fork.root}/iterations"))
        for path in copies:
            source = f"{self.root}/{path.removeprefix(f'{fork.root}/')}"
            if not self.store.exists(source) or self.store.get(source) != self.store.get(path):
                raise RunConflictError(
                    f"{self.store.url}/{path}: no copy of run {self.name!r}, and no run.json is "
                    f"beside it; choose another name for --fork, or move {fork.name!r} away"
                )
        for path in copies:
            self.store.delete(path)

    def _copy_iteration(self, fork: "RunStore", iteration: int) -> None:
        source, target = self.iteration(iteration), fork.iteration(iteration)
        for path in list_files(self.store, source):
            relative = path.removeprefix(f"{source}/")
            folder = path.rpartition("/")[0]
            # Its documents are each written at once; a group of files is there with its manifest.
            is_group = relative.startswith(("rollouts/", "datasets/"))
            if is_group and not self.store.exists(f"{folder}/{MANIFEST}"):
                continue  # still being played or built
            content = self.store.local_path(path) or self.store.get(path)
            self.store.put(f"{target}/{relative}", content)


def read_document(run: RunStore, path: str, kind: type[_Document]) -> _Document | None:
    """Read the JSON document at a path of the store as its `kind`; None if there is none.

    Raises CorruptionError with the path, and with the key at fault, if it is damaged.
    """
    value = run.read_json_or_none(path)
    return None if value is None else validate_document(value, kind, path)


def list_runs(store: Store) -> list[str]:
    """List the names of the runs in the store, sorted, unreadable ones included."""
    names = [name.rstrip("/") for name in store.list("") if name.endswith("/")]
    return [name for name in names if RUN_NAME.fullmatch(name) and _is_run(store, name)]


def _is_run(store: Store, name: str) -> bool:
    try:
        return store.exists(f"{name}/run.json")
    except StoreError:  # no permission, say: opening the run tells it, and the rest is listed
        return True


def _part(name: str) -> str:
    """Return `name`, checked to be one part of a path."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", name):
        raise SettingsError(
            f"{name!r}: can't be a file name; use letters, digits, '_', '.' and '-', at most 100"
        )
    return name
