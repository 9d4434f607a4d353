"""One function over many items, in processes of its own.

The processes are fresh interpreters that talk over pipes. They do not run the caller's main module
again, as processes of multiprocessing would, and end when their caller does: neither a killed one
nor one that stops listening leaves any behind. The output of an item goes to stderr.
"""

import contextlib
import gc
import os
import pickle
import queue
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, TypeVar, cast

from nip_base.errors import StageError
from nip_base.machine.processes import watch_parent

_T = TypeVar("_T")
_R = TypeVar("_R")
_MOST = 3  # each takes some 150 MB
_COLLECTED_AFTER = 50_000  # new objects; most are an item's or an episode's, and go with it
_FEW = 5_000  # examples that are made before processes have started
_START = (
    "import sys; sys.path[:] = {path!r}; "
    "from nip_base import mapping; mapping.serve_items({caller})"
)
_LOOK_S = 1.0  # how often a process looks whether its caller is there


def count_processes(examples: int) -> int:
    """Count the processes worth starting to make so many examples; 1: none but the caller's."""
    if examples <= _FEW:
        return 1
    count = getattr(os, "sched_getaffinity", None)
    return min(_MOST, (len(count(0)) if count else os.cpu_count()) or 1)


def map_in_processes(
    function: Callable[[_T], _R], items: Iterable[_T], processes: int
) -> Iterator[_R]:
    """Apply `function` to each item, in order. Function, items and results must be picklable.

    At most two items per process are under way or wait to be taken. An exception comes back as
    itself, where its item's result would have been. Raises StageError if a process is killed.
    """
    team = [_Process(pickle.dumps(function)) for _ in range(processes)]
    free: queue.SimpleQueue[_Process] = queue.SimpleQueue()
    for process in team:
        free.put(process)

    def ask(item: _T) -> _R:
        process = free.get()
        try:
            return cast("_R", process.ask(item))
        finally:
            free.put(process)

    threads = ThreadPoolExecutor(processes)
    under_way: deque[Future[_R]] = deque()
    try:
        for item in items:
            under_way.append(threads.submit(ask, item))
            if len(under_way) == 2 * processes:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        for process in team:
            process.kill()
        threads.shutdown(cancel_futures=True)


class _Process:
    """A process with the function, and the pipes to it."""

    def __init__(self, function: bytes):
        command = [sys.executable, "-c", _START.format(path=sys.path, caller=os.getpid())]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a signal to the caller's group is the caller's to handle
        )
        self._to = cast("BinaryIO", self._process.stdin)
        self._from = cast("BinaryIO", self._process.stdout)
        self._function: bytes | None = function

    def ask(self, item: Any) -> Any:
        """Apply the function to an item there. Raises the function's exceptions."""
        try:
            if self._function is not None:
                self._to.write(self._function)
                self._function = None
            pickle.dump(item, self._to, pickle.HIGHEST_PROTOCOL)
            self._to.flush()
            result, error = pickle.load(self._from)  # noqa: S301
        except (OSError, EOFError, pickle.UnpicklingError) as broken:
            status = self._process.wait()
            raise StageError(
                f"a process that took part of the work ended with status {status}; if the system "
                "killed it (status -9), there was too little memory: free some and run again"
            ) from broken
        if error is not None:
            raise error
        return result

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):  # the rest to be written has no reader
            self._to.close()
        self._from.close()


def serve_items(caller: int) -> None:
    """Do the work of such a process: take items from stdin, write results to its former stdout."""
    end_with(caller)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    function: Callable[[Any], Any] | None = None
    with contextlib.ExitStack() as work, contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            result, error = None, None
            try:
                if function is None:
                    function = pickle.load(sys.stdin.buffer)  # noqa: S301
                    work.enter_context(collect_seldom())
                result = function(pickle.load(sys.stdin.buffer))  # noqa: S301
            except EOFError:
                return
            except Exception as raised:  # any error is the caller's to handle
                error = _portable(raised)
            pickle.dump((result, error), answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()


class _Collector:
    """Python's search for garbage in this process, and how many want it to be seldom."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = gc.get_threshold()

    def enter(self) -> None:
        with self._lock:
            if self._users == 0:
                self._before = gc.get_threshold()
                gc.freeze()
                gc.set_threshold(_COLLECTED_AFTER, *self._before[1:])
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                gc.set_threshold(*self._before)
                gc.unfreeze()


_collector = _Collector()


@contextlib.contextmanager
def collect_seldom() -> Iterator[None]:
    """Search for garbage only after many new objects, and among new ones alone.

    A thousand episodes under way are a few hundred thousand objects that stay until they end: to
    look through them and all modules after every 700 new ones takes a third of the time of play.
    Objects in no cycle are freed at once, as ever. Several may be in the block at a time; the last
    one that leaves it puts everything back.
    """
    _collector.enter()
    try:
        yield
    finally:
        _collector.leave()


def end_with(caller: int) -> None:
    """End this process at once when `caller`, its parent, is gone."""
    watch_parent(caller, None, lambda: os._exit(1), poll_s=_LOOK_S)


def _portable(error: Exception) -> Exception:
    """Prepare an exception for its way through a pipe, with the place of its raising.

    One that can't be pickled becomes a RuntimeError with the same words.
    """
    trace = "".join(traceback.format_exception(error))
    try:
        error = pickle.loads(pickle.dumps(error))  # noqa: S301
    except Exception:  # an exception's own code may do anything when it is made again
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(trace)
    return error
