"""One Prefect server and one process of each kind to fork from, for all kills; and the results."""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from killed_results import Results
from killed_runs import KEY, Zygote
from shared_prefect import session_folder, shared_prefect

ROOT = Path(__file__).parents[2]
RESULTS = os.environ.get("NIP_KILL_RESULTS")
"""A directory; where it is given, results are written there."""


@pytest.fixture(scope="session")
def results() -> Iterator[Results]:
    found = Results(Path(RESULTS) if RESULTS else None)
    yield found
    found.save()


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real Prefect server, that of the tests of flows."""
    with shared_prefect(session_folder(tmp_path_factory)) as url:
        yield url


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Of all processes that are to be killed."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "NIP_API_KEY": KEY,
        "NIP_API_KEYS": KEY,
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(scope="session")
def servers(tmp_path_factory, environment: dict[str, str]) -> Iterator[Zygote]:  # type: ignore[no-untyped-def]
    with Zygote("server", tmp_path_factory.mktemp("servers"), environment) as zygote:
        yield zygote


@pytest.fixture(scope="session")
def flows(tmp_path_factory, environment: dict[str, str], prefect_api: str) -> Iterator[Zygote]:  # type: ignore[no-untyped-def]
    home = tmp_path_factory.mktemp("prefect-of-flows")
    own = {"PREFECT_API_URL": prefect_api, "PREFECT_HOME": str(home)}
    with Zygote("flow", home, environment | own) as zygote:
        yield zygote


@pytest.fixture(scope="session")
def prefect_address(prefect_api: str) -> str:
    return urlsplit(prefect_api).netloc
