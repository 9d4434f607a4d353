"""Work in other processes: the same results in the same order, the same errors, none left over."""

import gc
import inspect
import math
import signal
import subprocess
import sys
import time
from functools import partial

import psutil
import pytest

from nip_core.errors import CorruptionError, StageError
from nip_core.processes import collect_seldom, count_processes, map_in_processes
from nip_core.run_store.local_store import LocalStore
from nip_core.run_store.manifest import read_manifest

PARENT = """
import time
from nip_core.processes import map_in_processes
results = map_in_processes(time.sleep, [0, 0] + [1000] * 9, 2)
next(results)
print("going", flush=True)
list(results)
"""


def children(process=None):
    return psutil.Process(process).children()


def gone(processes):
    until = time.monotonic() + 20
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes):
        assert time.monotonic() < until, processes
        time.sleep(0.02)
    return True


def test_results_come_in_the_order_of_the_items_and_no_process_stays():
    before = children()
    numbers = [9 - n for n in range(9)]
    assert list(map_in_processes(math.sqrt, numbers, 2)) == [math.sqrt(n) for n in numbers]
    assert children() == before


def test_an_exception_comes_back_as_itself_where_its_result_would_be(tmp_path):
    store = LocalStore(tmp_path)
    results = map_in_processes(math.sqrt, [4, -1, 9], 2)
    assert next(results) == 2.0
    with pytest.raises(ValueError, match="math domain error"):
        next(results)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "manifest.json").write_text("{")
    with pytest.raises(CorruptionError, match=r"a/manifest\.json: damaged"):
        list(map_in_processes(partial(read_manifest, store), ["a"], 1))


def test_a_killed_process_is_an_error_that_says_so():
    before = children()
    with pytest.raises(StageError, match="status -9"):
        list(map_in_processes(signal.raise_signal, [signal.SIGKILL], 1))
    assert children() == before


def test_who_stops_listening_leaves_no_process():
    before = children()
    results = map_in_processes(time.sleep, [0, *[1000] * 5], 2)
    next(results)
    assert len(children()) == len(before) + 2
    results.close()
    assert children() == before


def test_what_is_printed_there_is_no_result(capfd):
    assert list(map_in_processes(print, ["said"], 1)) == [None]
    assert capfd.readouterr() == ("", "said\n")


def test_a_killed_caller_leaves_no_process():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"going\n"
        started = children(parent.pid)
        assert len(started) == 2
        parent.kill()
    assert gone(started)


def test_little_work_takes_no_other_process():
    assert count_processes(2_000) == 1
    assert 1 <= count_processes(100_000) <= 3


def test_garbage_is_searched_for_seldom_until_the_last_one_who_wants_that_leaves(monkeypatch):
    monkeypatch.setattr(gc, "unfreeze", inspect.unwrap(gc.unfreeze))  # that of Python
    before = gc.get_threshold()
    with collect_seldom():
        assert gc.get_threshold()[0] > before[0] and gc.get_freeze_count() > 0
        inner = collect_seldom()
        with inner:
            pass
        assert gc.get_threshold()[0] > before[0]  # the outer one still wants it
    assert gc.get_threshold() == before and gc.get_freeze_count() == 0
