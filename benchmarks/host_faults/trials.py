"""Runs on the four hosts, and what happens to them.

play        a run by the pool's workers, from its schedule to its end, while something happens
on_one      the digests of the same run on one machine
measure_speed  answers a second of one playing host, and of two
FAULTS      by name, what happens to a host or a service
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from four_hosts.network import Host, HostsError, until
from small_game import train_here

from host_faults.site import Site
from nip_core.run_store.manifest import MANIFEST, read_manifest
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import list_files, open_store

MOST_S = 1500.0
CALLS_OF_AN_EPISODE = 3
"""Of the game that is played: a question, an answer, a verdict."""


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


@dataclass(frozen=True)
class Fault:
    """What happens to a run, and what kind of run that is."""

    happen: Callable[[Going], None]
    reconciles: bool = False
    """Whether `reconcile` has to look after the run."""
    episodes: int = 60
    in_flight: int = 4
    """Calls at once of each process that plays: few, so that there is time for the fault."""
    cluster: Literal["dask", "ray"] | None = None
    """By what both hosts play its shards; None: one host plays them."""

    def settings(self, site: Site, name: str) -> dict[str, Any]:
        """Return the settings of the run."""
        rollouts: dict[str, Any] = {"concurrency": self.in_flight}
        if self.cluster is not None:
            rollouts |= site.on_dask() if self.cluster == "dask" else site.on_ray()
        return site.settings(name, self.episodes, **rollouts)


def play(
    site: Site, settings: dict[str, Any], expected: Mapping[str, str], words: str, fault: Fault
) -> Trial:
    """Play a run by the pool's workers to its end while something happens to it."""
    going = Going(site, settings)
    fault.happen(going)
    until(
        lambda: (
            (going.look_after() if fault.reconciles else site.state(going.flow_run))
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
        fault=words,
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


def other_clock(going: Going) -> None:
    """The leader's processes are killed; the host that goes on has a clock two hours ahead."""
    going.await_calls(_EARLY)
    site, leader, epoch = going.site, going.leader(), going.epoch()
    heir = site.c if leader is site.b else site.b
    heir.clock_offset_s = 7200.0
    site.kill_worker(heir)
    site.end_worker(leader)
    until(
        lambda: (going.look_after(), going.epoch() > epoch)[1],
        "the other host takes the run",
        MOST_S,
        pause_s=1.0,
    )
    heir.clock_offset_s = 0.0  # of what is started from now on
    site.start_worker(leader)


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


def battered(going: Going) -> None:
    """A player is killed, the leader's worker, the other player; then the leader's host is cut off.

    Each when another fifth of the calls has been answered, and what was killed is started again.
    """
    site = going.site
    fifth = going.settings["rl"]["rollouts_per_iteration"] * CALLS_OF_AN_EPISODE // 5
    going.await_calls(fifth)
    site.kill_player(site.b)
    site.start_player(site.b)
    going.await_calls(2 * fifth)
    site.kill_worker(going.leader())
    until(
        lambda: (going.look_after(), going.calls() >= 3 * fifth)[1],
        "it goes on after a kill",
        MOST_S,
        pause_s=1.0,
    )
    site.kill_player(site.c)
    site.start_player(site.c)
    going.await_calls(4 * fifth)
    host, epoch = going.leader(), going.epoch()
    host.cut()
    until(
        lambda: (going.look_after(), going.epoch() > epoch)[1],
        "another host takes the run",
        MOST_S,
        pause_s=1.0,
    )
    host.mend()


FAULTS = {
    "the leader's processes are killed": Fault(killed, reconciles=True),
    "the leader's host is cut off and comes back": Fault(cut_off, reconciles=True),
    "the leader's host loses its power": Fault(power_cut, reconciles=True),
    "the workers' disks fill up, and are emptied": Fault(full_disk),
    "the store answers 2 s later": Fault(slow_store),
    "the store refuses 3 of 10 requests (503)": Fault(refusing_store),
    "Prefect's server is killed and started again": Fault(prefect_restarted),
    "PostgreSQL is killed and started again": Fault(database_restarted),
    "three kills, and the leader's host is cut off and comes back": Fault(
        battered, reconciles=True, episodes=1000, in_flight=16, cluster="dask"
    ),
    "nothing; the shards are played by Ray": Fault(lambda _: None, cluster="ray"),
    # The last: what is started on that host keeps its clock.
    "the leader is killed, and the host that goes on is two hours ahead": Fault(
        other_clock, reconciles=True
    ),
}
"""By its words, what happens."""


# How fast -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Speed:
    """A run of which one host or two play the shards, and nothing happens."""

    hosts: int
    episodes: int
    in_flight: int
    """Calls at once of each host."""
    answer_s: float
    playing_s: float
    """From the first answered call to the last."""
    ideal_s: float
    """The same if each host always had all of its calls in flight and nothing else took time."""
    ideal_by_real: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def measure_speed(site: Site, name: str, hosts: int, answer_s: float, seed: int) -> Speed:
    """Play a run whose shards are played by so many hosts."""
    fault = Fault(lambda _: None, episodes=384, in_flight=16, cluster="dask")
    settings = {**fault.settings(site, name), "seed": seed}
    settings["rollouts"]["episodes_per_shard"] = 3 * fault.in_flight
    if hosts == 1:
        site.kill_player(site.c)
    try:
        trial = play(site, settings, {}, name, fault)
    finally:
        if hosts == 1:
            site.start_player(site.c)
    if trial.repeated or trial.calls != fault.episodes * CALLS_OF_AN_EPISODE:
        raise HostsError(f"{name}: {trial.calls} calls, {trial.repeated} of them again")
    ideal_s = (trial.calls / (hosts * fault.in_flight) - 1) * answer_s
    return Speed(
        hosts,
        fault.episodes,
        fault.in_flight,
        answer_s,
        trial.playing_s,
        round(ideal_s, 1),
        round(ideal_s / trial.playing_s, 3),
    )
