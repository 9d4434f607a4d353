"""The processes of `nip up`: what ends is started again, what ends at each start ends all."""

import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from prefect_stack import until

from nip_core.errors import ServerError
from nip_up.parts import Parts


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def sigint():
    """Leaving the parts ignores SIGINT, as the process is at its end."""
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)


def tend_until(parts: Parts, clock: Clock, condition) -> None:
    """As `nip up` does, on a clock that runs 1 s at each look."""
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s
        parts.tend()
        clock.now_s += 1
        time.sleep(0.02)


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def starts(folder: Path) -> list[int]:
    file = folder / "starts"
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


def a_part(folder: Path, then: str) -> list[str]:
    return ["sh", "-c", f"echo $$ >> {folder / 'starts'}; {then}"]


def test_a_killed_part_is_started_again_and_ends_with_the_rest(tmp_path, capsys):
    clock = Clock()
    others = set(psutil.Process().children(recursive=True))  # of tests before, a server of theirs
    with Parts(tmp_path, clock) as parts:
        # With a child, as a worker has flow runs, that outlives it.
        parts.start("worker", a_part(tmp_path, "sleep 1000 & wait"), {})
        parts.start("other", ["sleep", "1000"], {})
        tend_until(parts, clock, lambda: len(starts(tmp_path)) == 1)
        for number in range(1, 12):  # more often than it may end at its start
            clock.now_s += 100
            worker = psutil.Process(starts(tmp_path)[-1])
            tend_until(parts, clock, worker.children)
            [child] = worker.children()
            worker.kill()
            tend_until(parts, clock, lambda n=number: len(starts(tmp_path)) == n + 1)
            until(lambda c=child: is_gone(c), "the worker's child is gone")
        processes = set(psutil.Process().children(recursive=True)) - others
        assert starts(tmp_path)[-1] in {process.pid for process in processes}
    said = capsys.readouterr().err
    assert f"worker ended with -9; started again in 1 s; its log is {tmp_path}" in said
    assert "other ended" not in said
    assert said.splitlines()[-2:] == [
        "nip: stopping other, worker",
        f"nip: stopped other, worker; what stays is {tmp_path} (Prefect's database, keys, logs) "
        "and all runs",
    ]
    until(lambda: all(map(is_gone, processes)), "no process is left")


def test_a_part_that_ends_at_each_start_ends_all_and_its_log_is_named(tmp_path, capsys):
    clock = Clock()
    with Parts(tmp_path, clock) as parts:
        other = parts.start("other", ["sleep", "1000"], {})
        parts.start("lm-server", a_part(tmp_path, "echo no such model; exit 3"), {})
        with pytest.raises(ServerError, match=r"lm-server ended 5 times.* with 3") as ended:
            tend_until(parts, clock, lambda: False)
        assert other.poll() is None
    assert str(tmp_path / "logs" / "lm-server.log") in str(ended.value)
    assert "no such model" in str(ended.value)
    assert len(starts(tmp_path)) == 5
    *ends, _, _ = capsys.readouterr().err.splitlines()
    waits = [int(line.split(" in ")[1].split()[0]) for line in ends]
    assert waits == [1, 2, 4, 8]
    assert other.poll() is not None


def test_a_part_waits_for_what_it_needs_before_it_is_started_again(tmp_path):
    clock, needed = Clock(), tmp_path / "needed"
    with Parts(tmp_path, clock) as parts:
        parts.start("worker", a_part(tmp_path, "sleep 1000"), {}, may_start=needed.exists)
        tend_until(parts, clock, lambda: starts(tmp_path))
        psutil.Process(starts(tmp_path)[0]).kill()
        later_s = clock.now_s + 100
        tend_until(parts, clock, lambda: clock.now_s > later_s)
        assert len(starts(tmp_path)) == 1
        needed.touch()
        tend_until(parts, clock, lambda: len(starts(tmp_path)) == 2)


def test_this_process_can_be_interrupted_once_all_have_ended(tmp_path):
    handler = signal.getsignal(signal.SIGINT)
    with Parts(tmp_path) as parts:
        parts.start("sleeper", ["sleep", "60"], {})
    assert signal.getsignal(signal.SIGINT) is handler is not signal.SIG_IGN


def test_a_part_that_ends_before_all_is_up_is_an_error_at_once(tmp_path):
    with Parts(tmp_path) as parts:
        parts.start("lm-server", ["sh", "-c", "echo wrong option; exit 2"], {})
        with pytest.raises(ServerError, match=r"lm-server ended with 2.*wrong option"):
            parts.until(lambda: False, "never", 60)


def test_one_that_does_not_heed_the_end_of_the_others_is_no_obstacle(tmp_path):
    with Parts(tmp_path) as parts:
        ended = parts.start("ended", ["true"], {})
        ended.wait(timeout=30)
        parts.tend()  # it waits to be started again
        other = parts.start("other", ["sleep", "1000"], {})
    assert isinstance(other, subprocess.Popen) and other.poll() is not None
