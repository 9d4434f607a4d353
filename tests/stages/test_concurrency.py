"""Nothing is left running when a caller has gone on."""

import asyncio
import threading

import pytest

from nip_core.concurrency import in_thread, with_short


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


@pytest.mark.parametrize("where", ["begin", "go_on", "short", "nowhere", "go_on and short"])
async def test_what_is_short_ends_whatever_comes_of_the_rest(where):
    ended, cancelled = [], []

    async def step(name, value):
        if name in where:
            raise ValueError(name)
        return value

    async def go_on(value):
        if "go_on" in where:
            return await step("go_on", value)
        try:
            await asyncio.sleep(0 if where == "nowhere" else 60)
        except asyncio.CancelledError:
            cancelled.append("go_on")
            raise
        return value + 1

    async def short():
        await asyncio.sleep(0.01)
        ended.append("short")
        return await step("short", "shown")

    work = with_short(step("begin", 1), go_on, short)
    if where == "nowhere":
        assert await work == (2, "shown")
    else:
        with pytest.raises(ValueError, match=where.partition(" ")[0]):
            await work
    assert ended == ["short"]
    assert cancelled == (["go_on"] if where == "short" else [])
