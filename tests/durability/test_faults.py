"""Faults between a run and its server, or its disk, never show in what the run makes.

A real server behind a proxy that injects faults; time is injected too, and passes only when slept.
Stages are tried again as Prefect would, and a run that stopped is run again as a person would.
NIP_FAULTS says how many faults: 60, or 1000 for all of it.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from faulty_proxy import (
    FAULTS,
    RETRY_AFTER_S,
    SETTLE_S,
    FaultPlan,
    FaultyProxy,
    FullDisk,
    Lasting,
)
from job_server import FakeTime
from killed_results import Results
from killed_runs import KEY, RUN, SEED, Outcome, Zygote, free_port, outcome_of
from small_game import write_config

from nip_core.errors import JobError, NipError, ServerError, StoreError
from nip_core.loop import directly, go_on, iterate
from nip_core.parameters import load_parameters
from nip_core.rollouts.client.chat_client import ChatClient
from nip_core.rollouts.storage.tables import read_rollouts
from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store
from nip_core.session.opening import open_session
from nip_core.session.session import Session
from nip_core.stages import playing
from nip_lm_server.state.directory import read_card

WANTED = int(os.environ.get("NIP_FAULTS", "60"))
PER_RUN = 50
RATE = 0.35
FULL_RATE = 0.02
EPISODES = 30
DEADLINE_S = 90.0
"""Of one run, in real seconds; it takes a few."""
JOB_DEADLINE_S = 3e4
"""Of a job, in injected seconds."""
TRIES = 40


@dataclass
class World:
    """One run with its server, its proxy and its time."""

    folder: Path
    server: str
    plan: FaultPlan
    time: FakeTime = field(default_factory=FakeTime)
    port: int = field(default_factory=free_port)  # of the proxy; a run keeps to its address
    deadline_s: float = 4e5  # of a job; the time of day may jump by two days after its submission
    stops: Counter[str] = field(default_factory=Counter)
    created: Counter[str] = field(default_factory=Counter)  # jobs by key

    async def play(self, enough: int, tries: int = TRIES) -> None:
        """The whole run: one iteration and a last test. It is run again up to `tries` times."""
        disk = FullDisk(self.folder, self.plan, FULL_RATE, enough)
        async with FaultyProxy(self.server, self.plan, self.time, enough, self.port) as proxy:
            self.created = proxy.created
            config = write_config(
                self.folder,
                lm_server={"url": proxy.url},
                seed=SEED,
                rl={"num_iterations": 1, "rollouts_per_iteration": EPISODES, "num_epochs": 1},
                rollouts={"episodes_per_shard": 10, "concurrency": 8},
                dataset_options={"max_test_size": 6, "max_train_size": EPISODES},
                pure_text_ei={"reward_threshold": -100.0},
                fine_tuning={
                    "poll_interval_s": 5.0,
                    "settle_s": SETTLE_S,
                    "deadline_s": self.deadline_s,
                },
            )
            for left in reversed(range(tries)):
                try:
                    with disk.filling():
                        async with self._session(config) as session:
                            await go_on(session, self._call)
                    return
                except (StoreError, ServerError) as error:
                    self.stops[type(error).__name__] += 1
                    if not left:
                        raise

    @asynccontextmanager
    async def _session(self, config: Path) -> AsyncIterator[Session]:
        async with (
            open_session(load_parameters(config)) as session,
            ChatClient(concurrency=8, timeout_s=1.0, retries=8, sleep=self.time.sleep) as client,
        ):
            yield replace(session, client=client, clock=self.time.clock)

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """As Prefect's hook: tried again when the server or the network was the trouble."""
        for attempt in range(3):
            try:
                return await directly(function, *arguments)
            except ServerError:
                if attempt == 2 or function in (iterate, playing.play_shards):
                    raise
                await self.time.sleep(2.0)
        return None

    def check(self, expected: Outcome) -> None:
        """Nothing of the faults is to be seen."""
        assert sorted(self.created.values()) == [1, 1], "a job was created twice"
        assert outcome_of(self.folder, self.folder / "server") == expected
        run = RunStore(open_store(self.folder / "runs", read_only=True), RUN)
        for iteration, split, episodes in ((0, "test", 6), (0, "train", EPISODES), (1, "test", 6)):
            tables = read_rollouts(run.store, run.rollouts(iteration, split))
            outcomes = tables.episodes.column("outcome").to_pylist()
            assert outcomes == ["finished"] * episodes, "an episode was lost"
            asked = tables.generations.column("model_asked").to_pylist()
            assert tables.generations.column("model_served").to_pylist() == asked


@pytest.fixture
def make(tmp_path: Path, servers: Zygote, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Runs with a server of their own."""
    monkeypatch.setenv("NIP_API_KEY", KEY)
    pids = []

    def made(name: str, seed: int, rate: float) -> World:
        folder = tmp_path / name
        folder.mkdir()
        port, state = free_port(), folder / "server"
        engine = ["--engine", "deterministic", "--model", "deterministic"]
        pid = servers.start(
            arguments=[*engine, "--state", str(state), "--port", str(port)],
            root=str(folder / "nothing"),
            steps=str(folder / "steps"),
            log=str(folder / "server.log"),
            calls=str(folder / "calls"),
            modules=str(folder / "modules"),
        )
        pids.append(pid)
        deadline = time.monotonic() + DEADLINE_S
        while (card := read_card(state)) is None or card.pid != pid:
            assert servers.poll(pid) is None and time.monotonic() < deadline
            time.sleep(0.01)
        return World(folder, f"http://127.0.0.1:{port}", FaultPlan(seed, rate))

    yield made
    for pid in pids:
        servers.end(pid)


@pytest.mark.timeout(3600)
async def test_faults_leave_no_trace_in_what_a_run_makes(make: Any, results: Results) -> None:
    calm = make("calm", 0, 0.0)
    await asyncio.wait_for(calm.play(enough=0), DEADLINE_S)
    assert calm.plan.total == 0
    expected = outcome_of(calm.folder, calm.folder / "server")
    assert len(expected.jobs) == 2 and len(expected.rollouts) == 3
    met: Counter[str] = Counter()
    places: Counter[tuple[str, str]] = Counter()
    stops: Counter[str] = Counter()
    seed = 0
    while met.total() < WANTED:
        seed += 1
        world = make(f"faulty-{seed}", seed, RATE)
        try:
            await asyncio.wait_for(world.play(min(PER_RUN, WANTED - met.total())), DEADLINE_S)
        except (NipError, TimeoutError) as error:
            raise AssertionError(f"seed {seed}: {error!r}; {world.plan.met}") from error
        world.check(expected)
        assert world.plan.total > 0
        if world.plan.met["429"]:
            assert any(pause >= RETRY_AFTER_S for pause in world.time.slept), "not honoured"
        met += world.plan.met
        places += world.plan.places
        stops += world.stops
    assert met.total() >= WANTED
    assert WANTED < 60 or {*met} == {*FAULTS}, f"never met: {set(FAULTS) - set(met)}"
    for kind, what in FAULTS.items():
        where = {place: n for (k, place), n in places.items() if k == kind}
        shown = ", ".join(f"{place} {n}" for place, n in sorted(where.items()))
        results.add(
            "faults",
            {
                "kind": kind,
                "what": what,
                "count": met[kind],
                "where": shown,
                "came of it": f"nothing, in {seed} runs: same digests, one job per key",
            },
        )


_CHAT, _CREATE, _LOOK = (
    "POST /v1/chat/completions",
    "POST /v1/fine_tuning/jobs",
    "GET /v1/fine_tuning/jobs/*",
)
LASTING = [
    ("dropped after", _CHAT),
    ("dropped before", _CREATE),
    ("429", _CREATE),
    ("truncated body", _LOOK),
    ("429", _CHAT),
    ("500", _CHAT),
    ("malformed JSON", _CHAT),
    ("empty answer", _CHAT),
    ("wrong model", _CHAT),
    ("503", _CREATE),
    ("dropped before", _LOOK),
    ("500", _LOOK),
]


@pytest.mark.parametrize(
    ("kind", "place"),
    [LASTING[0], *(pytest.param(*one, marks=pytest.mark.long) for one in LASTING[1:3])]
    if WANTED < 1000
    else LASTING,
)
async def test_a_fault_that_lasts_stops_a_run_in_time_and_it_can_go_on(
    make: Any, kind: str, place: str
) -> None:
    world = make("lasting", 0, 0.0)
    world.plan = Lasting(0, 0.0, kind=kind, place=place)
    world.deadline_s = JOB_DEADLINE_S
    began_s = world.time.seconds
    with pytest.raises((ServerError, JobError)):
        await asyncio.wait_for(world.play(1_000_000, tries=1), DEADLINE_S)
    assert world.plan.total > 0
    assert world.time.seconds - began_s < 1.1 * JOB_DEADLINE_S, "it waited past its deadline"
    made = Counter(world.created)
    world.plan.kind = None
    await asyncio.wait_for(world.play(1_000_000, tries=1), DEADLINE_S)
    assert sorted((made + world.created).values()) == [1, 1], "a job was created twice"
    world.created = made + world.created
    world.check(outcome_of(world.folder, world.folder / "server"))
