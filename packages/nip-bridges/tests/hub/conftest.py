"""A stand-in for the Hub, and a finished run, made once."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
from finished_run import make_run
from hub_server import HubServer, environment_of, hub_here

from nip_core.run_store.run import RunStore
from nip_core.run_store.store import open_store


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """The stand-in, to which this process and those that it starts speak, as ada."""
    for name in ("HUGGING_FACE_HUB_TOKEN", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with hub_here() as server:
        for name, value in environment_of(server, tmp_path / "hf").items():
            monkeypatch.setenv(name, value)
        # The library reads these once, when it is imported.
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
        yield server


@pytest.fixture(scope="session")
async def run(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """The run `quickstart`: one iteration of the bundled tiny model.

    Of processes that run tests beside each other one makes it, and each has a copy.
    """
    own = tmp_path_factory.mktemp("hub") / "runs"
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return await make_run(own)
    made = tmp_path_factory.getbasetemp().parent / "run-of-the-hub"
    made.mkdir(exist_ok=True)
    with (made / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made / "whole").exists():
            await make_run(made / "runs")
            (made / "whole").touch()
    shutil.copytree(made / "runs", own)
    return RunStore(open_store(own), "quickstart")
