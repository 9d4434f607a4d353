"""Work on large inputs, beside the event loop and one after the other.

run                work on bytes, in a thread where they are many
check_file         the same for uploads, which take longer still
follow_form        work on an answer that has to follow a schema
give_memory_back   returns freed memory to the system

Each kind has a thread or two: every thread that computes slows the event loop down.
"""

import asyncio
import ctypes
import ctypes.util
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

LARGE_BYTES = 64 * 1024
"""Bytes of input from which on work is done aside."""
# Apart from each other: a file's check may take long, and no chat should wait for it.
_bodies = ThreadPoolExecutor(1, "large-bodies")
_files = ThreadPoolExecutor(1, "uploads")
_forms = ThreadPoolExecutor(2, "grammars")  # their library works without the interpreter's lock

_T = TypeVar("_T")


async def run(size: int, work: Callable[..., _T], *arguments: Any) -> _T:
    """``work(*arguments)`` on an input of `size` bytes; not if it is cancelled before its turn."""
    # A thread's turn costs more than a small piece of work.
    if size < LARGE_BYTES:
        return work(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_bodies, work, *arguments)


async def check_file(work: Callable[..., _T], *arguments: Any) -> _T:
    """``work(*arguments)``, after the earlier files."""
    return await asyncio.get_running_loop().run_in_executor(_files, work, *arguments)


async def follow_form(work: Callable[..., _T], *arguments: Any) -> _T:
    """Run ``work(*arguments)`` in the thread for grammars, as a large grammar takes seconds."""
    return await asyncio.get_running_loop().run_in_executor(_forms, work, *arguments)


def give_memory_back() -> None:
    """Return freed memory to the system, where the C library would keep it."""
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(ctypes.util.find_library("c")), "malloc_trim", None)
