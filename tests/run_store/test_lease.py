"""One runner per run; a dead or silent one is replaced; a replaced one can do nothing more."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pytest

from nip_core.errors import CorruptionError, LeaseError
from nip_core.run_store.lease import Lease, Owner, ThisMachine, acquire
from nip_core.run_store.local_store import LocalStore
from nip_core.run_store.store import Store

HOLDER = """
import sys, time
from nip_core.errors import LeaseError
from nip_core.run_store.lease import acquire
from nip_core.run_store.manifest import commit
from nip_core.run_store.store import open_store
store = open_store(sys.argv[1])
lease = acquire(store, "run", ttl_s=float(sys.argv[2]))
print("held", flush=True)
for number in range(100_000):
    try:
        commit(store, f"run/d{number}", {"a": b"x"}, lease=lease)
    except LeaseError as error:
        print("lost", number, flush=True)
        break
    time.sleep(0.001)
"""


class OtherMachine(ThisMachine):
    """A host whose processes can't be looked at from here."""

    def __init__(self, pid: int = 77) -> None:
        self._pid = pid

    def owner(self) -> Owner:
        return replace(super().owner(), host="far", machine="far", pid=self._pid)


class Time:
    """Seconds that pass only in `sleep`; `hooks` run after each."""

    def __init__(self) -> None:
        self.seconds, self.hook = 0.0, lambda: None

    def clock(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.hook()


def take(store: Store, time: Time, machine: ThisMachine | None = None) -> Lease:
    return acquire(
        store,
        "run",
        ttl_s=30,
        machine=machine or OtherMachine(),
        clock=time.clock,
        sleep=time.sleep,
        renew=False,
    )


def hold(store: Store, ttl_s: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, store.url, str(ttl_s)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_free_run_is_taken_released_and_taken_again(store: Store) -> None:
    time = Time()
    with take(store, time) as first:
        first.check()
        assert store.exists(first.fence)
    with take(store, time) as second:
        assert (first.epoch, second.epoch) == (1, 2)
    assert time.seconds == 0
    assert store.list("run/fences") == []
    with pytest.raises(LeaseError, match="it was released"):
        second.check()


def test_a_live_owner_is_named_as_soon_as_its_heart_beats(store: Store) -> None:
    time = Time()
    lease = take(store, time, OtherMachine(pid=77))
    time.hook = lambda: lease.renew() if time.seconds >= 3 else None
    with pytest.raises(LeaseError, match="process 77 on far holds this run"):
        take(store, time)
    assert time.seconds < 6
    lease.check()


def test_a_silent_owner_elsewhere_is_replaced_after_its_time_to_live(store: Store) -> None:
    time = Time()
    old = take(store, time)
    new = take(store, time)
    assert 30 <= time.seconds < 32
    assert (old.epoch, new.epoch) == (1, 2)
    with pytest.raises(LeaseError, match=r"took over \(epoch 2\)"):
        old.check()
    with pytest.raises(LeaseError):
        old.renew()
    old.release()  # leaves the new one alone
    new.check()
    assert [name.rstrip("/") for name in store.list("run/fences")] == ["000002"]


def test_the_time_of_day_decides_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = take(store, Time())
    monkeypatch.setattr(time, "time", lambda: 4e9)
    watching = Time()
    watching.hook = lease.renew
    with pytest.raises(LeaseError, match="holds this run"):
        take(store, watching)


def test_a_dead_process_of_this_machine_is_replaced_at_once(store: Store) -> None:
    process = hold(store, 30)
    process.kill()
    process.wait()
    began = time.monotonic()
    with acquire(store, "run") as lease:
        assert lease.epoch == 2
    assert time.monotonic() - began < 2


def test_a_process_with_a_reused_number_is_not_the_owner() -> None:
    machine = ThisMachine()
    me = machine.owner()
    assert not machine.is_gone(me)
    assert machine.is_gone(replace(me, process=f"{me.process}0"))
    assert not machine.is_gone(replace(me, machine="far", pid=2**22 - 1))


def test_a_step_of_the_clock_makes_no_living_owner_a_dead_one() -> None:
    """The kernel's time of boot moves with the clock, and with it what psutil calls a start."""
    machine = ThisMachine()
    me = machine.owner()
    ahead = "import json, sys; from nip_core.run_store.lease import Owner, ThisMachine; "
    ahead += "print(ThisMachine().is_gone(Owner.read(json.loads(sys.argv[1]))))"
    stepped = "import psutil._pslinux as linux; linux.boot_time = lambda: 1e9; "
    for step in ("", stepped):
        done = subprocess.run(
            [sys.executable, "-c", step + ahead, json.dumps(asdict(me))],
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert done.stdout.strip() == "False"


def test_an_owner_of_an_earlier_version_is_gone_only_when_its_process_is() -> None:
    machine = ThisMachine()
    document = {**asdict(machine.owner()), "process_start_s": 1.5}
    del document["process"]
    assert not machine.is_gone(Owner.read(document))
    assert machine.is_gone(Owner.read({**document, "pid": 2**22 - 1}))


def test_a_second_runner_is_refused_while_the_first_lives(store: Store) -> None:
    process = hold(store, 2)
    try:
        with pytest.raises(LeaseError, match=f"process {process.pid} on"):
            acquire(store, "run", ttl_s=2)
    finally:
        process.kill()
        process.wait()


def test_a_runner_that_was_stopped_replaced_and_continued_commits_nothing_more(
    store: Store,
) -> None:
    process = hold(store, 0.5)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        with acquire(store, "run", ttl_s=0.5) as lease:
            done = {name for name in store.list("run") if name.startswith("d")}
            os.kill(process.pid, signal.SIGCONT)
            assert process.stdout is not None
            assert process.stdout.readline().startswith("lost")
            committed = {n for n in store.list("run") if n.startswith("d")}
            new = [n for n in committed - done if store.exists(f"run/{n}manifest.json")]
            assert new == []
            lease.check()
    finally:
        process.kill()
        process.wait()


def test_many_at_once_one_proceeds(store: Store) -> None:
    # Over a network a heartbeat takes longer, and a late one is no heartbeat.
    runs, ttl_s = (25, 0.4) if isinstance(store, LocalStore) else (6, 3.0)
    script = """
import sys
from nip_core.errors import LeaseError
from nip_core.run_store.lease import acquire
from nip_core.run_store.store import open_store
store = open_store(sys.argv[1])
sys.stdin.readline()
for number in range(int(sys.argv[2])):
    try:
        lease = acquire(store, f"run{number}", ttl_s=float(sys.argv[3]))
        print(number, "held", flush=True)
    except LeaseError:
        print(number, "refused", flush=True)
print("done", flush=True)
sys.stdin.readline()
"""
    runners = [
        subprocess.Popen(
            [sys.executable, "-c", script, store.url, str(runs), str(ttl_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outcomes: list[list[str]] = []
    for runner in runners:
        assert runner.stdin is not None
        runner.stdin.write("go\n")
        runner.stdin.flush()
    for runner in runners:
        assert runner.stdout is not None
        outcomes.append(list(iter(runner.stdout.readline, "done\n")))
    for runner in runners:
        runner.communicate("end\n")
    for number in range(runs):
        held = sum(f"{number} held\n" in lines for lines in outcomes)
        assert held == 1, f"run{number}: {held} holders"


def test_the_thread_renews(store: Store) -> None:
    with acquire(store, "run", ttl_s=0.1) as lease:
        before = store.get("run/lease.json")
        deadline = time.monotonic() + 5
        while store.get("run/lease.json") == before:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        lease.check()


def test_a_damaged_lease_is_named(store: Store) -> None:
    store.put("run/lease.json", b"{}")
    with pytest.raises(CorruptionError, match=r"run/lease\.json"):
        acquire(store, "run")
