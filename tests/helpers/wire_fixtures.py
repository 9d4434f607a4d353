"""The misbehaving fine-tuning API of `job_server`, and its time."""

from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestServer
from job_server import FakeTime, WireServer


@pytest.fixture
def fake_time() -> FakeTime:
    return FakeTime()


@pytest.fixture
async def wire(fake_time: FakeTime) -> AsyncIterator[WireServer]:
    server = WireServer(fake_time)
    test_server = TestServer(server.app())
    await test_server.start_server()
    server.url = str(test_server.make_url("/v1"))
    yield server
    await test_server.close()
