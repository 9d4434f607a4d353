"""Asynchronous methods for code without an event loop.

Every call that waits for a model is a coroutine. Its synchronous twin runs it in a loop of its own,
and refuses where one is running (a notebook, a coroutine): to wait there would stop the loop.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def wait_for(call: Callable[[], Coroutine[Any, Any, T]], name: str, twin: str) -> T:
    """The result of `call`. Raises RuntimeError, naming `twin`, inside a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(call())
    raise RuntimeError(
        f"{name} waits for a model and an event loop is running here (a notebook has one): "
        f"use `await {twin}` instead"
    )
