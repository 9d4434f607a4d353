"""Notes and stars of episodes, beside the committed files of a run.

The file is ``<run>/notes.jsonl``. Each line says what a reader changed, and of which play; nothing
is ever taken out of it. A line is added under a condition, that the file is as it was read, so of
two people who write at once neither loses words. No manifest names the file, no digest has a
part of it, and writing it takes no lease: neither `nip verify` nor a run that goes on sees it.

An episode has the same key when it is played again. So its notes stay; `NotedPlay` tells whether
they are about the present play.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Lock

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError

from nip_core.errors import CorruptionError, NipError, SettingsError, StoreError
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import MissingFileError, Store, open_store
from nip_core.showing.episodes.episode_filters import EpisodeFilters
from nip_core.showing.episodes.episode_index import IndexedEpisode

MOST_CHARACTERS = 10_000
"""Of a note."""
_TRIES = 50  # of adding a line, each lost to another writer
_COLUMNS = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("star", pa.bool_()),
        pa.field("note", pa.string()),
        pa.field("at", pa.string()),
        pa.field("iteration", pa.int32()),
        pa.field("split", pa.string()),
        pa.field("problem", pa.string()),
        pa.field("sample", pa.int32()),
        pa.field("branch_path", pa.string()),
        pa.field("verdict", pa.string()),
    ]
)


class NotedPlay(BaseModel):
    """The play of an episode that a note is about."""

    model_config = ConfigDict(frozen=True, extra="allow")

    iteration: int
    split: str
    problem: str
    sample: int
    branch_path: str = ""
    verdict: str
    decision: int
    completion_tokens: int

    @classmethod
    def of(cls, episode: IndexedEpisode) -> "NotedPlay":
        """Make it of a row of the index."""
        return cls(**{name: getattr(episode, name) for name in cls.model_fields})


class NoteLine(BaseModel):
    """A change by a reader; None: left as it was."""

    model_config = ConfigDict(frozen=True, extra="allow")

    key: str
    at: str
    """ISO 8601, UTC."""
    star: bool | None = None
    note: str | None = None
    """All of it; "" takes it away."""
    about: NotedPlay


@dataclass(frozen=True)
class EpisodeNote:
    """The present note of an episode."""

    key: str
    star: bool
    note: str
    at: str
    about: NotedPlay

    @property
    def mark(self) -> str:
        """A short digest of the words, by which a form says which ones it has shown."""
        return mark_of(self.note)

    def is_of(self, episode: IndexedEpisode) -> bool:
        """Tell whether the note is about this play: the episode was not played again since."""
        return self.about == NotedPlay.of(episode)


def mark_of(note: str) -> str:
    """Compute the mark of a note's words."""
    return hashlib.sha256(note.encode("utf-8", "replace")).hexdigest()[:16]


class RunNotes:
    """The notes of a run. Safe to use from several threads, processes and machines."""

    def __init__(self, tree: RunStore) -> None:
        """Reads nothing yet."""
        self._tree, self._path = tree, tree.notes
        self._lock = Lock()
        self._data, self._known = b"", dict[str, EpisodeNote]()
        self._writable: Store | None = None

    def read(self) -> Mapping[str, EpisodeNote]:
        """Read the present notes, by the key of the episode.

        Raises CorruptionError with the line that is damaged.
        """
        try:
            data = self._tree.store.get(self._path)
        except MissingFileError:
            data = b""
        with self._lock:
            if data != self._data:
                self._known, self._data = self._parse(data), data
            return self._known

    def _parse(self, data: bytes) -> dict[str, EpisodeNote]:
        notes: dict[str, EpisodeNote] = {}
        for number, line in enumerate(data.split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                change = NoteLine.model_validate_json(line)
            except ValidationError as error:
                fault = error.errors()[0]
                place = ".".join(map(str, fault["loc"]))
                raise CorruptionError(
                    f"{self._path}, line {number}: no note ({f'{place}: ' if place else ''}"
                    f"{fault['msg']}); mend the line or delete it"
                ) from error
            notes[change.key] = _apply(change, notes.get(change.key))
        return {key: note for key, note in notes.items() if note.star or note.note}

    def find_keys(self, filters: EpisodeFilters) -> pa.Array | None:
        """Find the episodes with notes that filters ask for; None where they ask for none."""
        if not filters.asks_for_notes:
            return None
        part = (filters.note or "").casefold()
        keys = [
            note.key
            for note in self.read().values()
            if (filters.noted != "starred" or note.star)
            and (filters.noted != "note" or note.note)
            and part in note.note.casefold()
        ]
        return pa.array(keys, pa.string())

    def table(self) -> pa.Table:
        """Return the present notes as a table, a row per episode."""
        rows = [
            {
                "key": note.key,
                "star": note.star,
                "note": note.note,
                "at": note.at,
                **note.about.model_dump(),
            }
            for note in self.read().values()
        ]
        return pa.Table.from_pylist(
            [{name: row[name] for name in _COLUMNS.names} for row in rows], _COLUMNS
        )

    def write(
        self,
        episode: IndexedEpisode,
        *,
        star: bool | None = None,
        note: str | None = None,
        read_mark: str | None = None,
        now: datetime | None = None,
    ) -> bool:
        """Give an episode a star, or take it away; and write its note. None changes nothing.

        `read_mark` is the mark of the note that the writer has read. If it is another by now,
        another user has written meanwhile: then both stay, and the result is True. Raises
        SettingsError for a note that is too long, StoreError if the store takes nothing.
        """
        if note is not None:
            note = note.replace("\r\n", "\n").replace("\r", "\n").strip()
            note = note.encode("utf-8", "replace").decode()  # halves of pairs can't be kept
            if len(note) > MOST_CHARACTERS:
                raise SettingsError(
                    f"the note has {len(note):,} characters; at most {MOST_CHARACTERS:,} are kept"
                )
        moment = (now or datetime.now(UTC)).isoformat(timespec="seconds")
        line = NoteLine(
            key=episode.key, at=moment, star=star, note=note, about=NotedPlay.of(episode)
        )
        store = self._open_writable()
        for _ in range(_TRIES):
            try:
                data, tag = store.get_with_etag(self._path)
            except MissingFileError:
                data, tag = b"", ""
            earlier_note = self._parse(data).get(episode.key)
            new_line = _keep_both(line, earlier_note, read_mark)
            if new_line is None:
                return False
            is_joined = new_line.note not in (None, line.note)
            more = data + (b"" if data.endswith(b"\n") or not data else b"\n")
            more += new_line.model_dump_json(exclude_none=True).encode() + b"\n"
            if not data and not tag:
                if store.put_if_absent(self._path, more):
                    return is_joined
            elif store.put_if_match(self._path, more, tag) is not None:
                return is_joined
        raise StoreError(f"{self._path}: others keep writing notes; try again")

    def find_obstacle(self) -> str:
        """Say in words why nothing can be written here, as far as that shows; "" where it can."""
        place = self._tree.store.local_path(self._tree.root)
        if place is None or os.access(place, os.W_OK):
            return ""
        return f"{place} can't be written by this user"

    def _open_writable(self) -> Store:
        with self._lock:
            if self._writable is None:
                try:
                    self._writable = open_store(self._tree.store.url)
                except NipError as error:
                    raise StoreError(
                        f"the note is not kept, as {self._tree.store.url} can't be written: {error}"
                    ) from error
            return self._writable


def _apply(line: NoteLine, earlier: EpisodeNote | None) -> EpisodeNote:
    if earlier is None:
        return EpisodeNote(line.key, bool(line.star), line.note or "", line.at, line.about)
    new_note = replace(earlier, star=earlier.star if line.star is None else line.star)
    if line.note is None and earlier.note:
        return new_note  # which is still about the same play
    note = earlier.note if line.note is None else line.note
    return replace(new_note, note=note, at=line.at, about=line.about)


def _keep_both(
    line: NoteLine, earlier: EpisodeNote | None, read_mark: str | None
) -> NoteLine | None:
    """Put a note below one that its writer has not seen; None where nothing changes."""
    star, note = (False, "") if earlier is None else (earlier.star, earlier.note)
    words = line.note
    if words is not None and read_mark is not None and read_mark != mark_of(note) and note != words:
        words = f"{note}\n\n{words}".strip()
    changes = {
        "star": None if line.star == star else line.star,
        "note": None if words == note else words,
    }
    return None if {*changes.values()} == {None} else line.model_copy(update=changes)
