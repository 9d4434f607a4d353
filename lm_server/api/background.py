"""Work that goes on when the request that asked for it is gone.

A client that leaves cancels its handler. That is right for generating text, and wrong for half of
a change: deleting a model, starting an engine. Such work runs here, to its end or the server's.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class BackgroundTasks:
    """The tasks of one server that outlive their requests."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def finish(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Await `work`; if this await is cancelled, `work` goes on."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Cancel what still runs, and wait for its end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever still waits gets it too
