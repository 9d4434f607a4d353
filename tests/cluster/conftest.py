"""One Prefect server with nip's deployments for a module; each test starts its own worker."""

from collections.abc import Iterator

import pytest
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings
from prefect_stack import Stack

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("stack"))
    try:
        stack.start_server()
        stack.deploy()
        settings = {
            PREFECT_API_URL: f"{stack.url}/api",
            PREFECT_HOME: stack.folder / "prefect",
        }
        with temporary_settings(settings):
            yield stack
    finally:
        # What this process still has to tell the server would be told to nobody for hours.
        EventsWorker.drain_all(timeout=60)
        stack.close()
