"""A run's requests to trackers, see `nip_core.bridges.TrackersBridge`."""

from collections.abc import Sequence

from nip_bridges.tracking.feeders import Feeders
from nip_bridges.tracking.places import check_trackers
from nip_core.parameters.blocks.tracking import TrackerParameters
from nip_core.run_store.run import RunStore

__all__ = ["check_trackers", "feed"]


def feed(run: RunStore, trackers: Sequence[TrackerParameters]) -> Feeders:
    """Return the feeders of a run; no process is started before the first `look`."""
    return Feeders(run, trackers)
