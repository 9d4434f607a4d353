"""Runs on the four hosts, and what happens to them.

play        a run by the pool's workers, from its schedule to its end, while something happens
on_one      the digests of the same run on one machine
FAULTS      by name, what happens to a host or a service
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from four_hosts.network import Host, until
from small_game import train_here

from host_faults.site import Site
from nip_core.run_store.manifest import MANIFEST, read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import list_files, open_store

MOST_S = 1500.0


@dataclass(frozen=True)
class Trial:
    """What came of a run."""

    fault: str
    episodes: int
    same_digests: bool
    """As the same run on one machine, which nothing happened to."""
    flow_runs: int
    """How many were asked for: another one if the first has failed."""
    epochs: int
    """How many processes have held the run, one after the other."""
    calls: int
    """Answered by the model server for this run, each of which costs."""
    repeated: int
    """Of these, how many had been answered before."""
    standstill_s: float
    """The longest time without an answered call between the first of the run and the last."""
    playing_s: float
    """From the first answered call to the last."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def digests(run: RunStore) -> dict[str, str]:
    """Read the canonical digests of rollouts and datasets, by their place in the run."""
    by_place = {}
    for path in list_files(run.store, f"{run.root}/iterations"):
        place, _, name = path.rpartition("/")
        if name == MANIFEST:
            extra = read_manifest(run.store, place).extra
            short = place.removeprefix(f"{run.root}/iterations/")
            by_place[short] = str(extra.get("canonical_digest") or extra["digest"])
    return by_place


def on_one(settings: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Train the run in this process, on this machine's disk, with a server of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    here = {
        **settings,
        "run_store": str(folder / "runs"),
        "lm_server": {"engine": "deterministic"},
        "rollouts": {"episodes_per_shard": settings["rollouts"]["episodes_per_shard"]},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(here))
    asyncio.run(train_here(folder / "config.yaml"))
    return digests(RunStore(open_store(folder / "runs", read_only=True), settings["run_name"]))


class Going:
    """A run that goes on, for what happens to it."""

    def __init__(self, site: Site, settings: dict[str, Any]) -> None:
        self.site, self.settings, self.name = site, settings, settings["run_name"]
        self.before = len(site.calls())
        self.flow_runs = [site.schedule(settings)]
        self._reconciling = ""

    @property
    def flow_run(self) -> str:
        """Return the flow run that goes on with it."""
        return self.flow_runs[-1]

    def calls(self) -> int:
        """Count the calls of it that were answered."""
        return len(self.site.calls()) - self.before

    def await_calls(self, count: int) -> None:
        """Wait until so many were."""
        until(lambda: self.calls() >= count, f"{count} calls of {self.name} are answered", MOST_S)

    def leader(self) -> Host:
        """Return the host of the process that holds it."""
        host: Host = until(lambda: self.site.leader(self.name), f"{self.name} is held", MOST_S)
        return host

    def epoch(self) -> int:
        """Count the processes that have held it."""
        lease = self.site.lease(self.name)
        return int(lease["epoch"]) if lease else 0

    def look_after(self) -> str:
        """Return the flow run's state; ask for a flow run of `reconcile` when none is under way."""
        state = self.site.state(self.flow_run)
        is_over = not self._reconciling or self.site.state(self._reconciling) in (
            "COMPLETED",
            "FAILED",
            "CRASHED",
        )
        if state != "COMPLETED" and is_over:
            self._reconciling = self.site.reconcile()
        return state


def play(
    site: Site,
    settings: dict[str, Any],
    expected: Mapping[str, str],
    fault: str = "none",
    happen: Callable[[Going], None] = lambda _: None,
    reconciles: bool = False,
) -> Trial:
    """Play a run by the pool's workers to its end while something happens to it."""
    going = Going(site, settings)
    happen(going)
    until(
        lambda: (
            (going.look_after() if reconciles else site.state(going.flow_run))
            in ("COMPLETED", "FAILED")
        ),
        f"{going.name} ends",
        MOST_S,
        pause_s=1.0,
    )
    run = site.run_store(going.name)
    calls = site.calls()[going.before :]
    times = [at for at, _ in calls]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    document = site.lease_document(going.name)
    return Trial(
        fault=fault,
        episodes=settings["rl"]["rollouts_per_iteration"],
        same_digests=digests(run) == expected,
        flow_runs=len(going.flow_runs),
        epochs=document["epoch"],
        calls=len(calls),
        repeated=site.repeated(going.before),
        standstill_s=round(max(gaps, default=0.0), 1),
        playing_s=round(times[-1] - times[0], 1) if times else 0.0,
    )


# What happens ---------------------------------------------------------------------------------

_EARLY = 20  # calls after which something happens


def cut_off(going: Going) -> None:
    """The leader's host is cut off until another has taken the run, and comes back."""
    going.await_calls(_EARLY)
    host, epoch = going.leader(), going.epoch()
    host.cut()
    until(
        lambda: (going.look_after(), going.epoch() > epoch)[1],
        "another host takes the run",
        MOST_S,
        pause_s=1.0,
    )
    host.mend()


def power_cut(going: Going) -> None:
    """The leader's host loses its power, and comes back with an empty disk."""
    going.await_calls(_EARLY)
    host = going.leader()
    host.switch_off()
    time.sleep(5)
    host.switch_on()
    going.site.give(host, going.settings)
    going.site.start_worker(host)


def killed(going: Going) -> None:
    """Every process of the leader's worker is killed; the worker is started again."""
    going.await_calls(_EARLY)
    going.site.kill_worker(going.leader())


def full_disk(going: Going) -> None:
    """The disks of both workers' hosts fill up; when the flow run has ended they have room again.

    If it has failed, the run is asked for once more.
    """
    going.await_calls(_EARLY)
    hosts = (going.site.b, going.site.c)
    for host in hosts:
        host.fill()
    state = until(
        lambda: (s := going.site.state(going.flow_run)) in ("COMPLETED", "FAILED") and s,
        f"{going.name} ends on full disks",
        MOST_S,
        pause_s=1.0,
    )
    for host in hosts:
        host.empty()
    if state == "FAILED":
        going.flow_runs.append(going.site.schedule(going.settings))


def slow_store(going: Going) -> None:
    """The object store takes two seconds longer for every answer, for a minute."""
    going.await_calls(_EARLY)
    going.site.trouble(delay_s=2.0)
    time.sleep(60)
    going.site.trouble()


def refusing_store(going: Going) -> None:
    """The object store answers 503 to three of ten requests, for a minute."""
    going.await_calls(_EARLY)
    going.site.trouble(refused=0.3)
    time.sleep(60)
    going.site.trouble()


def prefect_restarted(going: Going) -> None:
    """Prefect's server is killed and started again."""
    going.await_calls(_EARLY)
    going.site.restart_prefect()


def database_restarted(going: Going) -> None:
    """PostgreSQL is killed and started again."""
    going.await_calls(_EARLY)
    going.site.restart_database()


FAULTS: dict[str, tuple[Callable[[Going], None], bool]] = {
    "the leader's processes are killed": (killed, True),
    "the leader's host is cut off and comes back": (cut_off, True),
    "the leader's host loses its power": (power_cut, True),
    "the workers' disks fill up, and are emptied": (full_disk, False),
    "the store answers 2 s later": (slow_store, False),
    "the store refuses 3 of 10 requests (503)": (refusing_store, False),
    "Prefect's server is killed and started again": (prefect_restarted, False),
    "PostgreSQL is killed and started again": (database_restarted, False),
}
"""By its words, what happens, and whether `reconcile` has to look after the run."""
