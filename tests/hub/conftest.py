"""A stand-in for the Hub, and a finished run, made once."""

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
from finished_run import make_run
from hub_server import HubServer, environment_of, hub_here

from nip_core.run_store.run import RunStore


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
    """The run `quickstart`: one iteration of the bundled tiny model."""
    return await make_run(tmp_path_factory.mktemp("hub") / "runs")
