"""The verdicts of a place of a run, and what was argued there, for what differs between two.

JudgedPlaces  reads those of an iteration and split, and remembers the last few
"""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nip_core.errors import NipError
from nip_core.evaluation.verdict_changes import JudgedEpisodes
from nip_core.game.render import Game
from nip_core.rollouts.tables import StoredRollouts
from nip_core.run_store.store import Store
from nip_core.showing.changes import read_split_verdicts
from nip_core.showing.episode_index import Episodes

_MOST_PLACES = 4


class JudgedPlaces:
    """Reads the verdicts of whole shards. What is long stays in the files."""

    def __init__(self, store: Store) -> None:
        """Reads nothing yet."""
        self._store, self._lock = store, Lock()
        self._known: OrderedDict[tuple[str, ...], JudgedEpisodes] = OrderedDict()

    def read(
        self, episodes: Episodes, rows: Sequence[int] | NDArray[np.int64], game: Game | None
    ) -> JudgedEpisodes | None:
        """Read the shards that these rows of the index are in; None where one can't be read."""
        numbers = np.unique(np.asarray(episodes.table["shard"].to_numpy())[rows])
        shards = [episodes.shards[number] for number in numbers]
        if not shards:
            return None
        place = tuple(shard.manifest.digest for shard in shards)
        with self._lock:
            if place not in self._known:
                parts = [StoredRollouts.of_shard(self._store, of.manifest) for of in shards]
                try:
                    self._known[place] = read_split_verdicts(parts, game)
                except (NipError, OSError, pa.ArrowException, LookupError, ValueError):
                    return None  # the list of episodes names what can't be read
            self._known.move_to_end(place)
            while len(self._known) > _MOST_PLACES:
                self._known.popitem(last=False)
            return self._known[place]
