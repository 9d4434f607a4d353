"""The verdicts of a place of a run, and the arguments there, for the differences of two places.

JudgedPlaces  reads those of an iteration and split, and remembers the last few
"""

from collections import OrderedDict
from threading import Lock

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nip_core.errors import NipError
from nip_core.evaluation.spread import shared_text
from nip_core.evaluation.verdict_changes import JUDGED, JudgedEpisodes
from nip_core.game.render import Game
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.run_store.store import Store
from nip_core.showing.changes import read_split_verdicts
from nip_view.parts.run_index import Episodes

MOST_READ = 5_000
"""Episodes of a side up to which messages are read without asking, in a tenth of a second."""
_MOST_PLACES = 4

Rows = NDArray[np.int64]


class JudgedPlaces:
    """Reads the verdicts of whole shards. Long texts stay in the files."""

    def __init__(self, store: Store) -> None:
        """Reads nothing yet."""
        self._store, self._lock = store, Lock()
        self._known: OrderedDict[tuple[str, ...], JudgedEpisodes] = OrderedDict()

    def read(
        self, episodes: Episodes, rows: Rows, game: Game | None, with_arguments: bool
    ) -> JudgedEpisodes | None:
        """Read the verdicts of these rows of the index; None where a file can't be read.

        They are all that their shards have. With arguments the messages are read from the files.
        """
        split_by = () if game is None else game.scenario.split_by
        # Without either, all of it is in the index.
        if not with_arguments and not split_by:
            return _read_index(episodes, rows)
        numbers = np.unique(np.asarray(episodes.table["shard"].to_numpy())[rows])
        shards = [episodes.shards[number] for number in numbers]
        if not shards:
            return None
        place = (str(with_arguments), *(shard.manifest.digest for shard in shards))
        with self._lock:
            if place not in self._known:
                parts = [StoredRollouts.of_shard(self._store, shard.manifest) for shard in shards]
                try:
                    self._known[place] = read_split_verdicts(parts, game, with_arguments)
                except (NipError, OSError, pa.ArrowException, LookupError, ValueError):
                    return None  # the list of episodes names the unreadable files
            self._known.move_to_end(place)
            while len(self._known) > _MOST_PLACES:
                self._known.popitem(last=False)
            return self._known[place]


def _read_index(episodes: Episodes, rows: Rows) -> JudgedEpisodes:
    table = episodes.table.take(pa.array(rows, pa.int64()))
    problems = zip(table["problem"].to_pylist(), table["question_id"].to_pylist(), strict=True)
    questions = {problem: shared_text(question, {}, ()) for problem, question in problems}
    return JudgedEpisodes(table.select(JUDGED), {}, questions)
