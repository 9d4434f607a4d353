"""Calls of a user's function that may hang: each has a time-out, and none keeps a program alive.

call_with_timeout  the value of a plain or an async function
HangsError         it gave none in time; the message has its line

A thread that hangs can't be ended: it stays until the program does. Plain functions have a daemon
thread for each call. Async ones share the event loop of one daemon thread, so that a client that
they keep open serves all their calls.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import FrameType
from typing import Any


class HangsError(RuntimeError):
    """A function has given nothing in time."""


async def call_with_timeout(
    function: Callable[..., Any], arguments: Mapping[str, Any], timeout_s: float
) -> Any:
    """Call a function in another thread. Raises HangsError, or the function's own error."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    if is_async(function):
        loop, thread = _shared_loop()
        coroutine = function(**arguments)
        future = asyncio.run_coroutine_threadsafe(_guard(coroutine), loop)
    else:
        coroutine = None
        thread = threading.Thread(
            target=_work, args=(function, arguments, future), name="judge", daemon=True
        )
        thread.start()
    waiting = asyncio.wrap_future(future)
    finished, _ = await asyncio.wait([waiting], timeout=timeout_s)
    if finished:
        return waiting.result()
    line = _find_hanging_line(function, thread, coroutine)
    waiting.cancel()
    raise HangsError(f"no answer within {timeout_s:g} s{line}")


def is_async(function: Callable[..., Any]) -> bool:
    """Say whether a call gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 (of an object that can be called)
    )


def _work(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    future: "concurrent.futures.Future[Any]",
) -> None:
    try:
        value = function(**arguments)
    except BaseException as error:  # also SystemExit, which would end the thread without a word
        if not future.cancelled():
            _settle(future.set_exception, _wrap_stop(error))
    else:
        _settle(future.set_result, value)


async def _guard(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await a user's coroutine; what would end the loop of all calls ends this one alone."""
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        raise _wrap_stop(error) from None


def _settle(put: Callable[[Any], None], value: object) -> None:
    with contextlib.suppress(concurrent.futures.InvalidStateError):  # no caller waits any more
        put(value)


def _wrap_stop(error: BaseException) -> BaseException:
    """Make StopIteration, and all that would end a program, an error that a future can carry."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(f"{type(error).__name__}: {error}")
    return wrapped.with_traceback(error.__traceback__)


@functools.cache
def _shared_loop() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="async judges", daemon=True)
    thread.start()
    return loop, thread


def _find_hanging_line(
    function: Callable[..., Any], thread: threading.Thread, coroutine: Any
) -> str:
    """Say ", at judge.py, line N": where in its file the function is now; "" if not known."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:
        file = inspect.getsourcefile(type(function))
    frame: FrameType | None = None
    if coroutine is None and thread.ident is not None:
        frame = sys._current_frames().get(thread.ident)
    line = None
    while frame is not None and line is None:
        line = frame.f_lineno if frame.f_code.co_filename == file else None
        frame = frame.f_back
    while coroutine is not None and (frame := getattr(coroutine, "cr_frame", None)) is not None:
        line = frame.f_lineno if frame.f_code.co_filename == file else line
        coroutine = coroutine.cr_await
    return "" if line is None or file is None else f", at {Path(file).name}, line {line}"
