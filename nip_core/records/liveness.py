"""A look from outside at a run's lease, which shows if its runner is still at work."""

from dataclasses import dataclass

from nip_core.errors import CorruptionError
from nip_core.run_store.lease import Machine, Owner, ThisMachine
from nip_core.run_store.run import RunStore


@dataclass(frozen=True)
class Sighting:
    """One look at a run's lease."""

    owner: str | None  # identifier of whoever holds it; None: nobody
    heartbeat: int = 0
    ttl_s: float = 0.0  # a heartbeat that stands still for so long has stopped
    is_gone: bool = False  # the owner was a process of this machine and has ended
    epoch: int = 0  # 0: there is no lease


def look(run: RunStore, machine: Machine | None = None) -> Sighting:
    """Read the lease. Two looks at least `ttl_s` apart with one heartbeat: its owner is dead."""
    path = f"{run.root}/lease.json"
    lease = run.read_json_or_none(path)
    if lease is None:
        return Sighting(None)
    try:
        if lease["state"] != "held":
            return Sighting(None, epoch=int(lease["epoch"]))
        owner = Owner.read(lease["owner"])
        is_gone = (machine or ThisMachine()).is_gone(owner)
        return Sighting(
            owner.id, int(lease["heartbeat"]), float(lease["ttl_s"]), is_gone, int(lease["epoch"])
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptionError(f"{path}: not a lease that this version can read") from error
