"""Nothing is left running when a caller has gone on."""

import asyncio
import threading

import pytest

from nip_core.concurrency import in_thread


async def test_a_caller_that_is_cancelled_waits_for_the_thread():
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert may_end.wait(30)
        ended.set()

    caller = asyncio.create_task(in_thread(work))
    assert await asyncio.to_thread(begun.wait, 30)
    caller.cancel()
    asyncio.get_running_loop().call_later(0.05, may_end.set)
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()


async def test_what_the_thread_raises_is_raised():
    def work() -> None:
        raise ValueError("a")

    with pytest.raises(ValueError, match="a"):
        await in_thread(work)
