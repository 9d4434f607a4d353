"""The places where runs are kept: each test that takes `location` or `store` runs on all."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3_server

from nip_core.run_store.store import Store, open_store


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The URL of a bucket, with the environment set so that it can be opened."""
    with s3_server.serve() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield s3_server.make_bucket(environment, "bucket")


@pytest.fixture(params=["disk", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty store can be opened, by this process and others."""
    if request.param == "disk":
        return str(tmp_path / "runs")
    return f"{request.getfixturevalue('s3')}/{uuid.uuid4().hex}"


@pytest.fixture
def store(location: str) -> Store:
    return open_store(location)
