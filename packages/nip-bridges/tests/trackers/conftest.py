"""Trackers, in the environment that scripts/build_trackers.sh builds (`make test-trackers`).

Nothing here skips: without the packages of all trackers these tests fail.
"""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from small_game import train_here, write_config

from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store

sys.path.append(str(Path(__file__).parent))
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # the store of files is on its way out

RL = {"num_iterations": 2, "rollouts_per_iteration": 40, "num_epochs": 1}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.trackers)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """A run with two jobs in each of two iterations, that no tracker was shown."""
    folder = tmp_path_factory.mktemp("finished")
    asyncio.run(train_here(write_config(folder, rl=RL)))
    return RunStore(open_store(folder / "runs"), "small")
