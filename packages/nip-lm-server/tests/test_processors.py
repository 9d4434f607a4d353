"""How many threads compute: all where nobody else does, fewer where others want the processors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nip_base.machine.processors import (
    FIRST_PAUSE_S,
    LOOK_S,
    SMALL_BYTES,
    Threads,
    count_processors,
    most_threads,
    read_waiting,
    usual_threads,
    weights_bytes,
)
from nip_lm_server.bundled import TINY


class Machine:
    """A clock, what the kernel has counted, and the numbers of threads that were set."""

    def __init__(self) -> None:
        self.now_s = self.waited = self.ran = 0.0
        self.set: list[int] = []

    def threads(self, most: int, fixed: int | None = None) -> Threads:
        return Threads(
            most,
            self.set.append,
            fixed=fixed,
            read=lambda: (self.waited, self.ran),
            clock=lambda: self.now_s,
        )

    def live(self, threads: Threads, waiting: float, seconds: float = LOOK_S) -> int:
        """Compute for so long, waiting for this share of it; the number of threads after it."""
        self.now_s += seconds
        self.waited += waiting
        self.ran += 1 - waiting
        threads.look()
        return threads.count


def test_all_processors_compute_while_nobody_else_wants_them() -> None:
    machine = Machine()
    threads = machine.threads(8)
    assert [machine.live(threads, 0.01) for _ in range(10)] == [8] * 10
    assert machine.set == [8]


def test_with_busy_neighbours_fewer_compute_down_to_one() -> None:
    machine = Machine()
    threads = machine.threads(8)
    assert [machine.live(threads, 0.7) for _ in range(5)] == [4, 2, 1, 1, 1]
    assert machine.set == [8, 4, 2, 1]


def test_once_the_neighbours_are_gone_all_compute_again() -> None:
    machine = Machine()
    threads = machine.threads(2)
    assert machine.live(threads, 0.7) == 1
    assert machine.live(threads, 0.0) == 1  # not at once
    assert machine.live(threads, 0.0, FIRST_PAUSE_S) == 2


def test_more_threads_are_tried_ever_more_seldom_where_they_are_always_too_many() -> None:
    machine = Machine()
    threads = machine.threads(2)
    # A neighbour has one of two processors: one thread never waits, two do.
    tries = sum(machine.live(threads, 0.0 if threads.count == 1 else 0.33) == 2
                for _ in range(2 * 300))  # fmt: skip
    assert 3 <= tries <= 8


def test_a_number_that_is_set_stays_whatever_others_do() -> None:
    machine = Machine()
    threads = machine.threads(8, fixed=3)
    assert [machine.live(threads, 0.9) for _ in range(3)] == [3] * 3
    assert machine.set == [3]


def test_where_the_kernel_tells_nothing_half_of_the_processors_compute() -> None:
    applied: list[int] = []
    threads = Threads(8, applied.append, read=lambda: None)
    threads.look()
    assert (threads.count, applied) == (4, [4])


def test_a_thread_that_ended_with_its_share_of_the_time_decides_nothing() -> None:
    machine = Machine()
    threads = machine.threads(2)
    machine.waited -= 5
    assert machine.live(threads, 0.0) == 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), ("", None), ("3", 3), ("3,2", 3), ("0", None), ("all", None)],
)
def test_the_environments_number_counts_where_it_is_one(
    value: str | None, expected: int | None
) -> None:
    assert usual_threads({} if value is None else {"OMP_NUM_THREADS": value}) == expected


def test_a_small_model_is_computed_on_half_of_the_processors_at_most(tmp_path: Path) -> None:
    count = count_processors()
    assert most_threads(SMALL_BYTES) == count
    assert most_threads(SMALL_BYTES - 1) == max(1, count // 2)
    weights = weights_bytes(TINY)
    assert weights is not None and 0 < weights < SMALL_BYTES
    assert weights_bytes(tmp_path) is None and weights_bytes("a-hub/name") is None


def test_a_containers_limit_of_processors_counts_and_of_those_around_it(tmp_path: Path) -> None:
    own, tree = tmp_path / "self", tmp_path / "cgroup"
    (tree / "pod/box").mkdir(parents=True)
    own.mkdir()
    free = count_processors(tmp_path)
    (own / "cgroup").write_text("0::/pod/box\n")
    (own / "mountinfo").write_text(f"30 1 0:2 / {tree} rw - cgroup2 cgroup2 rw\n")
    (tree / "pod/box/cpu.max").write_text("max 100000\n")
    assert count_processors(tmp_path) == free
    (tree / "pod/cpu.max").write_text("50000 100000\n")
    assert count_processors(tmp_path) == 1


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel doesn't tell")
def test_the_kernel_tells_how_long_threads_have_waited_and_run() -> None:
    before = read_waiting()
    assert before is not None
    # More busy loops than processors, this one among them: some of them have to wait.
    count = 2 * (os.cpu_count() or 1)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        after = before
        # Until it has waited, however long that takes.
        while after[0] - before[0] < 0.01:
            after = read_waiting() or before
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert after[1] > before[1]
