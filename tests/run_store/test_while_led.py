"""What plays a shard for a runner stops when that runner is replaced."""

import asyncio
from pathlib import Path

import pytest

from nip_core.errors import LeaseError, StoreError
from nip_core.run_store.lease import Lease, acquire, borrow
from nip_core.run_store.store import open_store
from nip_core.run_store.while_led import while_led


@pytest.fixture
def leases(tmp_path: Path) -> tuple[Lease, Lease]:
    """A runner's lease, and the same on loan."""
    store = open_store(tmp_path)
    lease = acquire(store, "run", renew=False)
    return lease, borrow(store, "run", lease.lend())


def test_it_stops_asking_when_another_runner_has_the_run(leases: tuple[Lease, Lease]) -> None:
    lease, lent = leases
    asked: list[str] = []

    async def play() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            asked.append("stopped")
            raise

    async def replaced() -> None:
        playing = asyncio.create_task(while_led(lent, play(), every_s=0.01))
        await asyncio.sleep(0.05)
        lease.release()
        await playing

    with pytest.raises(LeaseError, match="epoch 1 is gone"):
        asyncio.run(replaced())
    assert asked == ["stopped"]


def test_it_goes_on_while_the_lease_cannot_be_looked_at(
    leases: tuple[Lease, Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, lent = leases
    looks = []

    def check() -> None:
        looks.append(1)
        raise StoreError("no answer")

    monkeypatch.setattr(lent, "check", check)

    async def play() -> str:
        while len(looks) < 2:
            await asyncio.sleep(0.005)
        return "played"

    assert asyncio.run(while_led(lent, play(), every_s=0.01)) == "played"


def test_what_the_work_raises_comes_through(leases: tuple[Lease, Lease]) -> None:
    async def play() -> None:
        raise StoreError("a full disk")

    with pytest.raises(StoreError, match="a full disk"):
        asyncio.run(while_led(leases[1], play()))
