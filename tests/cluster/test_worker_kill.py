"""A worker killed at every request to Prefect and every process start: the run ends the same.

The points are those that two unbroken runs have in common. A flow run sees several kills: its first
worker dies of the first point, the one that is started then of the next. With NIP_KILL_POINTS=all
every point is a kill; otherwise a few, evenly over all.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from killed_results import SAME, Results
from killed_runs import Zygote, spread
from killed_steps import Point
from killed_workers import CALL, JOB, WorkersPlace, check, environment, quiet_stack, steps_of
from prefect_stack import Stack

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]
ALL = os.environ.get("NIP_KILL_POINTS") == "all"
RESULTS = os.environ.get("NIP_KILL_RESULTS")
RUNS = 2 if ALL else 1
"""Over so many flow runs the kills at steps of a worker are spread."""

Make = Callable[[], WorkersPlace]


@pytest.fixture(scope="module")
def results() -> Iterator[Results]:
    found = Results(Path(RESULTS) if RESULTS else None)
    yield found
    found.save()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One server for all kills."""
    with quiet_stack(tmp_path_factory.mktemp("stack")) as stack:
        yield stack


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, stack: Stack) -> Iterator[Make]:
    """A new run on disk."""
    folder = tmp_path_factory.mktemp("runs")
    numbers = iter(range(10_000))
    own = environment(stack)
    address = stack.url.removeprefix("http://")
    with Zygote("worker", stack.folder, own) as workers, Zygote("server", folder, own) as servers:
        yield lambda: WorkersPlace(
            folder / f"{next(numbers):04d}", workers, servers, address, stack=stack
        )


@pytest.fixture(scope="module")
def unbroken(make: Make) -> tuple[WorkersPlace, list[Point]]:
    """A run whose worker was never killed; the steps of a worker."""
    first, second = make(), make()
    first.be_taken()
    second.be_taken()
    assert first.outcome() == second.outcome()
    check(second, first.outcome(), {})
    both = set(steps_of(second))
    return first, [point for point in steps_of(first) if point in both]


def kill_at(
    chains: Sequence[Sequence[Point]], make: Make, unbroken: WorkersPlace, results: Results
) -> None:
    """Kill at each of the points, each chain in a run of its own; the rows go to the results."""
    expected, seeds = unbroken.outcome(), unbroken.seeds()
    failures = []
    for points in chains:
        left = deque(points)
        while left:
            started, place, trouble = time.monotonic(), make(), ""
            try:
                place.be_taken(list(left))
                check(place, expected, seeds)
            except AssertionError as error:
                trouble = str(error)[:2000] or "not equal"
                place.abandon()
            hit = [death.point for death in place.deaths] or [left[0]]
            if trouble or not place.deaths:
                failures.append(f"{place.folder}, killed at {hit}: {trouble or 'never reached'}")
            seconds = (time.monotonic() - started) / len(hit)
            for number, point in enumerate(hit):
                assert left.popleft() == point, "another point was hit than was aimed at"
                death = place.deaths[number] if number < len(place.deaths) else None
                results.add(
                    "kill_matrix",
                    {
                        "process": "worker",
                        "label": point[0],
                        "occurrence": point[1],
                        "happened": trouble.splitlines()[0][:200] if trouble else SAME,
                        "calls repeated": len(place.repeated(death)) if death else 0,
                        "seconds": round(seconds, 2),
                    },
                )
            results.save()
    assert not failures, "\n\n".join(failures)


def test_a_worker_killed_at_any_step_leaves_a_run_that_ends_as_if_it_never_was(
    unbroken: tuple[WorkersPlace, list[Point]], make: Make, results: Results
) -> None:
    place, points = unbroken
    picked = points if ALL else spread(points, 6)
    kill_at([picked[n::RUNS] for n in range(RUNS)], make, place, results)


def test_a_worker_killed_while_its_flow_is_at_work_leaves_a_run_that_ends_as_if_it_never_was(
    unbroken: tuple[WorkersPlace, list[Point]], make: Make, results: Results
) -> None:
    place, _ = unbroken
    models = [model for model, _ in place.calls()]
    playing = spread(range(1, models.count("deterministic") + 1), 3 if ALL else 1)
    training = [(JOB, 2), (CALL, len(models))]
    kill_at([[*((CALL, n) for n in playing), (JOB, 1)], training], make, place, results)


def test_the_points_cover_all_that_a_worker_does_with_a_run(
    unbroken: tuple[WorkersPlace, list[Point]],
) -> None:
    text = "\n".join(label for label, _ in unbroken[1])
    for part in (
        "GET prefect/api/work_pools/nip-cpu",
        "POST prefect/api/work_pools/nip-cpu/get_scheduled_flow_runs",
        "GET prefect/api/deployments/*",
        "POST prefect/api/flow_runs/*/set_state",
        "PATCH prefect/api/flow_runs/*/labels",
        "PATCH prefect/api/flow_runs/*",
    ):
        assert f"send {part}" in text and f"answered {part}" in text, part
    assert "start a process" in text
    assert sum("set_state" in label for label, _ in unbroken[1]) == 4, "Pending, Submitting"
