"""A look from outside at a run's lease, which shows if its runner is still at work."""

from dataclasses import dataclass

from nip_core.run_store.lease import Machine, ThisMachine, read_lease
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import MissingFileError


@dataclass(frozen=True)
class Sighting:
    """One look at a run's lease."""

    owner: str | None  # identifier of its holder; None: it is free
    heartbeat: int = 0
    ttl_s: float = 0.0  # a heartbeat that stands still for so long has stopped
    is_gone: bool = False  # the owner was a process of this machine and has ended
    epoch: int = 0  # 0: there is no lease


def watch_lease(run: RunStore, machine: Machine | None = None) -> Sighting:
    """Read the lease. Two looks at least `ttl_s` apart with one heartbeat: its owner is dead."""
    path = f"{run.root}/lease.json"
    try:
        lease, _ = read_lease(run.store, path)
    except MissingFileError:  # never run, or run and its lease deleted: it is free
        return Sighting(None)
    if lease.state != "held":
        return Sighting(None, epoch=lease.epoch)
    is_gone = (machine or ThisMachine()).is_gone(lease.owner)
    return Sighting(lease.owner.id, lease.heartbeat, lease.ttl_s, is_gone, lease.epoch)
