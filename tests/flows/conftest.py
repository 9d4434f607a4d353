"""The Prefect server of the session, for flows in this process and for `nip` as a command."""

import os
import subprocess
from collections.abc import Callable, Iterator

import prefect.context
import pytest
from forked_nip import ForkedNip
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_HOME,
    PREFECT_RESULTS_LOCAL_STORAGE_PATH,
    PREFECT_SERVER_DATABASE_CONNECTION_URL,
    temporary_settings,
)
from shared_prefect import MIGRATED, copy_database, database_url, session_folder, shared_prefect


@pytest.fixture(scope="session")
def nip() -> Iterator[Callable[..., "subprocess.CompletedProcess[str]"]]:
    """Run `nip` with these arguments, without the seconds that it takes to import."""
    with ForkedNip({**os.environ, "COLUMNS": "80"}) as forked:
        yield forked.run


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the API of a real server, which this process then uses."""
    home = tmp_path_factory.mktemp("prefect-home")
    folder = session_folder(tmp_path_factory)
    with shared_prefect(folder) as url:
        settings = {
            PREFECT_API_URL: url,
            PREFECT_HOME: home,
            PREFECT_RESULTS_LOCAL_STORAGE_PATH: home / "storage",
            PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
            PREFECT_SERVER_DATABASE_CONNECTION_URL: database_url(folder),
        }
        with (
            temporary_settings(settings),
            # For threads and tasks, too, whose context is not a copy of this one.
            prefect.context._temporary_global_settings_context(
                prefect.context.get_settings_context()
            ),
        ):
            yield url
            APILogWorker.instance().drain()
            EventsWorker.drain_all()


@pytest.fixture
def command_environment(prefect_server: str, tmp_path) -> dict[str, str]:
    """Environment for `nip` as a command, against the test server."""
    return {
        **os.environ,
        "PREFECT_API_URL": prefect_server,
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "DO_NOT_TRACK": "1",
    }


@pytest.fixture
def own_prefect(prefect_server, tmp_path) -> dict[str, str]:
    """An environment in which `nip` starts a Prefect server, on a database that is there already."""
    home = tmp_path / "prefect"
    home.mkdir()
    copy_database(MIGRATED, home / "prefect.db")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    return {**environment, "PREFECT_HOME": str(home)}
