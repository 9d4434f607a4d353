"""NeMo Agent Toolkit, in the environment that scripts/build_nat.sh builds (`make test-nat`).

Nothing here skips: without the toolkit these tests fail. The server runs in nip's own environment.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "art"))

from served import Server, running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.nat)


@pytest.fixture(scope="session", autouse=True)
def no_key_of_the_environment() -> None:
    os.environ.pop("NIP_API_KEY", None)


@pytest.fixture(scope="session")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the tiny model, for real training."""
    with running("embedded", "tiny", str(tmp_path_factory.mktemp("server"))) as server:
        yield server
