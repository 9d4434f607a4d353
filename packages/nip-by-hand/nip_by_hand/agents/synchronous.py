"""Asynchronous methods for code without an event loop.

Every call that waits for a model is a coroutine. Its synchronous twin runs it in a loop of its own,
and refuses where one is running (a notebook, a coroutine): to wait there would stop the loop.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def synchronous(
    coroutine: Callable[Concatenate[S, P], Coroutine[Any, Any, T]], name: str
) -> Callable[Concatenate[S, P], T]:
    """Make a blocking twin, called `name`, of a coroutine method; it takes and gives the same.

    It raises RuntimeError, naming the coroutine, inside a running event loop.
    """
    twin = coroutine.__name__

    def wait(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            call: Callable[..., Coroutine[Any, Any, T]] = getattr(self, twin)  # a subclass's own
            return asyncio.run(call(*args, **kwargs))
        raise RuntimeError(
            f"{name} waits for a model and an event loop is running here (a notebook has one): "
            f"use `await {twin}` instead"
        )

    update_wrapper(wait, coroutine)  # its signature is that of the coroutine
    wait.__name__ = name
    return wait
