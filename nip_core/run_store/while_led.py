"""Work that a process does for a runner, for as long as the run has the same runner."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

from nip_core.errors import StoreError
from nip_core.run_store.lease import DEFAULT_TTL_S, Lease

T = TypeVar("T")
_log = logging.getLogger(__name__)
_LOOK_EVERY_S = DEFAULT_TTL_S / 3  # at the runner's lease; each look is a request


async def while_led(lease: Lease, work: Awaitable[T], every_s: float = _LOOK_EVERY_S) -> T:
    """Do `work` until the runner that lent the `lease` is replaced or releases it.

    Raises LeaseError then, and stops the work: its answers would be paid for twice, because the
    next runner lets others play the same. A runner that is only silent is waited for.
    """
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=every_s))[0]:
            try:
                await asyncio.to_thread(lease.check)
            except StoreError as error:
                _log.warning("the lease can't be looked at: %s", error)
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
