"""One Prefect server and one process of each kind to fork from, for all kills; and the results."""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import prefect.settings
import pytest
from killed_results import Results
from killed_runs import KEY, Zygote
from prefect.settings import get_current_settings, temporary_settings
from prefect.testing.utilities import prefect_test_harness

ROOT = Path(__file__).parents[2]
RESULTS = os.environ.get("NIP_KILL_RESULTS")
"""A directory; where it is given, results are written there."""

_OFF = ("TRIGGERS", "EVENT_PERSISTER", "LATE_RUNS", "SCHEDULER", "FOREMAN")


@pytest.fixture(scope="session")
def results() -> Iterator[Results]:
    found = Results(Path(RESULTS) if RESULTS else None)
    yield found
    found.save()


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real Prefect server; services that no run asks anything of are off."""
    home = tmp_path_factory.mktemp("prefect-home")
    names = [f"PREFECT_SERVER_SERVICES_{name}_ENABLED" for name in _OFF]
    off = {getattr(prefect.settings, name): False for name in names}
    settings = {
        prefect.settings.PREFECT_HOME: home,
        prefect.settings.PREFECT_SERVER_ANALYTICS_ENABLED: False,
        **off,
    }
    with temporary_settings(settings), prefect_test_harness(server_startup_timeout=180):
        yield str(get_current_settings().api.url)


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
