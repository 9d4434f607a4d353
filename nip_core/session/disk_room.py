"""Whether the disks have room for a run, asked before anything is started."""

import os
from collections.abc import Mapping
from pathlib import Path

from nip_base.disk import MIN_FREE_BYTES, want_of_space
from nip_core.costs.estimate import Estimate
from nip_core.errors import StoreError
from nip_core.parameters import HyperParameters
from nip_core.run_store.run import RunStore
from nip_core.servers.own_server import find_server_directory, make_server_spec


def check_room(
    parameters: HyperParameters,
    run: RunStore,
    estimate: Estimate,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Raise StoreError for a disk too small for the run's files there.

    Needs on one disk are added up. A bucket has no limit that could be asked for.
    """
    needs: list[tuple[Path, int, str]] = []
    root = run.store.local_path(run.root)
    if root is not None:
        # By the upper bound: a run that stops in the middle for want of space costs more than a
        # refused one.
        needs.append((root, estimate.disk_bytes, "what the run writes"))
    if make_server_spec(parameters) is not None:
        directory = find_server_directory(run, environment)
        needs.append((directory, MIN_FREE_BYTES, "its model server's state"))
    for device in {_device(path) for path, _, _ in needs}:
        needs_there = [need for need in needs if _device(need[0]) == device]
        problem = want_of_space(needs_there[0][0], sum(size for _, size, _ in needs_there))
        if problem is not None:
            purposes = " and ".join(purpose for _, _, purpose in needs_there)
            raise StoreError(
                f"{needs_there[0][0]}: for {purposes} {problem}; "
                f"free space or choose another {'run_store' if root else 'NIP_CACHE_DIR'}"
            )


def _device(path: Path) -> int:
    """Return the disk of a path; the path need not exist yet."""
    return next(place.stat().st_dev for place in (path, *path.parents) if place.exists())
