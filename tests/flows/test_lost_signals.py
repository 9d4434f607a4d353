"""A SIGTERM stops a flow run wherever Prefect's handler has raised it."""

import asyncio
import gc
import os
import signal

import pytest
from prefect.utilities.engine import capture_sigterm

from nip_prefect.tasks.lost_signals import stops_all_the_same


async def in_a_task() -> None:
    """As a library does that writes a request in a task of its own."""

    async def write() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)

    task = asyncio.create_task(write())
    del task  # nobody asks what became of it
    await asyncio.sleep(10)


async def in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
    await asyncio.sleep(10)


async def in_the_garbage_collector() -> None:
    def at_start(phase: str, info: object) -> None:
        gc.callbacks.remove(at_start)
        os.kill(os.getpid(), signal.SIGTERM)

    gc.callbacks.append(at_start)
    gc.collect()
    await asyncio.sleep(10)


@pytest.mark.parametrize("lost", [in_a_task, in_a_callback, in_the_garbage_collector])
async def test_a_signal_that_somebody_elses_code_got_stops_the_run(lost):
    with capture_sigterm(), stops_all_the_same():
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(8):
                await lost()


async def test_other_mishaps_are_told_as_before(caplog):
    with stops_all_the_same():
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(0.05)
    assert "ZeroDivisionError" in caplog.text
