"""The runs that are shown, each with its index, its records and its game.

ShownRun   one of them
ShownRuns  those of a store, or those that were named
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import RLock
from typing import Any

from nip_core.errors import NipError
from nip_core.game.render import Game
from nip_core.records.iterations import Records
from nip_core.records.status import find_status
from nip_core.report.report import ReportData, page_values
from nip_core.run_store.run import RunStore, list_runs
from nip_core.run_store.store import MissingFileError, Store
from nip_core.scenarios import Scenario
from nip_core.showing.episodes.notes import RunNotes
from nip_core.showing.reports import read_report_data
from nip_core.showing.transcripts import rebuild_game
from nip_view.parts.judged import JudgedPlaces
from nip_view.parts.run_index import Episodes, RunIndex
from nip_view.parts.text_search import TextSearch

_AT_MOST_EVERY_S = 1.0
_DAMAGE = (
    *(NipError, OSError, LookupError, ArithmeticError),
    *(TypeError, ValueError, AttributeError),
)
"""The errors that documents of another form end in."""


@dataclass(frozen=True)
class Overview:
    """The contents of a run's small documents at a moment."""

    state: str
    status: str
    report: ReportData | None  # None where they can't be read
    values: dict[str, Any]  # of the tables of the report
    damage: tuple[str, ...]


class ShownRun:
    """A run, its index and its records. Files of finished parts are read once."""

    def __init__(
        self, tree: RunStore, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Reads nothing yet. `name` is its name in addresses."""
        self.tree, self.name = tree, name
        self.search = TextSearch()
        self.judged = JudgedPlaces(tree.store)
        self.notes = RunNotes(tree)
        self.lock = RLock()
        self._clock = clock
        self._run_json: str | None = None
        self._forget()

    def _forget(self) -> None:
        self.index = RunIndex(self.tree, self._clock)
        self.records = Records(self.tree)
        self._looked_s = float("-inf")
        self._state, self._state_s = "", float("-inf")
        self._overview: Overview | None = None
        self.__dict__.pop("game", None)

    def _forget_if_made_anew(self) -> None:
        """Forget everything if run.json is another: the run was deleted and made anew."""
        try:
            run_json = self._digest(f"{self.tree.root}/run.json")
        except (NipError, OSError):
            return  # which whoever reads it is told
        if self._run_json not in (None, run_json):
            self.index.calls.forget()
            self._forget()
        self._run_json = run_json

    def episodes(self, with_calls: bool = True) -> Episodes:
        """Read new shards, at most once a second, and return all episodes.

        Without calls, for who looks at the index alone, their texts are not kept.
        """
        with self.lock:
            if self._clock() - self._looked_s >= _AT_MOST_EVERY_S:
                self._forget_if_made_anew()
                self.index.refresh(with_calls)
                self._looked_s = self._clock()
            return self.index.now

    def state(self) -> str:
        """Make a short digest of the run as pages show it: if it is the same, so are they."""
        with self.lock:
            # Several tabs ask, and in a bucket each look is a dozen requests.
            if self._clock() - self._state_s >= _AT_MOST_EVERY_S:
                self._forget_if_made_anew()
                digest = hashlib.sha256(str(self._run_json).encode())
                for mark in self._list_marks():
                    digest.update(f"\n{mark}".encode())
                self._state, self._state_s = digest.hexdigest()[:16], self._clock()
            return self._state

    def _list_marks(self) -> Iterable[str]:
        """List all marks of change; of unreadable files, the error."""
        for part in (self._list_status, self._list_watched):
            try:
                yield from part()
            except _DAMAGE as error:
                yield _describe_error(error)

    def _list_status(self) -> Iterable[str]:
        yield find_status(self.tree, self.records.look_again())

    def _list_watched(self) -> Iterable[str]:
        """List the files of the last two iterations, and digests of the documents of their jobs."""
        store, root = self.tree.store, f"{self.tree.root}/iterations"
        yield from store.list(f"{self.tree.root}/superseded")
        names = store.list(root)
        yield from names
        for name in [name for name in names if name.endswith("/")][-2:]:
            place = f"{root}/{name[:-1]}"
            yield from store.list(place)
            for split in store.list(f"{place}/rollouts"):
                shards = store.list(f"{place}/rollouts/{split[:-1]}") if split[-1] == "/" else ()
                yield from (shard for shard in shards if shard.startswith("manifest"))
            for job in store.list(f"{place}/jobs"):
                if job.endswith(".json"):
                    yield self._digest(f"{place}/jobs/{job}")

    def _digest(self, path: str) -> str:
        try:
            return hashlib.sha256(self.tree.store.get(path)).hexdigest()
        except MissingFileError:
            return "gone"

    def overview(self) -> Overview:
        """Return the contents of the run's documents now; damage is named, not raised."""
        state = self.state()
        with self.lock:
            if self._overview is None or self._overview.state != state:
                self._overview = self._read_overview(state)
            return self._overview

    def _read_overview(self, state: str) -> Overview:
        try:
            report = read_report_data(self.records.look_again())
            values = page_values(report)
        except _DAMAGE as error:
            return Overview(state, "damaged", None, {}, (_describe_error(error),))
        return Overview(state, report.status, report, values, ())

    @cached_property
    def game(self) -> Game | None:
        """The game of the run; None where it can't be made here."""
        try:
            return rebuild_game(self.records.shown.record)
        except NipError:
            return None

    def is_prover(self, agent: str) -> bool:
        """Tell whether an agent is a prover; where the game can't be made, by its name."""
        if self.game is not None and agent in self.game.protocol.agent_names:
            return self.game.protocol.is_prover(agent)
        return agent.startswith("prover")

    @property
    def seed(self) -> int:
        """Return the seed of the run, which its intervals are drawn from; 0 without its game."""
        return 0 if self.game is None else self.game.parameters.seed

    @property
    def facets(self) -> tuple[str, str]:
        """Return how the scenario calls `difficulty` and `mutation`."""
        return Scenario.facets if self.game is None else self.game.scenario.facets

    @property
    def words(self) -> tuple[str, str]:
        """Return how the scenario calls the labels 0 and 1."""
        if self.game is None:
            return "wrong (y = 0)", "right (y = 1)"
        return self.game.scenario.words.labels[0], self.game.scenario.words.labels[1]


def _describe_error(error: Exception) -> str:
    if isinstance(error, NipError):
        return str(error)
    return f"a document is not what nip writes ({type(error).__name__}: {error})"


class ShownRuns:
    """All runs of a store, also later ones, or some named runs."""

    def __init__(self, store: Store | None, named_stores: Sequence[RunStore] = ()) -> None:
        """Reads nothing yet. With `named_stores` runs no other is ever shown."""
        self._store = store
        self._lock = RLock()
        self._shown: dict[str, ShownRun] = {}
        self._named = bool(named_stores)
        for tree in named_stores:
            self._add(tree)

    def _add(self, tree: RunStore) -> None:
        name, number = tree.name, 2
        while name in self._shown:  # of another store
            name, number = f"{tree.name}.{number}", number + 1
        self._shown[name] = ShownRun(tree, name)

    def all(self) -> list[ShownRun]:
        """List the runs by name, new ones too."""
        with self._lock:
            if not self._named and self._store is not None:
                names = list_runs(self._store)
                for name in names:
                    if name not in self._shown:
                        self._add(RunStore(self._store, name))
                for name in {*self._shown} - {*names}:
                    del self._shown[name]
            return [self._shown[name] for name in sorted(self._shown)]

    def get(self, name: str) -> ShownRun | None:
        """Look a run up by its name in addresses, among the runs shown and nowhere else."""
        return next((run for run in self.all() if run.name == name), None)
