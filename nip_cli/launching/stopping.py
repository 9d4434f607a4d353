"""Stopping a command by SIGINT, SIGTERM or SIGHUP, once, soon, and with a word.

The work has a thread of its own and the main thread waits for signals alone. So a signal never
meets an import, a library or Prefect's engine (which in the main thread would take SIGTERM for
itself) in the middle, and is heard however busy the work is. Further signals change nothing.
"""

import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

LEAVE_S = 15.0
"""Seconds that the work may take to give everything back."""
_LOOK_S = 0.2
"""A signal that the system gives to another thread does not wake this one from waiting."""


class Stopped(Exception):
    """A command ended because of a signal."""

    def __init__(self, by: signal.Signals):
        super().__init__(by)
        self.by = by


class Stop:
    """A request to stop, and the work that it cancels."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancel: Callable[[], object] | None = None
        self._is_asked = False
        self._given_back = threading.Event()

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As asyncio.run: the work is cancelled when a stop is asked for."""
        import asyncio  # a third of the imports of `nip --help`

        async def cancellable() -> T:
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None
            with self._lock:
                if self._is_asked:
                    raise asyncio.CancelledError
                self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            try:
                return await work()
            finally:
                with self._lock:
                    self._cancel = None
                # From here on the event loop waits for threads that import; they hold nothing.
                self._given_back.set()

        return asyncio.run(cancellable())

    def ask(self) -> None:
        """Ask for a stop, and wait until what is cancelled has given everything back."""
        with self._lock:
            self._is_asked = True
            if self._cancel is None:
                return
            self._cancel()
        self._given_back.wait(LEAVE_S)


def stoppable(work: Callable[[Stop], T], on_stop: Callable[[], None]) -> T:
    """Do `work` in a thread until it ends or a signal comes; a signal is passed to `on_stop`.

    Raises what `work` raises, or Stopped: when the work has given everything back, after LEAVE_S at
    the latest. Its thread may then still run; the process is to end without waiting for it.
    """
    heard: SimpleQueue[signal.Signals | None] = SimpleQueue()  # may be put to in a signal handler
    stop, result = Stop(), Future[T]()

    def do() -> None:
        try:
            result.set_result(work(stop))
        except BaseException as error:
            result.set_exception(error)
        heard.put(None)

    earlier_handlers = {
        number: signal.signal(number, lambda caught, frame: heard.put(signal.Signals(caught)))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        # As in the background of a script, and under `nohup`.
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    threading.Thread(target=do, name="work", daemon=True).start()
    stop_signal = _hear(heard)
    if stop_signal is None:
        for number, handler in earlier_handlers.items():
            signal.signal(number, handler)
        return result.result()
    on_stop()
    stop.ask()
    raise Stopped(stop_signal)


def _hear(heard: "SimpleQueue[signal.Signals | None]") -> signal.Signals | None:
    """Wait for a signal, or None. Python runs handlers in the main thread, whenever it wakes."""
    while True:
        try:
            return heard.get(timeout=_LOOK_S)
        except Empty:
            continue
