"""Doing several things at once. When one fails, none is left running."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")


async def gather_or_cancel(work: Iterable[Awaitable[T]]) -> list[T]:
    """Await all, and give the results in order. When one fails, the others are cancelled first."""

    async def run(awaitable: Awaitable[T]) -> T:
        return await awaitable

    awaitables = [*work]
    try:
        if len(awaitables) == 1:  # as in most rounds of a game: it needs no task
            return [await awaitables[0]]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(awaitable)) for awaitable in awaitables]
    except BaseExceptionGroup as errors:
        raise first_error(errors) from errors
    return [task.result() for task in tasks]


async def with_short(
    begin: Awaitable[T],
    go_on: Callable[[T], Awaitable[U]],
    short: Callable[[], Awaitable[V]],
) -> tuple[U, V]:
    """Await `begin`, then both `go_on` with its result and `short`, which ends in any case.

    When one of the others fails, `short` ends before that is raised; when it fails itself, they are
    cancelled.
    """
    failed: list[Exception] = []

    async def hold(work: Awaitable[Any]) -> Any:
        try:
            return await work
        except Exception as error:
            failed.append(error)

    beginning = await hold(begin)
    works = [] if failed else [hold(go_on(beginning))]
    both: list[Any]
    try:
        both = await gather_or_cancel([*works, short()])
    except Exception as error:
        raise (failed or [error])[0] from None
    if failed:
        raise failed[0]
    return both[0], both[1]


async def in_thread(function: Callable[[], T]) -> T:
    """Run a function in a thread. A cancelled caller leaves when the function has ended."""
    task = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(task)
    finally:
        if not task.done():
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # known, if no caller waits for it any more


def first_error(errors: BaseException) -> BaseException:
    """Find the first plain exception in a group, however deep."""
    while isinstance(errors, BaseExceptionGroup):
        errors = errors.exceptions[0]
    return errors
