"""A signal to stop that Prefect has turned into an exception in another library's code.

Prefect's handler raises `TerminationSignal` wherever the main thread is. In a task or a callback of
a library, or in the middle of collecting garbage, no caller raises it further: it would be logged,
and the flow go on, submit jobs and pay for them, until it is killed. `asyncio` and Python tell of
such an exception last; from there the flow is cancelled, which Prefect takes for the same.

Not covered: a library that catches every exception and says nothing.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect.exceptions import TerminationSignal


@contextmanager
def stops_all_the_same() -> Iterator[None]:
    """Cancel the task of the block when a signal to stop was lost on the way to it."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    handler, hook = loop.get_exception_handler(), sys.unraisablehook

    def on_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), TerminationSignal):
            task.cancel()
        elif handler is not None:
            handler(loop, context)
        else:
            loop.default_exception_handler(context)

    def on_unraisable(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, TerminationSignal):
            loop.call_soon_threadsafe(task.cancel)
        else:
            hook(unraisable)

    loop.set_exception_handler(on_exception)
    sys.unraisablehook = on_unraisable
    try:
        yield
    finally:
        loop.set_exception_handler(handler)
        sys.unraisablehook = hook
