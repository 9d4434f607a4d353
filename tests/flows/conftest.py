"""A real Prefect server for the tests that need one: one for the session, on disk of its own."""

import os
from collections.abc import Iterator

import prefect.settings
import pytest
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_HOME,
    PREFECT_RESULTS_LOCAL_STORAGE_PATH,
    PREFECT_SERVER_ANALYTICS_ENABLED,
    get_current_settings,
    temporary_settings,
)
from prefect.testing.utilities import prefect_test_harness

_OFF = ("TRIGGERS", "LATE_RUNS", "SCHEDULER", "FOREMAN", "CANCELLATION_CLEANUP")
"""Services of the server that no test here asks anything of."""


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the API of a running test server."""
    home = tmp_path_factory.mktemp("prefect-home")
    names = [f"PREFECT_SERVER_SERVICES_{name}_ENABLED" for name in _OFF]
    settings = {
        **{getattr(prefect.settings, name): False for name in names},
        PREFECT_HOME: home,
        PREFECT_RESULTS_LOCAL_STORAGE_PATH: home / "storage",
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
        PREFECT_SERVER_ANALYTICS_ENABLED: False,
    }
    with temporary_settings(settings), prefect_test_harness(server_startup_timeout=180):
        yield str(get_current_settings().api.url or PREFECT_API_URL.value())


@pytest.fixture
def command_environment(prefect_server: str, tmp_path) -> dict[str, str]:
    """Environment for `nip` as a command, against the test server."""
    return {
        **os.environ,
        "PREFECT_API_URL": prefect_server,
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "DO_NOT_TRACK": "1",
    }
