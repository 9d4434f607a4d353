"""The verifier's tokens in the test of an attack that counts: a baseline may take as many."""

import pyarrow as pa
import pyarrow.compute as pc

from nip_core.rollouts.plan import ATTACK, TEST
from nip_core.rollouts.storage.table_rows import row_columns
from nip_core.rollouts.storage.tables import StoredRollouts
from nip_core.rollouts.trees import Leaf, for_each_episode
from nip_core.run_store.manifest import is_committed
from nip_core.run_store.run import RunStore

VERIFIER = "verifier"


def count_verifier_tokens(attack: RunStore, iteration: int, n: int | None) -> float | None:
    """Average the verifier's tokens in an episode of an attack's test, retries included.

    Of an attack by choice that is an episode whose verdict counts for `n`, not the continuations
    by which messages were judged. None without such a test.
    """
    # Where an attack by training has tests of its own on test problems, its course is on others.
    places = (attack.rollouts(iteration, split) for split in (ATTACK, TEST))
    place = next((one for one in places if is_committed(attack.store, one)), None)
    if place is None:
        return None
    rollouts = StoredRollouts(attack.store, [place])
    episodes = rollouts.episodes([*row_columns(Leaf)])
    spoken = rollouts.generations(["episode", "branch_path", "agent", "completion_tokens"])
    spoken = spoken.filter(pc.equal(spoken["agent"], VERIFIER))
    count = episodes.num_rows
    if rollouts.has_choices:
        choices = rollouts.choices()
        keys = choices.filter(pc.equal(choices["n"], n))["episode"].combine_chunks()
        by_episode = for_each_episode(episodes, spoken)
        spoken = by_episode.filter(pc.is_in(by_episode["episode"], value_set=keys))
        count = len(pc.unique(keys))
    total = pc.sum(spoken["completion_tokens"].cast(pa.int64())).as_py() or 0
    return total / count if count else None
