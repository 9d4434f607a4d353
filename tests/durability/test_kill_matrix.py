"""A run killed at every write and every HTTP boundary ends as the one that was never killed.

The points are those that two unbroken runs have in common (without NIP_KILL_POINTS: those of one).
A run is killed several times, one after another: its first process dies of the first point, the
one that goes on of the next. One point of each kind is a kill; with NIP_KILL_POINTS=all every point,
with a number so many, evenly over all.
"""

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from killed_results import SAME, Results
from killed_runs import IN_FLIGHT, Outcome, Place, Zygote, spread
from killed_steps import TORN, Point

# With more points it takes long; each test says what it does with those that there are.
pytestmark = pytest.mark.long(True)
POINTS = os.environ.get("NIP_KILL_POINTS", "kinds")
KILLS_PER_RUN = 12
# Of these a slow machine sees more than a fast one: a job is looked at until it has ended, what is
# seen of it on the way is noted, and Prefect sends several task runs at once. So many are certain.
CERTAIN = {
    r"GET server/v1/fine_tuning/jobs/ftjob-\*$": 2,
    r"^rename RUN/.*/jobs/(prover|verifier)\.json$": 4,
    r" for (prover|verifier)\.json$": 5,
    r"POST prefect/api/task_runs/$": 1,
}

KINDS = (
    # A run begins; an answer is there; half of its record is written; a shard is about to count.
    r"^link RUN/runs/small/run\.json$",
    r"^answered POST server/v1/chat/completions",
    r"^torn write RUN/runs/small/journals",
    r"^link RUN/.*/rollouts/train/manifest-0001\.json$",
    # A job was created, and nobody has written that down; the models are about to be swapped.
    r"^answered POST server/v1/fine_tuning/jobs$",
    r"^link RUN/.*/0000/models\.json$",
)
"""One kill of each, in the order of a run. Of a server under a run: below."""

Make = Callable[..., Place]


@pytest.fixture(scope="module")
def make(
    tmp_path_factory: pytest.TempPathFactory, flows: Zygote, servers: Zygote, prefect_address: str
) -> Make:
    """A new run on disk."""
    folder = tmp_path_factory.mktemp("runs")
    numbers = iter(range(10_000))

    def made(own_server: bool = False) -> Place:
        return Place(folder / f"{next(numbers):04d}", flows, servers, prefect_address, own_server)

    return made


@pytest.fixture(scope="module")
def unbroken(make: Make, flows: Zygote, servers: Zygote) -> tuple[Place, list[Point], list[Point]]:
    """A run that was never killed; the points of its flow, and of its server."""
    first = make()
    first.play()
    flows.warm(first.folder / "modules-flow")
    servers.warm(first.folder / "modules-server")
    second = first
    if POINTS != "kinds":
        second = make()
        second.play()
        assert first.outcome() == second.outcome()
    check(second, first.outcome(), {})
    flow, server = (
        [p for p in first.points(what) if p in set(second.points(what)) and _is_certain(p)]
        for what in ("flow", "server")
    )
    return first, [point for one in flow for point in _with_torn(one)], server


def _is_certain(point: Point) -> bool:
    label, occurrence = point
    return all(occurrence <= n for pattern, n in CERTAIN.items() if re.search(pattern, label))


def _with_torn(point: Point) -> list[Point]:
    label, occurrence = point
    return [point, (TORN + label, occurrence)] if label.startswith("write ") else [point]


def check(place: Place, expected: Outcome, seeds: dict[str, str]) -> None:
    """What a run that was killed must show in the end; `seeds` are those of all generations."""
    assert place.outcome() == expected
    keys = [job[0] for job in expected.jobs]
    assert len(keys) == len(set(keys)) == 2, "one job for each group"
    assert all(job[2] == "succeeded" for job in expected.jobs)
    place.check_calls()
    for death in place.deaths:
        repeated = place.repeated(death)
        assert not repeated & {seeds[key] for key in death.durable}, f"paid twice: {death.point}"
        assert len(repeated) <= IN_FLIGHT, f"{death.point}: {repeated}"
    deadline = time.monotonic() + 30
    while place.left() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert place.left() == []


def kill_at(
    points: Sequence[Point],
    what: str,
    make: Callable[[], Place],
    unbroken: Place,
    results: Results,
    kills_per_run: int = KILLS_PER_RUN,
) -> None:
    """Kill at each of the points, and check; the rows go to the results."""
    expected, seeds = unbroken.outcome(), unbroken.seeds()
    failures = []
    chains = deque(_chains(points, kills_per_run))
    while chains:
        chain = chains.popleft()
        while chain:
            started, place = time.monotonic(), make()
            arguments = {what: list(chain)}
            trouble = ""
            try:
                place.play(**arguments)
                check(place, expected, seeds)
            except AssertionError as error:
                trouble = str(error)[:2000] or "not equal"
                place.abandon()
            hit = [death.point for death in place.deaths]
            assert hit == list(chain)[: len(hit)], "another point was hit than was aimed at"
            if not hit:
                trouble = trouble or "never reached"
                hit = [chain[0]]
            if trouble:
                failures.append(f"{place.folder}, killed at {hit}: {trouble}")
            if trouble and len(hit) > 1:  # which of them was it? Each gets a run of its own
                chains.extend(deque([chain.popleft()]) for _ in hit)
                continue
            seconds = (time.monotonic() - started) / len(hit)
            for number, point in enumerate(hit):
                chain.popleft()
                death = place.deaths[number] if number < len(place.deaths) else None
                results.add("kill_matrix", _row(place, what, point, death, trouble, seconds))
            results.save()
    assert not failures, "\n\n".join(failures)


def _chains(points: Sequence[Point], length: int) -> Iterator[deque[Point]]:
    """The points in runs of about `length`, each spread over the whole."""
    count = -(-len(points) // length)
    for first in range(count):
        yield deque(points[first::count])


def _row(place, what, point, death, trouble, seconds) -> dict[str, object]:  # type: ignore[no-untyped-def]
    return {
        "process": what if not place.own_server else f"{what} with its own server",
        "label": point[0],
        "occurrence": point[1],
        "happened": trouble.splitlines()[0][:200] if trouble else SAME,
        "calls repeated": len(place.repeated(death)) if death else 0,
        "seconds": round(seconds, 2),
    }


def chosen(points: Sequence[Point]) -> list[Point]:
    """The points of a flow that are kills: all, one of each kind, or a share of the number."""
    if POINTS == "kinds":
        return [next(p for p in points if re.search(kind, p[0])) for kind in KINDS]
    return list(points) if POINTS == "all" else spread(points, max(1, round(int(POINTS) * 0.7)))


@pytest.mark.timeout(3600)
def test_a_flow_killed_at_any_step_ends_as_if_it_never_was(
    unbroken: tuple[Place, list[Point], list[Point]], make: Make, results: Results
) -> None:
    place, points, _ = unbroken
    assert len(points) > 300, "there are fewer steps than there were"
    kill_at(chosen(points), "flow", make, place, results)


@pytest.mark.timeout(3600)
def test_a_server_killed_under_a_run_changes_nothing_in_it(
    unbroken: tuple[Place, list[Point], list[Point]], make: Make, results: Results
) -> None:
    place, _, points = unbroken
    # Every step of a server is killed in test_server_kill; here a run is under way.
    if POINTS == "kinds":
        picked = [p for p in points if p[0].startswith("sql INSERT INTO jobs")][:1]
    else:
        picked = (
            spread(points, 24) if POINTS == "all" else spread(points[5:], max(2, int(POINTS) // 7))
        )
    kill_at(picked, "server", make, place, results, kills_per_run=3)


@pytest.mark.long(POINTS != "kinds")
@pytest.mark.timeout(3600)
def test_a_flow_killed_with_a_server_of_its_own_takes_it_along(
    unbroken: tuple[Place, list[Point], list[Point]], make: Make, results: Results
) -> None:
    own = make(own_server=True)
    own.play()
    known = {label for label, _ in unbroken[1]}
    points = own.points("flow")
    under_way = [p for p in points if p[0].endswith(("train/manifest-0000.json", "models.json"))]
    starting = [point for point in points if point[0] not in known]
    assert len(under_way) >= 2 and any("lm_server" in label for label, _ in starting)
    picked = starting + under_way if POINTS == "all" else spread(under_way, POINTS.isdigit() + 1)
    kill_at(picked, "flow", lambda: make(own_server=True), own, results)


def test_the_points_cover_all_that_an_iteration_writes_and_asks(
    unbroken: tuple[Place, list[Point], list[Point]], tmp_path: Path
) -> None:
    text = "\n".join(label for label, _ in (*unbroken[1], *unbroken[2]))
    for part in (
        "link RUN/runs/small/lease.json",
        "link RUN/runs/small/run.json",
        "write RUN/runs/small/journals/0000/train/0001.journal record",
        "torn write RUN/runs/small/journals",
        "link RUN/runs/small/iterations/0000/rollouts/train/manifest-0001.json",
        "link RUN/runs/small/iterations/0000/datasets/prover/manifest.json",
        "rename RUN/runs/small/iterations/0000/jobs/verifier.json",
        "link RUN/runs/small/iterations/0000/models.json",
        "send POST server/v1/chat/completions seed",
        "answered POST server/v1/chat/completions seed",
        "answered POST server/v1/files",
        "answered POST server/v1/fine_tuning/jobs",
        "answered GET server/v1/fine_tuning/jobs",
        "answered POST prefect/api/flow_runs/",
        "sql INSERT INTO jobs",
        "sql INSERT INTO models",
    ):
        assert part in text, part
