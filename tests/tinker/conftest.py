"""Tinker's SDK and cookbook, in the environment that scripts/build_tinker.sh builds.

Nothing here skips: without them these tests fail. The server runs in nip's own environment, with the
bundled tiny model under a name whose renderer needs no tokens of its own. `make test-tinker`.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(Path(__file__).parent))

from recipes import KEY, MODEL, Place, free_port, make_place  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.tinker)
            item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A server, and a directory in which recipes find model and data by relative names."""
    directory = tmp_path_factory.mktemp("tinker")
    port, python = free_port(), os.environ.get("NIP_PYTHON") or ROOT / ".venv" / "bin" / "python"
    environment = {**os.environ, "NIP_API_KEYS": KEY, "PYTHONPATH": str(ROOT)}
    command = [
        *(str(python), "-m", "nip_lm_server", "--engine", "embedded", "--model"),
        *(str(ROOT / "nip_core" / "models" / "tiny"), "--served-model-name", MODEL),
        *("--state", str(directory / "state"), "--port", str(port)),
    ]
    with (directory / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=directory)
    try:
        deadline = time.monotonic() + 300
        while b"ready:" not in (directory / "server.log").read_bytes():
            assert server.poll() is None, (directory / "server.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield make_place(directory / "work", f"http://127.0.0.1:{port}", ROOT)
    finally:
        server.terminate()
        server.wait(60)


@pytest.fixture(autouse=True)
def as_a_client(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user of the SDK sets; relative names are found in the place."""
    monkeypatch.chdir(place.directory)
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
