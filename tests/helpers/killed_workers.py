"""A small run that a Prefect worker takes, whose worker can be killed at a chosen step.

Each worker is forked, so it starts at once; what it starts, it starts as any worker does. The flow
that a killed worker leaves behind becomes a child of the process that forked the worker.
"""

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from killed_runs import IN_FLIGHT, KEY, Death, Outcome, Place
from killed_steps import Point
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings
from prefect_stack import ROOT, Stack

from nip_prefect.flows.reconcile import reconcile

DEADLINE_S = 300.0
CALL, JOB = "so many calls have arrived at the lm_server", "so many jobs have begun there"
"""Labels of kills from outside, as soon as it is so."""
# A worker polls, and asks for what was cancelled, by the clock: only the first time is a step.
_ONCE = re.compile("get_scheduled_flow_runs|flow_runs/filter|/heartbeat")


@contextlib.contextmanager
def quiet_stack(folder: Path) -> Iterator[Stack]:
    """A Prefect server with nip's deployments, and this process as its client.

    Services that no run asks anything of are off: SQLite lets one write at a time, and on a busy
    machine those who only wait for their turn time out.
    """
    stack = Stack(folder)
    for name in ("TRIGGERS", "EVENT_PERSISTER", "LATE_RUNS", "SCHEDULER", "FOREMAN"):
        stack.environment[f"PREFECT_SERVER_SERVICES_{name}_ENABLED"] = "false"
    here = {PREFECT_API_URL: f"{stack.url}/api", PREFECT_HOME: folder / "prefect"}
    try:
        stack.start_server()
        stack.deploy()
        with temporary_settings(here):
            yield stack
    finally:
        stack.close()


def environment(stack: Stack) -> dict[str, str]:
    """As docs/prefect.md tells users to start a worker, with the keys of the lm_servers."""
    own = {"NIP_API_KEY": KEY, "NIP_API_KEYS": KEY, "OMP_NUM_THREADS": "1"}
    return {
        **stack.environment,
        **own,
        "PYTHONPATH": str(ROOT),
        "PREFECT_WORKER_QUERY_SECONDS": "1",
    }


@dataclass
class WorkersPlace(Place):
    """A run of the deployment `train/quickstart`; `flows` forks its workers."""

    stack: Stack = field(kw_only=True)
    worker: int = 0
    flow_run: str = ""
    ends: list[Death] = field(default_factory=list)  # moments at which nothing moved any more

    def be_taken(self, points: Sequence[Point] = ()) -> None:
        """Run to the end. The first worker dies of the first point, the next of the next.

        After each death a new worker is started at once. Reconcile runs when the worker that had
        taken the flow run is dead, and so is all that it had started.
        """
        points = list(points)
        deadline = time.monotonic() + DEADLINE_S
        self._start_server([])
        self._schedule()
        self._start_worker(points)
        lost = False
        while (state := self._state())["type"] != "COMPLETED":
            assert time.monotonic() < deadline, f"it hangs: {state['name']}, {self.said()}"
            if points and self._has_come(points[0]):
                os.kill(self.worker, signal.SIGKILL)
                self.flows.wait(self.worker)
            status = self.flows.poll(self.worker)
            if status is not None:
                self._note_end_of_worker(status, points)
                lost = self._state()["type"] != "SCHEDULED"
                self._start_worker(points)
                deadline = time.monotonic() + DEADLINE_S
            elif lost and not self._orphans():
                lost = False
                self._reconcile()
            time.sleep(0.1)
        self._stop()
        assert self._state()["type"] == "COMPLETED", self._state()

    def _schedule(self) -> None:
        deployment = self.stack.api("/deployments/name/train/quickstart")
        asked = {"state": {"type": "SCHEDULED"}, "parameters": {"config_file": str(self.config)}}
        made = self.stack.api(f"/deployments/{deployment['id']}/create_flow_run", asked)
        self.flow_run = made["id"]

    def _state(self) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                state: dict[str, Any] = self.stack.api(f"/flow_runs/{self.flow_run}")["state"]
                return state
            except TimeoutError:  # a busy server answers late
                assert time.monotonic() < deadline, "the Prefect server does not answer"

    def _start_worker(self, points: list[Point]) -> None:
        self.worker = self.flows.start(
            arguments=["worker", "start", "--pool", "nip-cpu", "--type", "process"],
            root=str(self.folder),
            steps=str(self.folder / "steps-worker"),
            log=str(self.folder / "flow.log"),
            modules=str(self.folder / "modules-worker"),
            point=points[0] if points and points[0][0] not in (CALL, JOB) else None,
            names={self.prefect: "prefect"},
        )
        parent = psutil.Process(self.worker).parent()
        assert parent is not None
        self.forked_by = parent

    def _has_come(self, point: Point) -> bool:
        """Whether it is time for a kill from outside."""
        label, number = point
        if label == CALL:
            return len(self.calls()) >= number
        return label == JOB and len([*(self.state / "jobs").glob("ftjob-*")]) >= number

    def _note_end_of_worker(self, status: int, points: list[Point]) -> None:
        assert status == -signal.SIGKILL, f"the worker ended with {status}: {self.said()}"
        assert points, f"something else killed the worker: {self.said()}"
        self.deaths.append(Death("worker", points.pop(0), len(self.calls()), self.durable()))

    def _orphans(self) -> list[psutil.Process]:
        """What runs and was started by a worker that is dead."""
        found = []
        for process in self.forked_by.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.pid != self.worker and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _reconcile(self) -> None:
        """As its schedule would, but without its patience: nothing moves any more."""
        if self._state()["type"] == "COMPLETED":
            return
        self.ends.append(Death("flow", ("", 0), len(self.calls()), self.durable()))
        found = asyncio.run(
            reconcile(silent_after_s=0, watch_s=0, restart_after_s=0, max_attempts=1000)
        )
        name = self.stack.api(f"/flow_runs/{self.flow_run}")["name"]
        assert found["restarted"] == [name], f"{found}, {name}: {self._state()}"

    def _stop(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self._orphans():  # the flow is completed a moment before its process has ended
            assert time.monotonic() < deadline, f"still there: {self._orphans()}"
            time.sleep(0.05)
        os.kill(self.worker, signal.SIGKILL)
        self.flows.wait(self.worker)
        self._stop_server([])


def steps_of(place: Place) -> list[Point]:
    """Every step of a worker, of what it does by the clock only the first."""
    return [p for p in place.points("worker") if p[1] == 1 or not _ONCE.search(p[0])]


def check(place: WorkersPlace, expected: Outcome, seeds: dict[str, str]) -> None:
    """What a run whose workers were killed must show in the end; `seeds`: of all generations."""
    assert place.outcome() == expected
    keys = [job[0] for job in expected.jobs]
    assert len(keys) == len(set(keys)) == 2, "one job for each group"
    assert all(job[2] == "succeeded" for job in expected.jobs)
    place.check_calls()
    for death in (*place.deaths, *place.ends):
        repeated = place.repeated(death)
        assert not repeated & {seeds[key] for key in death.durable}, f"paid twice: {death.point}"
        assert len(repeated) <= IN_FLIGHT, f"{death.point}: {repeated}"
    assert place.left() == []
